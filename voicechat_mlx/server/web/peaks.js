// A wave as it is drawn: its lowest and highest value in each quarter of a frame, 20 ms. Grows with the talk.

export const PEAKS_PER_FRAME = 4;

export class Peaks {
  constructor(samplesPerFrame) {
    this.size = samplesPerFrame / PEAKS_PER_FRAME;
    this.values = new Float32Array(1024);
    this.samples = 0;
  }

  /** Int16 samples that follow those before. */
  push(pcm) {
    for (const step of pcm) {
      const place = 2 * Math.floor(this.samples++ / this.size);
      if (place >= this.values.length) this.grow();
      const sample = step / 32768;
      if (sample < this.values[place]) this.values[place] = sample;
      if (sample > this.values[place + 1]) this.values[place + 1] = sample;
    }
  }

  /** How many there are. */
  get count() {
    return Math.ceil(this.samples / this.size);
  }

  grow() {
    const larger = new Float32Array(2 * this.values.length);
    larger.set(this.values);
    this.values = larger;
  }
}
