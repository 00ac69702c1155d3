// @ts-check
/** What is in a message, as text to be read. Pure; shown as text, never as markup. */

export const TEXT_SHOWN_MAX = 20_000;
/** Characters of a body that are shown before one asks for all of it. */
const HEX_BYTES_SHOWN = 256;
const HEX_PER_LINE = 16;

/**
 * @typedef {{form: "json" | "text" | "binary" | "none", text: string, bytes: number | null,
 *   cut: boolean}} ShownBody `bytes` is known of binary bodies only
 */

/**
 * The body of a message as the broker's HTTP interface answers it.
 * @param {Record<string, any>} message with `body` or `body_base64`
 * @param {boolean} [whole] also what is longer than TEXT_SHOWN_MAX
 * @returns {ShownBody}
 */
export function showBody(message, whole = false) {
  if (typeof message.body_base64 === "string") return showBinary(message, whole);
  if (!("body" in message)) return { form: "none", text: "", bytes: null, cut: false };
  const text = JSON.stringify(message.body, null, 2) ?? String(message.body);
  return { form: "json", bytes: null, ...cutText(text, whole) };
}

/** @param {Record<string, any>} message @param {boolean} whole @returns {ShownBody} */
function showBinary(message, whole) {
  const bytes = decodeBase64(message.body_base64);
  if (bytes === null) {
    return { form: "binary", bytes: null, ...cutText(message.body_base64, whole) };
  }
  const type = String(message.content_type ?? "");
  if (/^text\/|json|xml|javascript/.test(type)) {
    const text = decodeText(bytes);
    if (text !== null) return { form: "text", bytes: bytes.length, ...cutText(text, whole) };
  }
  const most = whole ? bytes.length : HEX_BYTES_SHOWN;
  const text = hexDump(bytes.subarray(0, most));
  return { form: "binary", text, bytes: bytes.length, cut: bytes.length > most };
}

/** @param {string} text @param {boolean} whole */
function cutText(text, whole) {
  if (whole || text.length <= TEXT_SHOWN_MAX) return { text, cut: false };
  const last = text.codePointAt(TEXT_SHOWN_MAX - 1) ?? 0;
  return { text: text.slice(0, TEXT_SHOWN_MAX - (last > 0xffff ? 1 : 0)), cut: true };
}

/**
 * Bytes as lines of offset, hexadecimal and printable ASCII.
 * @param {Uint8Array} bytes
 */
export function hexDump(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += HEX_PER_LINE) {
    const line = [...bytes.subarray(at, at + HEX_PER_LINE)];
    const hex = line.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = line.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·"));
    const offset = at.toString(16).padStart(6, "0");
    lines.push(`${offset}  ${hex.padEnd(HEX_PER_LINE * 3 - 1)}  ${text.join("")}`);
  }
  return lines.join("\n");
}

/** @param {string} text @returns {Uint8Array | null} null: it is no base64 */
export function decodeBase64(text) {
  try {
    return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  } catch {
    return null;
  }
}

/** @param {Uint8Array} bytes */
function decodeText(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}

/**
 * A key, name or id that may be 10,000 characters long, cut in its middle.
 * @param {string} text
 * @param {number} [most] characters
 */
export function shorten(text, most = 80) {
  const characters = [...text];
  if (characters.length <= most) return text;
  const half = Math.floor((most - 1) / 2);
  return `${characters.slice(0, half).join("")}…${characters.slice(-half).join("")}`;
}
