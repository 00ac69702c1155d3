/**
 * The platform: clock, timers, sockets, requests, chance, and the page. Every effect of the client
 * on the world goes through these, so that tests can replace them.
 *
 * @module
 */

const TIMER_MS_MAX = 0x7fffffff;

/**
 * @typedef {object} Environment
 * @property {typeof WebSocket} WebSocket
 * @property {typeof fetch} fetch
 * @property {(callback: () => void, delayMs: number) => unknown} setTimeout
 * @property {(timer: any) => void} clearTimeout
 * @property {() => number} now monotonic, in milliseconds
 * @property {() => number} wall unix, in milliseconds
 * @property {() => number} random 0 <= r < 1
 * @property {Pick<Storage, "getItem" | "setItem" | "removeItem"> | null} storage
 * @property {Pick<EventTarget, "addEventListener" | "removeEventListener"> | null} page
 */

/**
 * Make the environment of the platform. Given functions replace the platform's own.
 *
 * @param {Partial<Environment>} [given]
 * @returns {Environment}
 */
export function environmentOf(given = {}) {
  const there = globalThis;
  return {
    WebSocket: there.WebSocket,
    fetch: (resource, options) => there.fetch(resource, options),
    setTimeout: (callback, delayMs) => there.setTimeout(callback, delayMs),
    clearTimeout: (timer) => there.clearTimeout(timer),
    now: () => there.performance.now(),
    wall: () => there.Date.now(),
    random: secureRandom,
    storage: tabStorage(),
    page: typeof there.document === "object" ? there : null,
    ...Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)),
  };
}

function secureRandom() {
  return globalThis.crypto.getRandomValues(new Uint32Array(1))[0] / 2 ** 32;
}

/** Return the tab's storage; null if there is none, or the browser forbids it. */
function tabStorage() {
  if (typeof globalThis.document !== "object") return null;
  try {
    return globalThis.sessionStorage ?? null;
  } catch {
    return null;
  }
}

/**
 * Make a unique name of 32 hexadecimal digits.
 *
 * @param {Environment} environment
 * @returns {string}
 */
export function freshName(environment) {
  let name = "";
  while (name.length < 32) {
    name += Math.floor(environment.random() * 2 ** 32).toString(16).padStart(8, "0");
  }
  return name;
}

/** A timer that can be set repeatedly. Only the last setting counts. */
export class Timer {
  #environment;
  #timer = null;

  /** @param {Environment} environment */
  constructor(environment) {
    this.#environment = environment;
  }

  get isSet() {
    return this.#timer !== null;
  }

  /** @param {number} delayMs @param {() => void} callback */
  set(delayMs, callback) {
    this.cancel();
    const delay = Math.max(0, Math.min(TIMER_MS_MAX, Math.ceil(delayMs)));
    const timer = this.#environment.setTimeout(() => {
      if (this.#timer !== timer) return;
      this.#timer = null;
      callback();
    }, delay);
    this.#timer = timer;
  }

  cancel() {
    if (this.#timer === null) return;
    this.#environment.clearTimeout(this.#timer);
    this.#timer = null;
  }
}

/**
 * A promise that is settled from outside.
 *
 * @template T
 */
export class Deferred {
  isDone = false;

  constructor() {
    /** @type {Promise<T>} */
    this.promise = new Promise((resolve, reject) => {
      this.resolve = (value) => {
        this.isDone = true;
        resolve(value);
      };
      this.reject = (error) => {
        this.isDone = true;
        reject(error);
      };
    });
  }

  /** Mark it as handled, because it may have no waiter. @returns {this} */
  unobserved() {
    this.promise.catch(() => {});
    return this;
  }
}

/** Report an unexpected error on the console. */
export function report(what, error) {
  globalThis.console?.error?.(`tocsin: ${what}`, error);
}
