/**
 * Percentiles of how long messages took, over the last seconds: of all of them, and second by
 * second. Pure: times come in as arguments, in milliseconds of a clock that never goes back.
 */

import { Ring } from "./ring.js";

const SECOND_MS = 1000;

/**
 * The value that so many per cent are not above (nearest rank); null of nothing.
 * @param {Float64Array} sorted ascending
 * @param {number} percent above 0, at most 100
 */
export function percentile(sorted, percent) {
  if (sorted.length === 0) {
    return null;
  }
  return sorted[Math.max(0, Math.ceil((percent / 100) * sorted.length) - 1)];
}

/** The last `windowS` seconds of measures, the newest `samplesMax` of them. */
export class Latencies {
  /** @param {{windowS?: number, samplesMax?: number}} [options] */
  constructor({ windowS = 60, samplesMax = 20_000 } = {}) {
    this.windowS = windowS;
    this.times = new Ring(samplesMax);
    this.values = new Ring(samplesMax);
    this.scratch = new Float64Array(samplesMax);
    this.seconds = new Ring(windowS);
    this.p50s = new Ring(windowS);
    this.p99s = new Ring(windowS);
    this.second = null;
  }

  /** One measure. @param {number} nowMs @param {number} latencyMs */
  add(nowMs, latencyMs) {
    this.times.push(nowMs);
    this.values.push(latencyMs);
  }

  /**
   * Closes the seconds that are over; call it about once a second, also when nothing comes. A
   * second without a measure is a gap (NaN).
   * @param {number} nowMs
   * @returns {boolean} whether a second was closed
   */
  tick(nowMs) {
    const second = Math.floor(nowMs / SECOND_MS);
    if (this.second === null) {
      this.second = second;
      return false;
    }
    const first = Math.max(this.second, second - this.windowS);
    for (let closed = first; closed < second; closed += 1) {
      const sorted = this.#sorted(closed * SECOND_MS, (closed + 1) * SECOND_MS);
      this.seconds.push(closed);
      this.p50s.push(percentile(sorted, 50) ?? NaN);
      this.p99s.push(percentile(sorted, 99) ?? NaN);
    }
    const hasClosed = this.second < second;
    this.second = second;
    return hasClosed;
  }

  /**
   * Of the whole window. @param {number} nowMs
   * @returns {{p50Ms: number|null, p99Ms: number|null, count: number}}
   */
  summary(nowMs) {
    const sorted = this.#sorted(nowMs - this.windowS * SECOND_MS, Infinity);
    return { p50Ms: percentile(sorted, 50), p99Ms: percentile(sorted, 99), count: sorted.length };
  }

  /**
   * Fills three arrays for a plot: seconds before the newest one (0 or less), p50, p99; null is a
   * gap.
   * @param {[number[], (number|null)[], (number|null)[]]} into
   */
  fill(into) {
    const [xs, p50s, p99s] = into;
    xs.length = p50s.length = p99s.length = this.seconds.length;
    const newest = this.seconds.last;
    for (let i = 0; i < this.seconds.length; i += 1) {
      xs[i] = this.seconds.at(i) - newest;
      p50s[i] = Number.isNaN(this.p50s.at(i)) ? null : this.p50s.at(i);
      p99s[i] = Number.isNaN(this.p99s.at(i)) ? null : this.p99s.at(i);
    }
  }

  /** The measures of from ≤ time < until, ascending; a view that the next call writes over. */
  #sorted(fromMs, untilMs) {
    let count = 0;
    for (let i = this.times.length - 1; i >= 0 && this.times.at(i) >= fromMs; i -= 1) {
      if (this.times.at(i) < untilMs) {
        this.scratch[count] = this.values.at(i);
        count += 1;
      }
    }
    return this.scratch.subarray(0, count).sort();
  }
}

/**
 * By how much the broker's wall clock is ahead of the page's, in milliseconds. On the broker's
 * own machine they are one clock. Elsewhere each message that this page publishes narrows it
 * down: the broker took it between the call and its receipt.
 */
export class ClockOffset {
  /** @param {{isSameMachine: boolean}} options */
  constructor({ isSameMachine }) {
    this.isSameMachine = isSameMachine;
    this.lowMs = isSameMachine ? 0 : -Infinity;
    this.highMs = isSameMachine ? 0 : Infinity;
  }

  /** Whether it is known at all. */
  get isKnown() {
    return Number.isFinite(this.lowMs) && Number.isFinite(this.highMs);
  }

  /** The best guess; 0 as long as nothing is known. */
  get offsetMs() {
    return this.isKnown ? (this.lowMs + this.highMs) / 2 : 0;
  }

  /**
   * @param {number} calledUnixMs by the page's clock
   * @param {number} takenUnixMs by the broker's
   * @param {number} answeredUnixMs by the page's
   */
  learn(calledUnixMs, takenUnixMs, answeredUnixMs) {
    if (this.isSameMachine || !(answeredUnixMs >= calledUnixMs)) {
      return;
    }
    const lowMs = takenUnixMs - answeredUnixMs;
    const highMs = takenUnixMs + 1 - calledUnixMs;
    if (lowMs > this.highMs || highMs < this.lowMs) {
      this.lowMs = lowMs; // one of the clocks was set anew
      this.highMs = highMs;
    } else {
      this.lowMs = Math.max(this.lowMs, lowMs);
      this.highMs = Math.min(this.highMs, highMs);
    }
  }

  /** How long ago the broker took a message, by the page's clock; never below 0. */
  sinceMs(nowUnixMs, takenUnixMs) {
    return Math.max(0, nowUnixMs + this.offsetMs - takenUnixMs);
  }
}
