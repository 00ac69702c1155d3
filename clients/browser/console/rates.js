// @ts-check
/**
 * Rates out of the broker's counters. Pure: times are handed in, in monotonic milliseconds.
 *
 * A counter grows from the broker's start. A rate is the difference of two samples through the
 * time between them; over a restart, or where a counter went back, there is none (null).
 */

/**
 * @typedef {{atMs: number, era: unknown, values: Record<string, number>}} Sample
 */

export const RATE_WINDOW_MS = 5000;
/** A rate is that of the last so many milliseconds, which calms it. */
export const HISTORY_MS = 5 * 60 * 1000;
/** What a plot shows. */
const GAP_MS = 30_000;
/** Between two samples this far apart nothing is known: a plot has a gap there. */

/** The samples of one thing, oldest first. */
export class History {
  /** @param {number} [keptMs] how far back it remembers */
  constructor(keptMs = HISTORY_MS) {
    this.keptMs = keptMs;
    /** @type {Sample[]} */
    this.samples = [];
  }

  /**
   * One more look. What is no finite number is left out.
   * @param {number} atMs
   * @param {unknown} era changes when the broker starts anew, and its counters with it
   * @param {Record<string, unknown>} values
   */
  add(atMs, era, values) {
    const last = this.samples.at(-1);
    if (last && atMs <= last.atMs) return;
    const numbers = Object.entries(values).filter(([, value]) => Number.isFinite(value));
    this.samples.push({ atMs, era, values: /** @type {any} */ (Object.fromEntries(numbers)) });
    const first = this.samples.findIndex((sample) => sample.atMs >= atMs - this.keptMs);
    if (first > 0) this.samples.splice(0, first);
  }

  /**
   * The rate of a counter now, per second, over the last `windowMs`.
   * @param {string} name
   * @returns {number | null}
   */
  rate(name, windowMs = RATE_WINDOW_MS) {
    return this.#rateAt(this.samples.length - 1, name, windowMs);
  }

  /** The newest value of a gauge or counter. @param {string} name @returns {number | null} */
  latest(name) {
    return this.samples.at(-1)?.values[name] ?? null;
  }

  /**
   * Columns for a plot: times in seconds (negative: before the newest sample), then one column for
   * each name; a name in `counters` becomes a rate.
   * @param {string[]} names
   * @param {string[]} counters
   * @returns {(number | null)[][]}
   */
  columns(names, counters = []) {
    const newest = this.samples.at(-1)?.atMs ?? 0;
    /** @type {(number | null)[][]} */
    const columns = [[], ...names.map(() => [])];
    this.samples.forEach((sample, index) => {
      const before = this.samples[index - 1];
      if (before && sample.atMs - before.atMs > GAP_MS) {
        columns[0].push((before.atMs + 1 - newest) / 1000);
        for (const column of columns.slice(1)) column.push(null);
      }
      columns[0].push((sample.atMs - newest) / 1000);
      names.forEach((name, place) => {
        const value = counters.includes(name)
          ? this.#rateAt(index, name, RATE_WINDOW_MS)
          : (sample.values[name] ?? null);
        columns[place + 1].push(value);
      });
    });
    return columns;
  }

  /** @param {number} index @param {string} name @param {number} windowMs */
  #rateAt(index, name, windowMs) {
    const newest = this.samples[index];
    if (!newest || !(name in newest.values)) return null;
    let oldest = null;
    for (let at = index - 1; at >= 0; at -= 1) {
      const sample = this.samples[at];
      const after = this.samples[at + 1];
      const goesOn = sample.era === newest.era && sample.values[name] <= after.values[name];
      if (!goesOn || after.atMs - sample.atMs > GAP_MS) break;
      oldest = sample;
      if (newest.atMs - sample.atMs >= windowMs) break;
    }
    if (!oldest) return null;
    const elapsedS = (newest.atMs - oldest.atMs) / 1000;
    return (newest.values[name] - oldest.values[name]) / elapsedS;
  }
}

/** Histories by name, of which the longest unused are forgotten. */
export class Histories {
  /** @param {number} most how many it keeps @param {number} [keptMs] */
  constructor(most, keptMs = HISTORY_MS) {
    this.most = most;
    this.keptMs = keptMs;
    /** @type {Map<string, History>} */
    this.byName = new Map();
  }

  /** The history of a name, a new one where there is none. @param {string} name */
  of(name) {
    const history = this.byName.get(name) ?? new History(this.keptMs);
    this.byName.delete(name);
    this.byName.set(name, history);
    if (this.byName.size > this.most) {
      const oldest = this.byName.keys().next().value;
      this.byName.delete(/** @type {string} */ (oldest));
    }
    return history;
  }
}
