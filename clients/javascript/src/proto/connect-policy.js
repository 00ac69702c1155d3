/**
 * The choice of the next transport to try, and whether and when to connect again. Pure.
 *
 * @module
 */

import { between, doubled } from "./backoff.js";
import { CloseCode, mayReconnect } from "./wire.js";

/** @typedef {"websocket" | "long-poll"} Transport */

export const MODES = ["auto", "websocket", "long-poll"];
/** The age below which a WebSocket that was cut has died young. */
export const YOUNG_MS = 60_000;
export const DIED_YOUNG_MAX = 3;
/** The delay before a WebSocket is tried beside a long poll. Each failure doubles it. */
export const RETURN_MS = 10_000;
export const RETURN_MS_MAX = 300_000;
/** The bound of the delay before the first attempt. Each attempt doubles it. */
export const DELAY_MS = 100;
export const DELAY_MS_MAX = 15_000;
/** The longest wait for a limit. */
export const LIMITED_MS_MAX = 60_000;
/** The number of attempts in a row with fresh tokens. */
export const UNAUTHORIZED_MAX = 3;

/**
 * The transport of the next attempt: a WebSocket if one gets through, otherwise a long poll, and
 * from long poll back again.
 *
 * - After a WebSocket that did not open, or three in a row that died young, the next attempt is a
 *   long poll.
 * - After a long poll that failed, the next attempt is a WebSocket.
 * - While a long poll is in use, a WebSocket is tried beside it, less and less often, and takes
 *   over.
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
   * Note that an attempt has failed. Returns whether to try the other transport at once.
   *
   * @param {Transport} transport
   * @returns {boolean}
   */
  onFailure(transport) {
    if (!this.hasBoth) return false;
    this.#next = transport === "websocket" ? "long-poll" : "websocket";
    return transport === "websocket";
  }

  /** Stay with the transport that brought a welcome. @param {Transport} transport */
  onWelcome(transport) {
    if (this.hasBoth) this.#next = transport;
    if (transport === "websocket") this.#returnMs = RETURN_MS;
  }

  /**
   * Note that a session's transport has ended. `wasTold` means that the broker gave a reason.
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
 * The decision whether and when to connect again. Delays grow exponentially and are jittered, so
 * that the clients of a gateway that died do not all come back at once. A draining gateway names
 * the delay itself.
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

  /** Start the delays again, because a session is open. */
  onConnect() {
    this.#attemptsBefore = this.#attempts;
    this.#attempts = 0;
    this.#unauthorized = 0;
    this.#advisedAt = null;
  }

  /** Count the session as a failed attempt, because it broke the protocol. */
  onProtocolError() {
    this.#attempts = Math.max(this.#attempts, this.#attemptsBefore);
  }

  /** Note the broker's advice to reconnect after this number of milliseconds. */
  onAdvice(afterMs, now) {
    this.#advisedAt = now + afterMs;
  }

  /**
   * Wait this number of milliseconds, because the attempt was over a limit. Other clients wait for
   * the same time, so the usual delay is added.
   */
  onLimit(afterMs) {
    this.#limitedMs = Math.min(afterMs, LIMITED_MS_MAX);
  }

  /**
   * Note that a session, or an attempt, ended with this close code. Returns whether to try again.
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
