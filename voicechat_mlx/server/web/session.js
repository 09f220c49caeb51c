// Everything that one talk was made of: what was sent, what came, and when. Draws nothing and plays nothing.

import { fromPcm16, joined, stereoWav, toPcm16 } from "./pcm.js";
import { Peaks } from "./peaks.js";
import { OUTPUT_RATE } from "./player.js";
import { Resampler } from "./resampler.js";
import { Words } from "./words.js";

export const INPUT_RATE = 16000;
export const FRAME_SECONDS = 0.08;
const INPUT_FRAME = INPUT_RATE * FRAME_SECONDS;
const OUTPUT_FRAME = Math.round(OUTPUT_RATE * FRAME_SECONDS);
const LOOKAHEAD = 201; // samples of the next frame that the model needs to answer one
const CHANNELS = {
  "conversation.item.input_audio_transcription.delta": "user",
  "response.output_audio_transcript.delta": "assistant",
  "voicechat.function_text.delta": "function",
};

/** Whose text an event holds: "user", "assistant", "function", or undefined. */
export function channelOf(event) {
  return CHANNELS[event.type];
}

export class Session {
  constructor() {
    this.started = new Date();
    this.input = [];
    this.output = [];
    this.inputPeaks = new Peaks(INPUT_FRAME);
    this.outputPeaks = new Peaks(OUTPUT_FRAME);
    this.words = { user: new Words(), assistant: new Words(), function: new Words() };
    this.events = [];
    this.timing = [];
    this.playback = { played: 0, underruns: 0 };
    this.described = {};
    this.summary = null;
    this.completed = []; // per frame: when the samples that complete it were sent, in ms of performance.now()
  }

  /** Samples that are being sent now. */
  sent(pcm, now) {
    this.input.push(pcm);
    this.inputPeaks.push(pcm);
    while (this.inputPeaks.samples >= this.completed.length * INPUT_FRAME + LOOKAHEAD) this.completed.push(now);
  }

  /** Samples of the answer. */
  heard(pcm) {
    this.output.push(pcm);
    this.outputPeaks.push(pcm);
  }

  /** An event of the server that is to be kept; audio goes to `heard`. */
  took(event, now) {
    const channel = channelOf(event);
    if (channel) {
      this.words[channel].push(event.delta, event.frame);
      this.events.push({ type: channel, frame: event.frame, text: event.delta });
    } else if (event.type === "voicechat.frame") {
      const { frame, seconds, backlog_seconds } = event;
      const reply = now - (this.completed[frame] ?? now);
      this.timing.push({ frame, seconds, backlog_seconds, reply_seconds: Math.round(reply) / 1000 });
    } else if (event.type === "response.output_item.done" && event.item.type === "function_call") {
      const { call_id, name, arguments: text } = event.item;
      this.events.push({ type: "function_call", frame: this.frame, call_id, name, arguments: text });
    } else if (event.type === "response.done") {
      const { id, status } = event.response;
      this.events.push({ type: "turn_end", frame: this.frame, id, status });
    } else if (event.type === "error") {
      this.events.push({ type: "error", frame: this.frame, ...event.error });
    } else if (event.type === "voicechat.finished") {
      this.summary = event;
    } else if (event.type === "session.updated") {
      this.described = event.session;
    }
  }

  /** The result of a call. */
  gave(call_id, output) {
    this.events.push({ type: "function_call_output", frame: this.frame, call_id, output });
  }

  /** The latest that was answered. */
  get frame() {
    return this.timing.at(-1)?.frame ?? 0;
  }

  get inputSeconds() {
    return this.inputPeaks.samples / INPUT_RATE;
  }

  get outputSeconds() {
    return this.outputPeaks.samples / OUTPUT_RATE;
  }

  get isEmpty() {
    return this.input.length === 0;
  }

  /** Seconds between microphone and loudspeaker, the same place of the talk, at this moment. */
  get delaySeconds() {
    return Math.max(0, this.inputSeconds - this.playback.played);
  }

  /** Both sides as one file at the model's output rate: the user left, the answer, sample for sample, right. */
  wav() {
    const resampler = new Resampler(INPUT_RATE, OUTPUT_RATE);
    const pieces = this.input.map((pcm) => toPcm16(resampler.push(fromPcm16(pcm))));
    pieces.push(toPcm16(resampler.finish()));
    return stereoWav(joined(pieces), joined(this.output), OUTPUT_RATE);
  }

  /** All that was said and measured, with the frame of each. */
  json() {
    const text = (channel) => this.events.filter(({ type }) => type === channel).map((event) => event.text).join("");
    const { played, underruns, leftOut = 0, target = null } = this.playback;
    const values = {
      format: "voicechat-session",
      version: 1,
      started: this.started.toISOString(),
      model: this.described.model,
      instructions: this.described.instructions,
      seed: this.described.voicechat?.seed,
      frame_seconds: FRAME_SECONDS,
      frames: this.summary?.frames ?? this.timing.length,
      input_seconds: this.inputSeconds,
      complete: this.summary !== null,
      transcript: this.summary?.transcript ?? text("user"),
      text: this.summary?.text ?? text("assistant"),
      function_text: this.summary?.function_text ?? text("function"),
      events: this.events,
      timing: this.timing,
      playback: { played_seconds: played, underruns, left_out_seconds: leftOut, target_seconds: target },
    };
    return new Blob([JSON.stringify(values, null, 1)], { type: "application/json" });
  }
}
