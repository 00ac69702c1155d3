/**
 * Where the broker is, the token, and what refusals over HTTP mean.
 *
 * @module
 */

import { brokerError, CannotConnect, NotABroker, NoToken, wordsOf } from "./errors.js";
import { exceptionOf, isObject } from "./wire.js";

/**
 * A line that carries so much is slow, and not dead: what is large has more time, by its size.
 */
export const SLOWEST_BYTES_PER_S = 8 * 1024;
/** Of a proxy, or of a broker that starts: another attempt may succeed. */
const BUSY_STATUSES = new Set([408, 425, 429, 500, 502, 503, 504]);
const TOKEN = /^[!-~]+$/;
const NO_TOKEN = "is no token: a word of printable ASCII, without blanks or the end of a line";
const URL_DEFAULT = "http://127.0.0.1:8080";

/**
 * The URL of a broker, without slashes at its end; without one the page's origin, and outside of a
 * page http://127.0.0.1:8080.
 *
 * @param {string | URL | undefined | null} given
 * @returns {string}
 * @throws {TypeError} it is none, and why
 */
export function checkedUrl(given) {
  const origin = globalThis.location?.origin;
  const here = origin === undefined || origin === "null" ? URL_DEFAULT : origin;
  const text = String(given ?? here);
  if (!/^https?:\/\//.test(text)) {
    throw new TypeError(`the URL of a broker begins with http:// or https://, not ${text}`);
  }
  if (!URL.canParse(text)) throw new TypeError(`${text} is no URL of a broker`);
  const url = new URL(text);
  if (url.search || url.hash || url.username || url.password) {
    throw new TypeError(`the URL of a broker is like http://127.0.0.1:8080, not ${text}`);
  }
  return text.replace(/\/+$/, "");
}

/**
 * The token; what a function returns is checked when it has. What a wrong one is, is not said.
 *
 * @throws {TypeError} it cannot stand in a header
 */
export function checkedToken(token) {
  const isAbsent = token === undefined || token === null;
  const isText = typeof token === "string" && TOKEN.test(token);
  if (!isAbsent && !isText && typeof token !== "function") {
    throw new TypeError(`the token ${NO_TOKEN}`);
  }
  return token ?? null;
}

/**
 * The text to present now; null: there is none.
 *
 * @throws {NoToken} the function that is to return one has failed, or returned none
 */
export async function freshToken(token) {
  if (typeof token !== "function") return token;
  let text;
  try {
    text = await token();
  } catch (cause) {
    const why = wordsOf(cause);
    throw new NoToken(`the function that is to return a token has failed: ${why}`, { cause });
  }
  if (typeof text !== "string" || !TOKEN.test(text)) {
    throw new NoToken(`what the function for the token returned ${NO_TOKEN}`);
  }
  return text;
}

/** How long so many bytes may be on their way. @param {number} bytes */
export function slowestMs(bytes) {
  return (1000 * bytes) / SLOWEST_BYTES_PER_S;
}

/**
 * The text of an answer; `onPart` is told how much has come, each time.
 *
 * @param {Response} response
 * @param {(bytes: number) => void} onPart
 */
export async function textInParts(response, onPart) {
  if (!response.body) return response.text();
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  let bytes = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    bytes += value.byteLength;
    text += decoder.decode(value, { stream: true });
    onPart(bytes);
  }
}

/** The headers of a request. @param {string | null} token @param {boolean} hasBody */
export function headersOf(token, hasBody) {
  return {
    ...(token === null ? {} : { Authorization: `Bearer ${token}` }),
    ...(hasBody ? { "Content-Type": "application/json" } : {}),
  };
}

/**
 * Why a request was refused, from its status and its answer's text.
 *
 * @param {number} status
 * @param {string} text
 */
export function refusal(status, text) {
  let problem = null;
  try {
    problem = JSON.parse(text);
  } catch {
    // a page of a proxy, perhaps
  }
  if (isObject(problem) && typeof problem.code === "string" && problem.code) {
    return exceptionOf(problem);
  }
  if (status === 401) return brokerError("unauthorized", "the broker does not accept the token");
  const what = `what answers is not a Tocsin broker: HTTP status ${status}`;
  return BUSY_STATUSES.has(status) ? new CannotConnect(what) : new NotABroker(what);
}

/** Something that cannot be, told to whoever looks at the console; nothing is thrown. */
export function report(what, error) {
  globalThis.console?.error?.(`tocsin: ${what}`, error);
}
