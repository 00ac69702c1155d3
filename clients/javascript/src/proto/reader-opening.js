/**
 * The opening of a reader at a position that may be unknown to the broker (R26). Pure.
 *
 * From an unknown position a reader continues at the earliest message, which is the broker's
 * default, or at the latest. The broker names the latest place to a reader that subscribes there
 * without credit. Partitions with a good position keep theirs.
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
 * An opening, over one or more subscribes. `where`, a start or a position, is the place at which
 * the reader wants to continue. `onUnknown` says what to do if that is unknown.
 */
export class ReaderOpening {
  /** Whether the subscribe before this one was accepted, and has to be left. */
  leavesFirst = false;
  #onUnknown;
  #seeksEnd = false;
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
    return !this.#seeksEnd;
  }

  /**
   * Handle the answer to a subscribe. Returns whether it was the last one. If not, subscribe again.
   *
   * @throws {PositionUnknown} if the position is unknown, and `onUnknown` is "raise", or has thrown
   */
  onAnswer(answer) {
    this.leavesFirst = false;
    if (answer.type === "error") {
      if (answer.code !== "position_unknown") return true;
      const { detail } = exceptionOf(answer);
      this.#allUnknown = detail;
      this.#kept = new Map();
      this.#chooseStart(new PositionUnknown(answer.code, detail + ADVICE));
      return false;
    }
    if (this.#seeksEnd) {
      this.#onEnd(answer);
      return false;
    }
    const unknown = answer.positions.filter((one) => one.verdict === "unknown");
    if (unknown.length === 0) return true;
    for (const { partition, reason } of unknown) this.#unknown.set(partition, reason);
    this.#kept = new Map();
    for (const verdict of answer.positions) {
      const place = placeOf(verdict);
      if (place === null || this.#unknown.has(verdict.partition)) continue;
      const gap = gapOf(verdict); // before it, so that the next answer reports it again
      const kept = gap === null ? place : [verdict.generation, gap[0]];
      this.#kept.set(String(verdict.partition), kept);
    }
    const partitions = unknown.map((one) => one.partition).join(", ");
    const why = `the position means nothing in partitions ${partitions}: ${unknown[0].reason}`;
    const verdicts = unknown.map(verdictOf);
    this.#chooseStart(new PositionUnknown("position_unknown", why + ADVICE, { verdicts }));
    this.leavesFirst = this.#seeksEnd;
    return !this.#seeksEnd;
  }

  #onEnd({ positions, queue_id }) {
    const partitions = {};
    for (const verdict of positions) {
      const name = String(verdict.partition);
      const end = placeOf(verdict);
      if (end !== null) partitions[name] = this.#kept.get(name) ?? end;
    }
    this.#seeksEnd = false;
    this.leavesFirst = true;
    this.#ends = { queue_id, ring_epoch: 1, partitions };
    this.where = { position: this.#ends };
  }

  #chooseStart(error) {
    if (this.#ends !== null) throw error; // the broker itself gave this position
    const choice = choiceOf(this.#onUnknown, error);
    this.#seeksEnd = choice === "latest";
    this.where = { start: choice };
  }

  /** Return the partitions in which the position was unknown. @returns {Set<number>} */
  unknownPartitions(answer) {
    if (this.#allUnknown === null) return new Set(this.#unknown.keys());
    return new Set(answer.positions.map((one) => one.partition));
  }

  /**
   * Return the verdicts for the user, one for each partition, given the last answer.
   *
   * @returns {object[]}
   */
  verdicts(answer) {
    return answer.positions.map((one) => {
      const verdict = verdictOf(one);
      const reason = this.#unknown.get(one.partition) ?? this.#allUnknown;
      return reason === null ? verdict : { ...verdict, kind: "unknown", gap: null, reason };
    });
  }
}

function choiceOf(onUnknown, error) {
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
  const found = String(choice);
  error.cause = new TypeError(`onUnknown must return "earliest" or "latest", not ${found}`);
  throw error;
}

/** The verdict for the user on a reader's position in one partition. */
function verdictOf(verdict) {
  return {
    partition: verdict.partition,
    kind: KINDS.has(verdict.verdict) ? verdict.verdict : "unknown",
    nextOffset: placeOf(verdict)?.[1] ?? 0,
    gap: gapOf(verdict),
    reason: verdict.reason,
  };
}
