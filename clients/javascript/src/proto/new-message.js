/**
 * The encoding of a message to be published. Pure.
 *
 * @module
 */

import { InvalidRequest, wordsOf } from "./errors.js";
import { hasHalves, isObject } from "./wire.js";

const FIELDS = new Set([
  "body", "key", "id", "headers", "ttlS", "contentType", "sentUnixMs", "deliverAt", "delayS",
]);
const CHANGE_FIELDS = new Set([
  "body", "headers", "ttlS", "contentType", "deliverAt", "delayS",
]);
const CHUNK = 0x8000;
const BYTES = new TextEncoder();

/**
 * Encode a message as JSON text.
 *
 * @param {any} message
 * @returns {string}
 * @throws {InvalidRequest} if a field is unknown or wrong, or the body has no JSON form
 */
export function encodeMessage(message) {
  check(message, FIELDS);
  const fields = fieldsOf(message);
  const bytes = bytesOf(message.body);
  if (bytes !== null) return JSON.stringify({ ...fields, body_base64: toBase64(bytes) });
  const head = JSON.stringify(fields);
  return `${head === "{}" ? "{" : `${head.slice(0, -1)},`}"body":${bodyText(message.body)}}`;
}

/**
 * Return the request that changes a scheduled message. Without a body it has none.
 *
 * @param {any} change
 * @returns {Record<string, unknown>}
 * @throws {InvalidRequest} as `encodeMessage` does
 */
export function changeOf(change) {
  check(change, CHANGE_FIELDS);
  const { body } = change;
  if (body === undefined) return fieldsOf(change);
  const bytes = bytesOf(body);
  if (bytes !== null) return { ...fieldsOf(change), body_base64: toBase64(bytes) };
  bodyText(body);
  return { ...fieldsOf(change), body };
}

/** Return the fields of a message but its body, as the broker names them. */
function fieldsOf(message) {
  const { key, id, headers, ttlS, contentType, sentUnixMs, deliverAt, delayS } = message;
  return {
    key: key ?? undefined,
    content_type: contentType ?? undefined,
    id: id ?? undefined,
    headers: headers ?? undefined,
    ttl_s: ttlS ?? undefined,
    sent_unix_ms: sentUnixMs ?? undefined,
    deliver_at_unix_ms: isAbsent(deliverAt) ? undefined : deliverAt.getTime(),
    delay_s: delayS ?? undefined,
  };
}

/** Return the number of bytes of a text in UTF-8. @param {string} text */
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
  const lost = lossIn(body, "body");
  if (lost !== null) throw refused(lost);
  return text;
}

/** Kinds that JSON shows as {}, or as something else, by `Object.prototype.toString`. */
const NOT_JSON = new Set([
  "Map", "Set", "WeakMap", "WeakSet", "WeakRef", "Promise", "RegExp", "Error", "ArrayBuffer",
  "SharedArrayBuffer", "Generator", "AsyncGenerator", "Map Iterator", "Set Iterator",
  "Array Iterator", "Blob", "File", "FormData", "Headers", "URLSearchParams",
]);

/**
 * Find a part of a value that JSON would change, and describe it with its path from `name`; null if
 * there is none.
 *
 * `JSON.stringify` has accepted the value before. An undefined field is left out, as usual, and a
 * value with a `toJSON` is judged by its result.
 *
 * @param {any} value
 * @param {string} name
 * @returns {string | null}
 */
export function lossIn(value, name) {
  const found = lossOf(value);
  if (found === null) return null;
  const steps = found.way.reverse().map((step) =>
    typeof step === "number" ? `[${step}]` : `.${step}`,
  );
  return `${name}${steps.join("")}: ${found.what}`;
}

const lost = (what) => ({ what, way: [] });

/** @returns {{what: string, way: (string | number)[]} | null} */
function lossOf(value) {
  switch (typeof value) {
    case "number":
      return Number.isFinite(value) ? null : lost(`${value} has no JSON form`);
    case "function":
    case "symbol":
      return lost(`a ${typeof value} has no JSON form`);
    case "object":
      return value === null ? null : lossOfObject(value);
    default:
      return null;
  }
}

function lossOfObject(value) {
  if (Array.isArray(value)) {
    for (let at = 0; at < value.length; at += 1) {
      const item = value[at];
      const found = item === undefined ? lost("undefined would be null") : lossOf(item);
      if (found !== null) return inside(found, at);
    }
    return null;
  }
  if (typeof value.toJSON === "function") {
    if (value instanceof Date && Number.isNaN(value.getTime())) return lost("an invalid Date");
    const shown = value.toJSON("");
    return shown === value ? null : lossOf(shown);
  }
  const tag = Object.prototype.toString.call(value).slice("[object ".length, -1);
  if (ArrayBuffer.isView(value)) return lost("bytes inside a JSON value: let them be the body");
  if (NOT_JSON.has(tag)) return lost(`a ${tag} has no JSON form`);
  if (tag === "Number") return lossOf(value.valueOf());
  const isShown = (name) => Object.prototype.propertyIsEnumerable.call(value, name);
  if (Object.getOwnPropertySymbols(value).some(isShown)) {
    return lost("a field named by a symbol has no JSON form");
  }
  for (const name of Object.keys(value)) {
    const found = lossOf(value[name]);
    if (found !== null) return inside(found, name);
  }
  return null;
}

function inside(found, step) {
  found.way.push(step);
  return found;
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

/**
 * Refuse fields that the broker could only refuse together with the other messages of the frame.
 */
function check(message, known) {
  if (!isObject(message)) throw refused("a message is an object with a body");
  const unknown = Object.keys(message).find((name) => !known.has(name));
  if (unknown !== undefined) throw refused(`a message has no field ${unknown}`);
  const { key, id, contentType, ttlS, sentUnixMs, headers } = message;
  if (!isAbsent(key) && !(isText(key) && key)) {
    throw refused("key must be a text of at least one character, without half a surrogate pair");
  }
  if (!isAbsent(id) && !isText(id)) throw refused("id is a text");
  if (!isAbsent(contentType) && !isText(contentType)) throw refused("contentType is a text");
  if (!isAbsent(ttlS) && !(typeof ttlS === "number" && ttlS > 0 && ttlS < 1e12)) {
    throw refused("ttlS is a number of seconds above 0");
  }
  if (!isAbsent(sentUnixMs) && !Number.isSafeInteger(sentUnixMs)) {
    throw refused("sentUnixMs is a whole number");
  }
  checkTimes(message.deliverAt, message.delayS);
  const areTexts = (texts) => Object.entries(texts).flat().every(isText);
  const areThere = !isAbsent(headers);
  if (areThere && !(isObject(headers) && areTexts(headers) && lossIn(headers, "") === null)) {
    throw refused("headers must map texts to texts");
  }
}

function checkTimes(deliverAt, delayS) {
  if (!isAbsent(deliverAt)) {
    if (!isAbsent(delayS)) throw refused("deliverAt and delayS exclude each other");
    if (!(deliverAt instanceof Date) || Number.isNaN(deliverAt.getTime())) {
      throw refused("deliverAt is a Date");
    }
  }
  if (!isAbsent(delayS) && !(typeof delayS === "number" && delayS >= 0 && delayS < 1e12)) {
    throw refused("delayS is a number of seconds from 0 on");
  }
}
