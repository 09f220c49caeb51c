// Changes the sample rate of a stream: a windowed sinc, one row of taps for each position between two input samples.
// Pure arithmetic, used in the capture worklet and for saving. Output sample j stands at input time j · from / to.

const ZERO_CROSSINGS = 32; // on each side, counted at the lower rate: the transition band is 18 % of its Nyquist
const KAISER_BETA = 9; // stop band at −90 dB
const CUTOFF = 0.91; // of the lower Nyquist, the middle of the transition band, which so ends at Nyquist

export class Resampler {
  constructor(from, to) {
    const divisor = greatestCommonDivisor(from, to);
    this.up = to / divisor;
    this.down = from / divisor;
    const narrowing = Math.min(1, to / from);
    this.half = Math.ceil(ZERO_CROSSINGS / narrowing);
    this.taps = makeTaps(this.up, this.half, narrowing * CUTOFF);
    this.waiting = new Float32Array(this.half - 1); // silence before the first sample
    this.base = 1 - this.half; // input index of waiting[0]
    this.taken = 0;
    this.made = 0;
  }

  /** Float32 samples of any number → those that they complete. How the input is cut never changes the output. */
  push(samples) {
    const input = new Float32Array(this.waiting.length + samples.length);
    input.set(this.waiting);
    input.set(samples, this.waiting.length);
    this.taken += samples.length;
    const last = this.base + input.length - 1 - this.half; // the last place between samples that is complete
    const count = Math.max(0, Math.ceil(((last + 1) * this.up) / this.down) - this.made);
    const output = new Float32Array(count);
    const width = 2 * this.half;
    for (let n = 0; n < count; n++) {
      const place = (this.made + n) * this.down;
      const phase = place % this.up;
      const begin = (place - phase) / this.up - this.half + 1 - this.base;
      const row = phase * width;
      let sum = 0;
      for (let k = 0; k < width; k++) sum += this.taps[row + k] * input[begin + k];
      output[n] = sum;
    }
    this.made += count;
    const next = Math.floor((this.made * this.down) / this.up) - this.half + 1;
    this.waiting = input.slice(Math.min(next - this.base, input.length));
    this.base = next;
    return output;
  }

  /** What is left after the last push, so that n input samples have given round(n · to / from). */
  finish() {
    const wanted = Math.round((this.taken * this.up) / this.down) - this.made;
    return this.push(new Float32Array(2 * this.half + Math.ceil(this.down / this.up))).slice(0, Math.max(0, wanted));
  }
}

/** [up, 2 · half]: row p weighs the input around a place p / up after a sample. `cutoff` in input Nyquists. */
function makeTaps(up, half, cutoff) {
  const taps = new Float32Array(up * 2 * half);
  for (let phase = 0; phase < up; phase++) {
    const row = taps.subarray(phase * 2 * half, (phase + 1) * 2 * half);
    for (let k = 0; k < row.length; k++) {
      const distance = k - half + 1 - phase / up;
      row[k] = sinc(cutoff * distance) * kaiser(distance / half);
    }
    const sum = row.reduce((total, tap) => total + tap, 0);
    for (let k = 0; k < row.length; k++) row[k] /= sum; // a constant stays the same constant
  }
  return taps;
}

function sinc(x) {
  return x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x);
}

function kaiser(x) {
  return Math.abs(x) > 1 ? 0 : bessel(KAISER_BETA * Math.sqrt(1 - x * x)) / bessel(KAISER_BETA);
}

/** The modified Bessel function of order 0, by its power series. */
function bessel(x) {
  let sum = 1;
  for (let term = 1, k = 1; term > 1e-12 * sum; k++) {
    term *= (x / (2 * k)) ** 2;
    sum += term;
  }
  return sum;
}

function greatestCommonDivisor(a, b) {
  return b === 0 ? a : greatestCommonDivisor(b, a % b);
}
