/**
 * A message to be published, and its encoding. Pure.
 *
 * @module
 */

import { InvalidRequest, wordsOf } from "./errors.js";
import { hasHalves, isObject } from "./wire.js";

const FIELDS = new Set([
  "body", "key", "id", "headers", "ttlS", "contentType", "sentUnixMs",
]);
const CHUNK = 0x8000;
const BYTES = new TextEncoder();

/**
 * The JSON text of a message.
 *
 * @param {any} message
 * @returns {string}
 * @throws {InvalidRequest} a field is unknown or of a wrong type, or the body has no JSON form
 */
export function encodeMessage(message) {
  check(message);
  const { key, id, headers, ttlS, contentType, sentUnixMs } = message;
  const said = {
    key: key ?? undefined,
    content_type: contentType ?? undefined,
    id: id ?? undefined,
    headers: headers ?? undefined,
    ttl_s: ttlS ?? undefined,
    sent_unix_ms: sentUnixMs ?? undefined,
  };
  const bytes = bytesOf(message.body);
  if (bytes !== null) return JSON.stringify({ ...said, body_base64: toBase64(bytes) });
  const head = JSON.stringify(said);
  return `${head === "{}" ? "{" : `${head.slice(0, -1)},`}"body":${bodyText(message.body)}}`;
}

/** The bytes of a text in UTF-8. @param {string} text */
export function byteLength(text) {
  return BYTES.encode(text).length;
}

function bodyText(body) {
  let text;
  try {
    text = JSON.stringify(body);
  } catch (error) {
    throw refused(`the body has no JSON form: ${wordsOf(error)}`);
  }
  if (text === undefined) {
    throw refused(`the body has no JSON form: it is ${typeof body}; null is sent as null`);
  }
  if (hasHalves(text)) throw refused("the body has a text with half a surrogate pair");
  return text;
}

function bytesOf(body) {
  if (body instanceof ArrayBuffer) return new Uint8Array(body);
  if (!ArrayBuffer.isView(body)) return null;
  return new Uint8Array(body.buffer, body.byteOffset, body.byteLength);
}

/** @param {Uint8Array} bytes */
export function toBase64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += CHUNK) {
    text += String.fromCharCode(...bytes.subarray(at, at + CHUNK));
  }
  return btoa(text);
}

/** @param {string} text @returns {Uint8Array} */
export function fromBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

function refused(detail) {
  return new InvalidRequest("invalid_message", detail);
}

const isAbsent = (value) => value === undefined || value === null;
const isText = (value) => typeof value === "string" && value.isWellFormed();

/** What the broker could only refuse together with all other messages of the frame. */
function check(message) {
  if (!isObject(message)) throw refused("a message is an object with a body");
  const unknown = Object.keys(message).find((name) => !FIELDS.has(name));
  if (unknown !== undefined) throw refused(`a message has no field ${unknown}`);
  const { key, id, contentType, ttlS, sentUnixMs, headers } = message;
  if (!isAbsent(key) && !(isText(key) && key)) {
    throw refused("a key is a text of at least one character, without half a surrogate pair");
  }
  if (!isAbsent(id) && !isText(id)) throw refused("id is a text");
  if (!isAbsent(contentType) && !isText(contentType)) throw refused("contentType is a text");
  if (!isAbsent(ttlS) && !(typeof ttlS === "number" && ttlS > 0 && ttlS < 1e12)) {
    throw refused("ttlS is a number of seconds above 0");
  }
  if (!isAbsent(sentUnixMs) && !Number.isSafeInteger(sentUnixMs)) {
    throw refused("sentUnixMs is a whole number");
  }
  const areTexts = (texts) => Object.entries(texts).flat().every(isText);
  if (!isAbsent(headers) && !(isObject(headers) && areTexts(headers))) {
    throw refused("headers map text to text");
  }
}
