// @ts-check
/** What became of a key, in sentences. Pure. */

import { formatCount, plural } from "../shared/format.js";
import { until } from "./format.js";
import { transportOf, waitsFor } from "./words.js";

/**
 * Where a key goes: "goes to partition 4 of 16".
 * @param {any} answer of `GET …/explain`
 */
export function whereItGoes(answer) {
  const paused = answer.paused ? " The queue is paused." : "";
  return `goes to partition ${formatCount(answer.partition)} of ${answer.queue}.${paused}`;
}

/**
 * One group's answer in a sentence: who has the key, and the broker's own words about what holds
 * it up.
 * @param {any} group one of `groups`
 */
export function sentenceOf(group) {
  const text = String(group.text || waitsFor(group.waits_for).means);
  if (group.is_exact !== false) return text;
  return `${text} Not all of the log was looked at: there may be more.`;
}

/** Who may be given it: a name and how it is connected. @param {any} owner */
export function ownerOf(owner) {
  if (!owner) return "nobody";
  const { word } = transportOf(owner.transport);
  if (owner.transport === "pull") return "whoever pulls, over HTTP";
  const name = owner.client || owner.consumer || "a consumer";
  return `${name} (${word})`;
}

/**
 * What of the key is unsettled: "2 in flight, 17 waiting".
 * @param {any} group one of `groups`
 */
export function unsettledOf(group) {
  const { in_flight: inFlight = 0, waiting = 0 } = group.messages ?? {};
  const least = group.is_exact === false ? "at least " : "";
  if (!inFlight && !waiting) return group.is_exact === false ? "none found" : "none";
  return `${least}${formatCount(inFlight)} in flight, ${formatCount(waiting)} waiting`;
}

/** What else holds it up, as words. @param {any} group */
export function alsoOf(group) {
  const codes = Array.isArray(group.also) ? group.also : [];
  return codes.map((code) => waitsFor(code).word).join(", ");
}

/** How often the first message failed. @param {any} head */
export function triesOf(head) {
  if (!head) return "";
  const failed = head.attempts ? `failed ${plural(head.attempts, "time")}` : "never failed";
  return head.in_flight ? `${failed}, attempt ${head.in_flight.attempt} is running` : failed;
}

/**
 * When the first message expires, or what becomes of it because it has.
 * @param {any} group @param {number} nowMs the broker's clock
 */
export function expiryOf(group, nowMs) {
  const at = group.head?.expires_unix_ms;
  if (!at || at > nowMs) return until(at, nowMs);
  if (group.head.in_flight) {
    return "expired: it counts if it is acked; returned, it goes to the dead letters";
  }
  if (group.waits_for === "parked") {
    return "expired: it goes to the dead letters when its key is retried, released or skipped";
  }
  return "expired: it goes to the dead letters when its turn comes, and is not handled";
}
