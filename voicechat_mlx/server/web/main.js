// The page: its elements, and what happens when they are used.

import { Devices } from "./devices.js";
import { recall, remember } from "./memory.js";
import { makeMovable } from "./moving.js";
import { channelOf } from "./session.js";
import { Talk } from "./talk.js";
import { Timeline } from "./timeline.js";
import { Transcript } from "./transcript.js";
import { explain } from "./trouble.js";

const WORDS = {
  connecting: "Connecting …",
  loading: "The server is loading its model …",
  talking: "Listening and speaking",
  ending: "Hearing the rest …",
};
const BUSY = ["connecting", "loading", "talking", "ending"];
const $ = (id) => document.getElementById(id);

const timeline = new Timeline($("timeline"), document.documentElement);
const transcript = new Transcript({ list: $("transcript"), log: $("spoken"), empty: $("empty") });
const remembered = { microphone: recall("microphone"), speaker: recall("speaker") };
const devices = new Devices({ microphone: $("microphone"), speaker: $("speaker") }, remembered);
let talk = null;

makeMovable($("stage"), timeline);
$("nearer").addEventListener("click", () => timeline.zoom(1));
$("farther").addEventListener("click", () => timeline.zoom(-1));
devices.refresh();
askHealth();
$("prompt").value = recall("prompt");
$("token").value = recall("token", "sessionStorage");
$("volume").value = recall("volume") || "1";
$("tools").checked = recall("tools") === "yes";

$("talk").addEventListener("click", () => (isBusy() ? talk.stop() : begin()));
$("save-wav").addEventListener("click", () => save(talk.session.wav(), "wav"));
$("save-json").addEventListener("click", () => save(talk.session.json(), "json"));
$("prompt").addEventListener("change", (event) => remember("prompt", event.target.value));
$("tools").addEventListener("change", (event) => remember("tools", event.target.checked ? "yes" : ""));
$("token").addEventListener("change", (event) => remember("token", event.target.value, "sessionStorage"));
$("microphone").addEventListener("change", (event) => remember("microphone", event.target.value));
$("speaker").addEventListener("change", (event) => {
  remember("speaker", event.target.value);
  talk?.player?.setDevice(event.target.value);
});
$("volume").addEventListener("input", (event) => {
  remember("volume", event.target.value);
  talk?.player?.setVolume(Number(event.target.value));
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("talk").click();
  else if (event.key === "Escape" && isBusy()) talk.stop();
  else return;
  event.preventDefault();
});
addEventListener("beforeunload", () => talk?.release());

function isBusy() {
  return BUSY.includes(talk?.state);
}

function begin() {
  tell(null);
  transcript.clear();
  const wishes = {
    instructions: $("prompt").value.trim(),
    tools: $("tools").checked,
    token: $("token").value.trim(),
    microphone: $("microphone").value,
    speaker: $("speaker").value,
    volume: Number($("volume").value),
  };
  talk = new Talk(wishes, { onState, onEvent, onWarning: (trouble) => tell(trouble, "warning"), onOver });
  timeline.show(talk.session);
  talk.start();
}

function onState(state) {
  const busy = BUSY.includes(state);
  document.documentElement.dataset.state = busy ? state : "idle";
  $("talk").textContent = busy ? "Stop" : "Talk";
  $("state").textContent = WORDS[state] ?? "Ready";
  if (state === "talking") {
    devices.refresh(); // now they have names
    requestAnimationFrame(move);
  }
}

function onEvent(event) {
  const channel = channelOf(event);
  if (channel) transcript.phrases.push(channel, event.delta, event.frame);
  else if (event.type === "voicechat.frame") transcript.phrases.pass(event.frame);
  else if (event.type === "session.created") describe(event.session);
}

function onOver(trouble) {
  transcript.phrases.end();
  if (trouble) tell(trouble, "error");
  if (trouble?.code === "unauthorized") showToken();
  $("save-wav").disabled = $("save-json").disabled = talk.session.isEmpty;
  timeline.draw();
  showFigures();
}

/** While a talk goes on: the picture and the figures, as often as the screen is drawn. */
function move() {
  timeline.draw();
  showFigures();
  if (isBusy()) requestAnimationFrame(move);
}

function showFigures() {
  const { session, player } = talk;
  const latest = session.timing.slice(-12);
  const last = latest.at(-1);
  if (!last) return;
  const middle = (key) => latest.map((frame) => frame[key]).sort((a, b) => a - b)[latest.length >> 1];
  const ms = (seconds) => `${Math.round(1000 * seconds)} ms`;
  if (talk.state === "talking") show("delay", ms(session.delaySeconds + (player?.outputLatency ?? 0)));
  show("reply", ms(middle("reply_seconds")));
  show("frame", ms(middle("seconds")));
  show("backlog", `${last.backlog_seconds.toFixed(1)} s`);
  show("gaps", String(session.playback.underruns));
  $("figures").classList.toggle("late", last.backlog_seconds > 1);
}

function show(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

function tell(trouble, kind = "error") {
  const box = $("message");
  box.hidden = !trouble;
  box.className = kind;
  box.replaceChildren();
  if (!trouble) return;
  const [what, advice] = explain(trouble);
  box.append(Object.assign(document.createElement("strong"), { textContent: what }), ` ${advice}`);
  if (trouble.detail) box.append(Object.assign(document.createElement("small"), { textContent: ` ${trouble.detail}` }));
}

function describe(session) {
  $("model").textContent = session.model;
  if (session.instructions) $("prompt").placeholder = session.instructions;
}

function showToken() {
  $("token-field").hidden = false;
  $("token").focus();
}

/** Before the first talk: is there a server, and does it want a token? */
async function askHealth() {
  const answer = await fetch("health", { cache: "no-store" }).catch(() => null);
  const health = await answer?.json().catch(() => null);
  if (!health) return;
  $("model").textContent = health.model;
  if (health.token_required) $("token-field").hidden = false;
}

function save(blob, ending) {
  const stamp = talk.session.started.toISOString().slice(0, 19).replaceAll(":", "-");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `voicechat-${stamp}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
