/**
 * What the client needs of the world: a clock, timers, sockets, requests, chance. Everything that
 * it does goes through these, so that tests can put a world of their own in their place.
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
 * The environment, with what is given in place of what is there.
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
    random: randomly,
    storage: storageHere(),
    page: typeof there.document === "object" ? there : null,
    ...Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)),
  };
}

function randomly() {
  return globalThis.crypto.getRandomValues(new Uint32Array(1))[0] / 2 ** 32;
}

/** A tab's storage; null where there is none, or where the browser lets nobody use it. */
function storageHere() {
  if (typeof globalThis.document !== "object") return null;
  try {
    return globalThis.sessionStorage ?? null;
  } catch {
    return null;
  }
}

/**
 * A name that nobody else has: 32 hexadecimal digits.
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

/** One timer that can be set again and again; only what was set last counts. */
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
 * A promise that others settle. Where nobody waits for it, that it fails is no accident.
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

  /** Nobody may be waiting. @returns {this} */
  unobserved() {
    this.promise.catch(() => {});
    return this;
  }
}

/** Something that cannot be, told to whoever looks at the console; nothing is thrown. */
export function report(what, error) {
  globalThis.console?.error?.(`tocsin: ${what}`, error);
}
