// Deltas → words that stand at the frame where they began, and words → phrases. The first draws the timeline, the
// second is read: on the page, by a screen reader, and in nobody's way while it grows.

const PAUSE_FRAMES = 12; // about a second without text ends a phrase

export class Words {
  constructor() {
    this.list = []; // { text, frame }; all but the last are complete
    this.open = false;
  }

  push(text, frame) {
    for (const piece of text.match(/\s+|\S+/g) ?? []) {
      if (!piece.trim()) this.open = false;
      else if (this.open) this.list.at(-1).text += piece;
      else this.list.push({ text: piece, frame });
      this.open = Boolean(piece.trim());
    }
  }
}

export class Phrases {
  /** `onGrow(phrase, isNew)` and `onEnd(phrase)`; a phrase is { who, text, frame, last }. */
  constructor(onGrow, onEnd) {
    this.onGrow = onGrow;
    this.onEnd = onEnd;
    this.open = {}; // who → phrase
  }

  push(who, text, frame) {
    this.pass(frame);
    const isNew = !this.open[who];
    if (isNew && !text.trim()) return;
    const phrase = (this.open[who] ??= { who, text: "", frame });
    phrase.text += text;
    phrase.last = frame;
    this.onGrow(phrase, isNew);
  }

  /** Time has come to this frame. */
  pass(frame) {
    for (const phrase of Object.values(this.open)) if (frame - phrase.last > PAUSE_FRAMES) this.close(phrase);
  }

  /** No text follows. */
  end() {
    Object.values(this.open).forEach((phrase) => this.close(phrase));
  }

  close(phrase) {
    delete this.open[phrase.who];
    this.onEnd(phrase);
  }
}
