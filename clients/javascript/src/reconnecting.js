/**
 * Whether and when to connect again. Pure.
 *
 * Jittered and exponential, so that the clients of a gateway that died do not all come back at
 * once; a gateway that drains says itself when to come.
 *
 * @module
 */

import * as codes from "./codes.js";
import { between } from "./environment.js";

/** Before the first attempt, at most; the bound doubles from attempt to attempt. */
export const DELAY_MS = 100;
export const DELAY_MS_MAX = 15_000;
/** The longest wait for a limit; then it is asked again. */
export const LIMITED_MS_MAX = 60_000;
/** So often in a row a fresh token is tried. */
export const UNAUTHORIZED_MAX = 3;

export class Reconnecting {
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
    if (closeCode !== codes.UNAUTHORIZED) return codes.mayReconnect(closeCode);
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
    const boundMs = Math.min(DELAY_MS_MAX, DELAY_MS * 2 ** Math.min(this.#attempts, 16));
    this.#attempts += 1;
    return limitedMs + between(this.#random, boundMs / 4, boundMs);
  }
}
