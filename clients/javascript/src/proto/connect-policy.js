/**
 * Which transport to try next, and whether and when to connect again. Pure.
 *
 * @module
 */

import { between, doubled } from "./backoff.js";
import { CloseCode, mayReconnect } from "./wire.js";

/** @typedef {"websocket" | "long-poll"} Transport */

export const MODES = ["auto", "websocket", "long-poll"];
/** A WebSocket that was cut off sooner than this died young. */
export const YOUNG_MS = 60_000;
export const DIED_YOUNG_MAX = 3;
/** Delay before a WebSocket is tried beside a long poll; it doubles with each that failed. */
export const RETURN_MS = 10_000;
export const RETURN_MS_MAX = 300_000;
/** Bound of the delay before the first attempt; it doubles from attempt to attempt. */
export const DELAY_MS = 100;
export const DELAY_MS_MAX = 15_000;
/** The longest wait for a limit, before it is tried again. */
export const LIMITED_MS_MAX = 60_000;
/** Attempts in a row with fresh tokens. */
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

  /** Whether both transports are allowed. */
  get hasBoth() {
    return this.mode === "auto";
  }

  /**
   * Note that an attempt has failed. Returns whether the other transport may be tried at once.
   *
   * @param {Transport} transport
   * @returns {boolean}
   */
  onFailure(transport) {
    if (!this.hasBoth) return false;
    this.#next = transport === "websocket" ? "long-poll" : "websocket";
    return transport === "websocket";
  }

  /** A session stands over this transport. @param {Transport} transport */
  onWelcome(transport) {
    if (this.hasBoth) this.#next = transport;
    if (transport === "websocket") this.#returnMs = RETURN_MS;
  }

  /**
   * A session's transport has ended; `wasTold`: the broker had given a reason.
   *
   * @param {Transport} transport
   * @param {{livedMs: number, wasTold: boolean}} how
   */
  onLoss(transport, { livedMs, wasTold }) {
    if (transport !== "websocket") return;
    const diedYoung = livedMs < YOUNG_MS && !wasTold;
    this.#diedYoung = diedYoung ? this.#diedYoung + 1 : 0;
    if (this.hasBoth && this.#diedYoung >= DIED_YOUNG_MAX) {
      this.#diedYoung = 0;
      this.#next = "long-poll";
    }
  }

  /** Take the delay before a WebSocket is tried beside a long poll, in milliseconds. */
  nextReturnDelayMs() {
    const delayMs = this.#returnMs;
    this.#returnMs = Math.min(RETURN_MS_MAX, 2 * delayMs);
    return delayMs * between(this.#random, 0.75, 1);
  }
}

/**
 * Whether and when to connect again. Delays grow exponentially and are jittered, so that the
 * clients of a gateway that died do not all come back at once; a gateway that drains says when.
 */
export class ReconnectDelay {
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

  /** A session stands: delays after the next loss start from the beginning. */
  onConnect() {
    this.#attemptsBefore = this.#attempts;
    this.#attempts = 0;
    this.#unauthorized = 0;
    this.#advisedAt = null;
  }

  /** The session that stood broke the protocol: it counts as an attempt that failed. */
  onProtocolError() {
    this.#attempts = Math.max(this.#attempts, this.#attemptsBefore);
  }

  /** The broker advises to come back after so many milliseconds. */
  onAdvice(afterMs, now) {
    this.#advisedAt = now + afterMs;
  }

  /**
   * The attempt was over a limit, and would not be after so many milliseconds. Others were advised
   * the same, so the usual delay comes on top.
   */
  onLimit(afterMs) {
    this.#limitedMs = Math.min(afterMs, LIMITED_MS_MAX);
  }

  /**
   * Note that a session, or an attempt, ended with this close code. Returns whether another attempt
   * makes sense.
   *
   * @param {number} closeCode
   */
  onClose(closeCode) {
    if (closeCode !== CloseCode.UNAUTHORIZED) return mayReconnect(closeCode);
    this.#unauthorized += 1;
    return this.#freshTokens && this.#unauthorized <= UNAUTHORIZED_MAX;
  }

  /** Take the delay before the next attempt, in milliseconds. @param {number} now */
  nextDelayMs(now) {
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
