/** Where a visit begins, where others were before it. Pure. */

import { plural } from "../shared/format.js";

/**
 * Whether what waits in the group is to be skipped: only a tab without a past does so, and only
 * where nobody is that it waits for. A tab that was here before takes it.
 * @param {{consumers: number, keys_parked: number}} group as the broker describes it
 * @param {boolean} isNew whether the tab is
 */
export function skipsBacklog({ consumers, keys_parked: keysParked }, isNew) {
  return isNew && consumers === 0 && keysParked === 0;
}

/** What is said of it; empty: nothing was skipped. @param {number} count */
export function skippedSentence(count) {
  const were = count === 1 ? "was" : "were";
  return count > 0 ? `${plural(count, "message")} from before this visit ${were} skipped.` : "";
}
