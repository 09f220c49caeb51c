// Runs on the audio thread: what the server sends → an even stream, and a report of how that goes.

import { JitterBuffer } from "./jitter.js";

const REPORT_SECONDS = 0.05;

class Playback extends AudioWorkletProcessor {
  constructor() {
    super();
    this.buffer = new JitterBuffer(sampleRate);
    this.sinceReport = 0;
    this.port.onmessage = ({ data }) => (data === "end" ? this.buffer.end() : this.buffer.push(data));
  }

  process(_, [[output]]) {
    this.buffer.pull(output);
    this.sinceReport += output.length;
    const { read, fill, target, underruns, leftOut, drained, rate } = this.buffer;
    if (drained || this.sinceReport >= REPORT_SECONDS * rate) {
      this.sinceReport = 0;
      const seconds = { played: read / rate, waiting: fill / rate, target, leftOut: leftOut / rate };
      this.port.postMessage({ ...seconds, underruns, drained });
    }
    return !drained;
  }
}

registerProcessor("playback", Playback);
