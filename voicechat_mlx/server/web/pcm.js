// Samples as the wire and WAV files have them. Full scale is ±1; 16-bit steps are 1 / 32768.

const ENCODED_AT_ONCE = 0x2000; // bytes; a call can have only so many arguments

/** Float32 → Int16, rounded and clipped. */
export function toPcm16(samples) {
  return Int16Array.from(samples, (sample) => Math.max(-32768, Math.min(32767, Math.round(sample * 32768))));
}

/** Int16 → Float32. */
export function fromPcm16(pcm) {
  return Float32Array.from(pcm, (step) => step / 32768);
}

/** Int16 → base64 of little-endian PCM16. */
export function toBase64(pcm) {
  const view = new DataView(new ArrayBuffer(2 * pcm.length));
  pcm.forEach((step, n) => view.setInt16(2 * n, step, true));
  const bytes = new Uint8Array(view.buffer);
  let binary = "";
  for (let begin = 0; begin < bytes.length; begin += ENCODED_AT_ONCE) {
    binary += String.fromCharCode(...bytes.subarray(begin, begin + ENCODED_AT_ONCE));
  }
  return btoa(binary);
}

/** Base64 of little-endian PCM16 → Int16. */
export function fromBase64(text) {
  const view = new DataView(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
  return Int16Array.from({ length: view.byteLength / 2 }, (_, n) => view.getInt16(2 * n, true));
}

/** Two channels of Int16, the shorter one filled up with silence → a WAV file. */
export function stereoWav(left, right, rate) {
  const count = Math.max(left.length, right.length);
  const header = new DataView(new ArrayBuffer(44));
  const write = (place, text) => [...text].forEach((letter, n) => header.setUint8(place + n, letter.charCodeAt(0)));
  write(0, "RIFF");
  header.setUint32(4, 36 + 4 * count, true);
  write(8, "WAVEfmt ");
  header.setUint32(16, 16, true);
  header.setUint16(20, 1, true); // PCM
  header.setUint16(22, 2, true);
  header.setUint32(24, rate, true);
  header.setUint32(28, 4 * rate, true);
  header.setUint16(32, 4, true);
  header.setUint16(34, 16, true);
  write(36, "data");
  header.setUint32(40, 4 * count, true);
  const body = new DataView(new ArrayBuffer(4 * count));
  left.forEach((step, n) => body.setInt16(4 * n, step, true));
  right.forEach((step, n) => body.setInt16(4 * n + 2, step, true));
  return new Blob([header, body], { type: "audio/wav" });
}

/** Int16 arrays, joined. */
export function joined(pieces) {
  const whole = new Int16Array(pieces.reduce((count, piece) => count + piece.length, 0));
  pieces.reduce((place, piece) => (whole.set(piece, place), place + piece.length), 0);
  return whole;
}
