/**
 * How a reader is opened at a position that may mean nothing any more (R26). Pure.
 *
 * What is unknown can be gone on with at the earliest message there is, which is what the broker
 * does unless told otherwise, or at the latest: where that is the broker says to a reader that
 * begins there without credit, and the partitions whose position is good keep theirs.
 *
 * @module
 */

import { PositionUnknown, TocsinError } from "./errors.js";
import { exceptionOf, gapOf, placeOf } from "./wire.js";

const ADVICE =
  "; open the reader anew with a `start`, or let its `onUnknown` say whether to go on at the " +
  "earliest or the latest message";

const KINDS = new Set(["resumed", "gap", "unknown"]);

/**
 * One opening, over as many subscribes as it takes. `where`, a start or a position, is where the
 * reader wants to go on; `onUnknown` what to do where that means nothing.
 */
export class ReaderOpening {
  /** Whether the subscribe before this one was accepted, and is to be left. */
  leavesFirst = false;
  #onUnknown;
  #seeksTheEnd = false;
  #ends = null;
  /** @type {Map<string, number[]>} */
  #kept = new Map();
  /** @type {Map<number, string>} */
  #unknown = new Map();
  #allUnknown = null;

  /** @param {{start?: any, position?: any}} where @param {any} onUnknown */
  constructor(where, onUnknown) {
    this.where = where;
    this.#onUnknown = onUnknown;
  }

  /** Whether the next subscribe may grant credit. */
  get takesMessages() {
    return !this.#seeksTheEnd;
  }

  /**
   * Whether the answer is the last one; else subscribe again. Throws PositionUnknown: it is, and
   * `onUnknown` says "raise", or has thrown.
   */
  answered(answer) {
    this.leavesFirst = false;
    if (answer.type === "error") {
      if (answer.code !== "position_unknown") return true;
      const { detail } = exceptionOf(answer);
      this.#allUnknown = detail;
      this.#kept = new Map();
      this.#goOn(new PositionUnknown(answer.code, detail + ADVICE));
      return false;
    }
    if (this.#seeksTheEnd) {
      this.#foundTheEnd(answer);
      return false;
    }
    const unknown = answer.positions.filter((one) => one.verdict === "unknown");
    if (unknown.length === 0) return true;
    for (const { partition, reason } of unknown) this.#unknown.set(partition, reason);
    this.#kept = new Map();
    for (const verdict of answer.positions) {
      const place = placeOf(verdict);
      if (place === null || this.#unknown.has(verdict.partition)) continue;
      const gap = gapOf(verdict); // before it, so that the next answer tells of it again
      const kept = gap === null ? place : [verdict.generation, gap[0]];
      this.#kept.set(String(verdict.partition), kept);
    }
    const partitions = unknown.map((one) => one.partition).join(", ");
    const why = `the position means nothing in partitions ${partitions}: ${unknown[0].reason}`;
    const verdicts = unknown.map(verdictOf);
    this.#goOn(new PositionUnknown("position_unknown", why + ADVICE, { verdicts }));
    this.leavesFirst = this.#seeksTheEnd;
    return !this.#seeksTheEnd;
  }

  #foundTheEnd({ positions, queue_id }) {
    const partitions = {};
    for (const verdict of positions) {
      const name = String(verdict.partition);
      const end = placeOf(verdict);
      if (end !== null) partitions[name] = this.#kept.get(name) ?? end;
    }
    this.#seeksTheEnd = false;
    this.leavesFirst = true;
    this.#ends = { queue_id, ring_epoch: 1, partitions };
    this.where = { position: this.#ends };
  }

  #goOn(error) {
    if (this.#ends !== null) throw error; // of a position that the broker gave itself: no end of it
    const choice = chosen(this.#onUnknown, error);
    this.#seeksTheEnd = choice === "latest";
    this.where = { start: choice };
  }

  /** In which partitions the position meant nothing. @returns {Set<number>} */
  unknown(answer) {
    if (this.#allUnknown === null) return new Set(this.#unknown.keys());
    return new Set(answer.positions.map((one) => one.partition));
  }

  /** What is to be told of each partition, given the last answer. @returns {object[]} */
  verdicts(answer) {
    return answer.positions.map((one) => {
      const verdict = verdictOf(one);
      const reason = this.#unknown.get(one.partition) ?? this.#allUnknown;
      return reason === null ? verdict : { ...verdict, kind: "unknown", gap: null, reason };
    });
  }
}

function chosen(onUnknown, error) {
  if (onUnknown === "raise") throw error;
  if (typeof onUnknown !== "function") return onUnknown;
  let choice;
  try {
    choice = onUnknown(error);
  } catch (cause) {
    if (cause instanceof TocsinError) throw cause;
    error.cause = cause;
    throw error;
  }
  if (choice === "earliest" || choice === "latest") return choice;
  error.cause = new TypeError(`onUnknown returns "earliest" or "latest", not ${String(choice)}`);
  throw error;
}

/** The truth about a reader's position in one partition. */
function verdictOf(verdict) {
  return {
    partition: verdict.partition,
    kind: KINDS.has(verdict.verdict) ? verdict.verdict : "unknown",
    nextOffset: placeOf(verdict)?.[1] ?? 0,
    gap: gapOf(verdict),
    reason: verdict.reason,
  };
}
