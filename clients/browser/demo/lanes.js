/**
 * The lanes: one for each key, with what came of it last, when it was handled, and why it does
 * not go on. Pure; bounded: the `keysMax` keys that were heard of last.
 */

import { formatCount, plural } from "../shared/format.js";
import { Ring } from "./ring.js";

const HANDLED_MAX = 256;
const VALUES_MAX = 60;
const RATE_WINDOW_MS = 5000;
/** A wish that found no message for so long is forgotten. */
const WISH_MS = 30_000;
const ONE_DIGIT = new Intl.NumberFormat("en", {
  maximumFractionDigits: 1,
  minimumFractionDigits: 1,
});

/**
 * @typedef {object} Lane
 * @property {string|null} key null: messages without a key
 * @property {number|null} partition
 * @property {string} worker whose handler had its last message; empty: nobody of this page
 * @property {object|null} message the last one that was read
 * @property {number} seen how many were read
 * @property {number} heardMs when it was heard of last
 * @property {Ring} values for its line
 * @property {Ring} handledMs when its messages were handled
 * @property {Ring} handledHues and in whose colour: the hue of the worker, -1 where it has none
 * @property {Ring} handledOffsets and which they were
 * @property {number} lastOffset the highest that was handled
 * @property {Held|null} held why it does not go on
 * @property {"nack"|"park"|null} wish what becomes of its next message
 * @property {number} wishedMs when that was wished
 */

/**
 * @typedef {object} Held a nacked message: its key waits
 * @property {number} offset
 * @property {number} attempt that was nacked
 * @property {number} sinceMs
 * @property {number} againMs when it comes again; Infinity: it was the last attempt
 */

/** All lanes, in the order in which their keys were first seen. */
export class Lanes {
  /** @param {{keysMax?: number, attemptsMax?: number}} [options] */
  constructor({ keysMax = 24, attemptsMax = 3 } = {}) {
    this.keysMax = keysMax;
    this.attemptsMax = attemptsMax;
    /** @type {Map<string, Lane>} */
    this.lanes = new Map();
    /**
     * Messages handled in another order than that of their key. One that comes again is none: an
     * ack that nobody confirmed may be lost with the broker.
     */
    this.inversions = 0;
    this.forgotten = 0;
  }

  /** @returns {Lane[]} */
  list() {
    return [...this.lanes.values()];
  }

  /** @param {string|null|undefined} key @returns {Lane|null} */
  find(key) {
    return this.lanes.get(nameOf(key)) ?? null;
  }

  /** Somebody's reader got this message. @returns {Lane} */
  read(message, nowMs) {
    const lane = this.#lane(message.key, nowMs);
    lane.message = message;
    lane.partition = message.partition;
    lane.seen += 1;
    return lane;
  }

  /** A handler of `worker` begins with this message. @returns {Lane} */
  started(message, worker, nowMs) {
    const lane = this.#lane(message.key, nowMs);
    lane.partition = message.partition;
    lane.worker = worker;
    if (lane.held && message.offset >= lane.held.offset) {
      lane.held = null;
    }
    return lane;
  }

  /** It was handled: acked. `hue`: of the worker. */
  handled(message, nowMs, hue = -1) {
    const lane = this.#lane(message.key, nowMs);
    const { offset, attempt } = message;
    if (attempt === 1 && offset <= lane.lastOffset && !lane.handledOffsets.has(offset)) {
      this.inversions += 1;
    }
    lane.handledOffsets.push(offset);
    lane.lastOffset = Math.max(lane.lastOffset, offset);
    lane.handledMs.push(nowMs);
    lane.handledHues.push(hue);
  }

  /**
   * It was nacked and comes again after `delayMs`, or not: that was its last attempt.
   * @returns {boolean} whether it comes again
   */
  nacked(message, nowMs, delayMs) {
    const lane = this.#lane(message.key, nowMs);
    const isLast = message.attempt >= this.attemptsMax;
    lane.wishedMs = nowMs;
    lane.held = {
      offset: message.offset,
      attempt: message.attempt,
      sinceMs: nowMs,
      againMs: isLast ? Infinity : nowMs + delayMs,
    };
    return !isLast;
  }

  /** What is to become of the key's next message; null: nothing but an ack. */
  wish(key, wish, nowMs) {
    Object.assign(this.#lane(key, this.find(key)?.heardMs ?? nowMs), { wish, wishedMs: nowMs });
  }

  /** The wish that its next message is to meet, if any. */
  wishFor(key, nowMs) {
    this.lapse(nowMs);
    return this.find(key)?.wish ?? null;
  }

  /** Forgets wishes that found no message in time. */
  lapse(nowMs) {
    for (const lane of this.lanes.values()) {
      if (lane.wish && !lane.held && nowMs - lane.wishedMs >= WISH_MS) {
        lane.wish = null;
      }
    }
  }

  /** Its key goes on: decided, or settled somewhere else. */
  freed(key) {
    const lane = this.find(key);
    if (lane) {
      lane.held = null;
      lane.wish = null;
    }
  }

  #lane(key, nowMs) {
    const name = nameOf(key);
    let lane = this.lanes.get(name);
    if (!lane) {
      lane = {
        key: key ?? null,
        partition: null,
        worker: "",
        message: null,
        seen: 0,
        heardMs: nowMs,
        values: new Ring(VALUES_MAX),
        handledMs: new Ring(HANDLED_MAX),
        handledHues: new Ring(HANDLED_MAX),
        handledOffsets: new Ring(HANDLED_MAX),
        lastOffset: -1,
        held: null,
        wish: null,
        wishedMs: 0,
      };
      this.lanes.set(name, lane);
      this.#forget();
    }
    lane.heardMs = nowMs;
    return lane;
  }

  /** The key that was silent for longest goes, unless it is held. */
  #forget() {
    if (this.lanes.size <= this.keysMax) {
      return;
    }
    let oldest = null;
    for (const [name, lane] of this.lanes) {
      const isOlder = !oldest || lane.heardMs < this.lanes.get(oldest).heardMs;
      if (!lane.held && !lane.wish && isOlder) {
        oldest = name;
      }
    }
    this.lanes.delete(oldest ?? this.lanes.keys().next().value);
    this.forgotten += 1;
  }
}

/**
 * What a lane is doing, for people.
 * @param {Lane} lane
 * @param {object} now
 * @param {number} now.nowMs
 * @param {number} now.attemptsMax
 * @param {{messages: number, attempts: number}|null} now.parked what the broker says of this key
 * @param {number} now.waiting messages of it that wait, where it is held
 * @param {boolean} now.isPaused its worker is
 * @param {boolean} now.isQueuePaused
 * @param {{name: string, isHere: boolean}|null} now.owner whose it is
 * @returns {{state: "flowing"|"wished"|"held"|"parked"|"paused"|"quiet", text: string}}
 */
export function standing(lane, now) {
  const { nowMs, parked, isPaused, isQueuePaused } = now;
  if (parked) {
    const after = plural(parked.attempts, "attempt");
    const least = parked.is_exact === false ? "at least " : "";
    return { state: "parked", text: `parked after ${after}: ${least}${waits(parked.messages)}` };
  }
  if (lane.held) {
    return { state: "held", text: heldText(lane.held, now) };
  }
  if (isQueuePaused) {
    return { state: "paused", text: "the queue is paused" };
  }
  if (isPaused) {
    return { state: "paused", text: "its worker is paused" };
  }
  if (lane.wish) {
    return { state: "wished", text: `${lane.wish}s its next message; press again to cancel` };
  }
  const count = recent(lane.handledMs, nowMs - RATE_WINDOW_MS);
  if (count) {
    const perSecond = (count * 1000) / RATE_WINDOW_MS;
    return { state: "flowing", text: `flowing, ${ONE_DIGIT.format(perSecond)} a second` };
  }
  return { state: "quiet", text: quietText(lane, now) };
}

function heldText({ attempt, againMs }, { nowMs, attemptsMax, waiting }) {
  if (againMs === Infinity) {
    return `attempt ${attempt} of ${attemptsMax} failed: being parked`;
  }
  const inS = Math.max(0, Math.ceil((againMs - nowMs) / 1000));
  const when = inS ? `again in ${inS} s` : "again now";
  const behind = waiting ? `; ${formatCount(waiting)} wait` : "";
  return `held: ${when}, attempt ${attempt + 1} of ${attemptsMax}${behind}`;
}

function quietText(lane, { nowMs, owner }) {
  if (owner && !owner.isHere) {
    return `handled by ${owner.name}`;
  }
  if (nowMs - lane.heardMs > RATE_WINDOW_MS) {
    return "quiet";
  }
  return owner ? "waits for its worker" : "no worker yet";
}

function waits(count) {
  return `${plural(count, "message")} ${count === 1 ? "waits" : "wait"}`;
}

/** How many of these times are not before. */
function recent(times, sinceMs) {
  let count = 0;
  while (count < times.length && times.at(times.length - 1 - count) >= sinceMs) {
    count += 1;
  }
  return count;
}

/** A name that no key has: keys have at least one byte. */
function nameOf(key) {
  return key ?? "";
}
