/**
 * A producer's lane into one queue: sequences, retries, and their order. Pure.
 *
 * A `PublishLane` numbers the messages, keeps each one until its final answer, and decides what to
 * send when:
 *
 * - Frames hold consecutive sequences. Everything below `resolved` has been answered (R6).
 * - When a message is refused for the moment, or its outcome is unknown, nothing new is sent until
 *   all frames in flight have been answered. Then all refused messages are sent again in sequence
 *   order, and new messages follow. So no message of a key ever overtakes another (R7), even if the
 *   broker would let it.
 * - After a limit was reached, one frame at a time is sent, at the time that the broker names,
 *   until no message is left to be sent again. A frame that is refused although it came in time,
 *   because other clients sent too, is halved.
 * - After a lost connection all unanswered messages are sent again, in order, under their old
 *   sequences. Those that were stored meanwhile are answered as duplicates, with the original's
 *   place (P4).
 *
 *     add -> waiting -- take --> in flight -- final answer --> its ticket
 *                        ^           |
 *                        └─ resends <┘  refused, unknown, connection lost
 *
 * @module
 */

import { between, doubled } from "./backoff.js";
import { PublishTimeout } from "./errors.js";
import { exceptionOf, publishFrame } from "./wire.js";

/** The pause before the first repetition, on average. Each refusal doubles it. */
export const BACKOFF_MS = 50;
export const BACKOFF_MS_MAX = 5000;
/** The longest wait for a limit. */
export const LIMITED_MS_MAX = 60_000;
const LIMITED = "rate_limited";
/** The size at which a publish accepts no further message; one message may be larger. */
export const FRAME_BYTES_AIM = 256 * 1024;
/** The number of unanswered bytes of one lane above which publishing waits. */
export const LANE_BYTES_MAX = 16 * 1_048_576;

/**
 * A message until its final answer.
 *
 * @typedef {object} Entry
 * @property {number} sequence
 * @property {string} text
 * @property {number} bytes
 * @property {(outcome: any) => void} settle called once, with its receipt or its error
 * @property {number} deadline
 * @property {string | null} id
 * @property {number | null} producedUnixUs
 * @property {any} last the broker's last refusal
 */

/**
 * A producer's lane into a queue. `now` and deadlines are in milliseconds, of any monotonic clock.
 */
export class PublishLane {
  /** Whether frames state when their messages were produced. */
  sendsTime = false;
  #random;
  /** @type {Map<number, Entry>} every unanswered message, in the order of sequences */
  #entries = new Map();
  /** @type {Entry[]} of these, never sent */
  #waiting = [];
  /** @type {Entry[]} of these, to be sent again */
  #resends = [];
  /** @type {Map<number, Entry[]>} ref -> what the frame carried */
  #inFlight = new Map();
  #nextSequence;
  #resolved;
  #bytes = 0;
  #refusals = 0;
  /** The number of messages in a frame, with one frame in flight; null if no limit was reached. */
  #pace = null;
  /** The number of refusals in a row by a limit. */
  #limitRefusals = 0;
  #notBefore = -Infinity;
  /** No entry's deadline is before this. */
  #earliest = Infinity;

  /**
   * @param {string} queue
   * @param {{random: () => number, bounds: {messagesPerPublishMax: number, inFlightMax: number},
   *     firstSequence?: number}} settings `firstSequence`: the number of the first message, above
   *     all that the producer has ever used for this queue
   */
  constructor(queue, { random, bounds, firstSequence = 0 }) {
    this.queue = queue;
    this.bounds = bounds;
    this.#random = random;
    this.#nextSequence = this.#resolved = firstSequence;
  }

  /** The number of messages without a final answer. */
  get unanswered() {
    return this.#entries.size;
  }

  /** The sequence of the message that is added next. */
  get nextSequence() {
    return this.#nextSequence;
  }

  /** The sequence below which every message has its final answer. */
  get resolved() {
    return this.#resolved;
  }

  /** Return the number of messages that may be added now; 0 means to wait for answers. */
  room() {
    if (this.#bytes >= LANE_BYTES_MAX) return 0;
    return Math.max(0, this.bounds.inFlightMax - (this.#nextSequence - this.#resolved));
  }

  /**
   * Queue an encoded message. The caller has checked `room`.
   *
   * @param {{text: string, bytes: number, id: string | null, producedUnixUs?: number | null}}
   *     message
   * @param {(outcome: any) => void} settle
   * @param {number} deadline
   */
  add(message, settle, deadline) {
    const entry = { ...message, sequence: this.#nextSequence, settle, deadline, last: null };
    this.#nextSequence += 1;
    this.#entries.set(entry.sequence, entry);
    this.#waiting.push(entry);
    this.#bytes += entry.bytes;
    this.#earliest = Math.min(this.#earliest, deadline);
  }

  /**
   * Take each [ref, frame] to be sent now, in this order. The first one carries `clockOffsetUs`,
   * unless that is null.
   *
   * @param {() => number} nextRef
   * @param {number} now
   * @param {number | null} [clockOffsetUs]
   * @returns {Array<[number, string]>}
   */
  takeFrames(nextRef, now, clockOffsetUs = null) {
    let entries = this.#waiting;
    const isSlow = this.#pace !== null;
    if (this.#resends.length > 0 || isSlow) {
      if (this.#inFlight.size > 0 || now < this.#notBefore) return [];
      this.#resends.sort((one, other) => one.sequence - other.sequence);
      entries = this.#resends.concat(this.#waiting);
      this.#resends = [];
    }
    this.#waiting = [];
    let runs = this.#runs(entries);
    if (isSlow) {
      this.#resends = runs.slice(1).flat();
      runs = runs.slice(0, 1);
    }
    return runs.map((run, index) => {
      const ref = nextRef();
      this.#inFlight.set(ref, run);
      const texts = run.map((entry) => entry.text);
      const times = this.#timesOf(run[0], index === 0 ? clockOffsetUs : null);
      return [ref, publishFrame(ref, this.queue, run[0].sequence, this.#resolved, texts, times)];
    });
  }

  #timesOf(first, clockOffsetUs) {
    const times = {};
    const producedUs = first.producedUnixUs ?? null;
    if (this.sendsTime && producedUs !== null) times.produced_unix_us = producedUs;
    if (clockOffsetUs !== null) times.clock_offset_us = clockOffsetUs;
    return times;
  }

  /** Split entries into runs of consecutive sequences, each small enough for one frame. */
  #runs(entries) {
    const runs = [];
    let run = [];
    let size = 0;
    const countMax = this.#pace ?? this.bounds.messagesPerPublishMax;
    for (const entry of entries) {
      if (
        run.length === 0 ||
        entry.sequence !== run[run.length - 1].sequence + 1 ||
        size + entry.bytes > FRAME_BYTES_AIM ||
        run.length >= countMax
      ) {
        run = [];
        size = 0;
        runs.push(run);
      }
      run.push(entry);
      size += entry.bytes;
    }
    return runs;
  }

  /** Handle the broker's `ok` to a frame. A ref of an earlier connection is ignored. */
  onAnswer(answer, now) {
    const run = this.#inFlight.get(answer.ref);
    if (run === undefined) return;
    this.#inFlight.delete(answer.ref);
    let isRefused = false;
    run.forEach((entry, index) => {
      const outcome = answer.receipts[index];
      if (Array.isArray(outcome) && outcome.length > 1) {
        this.#settle(entry, receiptOf(entry, outcome, answer));
      } else if (isTicket(outcome)) {
        this.#settle(entry, scheduledReceiptOf(entry, outcome, answer));
      } else {
        const isError = outcome !== undefined && !Array.isArray(outcome);
        const error = isError ? exceptionOf(outcome) : missingAnswer();
        if (error.code === LIMITED && now >= this.#notBefore) {
          // The messages before this one passed at once, so send no more than their number.
          this.#limitRefusals = 0;
          this.#slowDown(Math.max(1, index), 1000 * (error.retryAfterS ?? 0), now);
        }
        isRefused = this.#refuse(entry, error, now) || isRefused;
      }
    });
    if (!isRefused) this.#onSuccess();
    this.#advance();
  }

  /** Handle the refusal of a whole frame. */
  onRefusal(ref, error, now) {
    const run = this.#inFlight.get(ref) ?? [];
    this.#inFlight.delete(ref);
    if (error.code === LIMITED && now >= this.#notBefore && run.length > 0) {
      this.#slowDown(run.length, 1000 * (error.retryAfterS ?? 0), now);
    }
    for (const entry of run) this.#refuse(entry, error, now);
    this.#advance();
  }

  /**
   * Reduce the pace, because a frame of this many messages was over a limit, until `afterMs` from
   * now.
   */
  #slowDown(count, afterMs, now) {
    let pauseMs = Math.min(LIMITED_MS_MAX, afterMs * between(this.#random, 1, 1.1));
    this.#pace = this.#limitRefusals === 0 ? count : Math.max(1, Math.floor(count / 2));
    const refusals = this.#limitRefusals;
    if (refusals > 0) pauseMs += this.#backoffMs(refusals); // others came first
    this.#limitRefusals += 1;
    this.#notBefore = now + Math.max(pauseMs, BACKOFF_MS / 10);
  }

  #onSuccess() {
    this.#limitRefusals = 0;
    if (this.#pace !== null) {
      this.#pace = Math.min(2 * this.#pace, this.bounds.messagesPerPublishMax);
    }
    if (this.#resends.length > 0) return;
    this.#refusals = 0;
    this.#pace = null;
  }

  #backoffMs(refusals) {
    return doubled(BACKOFF_MS, BACKOFF_MS_MAX, refusals - 1) * between(this.#random, 0.5, 1.5);
  }

  /**
   * Settle a message that was refused, or queue it to be sent again. Returns whether it is queued.
   */
  #refuse(entry, error, now) {
    if (!error.retry) {
      this.#settle(entry, error);
      return false;
    }
    if (!this.#entries.has(entry.sequence)) return false; // its caller has given up
    this.#resends.push(entry);
    if (error.code === "out_of_sequence" && entry.sequence !== this.#resolved) {
      return true; // it only waits for earlier ones, whose backoff is enough
    }
    entry.last = error;
    if (now >= this.#notBefore) {
      this.#refusals += 1;
      const pauseMs = this.#backoffMs(this.#refusals);
      this.#notBefore = now + Math.max(pauseMs, 1000 * (error.retryAfterS ?? 0));
    }
    return true;
  }

  #settle(entry, outcome) {
    if (!this.#entries.delete(entry.sequence)) return;
    this.#bytes -= entry.bytes;
    entry.settle(outcome);
  }

  #advance() {
    while (this.#resolved < this.#nextSequence && !this.#entries.has(this.#resolved)) {
      this.#resolved += 1;
    }
  }

  /** Queue the messages in flight to be sent again, at once, because the connection is lost. */
  onDisconnect() {
    for (const run of this.#inFlight.values()) {
      this.#resends.push(...run.filter((entry) => this.#entries.has(entry.sequence)));
    }
    this.#inFlight.clear();
    this.#notBefore = -Infinity;
  }

  /** Return the time at which to call `takeFrames` or `expire`, if nothing happens before. */
  nextDeadline() {
    if (this.#entries.size === 0) return Infinity;
    if (this.#resends.length > 0 && this.#inFlight.size === 0) {
      return Math.min(this.#notBefore, this.#earliest);
    }
    return this.#earliest;
  }

  /** Give up messages without a final answer by their deadlines, with PublishTimeout. */
  expire(now) {
    if (now < this.#earliest) return;
    const late = [...this.#entries.values()].filter((entry) => entry.deadline <= now);
    for (const entry of late) this.#settle(entry, new PublishTimeout(entry.last));
    const isOpen = (entry) => this.#entries.has(entry.sequence);
    this.#resends = this.#resends.filter(isOpen);
    this.#waiting = this.#waiting.filter(isOpen);
    this.#advance();
    this.#earliest = Infinity;
    for (const entry of this.#entries.values()) {
      this.#earliest = Math.min(this.#earliest, entry.deadline);
    }
  }

  /** End all unanswered messages with this error. */
  fail(error) {
    this.#inFlight.clear();
    this.#resends = [];
    this.#waiting = [];
    for (const entry of [...this.#entries.values()]) this.#settle(entry, error);
    this.#advance();
  }
}

/**
 * Make a message's receipt: the place at which the broker has stored it, and how safely.
 * `duplicate` means that it was stored before, by a publish under the same id or sequence.
 */
function receiptOf(entry, [partition, offset, isDuplicate], { durability, id_prefix: prefix }) {
  const made = prefix === null ? null : `${prefix}${partition}-${offset}`;
  return {
    id: entry.id ?? made,
    partition,
    offset,
    duplicate: isDuplicate === true,
    durability: durabilityOf(durability),
    isScheduled: false,
    ticket: null,
    dueUnixMs: null,
    due: null,
  };
}

function isTicket(outcome) {
  return typeof outcome?.ticket === "string" && Number.isSafeInteger(outcome.partition);
}

/** Make the receipt of a message that waits until it is due. It has a ticket, and no offset yet. */
function scheduledReceiptOf(entry, { partition, ticket, due_unix_ms, duplicate }, { durability }) {
  const dueUnixMs = Number.isSafeInteger(due_unix_ms) ? due_unix_ms : null;
  return {
    id: entry.id ?? ticket,
    partition,
    offset: null,
    duplicate: duplicate === true,
    durability: durabilityOf(durability),
    isScheduled: true,
    ticket,
    dueUnixMs,
    due: dueUnixMs === null ? null : new Date(dueUnixMs),
  };
}

function durabilityOf(durability) {
  return { level: durability?.level ?? "", copies: durability?.copies ?? 1 };
}

function missingAnswer() {
  return exceptionOf({
    code: "unknown",
    detail: "the broker did not answer for this message",
    retry: true,
  });
}
