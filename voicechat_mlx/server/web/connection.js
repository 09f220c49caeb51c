// The server's end: one WebSocket in the events that docs/online.md describes.

import { Trouble } from "./trouble.js";

const TOKEN_SUBPROTOCOL = "openai-insecure-api-key.";

/** Whether the server would let us in; a refused WebSocket itself never says why. Throws Trouble. */
export async function knock(token) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch("v1/models", { headers, cache: "no-store" }).catch(() => null);
  if (answer === null) throw new Trouble("unreachable");
  if (answer.status === 401) throw new Trouble("unauthorized");
  if (answer.status === 403) throw new Trouble("forbidden");
  if (!answer.ok) throw new Trouble("unreachable", `the server answers with ${answer.status}`);
}

export class Connection {
  /** `onEvent(event)` for each event, then `onClose(trouble or null)` once. */
  constructor(token, onEvent, onClose) {
    const address = new URL("v1/realtime", location.href);
    address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    const offered = token ? ["realtime", TOKEN_SUBPROTOCOL + token] : ["realtime"];
    this.socket = new WebSocket(address, offered);
    let lastError = null;
    this.socket.onmessage = ({ data }) => {
      const event = JSON.parse(data);
      if (event.type === "error") lastError = event.error;
      onEvent(event);
    };
    this.socket.onclose = ({ code, reason }) => onClose(whyClosed(code, reason, lastError));
  }

  send(type, fields = {}) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ type, ...fields }));
  }

  close() {
    this.socket.close(1000);
  }
}

function whyClosed(code, reason, lastError) {
  if (code === 1000) return null;
  return new Trouble(reason || "lost", reason && lastError?.code === reason ? lastError.message : "");
}
