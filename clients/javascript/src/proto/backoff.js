/**
 * Waits that grow with each failure and are spread by chance, so that clients which failed together
 * do not come back together. Pure.
 *
 * @module
 */

/** A number between two. @param {() => number} random @param {number} low @param {number} high */
export function between(random, low, high) {
  return low + (high - low) * random();
}
