// What can go wrong, in words that say what to do. A code is the server's, a browser's exception's, or one of ours.

export class Trouble extends Error {
  constructor(code, detail = "") {
    super(detail || code);
    this.code = code;
    this.detail = detail;
  }
}

const ADVICE = {
  // the microphone, by the names of the browser's exceptions
  NotAllowedError: [
    "The microphone was refused.",
    "Allow it for this page in the browser's address bar or settings, then press Talk again.",
  ],
  NotFoundError: ["No microphone was found.", "Plug one in or switch it on, then press Talk again."],
  NotReadableError: [
    "The microphone cannot be used.",
    "Another program may hold it: close that one, or choose another microphone below.",
  ],
  OverconstrainedError: ["The chosen microphone is gone.", "Choose another one below, then press Talk again."],
  insecure: [
    "The browser gives the microphone to secure pages only.",
    "Open this page at http://127.0.0.1, or put the server behind TLS and open https://.",
  ],
  microphone_lost: ["The microphone was unplugged.", "The talk has ended; plug it in and press Talk again."],
  // reaching the server
  unauthorized: ["This server needs a token.", "Enter the one that it was started with, then press Talk again."],
  forbidden: [
    "The server does not accept this page's address.",
    "Open the address that the server printed, or start it with --allow-origin.",
  ],
  unreachable: ["The server does not answer.", "Start it with “voicechat serve”, then press Talk again."],
  lost: ["The connection was lost.", "What was said so far is kept below. Press Talk to begin anew."],
  // the server's own codes
  server_busy: ["The server is busy: all its places are taken.", "Wait until somebody stops, then press Talk again."],
  server_shutting_down: ["The server was stopped.", "What was said so far is kept below. Talk again once it is back."],
  idle_timeout: ["The server heard nothing for a while and hung up.", "Press Talk to begin anew."],
  session_expired: ["The talk was as long as the server allows.", "Press Talk to begin anew."],
  startup_failed: ["The server could not load its model.", "Its log says why."],
  startup_timeout: ["The server is still loading its model.", "Wait a little, then press Talk again."],
  internal_error: ["The server had a fault.", "Its log says more. Press Talk to begin anew."],
  backlog_full: ["Sound was dropped.", "The server computes more slowly than you speak; use a smaller model there."],
};

/** An error of any kind → [what happened, what to do]. */
export function explain(error) {
  const advice = ADVICE[error.code] ?? ADVICE[error.name];
  if (advice) return advice;
  const code = error.code && error.code !== error.message ? ` (${error.code})` : "";
  return [`${error.message || error.name || "Something went wrong."}${code}`, "Press Talk to try again."];
}
