/**
 * Values as people read them. Pure: values in, text out; the language is English, digits are
 * grouped.
 */

const COUNT = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const ONE_DIGIT = new Intl.NumberFormat("en", {
  maximumFractionDigits: 1,
  minimumFractionDigits: 1,
});
const PLACE = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const BYTE_UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"];
const HEX_BYTES_MAX = 24;
/** What stands for nothing yet; as wide as a digit, roughly. */
export const NOTHING = "–";

/** @param {number} count */
export function formatCount(count) {
  return Number.isFinite(count) ? COUNT.format(count) : NOTHING;
}

/** `1 message`, `2 messages`. @param {number} count @param {string} one @param {string} [many] */
export function plural(count, one, many = `${one}s`) {
  return `${formatCount(count)} ${count === 1 ? one : many}`;
}

/** With a capital letter. @param {string} text */
export function titled(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/**
 * A duration in milliseconds, with its unit: `0.4 ms`, `12 ms`, `1.8 s`, `2 min 5 s`.
 * @param {number|null|undefined} ms
 */
export function formatMs(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) {
    return NOTHING;
  }
  if (ms < 9.95) {
    return `${ONE_DIGIT.format(ms)} ms`;
  }
  if (ms < 999.5) {
    return `${COUNT.format(ms)} ms`;
  }
  if (ms < 59_950) {
    return `${ONE_DIGIT.format(ms / 1000)} s`;
  }
  return formatSeconds(ms / 1000);
}

/** A duration in whole seconds: `4 s`, `2 min 5 s`, `3 h 12 min`. @param {number} seconds */
export function formatSeconds(seconds) {
  if (!Number.isFinite(seconds)) {
    return NOTHING;
  }
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) {
    return `${whole} s`;
  }
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) {
    return whole % 60 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
  }
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

/** @param {number} bytes */
export function formatBytes(bytes) {
  if (!Number.isFinite(bytes)) {
    return NOTHING;
  }
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < BYTE_UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit && Math.abs(value) < 99.95 ? ONE_DIGIT.format(value) : COUNT.format(value);
  return `${digits} ${unit === 0 && bytes === 1 ? "byte" : BYTE_UNITS[unit]}`;
}

/** A figure of unknown kind: grouped, at most two places. @param {number} value */
export function formatFigure(value) {
  return Number.isFinite(value) ? PLACE.format(value) : NOTHING;
}

/** `14:03:27` in the reader's own time zone. @param {number} unixMs */
export function formatClock(unixMs) {
  const at = new Date(unixMs);
  if (Number.isNaN(at.getTime())) {
    return NOTHING;
  }
  return [at.getHours(), at.getMinutes(), at.getSeconds()]
    .map((part) => String(part).padStart(2, "0"))
    .join(":");
}

/** How many bytes a text has as UTF-8. @param {string} text */
export function utf8Bytes(text) {
  return new TextEncoder().encode(text).length;
}

/**
 * Text of somebody else, fit for a line: control characters and those that turn the direction of
 * what follows are shown as a symbol, and what is longer is cut, saying how long it is.
 * @param {string} text
 * @param {number} [lengthMax] in UTF-16 units; a pair is never cut in two
 */
export function visibleText(text, lengthMax = 200) {
  let cut = text.length > lengthMax ? text.slice(0, lengthMax) : text;
  if (cut.length < text.length && /[\ud800-\udbff]$/.test(cut)) {
    cut = cut.slice(0, -1);
  }
  const shown = cut
    .replace(/[\r\n\t]+/g, " ")
    .replace(/[\u0000-\u001f]/g, (sign) => String.fromCharCode(0x2400 + sign.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufff9-\ufffb]/g, "\u00b7")
    .replace(/[\ud800-\udfff]/gu, "\ufffd");
  return cut.length < text.length
    ? `${shown}\u2026 (${formatCount(text.length)} characters)`
    : shown;
}

/** A key as it is shown. @param {string|null|undefined} key */
export function formatKey(key, lengthMax = 60) {
  return key === null || key === undefined ? "no key" : visibleText(key, lengthMax);
}

/** Bytes as hexadecimal, the first few. @param {Uint8Array} bytes */
export function formatBinary(bytes) {
  const first = [...bytes.subarray(0, HEX_BYTES_MAX)].map((byte) =>
    byte.toString(16).padStart(2, "0"),
  );
  return `binary, ${formatBytes(bytes.length)}: ${first.join(" ")}${
    bytes.length > HEX_BYTES_MAX ? " \u2026" : ""
  }`;
}

/**
 * A message's body as one line of text, whatever it is; never throws.
 * @param {{body?: any, bytes?: Uint8Array}} message its `body` may throw where it is no JSON
 * @param {number} [lengthMax]
 */
export function formatBody(message, lengthMax = 200) {
  let body;
  try {
    body = message.body;
  } catch {
    return message.bytes instanceof Uint8Array ? formatBinary(message.bytes) : "not readable";
  }
  if (body instanceof Uint8Array) {
    return formatBinary(body);
  }
  if (typeof body === "string") {
    return body === "" ? "empty text" : visibleText(body, lengthMax);
  }
  if (body === undefined) {
    return message.bytes instanceof Uint8Array ? formatBinary(message.bytes) : "no body";
  }
  try {
    return visibleText(JSON.stringify(body) ?? String(body), lengthMax);
  } catch {
    return visibleText(String(body), lengthMax);
  }
}
