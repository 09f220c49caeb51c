// One talk from the press of the button to its last sound: microphone → server → loudspeaker.
//
// States: connecting → loading (only when the model is) → talking → ending → over.

import { Connection, knock } from "./connection.js";
import { Microphone } from "./microphone.js";
import { fromBase64, toBase64 } from "./pcm.js";
import { OUTPUT_RATE, Player } from "./player.js";
import { INPUT_RATE, Session } from "./session.js";
import { callTool, TOOLS } from "./tools.js";
import { Trouble } from "./trouble.js";

const pcmFormat = (rate) => ({ format: { type: "audio/pcm", rate } });

export class Talk {
  /**
   * `wishes`: { instructions, tools, token, microphone, speaker, volume }. `hears`: { onState(name), onEvent(event),
   * onWarning(trouble), onOver(trouble or null) }.
   */
  constructor(wishes, hears) {
    this.wishes = wishes;
    this.hears = hears;
    this.session = new Session();
    this.state = "new";
  }

  /** Never throws: what goes wrong is told to `onOver`. */
  async start() {
    this.become("connecting");
    try {
      this.microphone = new Microphone();
      this.player = new Player();
      this.player.setVolume(this.wishes.volume);
      await knock(this.wishes.token);
      const lost = () => this.microphoneLost();
      await Promise.all([this.microphone.open(this.wishes.microphone, lost), this.openPlayer()]);
      if (this.state !== "connecting") return this.release(); // stopped meanwhile
      const onEvent = (event) => this.take(event, performance.now());
      this.connection = new Connection(this.wishes.token, onEvent, (trouble) => this.closed(trouble));
    } catch (error) {
      this.over(error);
      this.release(); // also when it was over before: what came meanwhile is let go
    }
  }

  /** Say no more, and hear the answer to its end. A second time: at once. */
  stop() {
    if (this.state === "talking") {
      this.become("ending");
      this.microphone.stop();
      this.connection.send("voicechat.finish", { extra_seconds: 0 });
    } else this.over(this.trouble ?? null);
  }

  async openPlayer() {
    await this.player.open((report) => (this.session.playback = report));
    await this.player.setDevice(this.wishes.speaker);
  }

  take(event, now) {
    if (this.state === "over") return;
    this.session.took(event, now);
    if (event.type === "voicechat.loading") this.become("loading");
    else if (event.type === "session.created") this.greet();
    else if (event.type === "session.updated") this.begin();
    else if (event.type === "response.output_audio.delta") {
      const pcm = fromBase64(event.delta);
      this.session.heard(pcm);
      this.player.push(pcm);
    } else if (event.type === "response.function_call_arguments.done") this.call(event);
    else if (event.type === "error" && event.error.code === "backlog_full") {
      this.hears.onWarning(new Trouble("backlog_full"));
    }
    this.hears.onEvent(event);
  }

  greet() {
    const session = {
      type: "realtime",
      audio: { input: pcmFormat(INPUT_RATE), output: pcmFormat(OUTPUT_RATE) },
      voicechat: { include: ["frames"] },
    };
    if (this.wishes.instructions) session.instructions = this.wishes.instructions;
    if (this.wishes.tools) session.tools = TOOLS;
    this.connection.send("session.update", { session });
  }

  call({ call_id, name }) {
    const output = JSON.stringify(callTool(name));
    this.session.gave(call_id, output);
    this.connection.send("conversation.item.create", { item: { type: "function_call_output", call_id, output } });
  }

  async begin() {
    if (this.state === "talking") return;
    this.become("talking");
    const send = (pcm) => {
      this.session.sent(pcm, performance.now());
      this.connection.send("input_audio_buffer.append", { audio: toBase64(pcm) });
    };
    await this.microphone.start(send).catch((error) => this.over(error));
  }

  microphoneLost() {
    this.trouble = new Trouble("microphone_lost");
    this.stop();
  }

  async closed(trouble) {
    this.microphone.stop();
    if (this.state === "over") return;
    const { summary } = this.session;
    if (trouble === null && summary) await this.player.end();
    const limit = summary?.reason === "limit" ? new Trouble("session_expired") : null;
    this.over(trouble ?? this.trouble ?? limit);
  }

  over(trouble) {
    if (this.state === "over") return;
    this.become("over");
    this.release();
    this.hears.onOver(trouble);
  }

  release() {
    this.microphone?.stop();
    this.player?.stop();
    this.connection?.close();
  }

  become(state) {
    this.state = state;
    this.hears.onState(state);
  }
}
