/**
 * Which transport to try next, and whether and when to connect again. Pure.
 *
 * @module
 */

import { between, doubled } from "./backoff.js";
import { CloseCode, mayReconnect } from "./wire.js";

/** @typedef {"websocket" | "long-poll"} Transport */

export const MODES = ["auto", "websocket", "long-poll"];
/** A WebSocket that was cut off sooner died young. */
export const YOUNG_MS = 60_000;
export const DIED_YOUNG_MAX = 3;
/** So long after a long poll stands a WebSocket is tried; twice as long after each that failed. */
export const RETURN_MS = 10_000;
export const RETURN_MS_MAX = 300_000;
/** Before the first attempt, at most; the bound doubles from attempt to attempt. */
export const DELAY_MS = 100;
export const DELAY_MS_MAX = 15_000;
/** The longest wait for a limit; then it is asked again. */
export const LIMITED_MS_MAX = 60_000;
/** So often in a row a fresh token is tried. */
export const UNAUTHORIZED_MAX = 3;

/**
 * The transport of the next attempt: a WebSocket where it gets through, long poll where it does
 * not, and from long poll back again.
 *
 * - After a WebSocket that did not open, or three in a row that died young, the next attempt is a
 *   long poll.
 * - After a long poll that failed, the next attempt is a WebSocket.
 * - While a long poll stands, a WebSocket is tried beside it, ever more seldom, and takes over.
 */
export class TransportChoice {
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

/**
 * Whether and when to connect again. Delays grow exponentially and are jittered, so that the
 * clients of a gateway that died do not all come back at once; a gateway that drains says when.
 */
export class ReconnectPolicy {
  #random;
  #freshTokens;
  #attempts = 0;
  #attemptsBefore = 0;
  #unauthorized = 0;
  #advisedAt = null;
  #limitedMs = 0;

  /** @param {() => number} random @param {boolean} freshTokens each attempt brings its own */
  constructor(random, freshTokens) {
    this.#random = random;
    this.#freshTokens = freshTokens;
  }

  /** A session stands: the next loss starts from the beginning. */
  connected() {
    this.#attemptsBefore = this.#attempts;
    this.#attempts = 0;
    this.#unauthorized = 0;
    this.#advisedAt = null;
  }

  /** What that session said was no protocol: it counts as an attempt that failed. */
  broken() {
    this.#attempts = Math.max(this.#attempts, this.#attemptsBefore);
  }

  /** The broker has said to come back after so many milliseconds. */
  advised(afterMs, now) {
    this.#advisedAt = now + afterMs;
  }

  /**
   * The attempt was over a limit, and would not be after so many milliseconds. Others have heard
   * the same: the usual delay comes on top.
   */
  limited(afterMs) {
    this.#limitedMs = Math.min(afterMs, LIMITED_MS_MAX);
  }

  /**
   * Whether another attempt makes sense after a session that ended with this close code, or an
   * attempt that was answered as if with it.
   *
   * @param {number} closeCode
   */
  mayReconnect(closeCode) {
    if (closeCode !== CloseCode.UNAUTHORIZED) return mayReconnect(closeCode);
    this.#unauthorized += 1;
    return this.#freshTokens && this.#unauthorized <= UNAUTHORIZED_MAX;
  }

  /** How long to wait before the next attempt, in milliseconds. @param {number} now */
  delayMs(now) {
    const advisedAt = this.#advisedAt;
    if (advisedAt !== null) {
      this.#advisedAt = null;
      return Math.max(0, advisedAt - now);
    }
    const limitedMs = this.#limitedMs;
    this.#limitedMs = 0;
    const boundMs = doubled(DELAY_MS, DELAY_MS_MAX, this.#attempts);
    this.#attempts += 1;
    return limitedMs + between(this.#random, boundMs / 4, boundMs);
  }
}
