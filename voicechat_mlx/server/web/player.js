// The loudspeaker: PCM16 at 22 050 Hz into a worklet with a jitter buffer.

import { fromPcm16 } from "./pcm.js";

export const OUTPUT_RATE = 22050;

export class Player {
  constructor() {
    this.context = new AudioContext({ sampleRate: OUTPUT_RATE, latencyHint: "interactive" });
    this.volume = new GainNode(this.context);
    this.volume.connect(this.context.destination);
    this.drained = new Promise((resolve) => (this.onDrained = resolve));
  }

  /** `onReport` hears twenty times a second how playing goes, see playback-worklet.js. */
  async open(onReport) {
    await this.context.audioWorklet.addModule("playback-worklet.js");
    this.node = new AudioWorkletNode(this.context, "playback", { numberOfInputs: 0, outputChannelCount: [1] });
    this.node.port.onmessage = ({ data }) => {
      onReport(data);
      if (data.drained) this.onDrained();
    };
    this.node.connect(this.volume);
    await this.context.resume();
  }

  push(pcm) {
    const samples = fromPcm16(pcm);
    this.node.port.postMessage(samples, [samples.buffer]);
  }

  /** Nothing follows; resolves when all has been heard. */
  end() {
    this.node.port.postMessage("end");
    return this.drained;
  }

  setVolume(volume) {
    this.volume.gain.value = volume;
  }

  /** An id of `devices.js`, empty for the browser's choice; does nothing where browsers cannot choose. */
  async setDevice(device) {
    if (this.context.setSinkId) await this.context.setSinkId(device).catch(() => this.context.setSinkId(""));
  }

  /** Seconds that the system itself takes between this page and the air. */
  get outputLatency() {
    return this.context.outputLatency || this.context.baseLatency || 0;
  }

  stop() {
    if (this.context.state !== "closed") this.context.close();
  }
}
