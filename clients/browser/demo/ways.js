/**
 * The ways of single messages: published → durable → pushed → acked, in milliseconds after the
 * call. Pure: times come in, from one monotonic clock. Bounded: the newest `waysMax` are kept.
 */

/** The stages after the call, in the order of the story. */
export const STAGES = ["durable", "pushed", "acked"];
const PART_MIN = 0.08;

/**
 * @typedef {object} Way
 * @property {string} id the message's
 * @property {string|null} key
 * @property {string} text the body as text
 * @property {boolean} isOwn published by this page, so that all stages are measured here
 * @property {number} calledMs when it was published, or first seen here
 * @property {Object<string, number|null>} atMs by stage, milliseconds after the call
 * @property {string} handler which worker had it; empty: not known yet
 * @property {number|null} partition
 * @property {number|null} offset
 * @property {number} attempt the newest one
 * @property {number|null} readMs when this page's reader got it, milliseconds after the call
 * @property {boolean} isTakenBack
 * @property {number|null} dueUnixMs when it is due, while it is scheduled; null: it is not
 * @property {string} trouble what is wrong with it, as a sentence; empty: nothing
 */

/** The newest messages, newest first. */
export class Ways {
  /** @param {number} [waysMax] */
  constructor(waysMax = 40) {
    this.waysMax = waysMax;
    /** @type {Way[]} */
    this.list = [];
    /** @type {Map<string, Way>} */
    this.byId = new Map();
    this.version = 0;
  }

  /** Begins one. @returns {Way} */
  begin({ id, key, text, nowMs, isOwn }) {
    const way = {
      id,
      key,
      text,
      isOwn,
      calledMs: nowMs,
      atMs: { durable: null, pushed: null, acked: null },
      handler: "",
      partition: null,
      offset: null,
      attempt: 1,
      readMs: null,
      dueUnixMs: null,
      isTakenBack: false,
      trouble: "",
    };
    this.list.unshift(way);
    this.byId.set(id, way);
    if (this.list.length > this.waysMax) {
      this.byId.delete(this.list.pop().id);
    }
    this.version += 1;
    return way;
  }

  /** The way of this message, while it is among the newest. @param {string} id */
  find(id) {
    return this.byId.get(id) ?? null;
  }

  /** The receipt has come. */
  durable(id, nowMs, { partition, offset }) {
    const way = this.#mark(id, "durable", nowMs);
    if (way) {
      way.partition = partition;
      way.offset = offset;
    }
  }

  /** The receipt has come, and says that it is due later. */
  scheduled(id, nowMs, { partition, dueUnixMs }) {
    const way = this.#mark(id, "durable", nowMs);
    if (way) {
      Object.assign(way, { partition, dueUnixMs });
    }
  }

  /** It has come, so it was due: from then on its way is measured. @param {number} dueMs */
  due(id, dueMs) {
    const way = this.find(id);
    if (way && way.dueUnixMs !== null) {
      way.dueUnixMs = null;
      way.calledMs = dueMs;
      way.atMs.durable = 0;
      this.version += 1;
    }
  }

  /** It was taken back: it never comes. */
  takenBack(id) {
    const way = this.find(id);
    if (way) {
      way.dueUnixMs = null;
      way.isTakenBack = true;
      this.trouble(id, "taken back");
    }
  }

  /** Whether any of them waits until it is due. */
  get isAnyScheduled() {
    return this.list.some(({ dueUnixMs }) => dueUnixMs !== null);
  }

  /** This page's reader has got it: readers are of no group, and no pause is theirs. */
  read(id, nowMs, { partition, offset }) {
    const way = this.find(id);
    if (way) {
      Object.assign(way, { partition, offset });
      way.readMs ??= Math.max(0, nowMs - way.calledMs);
      this.version += 1;
    }
  }

  /** A worker of another tab is given it: that it was read here is all that is seen of it. */
  elsewhere(id, handler) {
    const way = this.find(id);
    if (way && way.readMs !== null && way.atMs.pushed === null) {
      way.atMs.pushed = way.readMs;
      way.handler = handler;
      this.version += 1;
    }
  }

  /** A worker of this page has been given it, perhaps again. */
  pushed(id, nowMs, { partition, offset, handler, attempt }) {
    const way = this.#mark(id, "pushed", nowMs);
    if (way) {
      Object.assign(way, { partition, offset, attempt });
      way.handler = handler;
    }
  }

  /** The answer to the confirmed ack has come. */
  acked(id, nowMs) {
    this.#mark(id, "acked", nowMs);
  }

  /** Something went wrong with it. @param {string} trouble a sentence; empty: not any more */
  trouble(id, trouble) {
    const way = this.find(id);
    if (way && way.trouble !== trouble) {
      way.trouble = trouble;
      this.version += 1;
    }
  }

  /** The first time counts. */
  #mark(id, stage, nowMs) {
    const way = this.find(id);
    if (way) {
      way.atMs[stage] ??= Math.max(0, nowMs - way.calledMs);
      this.version += 1;
    }
    return way;
  }
}

/** When a scheduled message comes. @param {number} inMs from now on */
export function dueText(inMs) {
  const seconds = Math.ceil(inMs / 1000);
  return seconds > 0 ? `due in ${seconds} s` : "due now";
}

/**
 * What a message waits for that is not its own fault; empty: nothing.
 * @param {Way} way
 * @param {{isConnected: boolean, isQueuePaused: boolean}} now
 */
export function waitsFor(way, { isConnected, isQueuePaused }) {
  if (way.isOwn && way.atMs.durable === null && way.trouble === "" && !isConnected) {
    return "waits for the broker";
  }
  if (way.dueUnixMs !== null || way.isTakenBack) {
    return "";
  }
  const isGiven = way.atMs.pushed !== null || way.atMs.acked !== null;
  return isQueuePaused && !isGiven ? "waits: the queue is paused" : "";
}

/**
 * How a way is drawn: for each stage when it was reached, and which part of the bar is its own, as
 * fractions of the whole, or null as long as it was not. The parts follow each other as measured:
 * a push may overtake the receipt. Each is long enough to be seen.
 * @param {Way} way
 */
export function segments(way) {
  const drawn = STAGES.map((stage) => ({ stage, ms: way.atMs[stage], from: null, to: null }));
  const reached = drawn.filter(({ ms }) => ms !== null).sort((one, other) => one.ms - other.ms);
  const whole = reached.at(-1)?.ms || 1;
  const lengths = reached.map(({ ms }, i) =>
    Math.max((ms - (reached[i - 1]?.ms ?? 0)) / whole, PART_MIN),
  );
  const sum = lengths.reduce((total, length) => total + length, 0);
  let begun = 0;
  reached.forEach((part, i) => {
    part.from = begun;
    begun += lengths[i] / sum;
    part.to = begun;
  });
  return drawn;
}
