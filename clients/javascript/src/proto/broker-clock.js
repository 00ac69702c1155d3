/**
 * How far the broker's clock is from this client's. Pure.
 *
 * So that the broker can tell how long a message took from here, its client says when it produced
 * it, by its own clock, and by how much the broker's is ahead. That is found as NTP does: what the
 * broker says of its clock lies between a question and its answer, and the shortest round trip says
 * most. This client's clock is the wall clock once, when it begins, and monotonic from there on.
 *
 * @module
 */

/** While something is published, the broker is asked so often … */
export const EVERY_MS = 30_000;
/** … and at first so often, so many times. */
export const FIRST_EVERY_MS = 250;
export const FIRST = 4;
/** The best of so many counts. */
export const SAMPLES = 8;
/** What changes by less is not told. */
export const NEWS_US = 50;
/** So much beyond what round trips explain, and one of the two clocks was stepped. */
export const STEP_US = 50_000;

/** `now` and all other moments are in milliseconds, of a monotonic clock. */
export class BrokerClock {
  /** The broker says what its clock shows, and wants to know. */
  isTold = false;
  #baseUs;
  /** @type {Array<{roundTripUs: number, offsetUs: number}>} */
  #samples = [];
  /** @type {number | null} */
  #offsetUs = null;
  /** @type {number | null} */
  #toldUs = null;
  #askedAt = -Infinity;
  #asked = 0;

  /** @param {{wallUnixMs: number, now: number}} clocks read at the same moment */
  constructor({ wallUnixMs, now }) {
    this.#baseUs = Math.round(1000 * (wallUnixMs - now));
  }

  /** This client's clock, in unix microseconds. @param {number} now */
  unixUs(now) {
    return this.#baseUs + Math.round(1000 * now);
  }

  /**
   * A welcome came, and said this; null: the broker does not say, and must not be told. It is
   * perhaps another broker than before.
   *
   * @param {number | null} brokerUnixUs
   * @param {number} now
   */
  opened(brokerUnixUs, now) {
    this.#samples = [];
    this.#asked = 0;
    this.#toldUs = null;
    this.isTold = brokerUnixUs !== null;
    // Until a round trip is known, too early by the way back.
    if (brokerUnixUs !== null) this.#offsetUs = brokerUnixUs - this.unixUs(now);
  }

  /** Whether the broker is to be asked now. @param {number} now */
  isDue(now) {
    const everyMs = this.#asked < FIRST ? FIRST_EVERY_MS : EVERY_MS;
    return this.isTold && (this.#asked === 0 || now - this.#askedAt >= everyMs);
  }

  /** It is asked. @param {number} now */
  asked(now) {
    this.#asked += 1;
    this.#askedAt = now;
  }

  /**
   * What it was asked at `askedAt` it answers now.
   *
   * @param {number} askedAt
   * @param {number} brokerUnixUs
   * @param {number} now
   */
  answered(askedAt, brokerUnixUs, now) {
    const sentUs = this.unixUs(askedAt);
    const receivedUs = this.unixUs(now);
    const offsetUs = Math.round(brokerUnixUs - (sentUs + receivedUs) / 2);
    const fresh = { roundTripUs: receivedUs - sentUs, offsetUs };
    const best = this.#best();
    if (best !== null) {
      const explainedUs = (fresh.roundTripUs + best.roundTripUs) / 2 + STEP_US;
      if (Math.abs(offsetUs - best.offsetUs) > explainedUs) this.#samples = [];
    }
    this.#samples.push(fresh);
    if (this.#samples.length > SAMPLES) this.#samples.shift();
    this.#offsetUs = this.#best().offsetUs;
  }

  #best() {
    let best = null;
    for (const one of this.#samples) {
      if (best === null || one.roundTripUs < best.roundTripUs) best = one;
    }
    return best;
  }

  /** By how much the broker's clock is ahead, where that is to be told; null: nothing is. */
  get newsUs() {
    if (!this.isTold || this.#offsetUs === null) return null;
    const isNews = this.#toldUs === null || Math.abs(this.#offsetUs - this.#toldUs) >= NEWS_US;
    return isNews ? this.#offsetUs : null;
  }

  /** The news was said. */
  told() {
    this.#toldUs = this.#offsetUs;
  }
}
