/**
 * Which transport to try next. Pure.
 *
 * A WebSocket where it gets through, long poll where it does not, and from long poll back again:
 *
 * - A WebSocket that did not open, or that dies young three times in a row: the next attempt is a
 *   long poll.
 * - A long poll that fails: the next attempt is a WebSocket.
 * - While a long poll stands, a WebSocket is tried beside it, ever more seldom, and takes over.
 *
 * @module
 */

import { between } from "./environment.js";

/** @typedef {"websocket" | "long-poll"} Transport */

export const MODES = ["auto", "websocket", "long-poll"];
/** A WebSocket that was cut off sooner died young. */
export const YOUNG_MS = 60_000;
export const DIED_YOUNG_MAX = 3;
/** So long after a long poll stands a WebSocket is tried; twice as long after each that failed. */
export const RETURN_MS = 10_000;
export const RETURN_MS_MAX = 300_000;

export class Choice {
  #random;
  #next;
  #diedYoung = 0;
  #returnMs = RETURN_MS;

  /** @param {"auto" | Transport} mode @param {() => number} random */
  constructor(mode, random) {
    this.mode = mode;
    this.#random = random;
    this.#next = /** @type {Transport} */ (mode === "long-poll" ? "long-poll" : "websocket");
  }

  /** The transport of the next attempt. */
  get next() {
    return this.#next;
  }

  /** Whether there is anything to choose. */
  get hasBoth() {
    return this.mode === "auto";
  }

  /**
   * An attempt has failed. Returns whether the other transport may be tried at once.
   *
   * @param {Transport} transport
   * @returns {boolean}
   */
  failed(transport) {
    if (!this.hasBoth) return false;
    this.#next = transport === "websocket" ? "long-poll" : "websocket";
    return transport === "websocket";
  }

  /** A session stands. @param {Transport} transport */
  welcomed(transport) {
    if (this.hasBoth) this.#next = transport;
    if (transport === "websocket") this.#returnMs = RETURN_MS;
  }

  /**
   * A session's transport has ended; `wasTold`: the broker had said why.
   *
   * @param {Transport} transport
   * @param {{livedMs: number, wasTold: boolean}} how
   */
  lost(transport, { livedMs, wasTold }) {
    if (transport !== "websocket") return;
    const diedYoung = livedMs < YOUNG_MS && !wasTold;
    this.#diedYoung = diedYoung ? this.#diedYoung + 1 : 0;
    if (this.hasBoth && this.#diedYoung >= DIED_YOUNG_MAX) {
      this.#diedYoung = 0;
      this.#next = "long-poll";
    }
  }

  /** How long a long poll stands before a WebSocket is tried beside it, in milliseconds. */
  returnDelayMs() {
    const delayMs = this.#returnMs;
    this.#returnMs = Math.min(RETURN_MS_MAX, 2 * delayMs);
    return delayMs * between(this.#random, 0.75, 1);
  }
}
