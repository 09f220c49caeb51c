// Where words stand on the timeline: at the frame in which they began, in the first row that has room there, else
// as near as possible. A word keeps its place for good, so nothing jumps while the talk goes on.

const GAP = 7; // pixels between two words of a row

export class WordLayout {
  /** `words`: see words.js. `width(text)` in pixels. */
  constructor(words, rows, width, pixelsPerFrame) {
    Object.assign(this, { words, rows, width, pixelsPerFrame });
    this.ends = new Array(rows).fill(-Infinity); // of what is complete
    this.placed = []; // { text, origin, left, row, right }; origin is the frame's own place
  }

  /** Take in what was said since; all places, the last one still open. */
  update() {
    const { list } = this.words;
    while (this.placed.length < list.length - 1) {
      const place = this.find(list[this.placed.length]);
      this.ends[place.row] = place.right;
      this.placed.push(place);
    }
    this.last = list.length ? this.find(list.at(-1)) : null;
  }

  find({ text, frame }) {
    const origin = frame * this.pixelsPerFrame;
    const free = this.ends.findIndex((end) => end + GAP <= origin);
    const row = free >= 0 ? free : this.ends.indexOf(Math.min(...this.ends));
    const left = Math.max(origin, this.ends[row] + GAP);
    return { text, origin, left, row, right: left + this.width(text) };
  }

  /** Those that are seen between two places, in pixels from the talk's beginning. */
  *between(begin, end) {
    for (let n = this.firstAfter(begin); n < this.placed.length && this.placed[n].origin <= end; n++) {
      yield this.placed[n];
    }
    if (this.last && this.last.right >= begin && this.last.origin <= end) yield this.last;
  }

  /** By bisection over origins, with room for words that began before and reach into view. */
  firstAfter(begin) {
    let [low, high] = [0, this.placed.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.placed[middle].origin < begin - 600) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
