/**
 * The ways of single messages: published → durable → pushed → acked, in milliseconds after the
 * call. Pure: times come in, from one monotonic clock. Bounded: the newest `waysMax` are kept.
 */

/** The stages after the call, in the order of the story. */
export const STAGES = ["durable", "pushed", "acked"];

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

  /** It has arrived here, perhaps again. */
  pushed(id, nowMs, { partition, offset, handler, attempt }) {
    const way = this.#mark(id, "pushed", nowMs);
    if (way) {
      Object.assign(way, { partition, offset, attempt });
      way.handler = handler || way.handler;
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

/**
 * How a way is drawn: for each stage when it was reached, where the bar of it begins and ends as
 * fractions of the whole, or null as long as it was not. A push may overtake the receipt: stages
 * are in the order of the story, times as they were measured.
 * @param {Way} way
 */
export function segments(way) {
  const reached = STAGES.map((stage) => way.atMs[stage]);
  const whole = Math.max(...reached.map((ms) => ms ?? 0));
  let begun = 0;
  return STAGES.map((stage, i) => {
    const ms = reached[i];
    if (ms === null) {
      return { stage, ms, from: null, to: null };
    }
    const from = whole ? Math.min(begun, ms) / whole : 0;
    begun = Math.max(begun, ms);
    return { stage, ms, from, to: whole ? ms / whole : 0 };
  });
}
