// The talk as a list to read: a line for each phrase, with its time. It is also the timeline's text alternative.
//
// A screen reader would stammer if it read a line that grows piece by piece, so it is told of whole phrases instead.

import { FRAME_SECONDS } from "./session.js";
import { Phrases } from "./words.js";

const NAMES = { user: "You", assistant: "Answer", function: "Function" };

export class Transcript {
  /** `list` is shown, `log` is a live region for screen readers, `empty` stands there before anything is said. */
  constructor({ list, log, empty }) {
    Object.assign(this, { list, log, empty });
    this.clear();
  }

  clear() {
    this.list.replaceChildren();
    this.log.replaceChildren();
    this.empty.hidden = false;
    this.lines = new Map();
    this.phrases = new Phrases(
      (phrase) => this.show(phrase),
      (phrase) => this.tell(phrase),
    );
  }

  show(phrase) {
    let words = this.lines.get(phrase);
    if (!words) {
      const line = document.createElement("li");
      line.className = phrase.who;
      const seconds = phrase.frame * FRAME_SECONDS;
      const time = element("time", clock(seconds), { dateTime: `PT${seconds.toFixed(2)}S` });
      words = element("span", "", { className: "words" });
      line.append(time, element("b", NAMES[phrase.who]), words);
      this.place(line, phrase.frame);
      this.lines.set(phrase, words);
      this.empty.hidden = true;
    }
    const pinned = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 40;
    words.textContent = phrase.text.trim();
    if (pinned) this.list.scrollTop = this.list.scrollHeight;
  }

  /** In the order of time: texts of the two sides come at slightly different moments. */
  place(line, frame) {
    line.dataset.frame = frame;
    const later = [...this.list.children].slice(-8).find((other) => Number(other.dataset.frame) > frame);
    this.list.insertBefore(line, later ?? null);
  }

  tell(phrase) {
    this.lines.delete(phrase);
    this.log.append(element("p", `${NAMES[phrase.who]}: ${phrase.text.trim()}`));
    while (this.log.children.length > 20) this.log.firstChild.remove();
  }
}

/** Seconds as 1:05. */
export function clock(seconds) {
  return `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
}

function element(name, text, properties = {}) {
  return Object.assign(document.createElement(name), { textContent: text, ...properties });
}
