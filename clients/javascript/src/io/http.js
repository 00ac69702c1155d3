/**
 * Requests over HTTP: a call with the client's credentials, and the parts shared with long poll.
 *
 * @module
 */

import { between } from "../proto/backoff.js";
import {
  brokerError, BrokerError, CannotConnect, InvalidRequest, NotABroker, wordsOf,
} from "../proto/errors.js";
import { lossIn } from "../proto/new-message.js";
import { exceptionOf, isObject } from "../proto/wire.js";
import { Deferred, Timer } from "./platform.js";
import { freshToken } from "./token.js";

/** The time limit of an answer, in seconds; a pull adds its `waitS`. */
export const TIMEOUT_S = 30;
/** The rate of the slowest line. A request has more time, by its size. */
const SLOWEST_BYTES_PER_S = 8 * 1024;
/** Statuses of a proxy, or of a broker that starts. Another attempt may succeed. */
const BUSY_STATUSES = new Set([408, 425, 429, 500, 502, 503, 504]);
const URL_DEFAULT = "http://127.0.0.1:8080";

export class Http {
  #url;
  #token;
  #environment;
  /** @type {Set<AbortController>} */
  #calls = new Set();

  /**
   * @param {string} url
   * @param {any} token
   * @param {import("./platform.js").Environment} environment
   */
  constructor(url, token, environment) {
    this.#url = url;
    this.#token = token;
    this.#environment = environment;
  }

  /**
   * Make a request; resolves with the parsed JSON of the answer, or null if that is empty.
   *
   * If the broker answers `rate_limited`, waits for the time that the broker names and tries again,
   * as long as that ends within `timeoutS`.
   *
   * @param {string} method
   * @param {string} path from the broker's root, like /v1/queues
   * @param {unknown} [body] JSON-able
   * @param {{timeoutS?: number, signal?: AbortSignal}} [settings]
   * @returns {Promise<any>} rejects with CannotConnect (nothing answers, or something other than a
   *     broker), NoToken, or the BrokerError of the problem document
   */
  async request(method, path, body, { timeoutS = TIMEOUT_S, signal } = {}) {
    const content = body === undefined ? null : contentOf(body);
    const environment = this.#environment;
    const giveUpAt = environment.now() + 1000 * timeoutS;
    for (;;) {
      try {
        return await this.#send(method, path, content, { timeoutS, signal });
      } catch (error) {
        const afterMs = 1000 * (error.retryAfterS ?? 0);
        if (error.code !== "rate_limited" || error.retryAfterS === null) throw error;
        const pauseMs = afterMs + between(environment.random, 0, Math.max(50, afterMs / 10));
        if (environment.now() + pauseMs > giveUpAt) throw error;
        await this.#wait(pauseMs, signal);
      }
    }
  }

  /** Wait; rejects if the call is aborted, or the client is closed. */
  async #wait(pauseMs, signal) {
    const controller = new AbortController();
    const over = new Deferred();
    const timer = new Timer(this.#environment);
    const leave = () => controller.abort(signal?.reason);
    controller.signal.addEventListener("abort", () => over.reject(controller.signal.reason));
    signal?.addEventListener("abort", leave);
    if (signal?.aborted) leave();
    this.#calls.add(controller);
    timer.set(pauseMs, () => over.resolve());
    try {
      await over.promise;
    } finally {
      timer.cancel();
      signal?.removeEventListener("abort", leave);
      this.#calls.delete(controller);
    }
  }

  async #send(method, path, content, { timeoutS, signal }) {
    const headers = headersOf(await freshToken(this.#token), content !== null);
    const controller = new AbortController();
    const timer = new Timer(this.#environment);
    const giveUp = (why) => controller.abort(new CannotConnect(why));
    const leave = () => controller.abort(signal?.reason);
    signal?.addEventListener("abort", leave);
    if (signal?.aborted) leave();
    this.#calls.add(controller);
    const wait = (ms) =>
      timer.set(ms, () =>
        giveUp(`the broker at ${this.#url} did not answer within ${timeoutS} s`),
      );
    wait(1000 * timeoutS + slowestMs(content?.length ?? 0));
    let beganAt = null;
    const onPart = (bytes) => { // more time, unless it is slower than the slowest line
      beganAt ??= this.#environment.now();
      const leftMs = beganAt + slowestMs(bytes) - this.#environment.now();
      wait(1000 * timeoutS + Math.min(0, leftMs));
    };
    try {
      const response = await this.#environment.fetch(this.#url + path, {
        method, headers, signal: controller.signal, cache: "no-store",
        ...(content === null ? {} : { body: content }),
      });
      const text = await textInParts(response, onPart);
      if (!response.ok) throw refusal(response.status, text);
      return valueOf(text);
    } catch (error) {
      if (error instanceof BrokerError || error instanceof CannotConnect) throw error;
      if (signal?.aborted) throw error;
      const why = wordsOf(error);
      throw new CannotConnect(`cannot reach a Tocsin broker at ${this.#url}: ${why}`, {
        cause: error,
      });
    } finally {
      timer.cancel();
      signal?.removeEventListener("abort", leave);
      this.#calls.delete(controller);
    }
  }

  /** End all requests that are under way with this error. @param {Error} error */
  close(error) {
    for (const controller of this.#calls) controller.abort(error);
  }
}

function contentOf(body) {
  let text;
  try {
    text = JSON.stringify(body);
  } catch (error) {
    throw new InvalidRequest("invalid_request", `the body has no JSON form: ${wordsOf(error)}`);
  }
  if (text === undefined) {
    throw new InvalidRequest("invalid_request", "the body has no JSON form");
  }
  const lost = lossIn(body, "the request");
  if (lost !== null) throw new InvalidRequest("invalid_request", lost);
  return text;
}

function valueOf(text) {
  if (text === "") return null;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new CannotConnect(`the server is not a Tocsin broker: ${wordsOf(error)}`);
  }
}

/**
 * Check the URL of a broker, and strip slashes at its end. The default is the page's origin, and
 * outside of a page http://127.0.0.1:8080.
 *
 * @param {string | URL | undefined | null} given
 * @returns {string}
 * @throws {TypeError} if it is no such URL
 */
export function checkedUrl(given) {
  const origin = globalThis.location?.origin;
  const here = origin === undefined || origin === "null" ? URL_DEFAULT : origin;
  const text = String(given ?? here);
  if (!/^https?:\/\//.test(text)) {
    throw new TypeError(`the URL of a broker must begin with http:// or https://, unlike ${text}`);
  }
  if (!URL.canParse(text)) throw new TypeError(`${text} is no URL of a broker`);
  const url = new URL(text);
  if (url.search || url.hash || url.username || url.password) {
    throw new TypeError(`the URL of a broker must be like http://127.0.0.1:8080, not ${text}`);
  }
  return text.replace(/\/+$/, "");
}

/** Return the time that the slowest line needs for this number of bytes. @param {number} bytes */
export function slowestMs(bytes) {
  return (1000 * bytes) / SLOWEST_BYTES_PER_S;
}

/**
 * Read the text of an answer. `onPart` is called with the number of bytes received up to then.
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

/** Return the headers of a request. @param {string | null} token @param {boolean} hasBody */
export function headersOf(token, hasBody) {
  return {
    ...(token === null ? {} : { Authorization: `Bearer ${token}` }),
    ...(hasBody ? { "Content-Type": "application/json" } : {}),
  };
}

/**
 * Make the error of a request that was refused, from its status and its answer's text.
 *
 * @param {number} status
 * @param {string} text
 */
export function refusal(status, text) {
  let problem = null;
  try {
    problem = JSON.parse(text);
  } catch {
    // perhaps the page of a proxy
  }
  if (isObject(problem) && typeof problem.code === "string" && problem.code) {
    return exceptionOf(problem);
  }
  if (status === 401) return brokerError("unauthorized", "the broker does not accept the token");
  const what = `the server is not a Tocsin broker: HTTP status ${status}`;
  return BUSY_STATUSES.has(status) ? new CannotConnect(what) : new NotABroker(what);
}
