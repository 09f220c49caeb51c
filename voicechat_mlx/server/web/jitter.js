// Sound that comes in uneven steps of 80 ms → an even stream. Pure arithmetic, used in the playback worklet.
//
// `target` is what is wanted right after a step has come: one step, and a reserve against lateness. It grows when the
// buffer runs dry and shrinks when all has been well for a while. What is too much is left out where it is quiet.

const STEP_SECONDS = 0.08;
const LEAST_SECONDS = 0.08;
const MOST_SECONDS = 0.16;
const FIRST_SECONDS = 0.12;
const GROWTH_SECONDS = 0.02;
const CALM_SECONDS = 10; // without a gap, then the target shrinks by one growth
const WATCH_SECONDS = 1; // the lowest fill of so long says what is too much
const TOLERATED_SECONDS = 0.04;
const HARD_LIMIT_SECONDS = 0.6; // beyond, sound is left out even where it is not quiet
const CAPACITY_SECONDS = 10;
const QUIET = 0.01;
const FADE = 64; // samples

export class JitterBuffer {
  constructor(rate) {
    this.rate = rate;
    this.ring = new Float32Array(CAPACITY_SECONDS * rate);
    this.read = 0; // place in the conversation of the next sample to be heard; what was left out counts as heard
    this.written = 0;
    this.target = FIRST_SECONDS;
    this.underruns = 0;
    this.leftOut = 0;
    this.flowing = false;
    this.ended = false;
    this.waited = 0;
    this.calm = 0;
    this.surplus = 0;
    this.watch();
  }

  get fill() {
    return this.written - this.read;
  }

  get drained() {
    return this.ended && this.fill === 0;
  }

  push(samples) {
    for (const sample of samples) this.ring[this.written++ % this.ring.length] = sample;
    if (this.fill > this.ring.length) this.skip(this.fill - this.ring.length);
  }

  /** Nothing follows: what is there is played to its end. */
  end() {
    this.ended = true;
  }

  /** Fill `output` with what is to be heard now. */
  pull(output) {
    output.fill(0);
    if (!this.flowing) this.flowing = this.mayFlow(output.length);
    if (!this.flowing) return;
    this.shed(output.length);
    const count = Math.min(output.length, this.fill);
    for (let n = 0; n < count; n++) output[n] = this.ring[(this.read + n) % this.ring.length];
    this.read += count;
    if (count < output.length) this.runDry(output, count);
    else this.remember(output.length);
  }

  mayFlow(count) {
    if (this.ended) return this.fill > 0;
    if (this.fill < STEP_SECONDS * this.rate) return false;
    if (this.waited >= (this.target - STEP_SECONDS) * this.rate) return true;
    this.waited += count;
    return false;
  }

  runDry(output, count) {
    const faded = Math.min(FADE, count);
    for (let n = 0; n < faded; n++) output[count - 1 - n] *= n / faded; // no click
    this.flowing = false;
    this.waited = 0;
    this.calm = 0;
    this.surplus = 0;
    this.watch();
    if (this.ended) return;
    this.underruns++;
    this.target = Math.min(MOST_SECONDS, this.target + GROWTH_SECONDS);
  }

  /** Learn from what is left after a pull. */
  remember(count) {
    this.lowest = Math.min(this.lowest, this.fill);
    this.watched += count;
    this.calm += count;
    if (this.watched >= WATCH_SECONDS * this.rate) {
      const reserve = (this.target - STEP_SECONDS) * this.rate;
      const tooMuch = this.lowest - reserve;
      this.surplus = tooMuch > TOLERATED_SECONDS * this.rate && !this.ended ? tooMuch : 0;
      this.watch();
    }
    if (this.calm >= CALM_SECONDS * this.rate) {
      this.calm = 0;
      this.target = Math.max(LEAST_SECONDS, this.target - GROWTH_SECONDS);
    }
  }

  watch() {
    this.lowest = Infinity;
    this.watched = 0;
  }

  /** Leave out what is too much: where it is quiet, or at once when it is very much. */
  shed(count) {
    if (this.surplus > HARD_LIMIT_SECONDS * this.rate) {
      this.skip(Math.floor(this.surplus));
      this.surplus = 0;
    }
    while (this.surplus >= count && this.fill > count && this.isQuiet(count)) {
      this.skip(count);
      this.surplus -= count;
    }
  }

  isQuiet(count) {
    for (let n = 0; n < count; n++) {
      if (Math.abs(this.ring[(this.read + n) % this.ring.length]) > QUIET) return false;
    }
    return true;
  }

  /** Go on `count` samples later, fading from here to there. */
  skip(count) {
    const faded = Math.max(0, Math.min(FADE, this.fill - count));
    for (let n = 0; n < faded; n++) {
      const there = (this.read + count + n) % this.ring.length;
      const here = this.ring[(this.read + n) % this.ring.length];
      this.ring[there] = here + ((this.ring[there] - here) * n) / faded;
    }
    this.read += count;
    this.leftOut += count;
  }
}
