// @ts-check
/**
 * What the console asks the broker, by plain HTTP from its own origin. Whatever happens, a call
 * ends in a parsed answer or in an ApiError that says what to do.
 */

import { titled } from "../shared/format.js";

export const TIMEOUT_MS = 10_000;
const ANSWER_SHOWN_MAX = 200;
const CLOCK_SURE_MS = 2000;

/** A call that did not get its answer. `message` says what happened, `advice` what to do. */
export class ApiError extends Error {
  /**
   * @param {string} code the broker's, or `unreachable`, `timeout`, `garbage`
   * @param {string} message
   * @param {string} advice
   * @param {{status?: number, retry?: boolean}} [more]
   */
  constructor(code, message, advice, { status = 0, retry = false } = {}) {
    super(message);
    this.name = "ApiError";
    this.code = code;
    this.advice = advice;
    this.status = status;
    this.retry = retry;
  }

  /** Whether the broker itself is what does not answer (another one may be asked again). */
  get isAway() {
    return ["unreachable", "timeout", "garbage", "draining", "storage_unavailable"].includes(
      this.code,
    );
  }
}

const ADVICE = new Map([
  ["unauthorized", "Sign in again, with a fresh ticket or the token."],
  ["invalid_request", "Change what you asked for."],
  ["invalid_name", "Change what you asked for."],
  ["forbidden", "These credentials may not do that. Ask whoever runs the broker."],
  ["origin_refused", "Open the console from the broker, or name its origin in TOCSIN_ORIGINS."],
  ["queue_not_found", "It may have been deleted. Go back to the list of queues."],
  ["group_not_found", "It may have been deleted or have expired. Go back to its queue."],
  ["session_not_found", "It has ended. Go back to the list of sessions."],
  ["not_parked", "Somebody else decided, or it was retried. The list is read again."],
  ["already_due", "It was due meanwhile, and is among the queue's messages. Look again."],
  ["cancelled", "Somebody else cancelled it. Look again."],
  ["id_unknown", "It is not there any more. Look again."],
  ["queue_full", "Wait until consumers have caught up, or raise the queue's bounds."],
  ["unknown", "It may have been done. Look again before you repeat it; repeating it is safe."],
  ["draining", "The broker is going down. It comes back by itself; nothing is lost."],
  ["storage_full", "Free disk space on the broker's machine; publishing goes on then."],
]);

/** The calls of one broker. `environment` is for tests. */
export class Api {
  /**
   * @param {{fetch: typeof fetch, setTimeout: typeof setTimeout,
   *   clearTimeout: typeof clearTimeout}} [environment]
   */
  constructor(environment = globalThis) {
    this.environment = environment;
    this.skewMs = 0;
    /** The gateway that answered last, and all that are there; empty: there is one broker. */
    this.gateway = "";
    /** @type {string[]} */
    this.gateways = [];
    this.requests = 0;
    this.bytes = 0;
  }

  /**
   * @param {string} path
   * @param {{query?: Record<string, unknown>, signal?: AbortSignal, exact?: boolean}} [options]
   *   exact: numbers of message bodies that JavaScript cannot hold stay as they were written
   * @returns {Promise<any>}
   */
  get(path, { query = {}, signal, exact = false } = {}) {
    return this.call("GET", withQuery(path, query), undefined, { signal, exact });
  }

  /** @param {string} path @param {unknown} [body] @returns {Promise<any>} */
  post(path, body) {
    return this.call("POST", path, body, { timeoutMs: 30_000 });
  }

  /** @param {string} path @returns {Promise<any>} */
  delete(path) {
    return this.call("DELETE", path, undefined, { timeoutMs: 30_000 });
  }

  /**
   * @param {string} method
   * @param {string} path
   * @param {unknown} [body]
   * @param {{signal?: AbortSignal, timeoutMs?: number, exact?: boolean, isState?: boolean}}
   *   [options] isState: an answer of 503 is an answer, as that of `/readyz`
   * @returns {Promise<any>} what the answer says. Rejects with ApiError, or with the signal's
   *   reason where that aborted it
   */
  async call(method, path, body, options = {}) {
    const { signal, timeoutMs = TIMEOUT_MS, exact = false, isState = false } = options;
    const { setTimeout, clearTimeout } = this.environment;
    const ending = new AbortController();
    const abort = () => ending.abort(signal?.reason);
    signal?.addEventListener("abort", abort);
    if (signal?.aborted) abort();
    let late = false;
    const timer = setTimeout.call(globalThis, () => {
      late = true;
      ending.abort();
    }, timeoutMs);
    try {
      const [answer, text] = await this.#fetch(method, path, body, ending.signal);
      this.#setClock(answer);
      this.#setGateways(answer);
      const status = isState && answer.status === 503 ? 200 : answer.status;
      return readAnswer(status, text, exact);
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      if (error instanceof ApiError) throw error;
      throw late ? tooLate(timeoutMs) : unreachable();
    } finally {
      clearTimeout.call(globalThis, timer);
      signal?.removeEventListener("abort", abort);
    }
  }

  /** The broker's clock, in milliseconds since 1970, as its answers told it. */
  now() {
    return Date.now() + this.skewMs;
  }

  /** The header has whole seconds: less than two apart are no difference.
   * @param {Response} answer */
  #setClock(answer) {
    const told = Date.parse(answer.headers?.get("date") ?? "");
    if (Number.isNaN(told)) return;
    const skewMs = told + 500 - Date.now();
    if (Math.abs(skewMs) < CLOCK_SURE_MS) this.skewMs = 0;
    else if (Math.abs(skewMs - this.skewMs) > CLOCK_SURE_MS) this.skewMs = skewMs;
  }

  /** An answer to who is not known yet names none. @param {Response} answer */
  #setGateways(answer) {
    const gateway = answer.headers?.get("tocsin-gateway") ?? "";
    if (!gateway) return;
    this.gateway = gateway;
    this.gateways = (answer.headers.get("tocsin-gateways") ?? "").split(", ").filter(Boolean);
  }

  /** @param {string} method @param {string} path @param {unknown} body @param {AbortSignal} signal
   * @returns {Promise<[Response, string]>} */
  async #fetch(method, path, body, signal) {
    this.requests += 1;
    const answer = await this.environment.fetch.call(globalThis, path, {
      method,
      signal,
      cache: "no-store",
      credentials: "same-origin",
      headers: body === undefined ? {} : { "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await answer.text();
    this.bytes += text.length;
    return [answer, text];
  }
}

/** @param {string} path @param {Record<string, unknown>} query */
export function withQuery(path, query) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") search.set(name, String(value));
  }
  const text = search.toString();
  return text ? `${path}?${text}` : path;
}

/**
 * The content of an answer. Raises ApiError for what is a problem or no JSON object.
 * @param {number} status @param {string} text @param {boolean} [exact]
 */
export function readAnswer(status, text, exact = false) {
  if (status === 204) return null;
  let content;
  try {
    content = exact ? JSON.parse(text, /** @type {any} */ (keepNumber)) : JSON.parse(text);
  } catch {
    throw garbage(status, text);
  }
  if (typeof content !== "object" || content === null || Array.isArray(content)) {
    throw garbage(status, text);
  }
  if (status < 400) return content;
  if (typeof content.code !== "string") throw garbage(status, text);
  const detail = String(content.detail || content.title || content.code);
  const advice = ADVICE.get(content.code) ?? (content.retry ? "Try again in a moment." : "");
  const retry = content.retry === true;
  throw new ApiError(content.code, sentence(detail), advice, { status, retry });
}

/** @param {string} _name @param {unknown} value @param {{source?: string}} [context] */
function keepNumber(_name, value, context) {
  if (typeof value !== "number" || !context?.source) return value;
  const isHeld = Number.isInteger(value) ? Number.isSafeInteger(value) : Number.isFinite(value);
  const { rawJSON } = /** @type {any} */ (JSON);
  return isHeld || !rawJSON ? value : rawJSON(context.source);
}

/**
 * The list of objects that an answer has under this name. Raises ApiError where it has none: an
 * answer that is not understood is never shown as an empty list.
 * @param {any} answer @param {string} name
 * @returns {any[]}
 */
export function rowsOf(answer, name) {
  const rows = answer?.[name];
  const isRow = (/** @type {unknown} */ row) => typeof row === "object" && row !== null;
  if (!Array.isArray(rows) || !rows.every(isRow)) throw notUnderstood(`it has no list of ${name}`);
  return rows;
}

/** An answer that is JSON, and yet none of the broker's. @param {string} why */
export function notUnderstood(why) {
  return new ApiError(
    "garbage",
    `The broker's answer cannot be shown: ${why}.`,
    "Page and broker may be of different versions: reload the page.",
  );
}

/** @param {number} status @param {string} text */
function garbage(status, text) {
  const shown = text.slice(0, ANSWER_SHOWN_MAX).replace(/\s+/g, " ").trim();
  const began = shown ? `, which begins: ${shown}` : " without any content";
  return new ApiError(
    "garbage",
    `The answer (HTTP ${status}) is not what a Tocsin broker says${began}`,
    "Something between this page and the broker may have answered instead, as a proxy does.",
    { status },
  );
}

/** @param {number} timeoutMs */
function tooLate(timeoutMs) {
  return new ApiError(
    "timeout",
    `The broker did not answer within ${Math.round(timeoutMs / 1000)} s.`,
    "It may be overloaded, or the way to it is cut. The console goes on trying.",
  );
}

function unreachable() {
  return new ApiError(
    "unreachable",
    "The broker cannot be reached.",
    "See whether it runs (on its machine: tocsin admin status). The console goes on trying.",
  );
}

/** @param {string} text */
function sentence(text) {
  const began = titled(text);
  return /[.!?…]$/.test(began) ? began : `${began}.`;
}
