/**
 * The offset between the broker's clock and this client's. Pure.
 *
 * A client states when it produced a message, by its own clock, and how far the broker's clock is
 * ahead. From both the broker computes how long the message took. The offset is found as in NTP:
 * the broker reads its clock between a probe and its answer, and the shortest round trip is the
 * most exact. This client's clock is the wall clock at its beginning, and monotonic from then on.
 *
 * @module
 */

/** The time between two probes, while messages are published. */
export const PROBE_MS = 30_000;
/** The time between the first probes, of which there are FIRST_PROBES. */
export const FIRST_PROBE_MS = 250;
export const FIRST_PROBES = 4;
/** The number of samples of which the best one counts. */
export const SAMPLES_MAX = 8;
/** The smallest change of the offset that is sent. */
export const OFFSET_CHANGE_US = 50;
/** The difference, beyond what round trips explain, that means that a clock was stepped. */
export const STEP_US = 50_000;

/** The broker's clock. `now` and all other moments are in milliseconds, of a monotonic clock. */
export class BrokerClock {
  /** Whether the broker announces its clock, and accepts this client's. */
  isAnnounced = false;
  #baseUs;
  /** @type {Array<{roundTripUs: number, offsetUs: number}>} */
  #samples = [];
  /** @type {number | null} */
  #offsetUs = null;
  /** @type {number | null} */
  #sentUs = null;
  #probedAt = -Infinity;
  #probes = 0;

  /** @param {{wallUnixMs: number, now: number}} clocks read at the same moment */
  constructor({ wallUnixMs, now }) {
    this.#baseUs = Math.round(1000 * (wallUnixMs - now));
  }

  /** Return this client's time, in Unix microseconds. @param {number} now */
  unixUs(now) {
    return this.#baseUs + Math.round(1000 * now);
  }

  /**
   * Begin with the clock of a welcome, which may come from another broker than before. Null means
   * that the broker does not announce its clock, and must not be sent this client's.
   *
   * @param {number | null} brokerUnixUs
   * @param {number} now
   */
  onWelcome(brokerUnixUs, now) {
    this.#samples = [];
    this.#probes = 0;
    this.#sentUs = null;
    this.isAnnounced = brokerUnixUs !== null;
    // Early by the way back, until a round trip is known.
    if (brokerUnixUs !== null) this.#offsetUs = brokerUnixUs - this.unixUs(now);
  }

  /** Whether to send a probe now. @param {number} now */
  isDue(now) {
    const everyMs = this.#probes < FIRST_PROBES ? FIRST_PROBE_MS : PROBE_MS;
    return this.isAnnounced && (this.#probes === 0 || now - this.#probedAt >= everyMs);
  }

  /** Count a probe that is sent now. @param {number} now */
  onProbe(now) {
    this.#probes += 1;
    this.#probedAt = now;
  }

  /**
   * Use the broker's clock in the answer to the probe that was sent at `askedAt`.
   *
   * @param {number} askedAt
   * @param {number} brokerUnixUs
   * @param {number} now
   */
  onAnswer(askedAt, brokerUnixUs, now) {
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
    if (this.#samples.length > SAMPLES_MAX) this.#samples.shift();
    this.#offsetUs = this.#best().offsetUs;
  }

  #best() {
    let best = null;
    for (const one of this.#samples) {
      if (best === null || one.roundTripUs < best.roundTripUs) best = one;
    }
    return best;
  }

  /**
   * The lead of the broker's clock over this client's, if it has to be sent now; otherwise null.
   */
  get offsetToSendUs() {
    if (!this.isAnnounced || this.#offsetUs === null) return null;
    const changedUs = this.#sentUs === null ? Infinity : Math.abs(this.#offsetUs - this.#sentUs);
    return changedUs >= OFFSET_CHANGE_US ? this.#offsetUs : null;
  }

  /** Note that the offset has been sent. */
  onOffsetSent() {
    this.#sentUs = this.#offsetUs;
  }
}
