/**
 * Delays that grow with each failure and are spread by chance, so that clients which failed
 * together do not come back together. Pure.
 *
 * @module
 */

/** A bound, so that no power is infinite. */
const DOUBLINGS_MAX = 16;

/**
 * Return the bound of the delay after this number of failures. It doubles with each, up to `maxMs`.
 *
 * @param {number} firstMs
 * @param {number} maxMs
 * @param {number} failures
 */
export function doubled(firstMs, maxMs, failures) {
  return Math.min(maxMs, firstMs * 2 ** Math.min(failures, DOUBLINGS_MAX));
}

/**
 * Return a number between two. @param {() => number} random @param {number} low @param {number}
 * high
 */
export function between(random, low, high) {
  return low + (high - low) * random();
}
