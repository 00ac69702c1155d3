// @ts-check
/** What deciding about parked keys does, in sentences. Pure. */

import { formatCount, plural } from "../shared/format.js";

/** @typedef {"retry" | "skip" | "release"} Verb */

export const DONE = { retry: "tried once more", skip: "skipped", release: "released" };

/** Whether the time to live of a parked key's first message is over. @param {any} row
 * @param {number} nowMs the broker's clock */
export function hasExpired(row, nowMs) {
  return typeof row.expires_unix_ms === "number" && row.expires_unix_ms <= nowMs;
}

/**
 * What one is told before all parked keys are decided about.
 * @param {Verb} verb
 * @param {number} count how many keys are parked
 * @param {any[]} rows those of them that are known
 * @param {number} nowMs the broker's clock
 * @returns {string[]}
 */
export function linesOfAll(verb, count, rows, nowMs) {
  const keys = plural(count, "key");
  const first = `The first message of ${count === 1 ? "" : "each of "}${keys}`;
  const lines = {
    retry: `${first} is tried once more.`,
    release: `${keys} ${count === 1 ? "goes" : "go"} on, with all attempts anew.`,
    skip: `${first} goes to the dead letters, unhandled.`,
  };
  return [lines[verb], expiryLine(verb, count, rows, nowMs)].filter(Boolean);
}

/** @param {Verb} verb @param {number} count @param {any[]} rows @param {number} nowMs */
function expiryLine(verb, count, rows, nowMs) {
  if (verb === "skip" || !rows.some((row) => row.expires_unix_ms)) return "";
  const expired = rows.filter((row) => hasExpired(row, nowMs)).length;
  const least = count > rows.length ? "at least " : "";
  const some = `The first message of ${least}${formatCount(expired)} of them`;
  const which = count === 1 ? "Its first message" : some;
  const already = expired ? `${which} has expired already. ` : "";
  return `${already}Messages whose time to live is over when their turn comes are not handled: `
    + "they go to the dead letters.";
}

/** What is said when one key was decided about. @param {Verb} verb @param {any} row
 * @param {number} nowMs */
export function saidOfOne(verb, row, nowMs) {
  if (verb === "skip" || !hasExpired(row, nowMs)) return `One key is ${DONE[verb]}.`;
  return `One key is ${DONE[verb]}. Its first message has expired: it goes to the dead letters.`;
}

/** What is said when many were. @param {Verb} verb @param {number} count */
export function saidOfMany(verb, count) {
  return `${plural(count, "key")} ${count === 1 ? "is" : "are"} ${DONE[verb]}.`;
}
