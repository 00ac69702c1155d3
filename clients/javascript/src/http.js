/**
 * One call over HTTP, with the client's credentials.
 *
 * @module
 */

import { between, Deferred, Timer } from "./environment.js";
import { brokerError, BrokerError, CannotConnect, InvalidRequest, wordsOf } from "./errors.js";
import { lossIn } from "./outgoing.js";
import { freshToken, headersOf, refusal, slowestMs, textInParts } from "./requesting.js";

/** For an answer, in seconds; a pull's `waitS` comes on top. */
export const TIMEOUT_S = 30;

export class Http {
  #url;
  #token;
  #environment;
  /** @type {Set<AbortController>} */
  #calls = new Set();

  /**
   * @param {string} url
   * @param {any} token
   * @param {import("./environment.js").Environment} environment
   */
  constructor(url, token, environment) {
    this.#url = url;
    this.#token = token;
    this.#environment = environment;
  }

  /**
   * The parsed JSON of the answer; null where it is empty. Over a limit it waits as long as the
   * broker says and asks again, if that is within `timeoutS`.
   *
   * @param {string} method
   * @param {string} path from the broker's root, like /v1/queues
   * @param {unknown} [body] JSON-able
   * @param {{timeoutS?: number, signal?: AbortSignal}} [settings]
   * @returns {Promise<any>} rejects with CannotConnect (nothing answers, or no broker), NoToken, or
   *     the BrokerError that the problem document says
   */
  async request(method, path, body, { timeoutS = TIMEOUT_S, signal } = {}) {
    const content = body === undefined ? null : contentOf(body);
    const environment = this.#environment;
    const giveUpAt = environment.now() + 1000 * timeoutS;
    for (;;) {
      try {
        return await this.#ask(method, path, content, { timeoutS, signal });
      } catch (error) {
        const afterMs = 1000 * (error.retryAfterS ?? 0);
        if (error.code !== "rate_limited" || error.retryAfterS === null) throw error;
        const pauseMs = afterMs + between(environment.random, 0, Math.max(50, afterMs / 10));
        if (environment.now() + pauseMs > giveUpAt) throw error;
        await this.#wait(pauseMs, signal);
      }
    }
  }

  /** Rejects when the call is aborted, or the client is closed. */
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

  async #ask(method, path, content, { timeoutS, signal }) {
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
    const goesOn = (bytes) => { // as long as it is no slower than the slowest line
      beganAt ??= this.#environment.now();
      const leftMs = beganAt + slowestMs(bytes) - this.#environment.now();
      wait(1000 * timeoutS + Math.min(0, leftMs));
    };
    try {
      const response = await this.#environment.fetch(this.#url + path, {
        method, headers, signal: controller.signal, cache: "no-store",
        ...(content === null ? {} : { body: content }),
      });
      const text = await textInParts(response, goesOn);
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

  /** Whatever is under way ends with this. @param {Error} error */
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
    throw new CannotConnect(`what answers is not a Tocsin broker: ${wordsOf(error)}`);
  }
}

/**
 * The path of these names below /v1.
 *
 * @param {...string} names
 * @throws {InvalidRequest} one of them is no name
 */
export function pathTo(...names) {
  for (const name of names) {
    const isName = typeof name === "string" && !["", ".", ".."].includes(name);
    if (!isName || !name.isWellFormed()) { // quoting cannot keep it from meaning another path
      throw brokerError("invalid_name", `${JSON.stringify(name) ?? typeof name} is not a name`);
    }
  }
  return `/v1/${names.map(encodeURIComponent).join("/")}`;
}

/** Those that are given, as a query. @param {Record<string, unknown>} parameters */
export function queryOf(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => (value ?? null) !== null);
  const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
  return given.length === 0 ? "" : `?${query}`;
}

/**
 * Settings as the broker names them: `leaseS` is `lease_s`, in alerts, too. Names that are written
 * so already stay.
 *
 * @param {Record<string, unknown>} settings
 */
export function settingsOf(settings) {
  const said = Object.entries(settings).filter(([, value]) => value !== undefined);
  return Object.fromEntries(
    said.map(([name, value]) => [
      name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      name === "alerts" ? alertsOf(value) : value,
    ]),
  );
}

/** A list of alerts, or by name those that change; null takes one away. */
function alertsOf(alerts) {
  if (Array.isArray(alerts)) return alerts.map((alert) => settingsOf(alert));
  const changes = Object.entries(alerts ?? {});
  return Object.fromEntries(
    changes.map(([name, alert]) => [name, alert === null ? null : settingsOf(alert)]),
  );
}
