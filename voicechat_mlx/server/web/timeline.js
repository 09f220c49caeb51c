// The talk as a picture: time runs to the right, one cell is a frame of 80 ms. The user is above the line, the answer
// below, words stand where they were spoken. While talking it runs along; later it can be moved by hand.

import { WordLayout } from "./layout.js";
import { PEAKS_PER_FRAME } from "./peaks.js";
import { FRAME_SECONDS } from "./session.js";
import { clock } from "./transcript.js";

const SCALES = [2, 4, 8, 12, 16]; // pixels a frame
const HEAD_ROOM = 0.12; // of the width, right of the present
const FONT = 14;
const ROW = 20; // pixels, as all that follow
const AXIS = 14; // from the middle to a wave
const LABEL = 24; // for the name of a side
const FUNCTION_ROW = 26;
const CALM = matchMedia("(prefers-reduced-motion: reduce)");

export class Timeline {
  /** `style`: the element whose custom properties hold the colours and fonts. */
  constructor(canvas, style) {
    this.canvas = canvas;
    this.style = style;
    this.pen = canvas.getContext("2d");
    this.scale = 2;
    this.session = null;
    this.following = true;
    this.begin = 0; // seconds at the left edge
    new ResizeObserver(() => this.resize()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.resize());
  }

  /** Show this talk from now on. `heardSeconds()` is what has come out of the loudspeaker. */
  show(session) {
    this.session = session;
    this.following = true;
    this.begin = 0;
    this.layOut();
    this.draw();
  }

  get pixelsPerSecond() {
    return SCALES[this.scale] / FRAME_SECONDS;
  }

  get seconds() {
    return this.session ? Math.max(this.session.inputSeconds, this.session.outputSeconds) : 0;
  }

  /** Seconds that are seen at once. */
  get span() {
    return this.width / this.pixelsPerSecond;
  }

  /** Move by so many seconds. */
  move(seconds) {
    const last = Math.max(0, this.seconds - this.span * (1 - HEAD_ROOM));
    this.begin = Math.min(last, Math.max(0, this.begin + seconds));
    this.following = this.begin >= last;
    this.draw();
  }

  /** One step nearer (+1) or farther (-1), about the middle. */
  zoom(steps) {
    const middle = this.begin + this.span / 2;
    this.scale = Math.min(SCALES.length - 1, Math.max(0, this.scale + steps));
    this.layOut();
    this.begin = middle - this.span / 2;
    this.move(0);
  }

  resize() {
    const { clientWidth, clientHeight } = this.canvas;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(clientWidth * ratio);
    this.canvas.height = Math.round(clientHeight * ratio);
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.width = clientWidth;
    this.height = clientHeight;
    this.middle = Math.round((clientHeight - FUNCTION_ROW) / 2);
    this.wave = Math.round(Math.min(44, clientHeight * 0.1)); // half its height
    this.edge = AXIS + 2 * this.wave + 8; // from the middle to the nearest words
    const style = getComputedStyle(this.style);
    const read = (name) => style.getPropertyValue(name).trim();
    this.colors = Object.fromEntries(
      ["paper", "ink", "muted", "rule", "grid", "user", "assistant", "function"].map((name) => [name, read(`--${name}`)]),
    );
    this.fonts = { words: `${FONT}px ${read("--serif")}`, small: `11px ${read("--sans")}`, code: `12px ${read("--mono")}` };
    this.layOut();
    this.draw();
  }

  /** Places of the rows, from the middle outwards; words get what height there is. */
  layOut() {
    if (!this.session || !this.width) return;
    const room = this.middle - this.edge - LABEL; // above as below
    const rows = Math.max(1, Math.floor(room / ROW));
    const make = (words, count, font) => {
      const width = (text) => ((this.pen.font = font), this.pen.measureText(text).width);
      return new WordLayout(words, count, width, SCALES[this.scale]);
    };
    this.rows = {
      user: make(this.session.words.user, rows, this.fonts.words),
      assistant: make(this.session.words.assistant, rows, this.fonts.words),
      function: make(this.session.words.function, 1, this.fonts.code),
    };
  }

  draw() {
    const { pen, width, height } = this;
    if (!width) return;
    pen.clearRect(0, 0, width, height);
    this.follow();
    this.drawGrid();
    if (!this.session) return;
    const { inputPeaks, outputPeaks, playback } = this.session;
    const offset = AXIS + this.wave;
    this.drawWords("user", this.middle - this.edge, -1);
    this.drawWords("assistant", this.middle + this.edge, 1);
    this.drawWords("function", height - FUNCTION_ROW / 2, 1);
    this.drawWave(inputPeaks, this.middle - offset, this.colors.user);
    this.drawWave(outputPeaks, this.middle + offset, this.colors.assistant);
    this.drawHead(this.session.inputSeconds, -1, this.colors.user);
    this.drawHead(Math.min(playback.played, this.session.outputSeconds), 1, this.colors.assistant);
  }

  follow() {
    if (!this.following) return;
    const wanted = Math.max(0, this.seconds - this.span * (1 - HEAD_ROOM));
    const step = CALM.matches ? this.span / 2 : 0; // half a screen at a time where motion is unwelcome
    this.begin = step ? Math.ceil(wanted / step) * step : wanted;
  }

  place(seconds) {
    return (seconds - this.begin) * this.pixelsPerSecond;
  }

  drawGrid() {
    const { pen, width, middle, colors } = this;
    const everyLabel = this.pixelsPerSecond < 40 ? 5 : 1;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.font = this.fonts.small;
    const first = Math.floor(this.begin / FRAME_SECONDS);
    const last = Math.ceil((this.begin + this.span) / FRAME_SECONDS);
    pen.fillStyle = colors.rule;
    if (SCALES[this.scale] >= 4) {
      for (let frame = first; frame <= last; frame++) pen.fillRect(this.place(frame * FRAME_SECONDS), middle - 2, 1, 4);
    } else pen.fillRect(0, middle, width, 1);
    for (let second = Math.max(0, Math.floor(this.begin)); second <= this.begin + this.span; second++) {
      const x = Math.round(this.place(second));
      pen.fillStyle = colors.grid;
      pen.fillRect(x, 0, 1, this.height);
      if (second % everyLabel) continue;
      const label = clock(second);
      const wide = pen.measureText(label).width;
      pen.fillStyle = colors.paper;
      pen.fillRect(x + 1, middle - 8, wide + 8, 16);
      pen.fillStyle = colors.muted;
      pen.fillText(label, x + 4, middle + 0.5);
    }
  }

  drawWave(peaks, y, color) {
    const { pen } = this;
    const each = SCALES[this.scale] / PEAKS_PER_FRAME;
    const perSecond = PEAKS_PER_FRAME / FRAME_SECONDS;
    const first = Math.max(0, Math.floor(this.begin * perSecond));
    const last = Math.min(peaks.count, Math.ceil((this.begin + this.span) * perSecond));
    pen.fillStyle = color;
    for (let n = first; n < last; n++) {
      const low = loudness(peaks.values[2 * n]) * this.wave;
      const high = loudness(peaks.values[2 * n + 1]) * this.wave;
      pen.fillRect(this.place(n / perSecond), y - high - 0.5, Math.max(0.5, each - 0.4), high - low + 1);
    }
  }

  /** The rows of one side, from `edge` away from the line (direction -1 up, 1 down), each word on its stem. */
  drawWords(who, edge, direction) {
    const { pen, colors } = this;
    const layout = this.rows[who];
    layout.update();
    const shift = this.begin * this.pixelsPerSecond;
    const seen = [...layout.between(shift, shift + this.width)];
    const baseline = (row) => edge + direction * (row + 0.5) * ROW;
    const isCode = who === "function";
    pen.font = isCode ? this.fonts.code : this.fonts.words;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.strokeStyle = colors.rule;
    pen.lineWidth = 1;
    pen.beginPath();
    if (!isCode) {
      for (const { origin, left, row } of seen) {
        pen.moveTo(Math.round(origin - shift) + 0.5, edge - direction * 4);
        pen.lineTo(Math.round(left - shift) + 0.5, baseline(row));
      }
    }
    pen.stroke();
    for (const { text, left, right, row } of seen) {
      const y = isCode ? edge : baseline(row);
      pen.fillStyle = colors.paper;
      pen.fillRect(left - shift - 1, y - ROW / 2 + 2, right - left + 3, ROW - 4);
      pen.fillStyle = isCode ? colors.function : colors.ink;
      pen.fillText(text, left - shift, y + 0.5);
    }
  }

  /** How far one side has come: the microphone above the line, the loudspeaker below. Between them lies the delay. */
  drawHead(seconds, direction, color) {
    const { pen, middle, wave } = this;
    const x = Math.round(this.place(seconds)) + 0.5;
    pen.strokeStyle = pen.fillStyle = color;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(x, middle + direction * 4);
    pen.lineTo(x, middle + direction * (AXIS + 2 * wave));
    pen.stroke();
    pen.beginPath();
    pen.arc(x, middle + direction * 4, 2.5, 0, 7);
    pen.fill();
  }
}

/** Sample → height: quiet speech is to be seen, too. */
function loudness(sample) {
  return Math.sign(sample) * Math.abs(sample) ** 0.6;
}
