// Runs on the audio thread: the microphone at whatever rate the browser has → PCM16 at 16 000 Hz, 20 ms a message.

import { Resampler } from "./resampler.js";
import { toPcm16 } from "./pcm.js";

const RATE = 16000;
const MESSAGE_SAMPLES = 320; // 20 ms: a frame leaves soon after it is complete

class Capture extends AudioWorkletProcessor {
  constructor() {
    super();
    this.resampler = sampleRate === RATE ? null : new Resampler(sampleRate, RATE);
    this.message = new Float32Array(MESSAGE_SAMPLES);
    this.filled = 0;
  }

  process([channels]) {
    if (channels.length === 0) return true;
    const mono = channels.length === 1 ? channels[0] : mean(channels);
    const samples = this.resampler ? this.resampler.push(mono) : mono;
    for (const sample of samples) {
      this.message[this.filled++] = sample;
      if (this.filled === MESSAGE_SAMPLES) {
        this.filled = 0;
        const pcm = toPcm16(this.message);
        this.port.postMessage(pcm, [pcm.buffer]);
      }
    }
    return true;
  }
}

function mean(channels) {
  return channels[0].map((_, n) => channels.reduce((sum, channel) => sum + channel[n], 0) / channels.length);
}

registerProcessor("capture", Capture);
