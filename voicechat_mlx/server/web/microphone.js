// The microphone: asked for with echo cancellation, turned into PCM16 at 16 000 Hz by a worklet.

import { Trouble } from "./trouble.js";

export class Microphone {
  constructor() {
    if (!navigator.mediaDevices?.getUserMedia || !window.AudioWorkletNode) throw new Trouble("insecure");
    this.context = new AudioContext({ latencyHint: "interactive" }); // made while the click that asked for it lasts
  }

  /** Ask for it. `device` is an id of `devices.js`, empty for the browser's choice; `onLost` hears of its end. */
  async open(device, onLost) {
    const wishes = { echoCancellation: true, noiseSuppression: true, autoGainControl: true, channelCount: 1 };
    const audio = device ? { ...wishes, deviceId: { exact: device } } : wishes;
    this.stream = await navigator.mediaDevices.getUserMedia({ audio });
    this.stream.getAudioTracks()[0].addEventListener("ended", onLost);
    await this.context.audioWorklet.addModule("capture-worklet.js");
  }

  /** Hand over what is heard from now on: `onSamples(Int16Array)`. */
  async start(onSamples) {
    this.node = new AudioWorkletNode(this.context, "capture");
    this.node.port.onmessage = ({ data }) => onSamples(data);
    this.context.createMediaStreamSource(this.stream).connect(this.node);
    this.node.connect(this.context.destination); // silence; some browsers run only what leads somewhere
    await this.context.resume();
  }

  stop() {
    if (this.node) this.node.port.onmessage = null;
    this.stream?.getTracks().forEach((track) => track.stop());
    if (this.context.state !== "closed") this.context.close();
  }
}
