/**
 * The offset between the broker's clock and this client's. Pure.
 *
 * The client sends with a message when it was produced, by its own clock, and by how much the
 * broker's clock is ahead, so that the broker knows how long the message took. The offset is found
 * as NTP finds it: the broker reads its clock between a probe and its answer, and the shortest
 * round trip is the most exact. This client's clock is the wall clock once, when it begins, and
 * monotonic from there on.
 *
 * @module
 */

/** Time between two probes, while something is published … */
export const PROBE_MS = 30_000;
/** … and between the first ones, of which there are FIRST_PROBES. */
export const FIRST_PROBE_MS = 250;
export const FIRST_PROBES = 4;
/** The best of the last so many samples counts. */
export const SAMPLES_MAX = 8;
/** A change of the offset by less is not sent. */
export const OFFSET_CHANGE_US = 50;
/** A difference by more than round trips and this explain: one of the two clocks was stepped. */
export const STEP_US = 50_000;

/** `now` and all other moments are in milliseconds, of a monotonic clock. */
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

  /** This client's clock, in unix microseconds. @param {number} now */
  unixUs(now) {
    return this.#baseUs + Math.round(1000 * now);
  }

  /**
   * Begin with the clock of a welcome, perhaps another broker's than before. Null: the broker does
   * not announce its clock, and must not be sent this client's.
   *
   * @param {number | null} brokerUnixUs
   * @param {number} now
   */
  onWelcome(brokerUnixUs, now) {
    this.#samples = [];
    this.#probes = 0;
    this.#sentUs = null;
    this.isAnnounced = brokerUnixUs !== null;
    // Too early by the way back, until a round trip is known.
    if (brokerUnixUs !== null) this.#offsetUs = brokerUnixUs - this.unixUs(now);
  }

  /** Whether a probe is to be sent now. @param {number} now */
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
   * Take the broker's clock from the answer to the probe that was sent at `askedAt`.
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

  /** The broker's lead over this client's clock, if that is to be sent now; else null. */
  get offsetToSendUs() {
    if (!this.isAnnounced || this.#offsetUs === null) return null;
    const changedUs = this.#sentUs === null ? Infinity : Math.abs(this.#offsetUs - this.#sentUs);
    return changedUs >= OFFSET_CHANGE_US ? this.#offsetUs : null;
  }

  /** The offset has been sent. */
  onOffsetSent() {
    this.#sentUs = this.#offsetUs;
  }
}
