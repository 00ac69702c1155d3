// @ts-check
/** What a queue's counters and groups add up to. Pure. */

import { isOwnGroup } from "./words.js";

const OF_GROUPS = [
  "given", "redelivered", "settled", "nacked", "expired", "dead_lettered", "parked",
];
const OF_QUEUE = ["published", "published_bytes", "duplicates", "refused", "unknown"];

/**
 * A queue's counters, those of its groups added up, and its groups' lag.
 * @param {any} queue as the broker describes it
 * @returns {{era: string, values: Record<string, number>, lag: number, lagMost: number | null}}
 *   `era` changes when a counter may begin anew; `lagMost` null: it has no group
 */
export function countersOf(queue) {
  const groups = (Array.isArray(queue.groups) ? queue.groups : []).filter(
    (/** @type {any} */ group) => !isOwnGroup(group),
  );
  /** @type {Record<string, number>} */
  const values = {};
  const counters = queue.counters ?? {};
  for (const name of OF_QUEUE) if (Number.isFinite(counters[name])) values[name] = counters[name];
  const eras = [queue.queue_id, counters.since_unix_ms];
  const lags = [];
  for (const group of groups) {
    lags.push(group.lag || 0);
    eras.push(group.name, group.counters?.since_unix_ms);
  }
  for (const name of OF_GROUPS) {
    values[name] = groups.reduce(
      (/** @type {number} */ sum, /** @type {any} */ group) => sum + (group.counters?.[name] || 0),
      0,
    );
  }
  const lag = lags.reduce((sum, one) => sum + one, 0);
  return { era: eras.join(), values, lag, lagMost: lags.length ? Math.max(...lags) : null };
}
