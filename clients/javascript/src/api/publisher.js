/**
 * Publishing: a lane for each queue, and the callers that wait for room in it and for answers.
 *
 * @module
 */

import { BrokerClock } from "../proto/broker-clock.js";
import {
  OutcomeUnknown, PublishManyFailed, PublishTimeout, TocsinError, TooLarge,
} from "../proto/errors.js";
import { byteLength, encodeMessage } from "../proto/new-message.js";
import { PublishLane } from "../proto/publish-lane.js";
import { encode, exceptionOf } from "../proto/wire.js";
import { Deferred, Timer } from "../io/platform.js";

const FRAME_OVERHEAD_BYTES = 512;

/** A lane with the callers that wait for room in it, first come first served. */
class BoundedLane {
  /** @type {Array<{fill: () => boolean, added: Deferred<void>}>} */
  #waiting = [];

  /** @param {PublishLane} lane */
  constructor(lane) {
    this.lane = lane;
  }

  /** Whether a message may be added now: the lane has room, and no caller waits for it. */
  get hasRoom() {
    return this.#waiting.length === 0 && this.lane.room() > 0;
  }

  /**
   * Call `fill` when the lane has room and it is this caller's turn.
   *
   * Calls it again whenever there is room, until it returns true, which means that it has added
   * everything. Then `added` resolves. `giveUp` ends the wait.
   */
  add(fill) {
    const waiter = { fill, added: new Deferred().unobserved() };
    this.#waiting.push(waiter);
    const giveUp = (error) => {
      const at = this.#waiting.indexOf(waiter);
      if (at < 0) return;
      this.#waiting.splice(at, 1);
      waiter.added.reject(error);
      this.onRoom(); // it may have been ahead of a caller for which there is room
    };
    return { added: waiter.added.promise, giveUp };
  }

  /** Let all callers that fit add now, so that their messages travel in one frame. */
  onRoom() {
    while (this.#waiting.length > 0 && this.lane.room() > 0) {
      const { fill, added } = this.#waiting[0];
      if (!fill()) return;
      this.#waiting.shift();
      added.resolve();
    }
  }

  /** End all waits with this error. */
  fail(error) {
    for (const { added } of this.#waiting.splice(0)) added.reject(error);
  }
}

/** The lanes of this client, one for each queue. A part of the session. */
export class Publisher {
  #session;
  #environment;
  /** @type {Map<string, BoundedLane>} by queue */
  #lanes = new Map();
  /** @type {Map<string, number>} by queue, the sequence to continue with */
  #sequences;
  /** The first sequence of every other queue. */
  #firstSequence;
  #clock;

  /**
   * Make a publisher.
   *
   * @param {import("../io/session.js").Session} session
   * @param {import("../io/platform.js").Environment} environment
   * @param {{sequences?: Record<string, number>, firstSequence?: number}} [numbers] `sequences`:
   *     by queue, the sequence to continue with; `firstSequence`: that of every other queue
   */
  constructor(session, environment, { sequences = {}, firstSequence = 0 } = {}) {
    this.#session = session;
    this.#environment = environment;
    this.#sequences = new Map(Object.entries(sequences));
    this.#firstSequence = firstSequence;
    this.#clock = new BrokerClock({ wallUnixMs: environment.wall(), now: environment.now() });
    session.add(this);
  }

  // --- for the client ----------------------------------------------------------------------------

  /** Publish a message. If the lane has room, the message is queued when this returns. */
  async publish(queue, message, timeoutS) {
    const bounded = this.#lane(queue);
    const encoded = this.#encode(message);
    const deadline = this.#deadline(timeoutS);
    const outcome = new Deferred();
    const fill = () => {
      const settle = (found) => {
        if (found instanceof TocsinError) outcome.reject(found);
        else outcome.resolve(found);
      };
      this.#add(bounded, encoded, settle, deadline);
      return true;
    };
    if (bounded.hasRoom) fill();
    else await this.#waitForRoom(bounded, fill, deadline);
    return outcome.promise;
  }

  /** Publish messages; resolves with their receipts, in order. */
  async publishMany(queue, messages, timeoutS) {
    const bounded = this.#lane(queue);
    const encoded = [...messages].map((message) => this.#encodeOne(message));
    if (encoded.length === 0) return [];
    const deadline = this.#deadline(timeoutS);
    const outcomes = new Array(encoded.length);
    const done = new Deferred();
    let left = encoded.length;
    let added = 0;
    const settleAt = (index) => (outcome) => {
      outcomes[index] = outcome;
      left -= 1;
      if (left === 0) done.resolve();
    };
    const fill = () => {
      while (added < encoded.length && bounded.lane.room() > 0) {
        const settle = settleAt(added);
        const one = encoded[added];
        added += 1;
        if (one instanceof TocsinError) settle(one);
        else this.#add(bounded, one, settle, deadline);
      }
      return added === encoded.length;
    };
    if (!(bounded.hasRoom && fill())) {
      try {
        await this.#waitForRoom(bounded, fill, deadline);
      } catch (error) {
        while (added < encoded.length) settleAt(added++)(error);
      }
    }
    await done.promise;
    if (outcomes.some((outcome) => outcome instanceof TocsinError)) {
      throw new PublishManyFailed(outcomes);
    }
    return outcomes;
  }

  /** The number of messages without a final answer. */
  get unanswered() {
    let sum = 0;
    for (const { lane } of this.#lanes.values()) sum += lane.unanswered;
    return sum;
  }

  /** Return the next sequence, by queue. Sequences below it are not used again. */
  sequences() {
    const found = new Map(this.#sequences);
    for (const { lane } of this.#lanes.values()) found.set(lane.queue, lane.nextSequence);
    return Object.fromEntries(found);
  }

  /** End everything that was published under a producer that is no longer this client's. */
  forget() {
    const unknown = new OutcomeUnknown("unknown", "the page was left before the broker answered");
    for (const bounded of this.#lanes.values()) {
      bounded.lane.fail(unknown);
      bounded.onRoom(); // messages that waited for room were never sent
    }
  }

  async #waitForRoom(bounded, fill, deadline) {
    const { added, giveUp } = bounded.add(fill);
    const timer = new Timer(this.#environment);
    if (deadline < Infinity) {
      timer.set(deadline - this.#environment.now(), () => giveUp(new PublishTimeout()));
    }
    try {
      await added;
    } finally {
      timer.cancel();
    }
  }

  #add(bounded, encoded, settle, deadline) {
    bounded.lane.add(encoded, settle, deadline);
    this.#session.markDirty(this);
    this.#session.wakeAt(deadline);
  }

  /** Encode a message, or return the error of one that cannot be sent, as its own outcome. */
  #encodeOne(message) {
    try {
      return this.#encode(message);
    } catch (error) {
      if (error instanceof TocsinError) return error;
      throw error;
    }
  }

  #encode(message) {
    const text = encodeMessage(message);
    const bytes = byteLength(text);
    const bytesMax = this.#session.welcome.frame_bytes_max - FRAME_OVERHEAD_BYTES;
    if (bytes > bytesMax) {
      const detail = `the message has ${bytes} bytes; a frame may have ${bytesMax}`;
      throw new TooLarge("message_too_large", detail);
    }
    const { isAnnounced } = this.#clock;
    const producedUnixUs = isAnnounced ? this.#clock.unixUs(this.#environment.now()) : null;
    return { text, bytes, id: message.id ?? null, producedUnixUs };
  }

  #deadline(timeoutS) {
    if (timeoutS === null) return Infinity;
    if (typeof timeoutS === "number" && timeoutS >= 0) {
      return this.#environment.now() + 1000 * timeoutS;
    }
    throw new TypeError("timeoutS must be a number of seconds, or null for no limit");
  }

  #lane(queue) {
    if (this.#session.failure !== null) throw this.#session.failure;
    let bounded = this.#lanes.get(queue);
    if (bounded === undefined) {
      const { random } = this.#environment;
      const firstSequence = this.#sequences.get(queue) ?? this.#firstSequence;
      const settings = { random, bounds: this.#bounds(), firstSequence };
      bounded = new BoundedLane(new PublishLane(queue, settings));
      bounded.lane.sendsTime = this.#clock.isAnnounced;
      this.#lanes.set(queue, bounded);
    }
    return bounded;
  }

  #bounds() {
    const { messages_per_publish_max, in_flight_max } = this.#session.welcome;
    return { messagesPerPublishMax: messages_per_publish_max, inFlightMax: in_flight_max };
  }

  // --- as a part of the session ------------------------------------------------------------------

  /** Send all unanswered messages again, under the same sequences (P4). */
  onOpen() {
    this.#clock.onWelcome(this.#session.welcome.clock_unix_us, this.#environment.now());
    for (const { lane } of this.#lanes.values()) {
      lane.bounds = this.#bounds();
      lane.sendsTime = this.#clock.isAnnounced;
    }
    this.#session.markDirty(this);
  }

  /** Queue publishes in flight to be sent again on the next connection. */
  onDisconnect() {
    for (const { lane } of this.#lanes.values()) lane.onDisconnect();
  }

  /** End everything with this error, because nothing will be sent any more. */
  onFailure(error) {
    for (const bounded of this.#lanes.values()) {
      bounded.lane.fail(error);
      bounded.fail(error);
    }
  }

  /** Take the publishes of this turn; none while the socket accepts no more. */
  takeFrames(now) {
    const frames = [];
    if (!this.#session.isWritable) return frames; // `onWritable` leads here again
    for (const bounded of this.#lanes.values()) {
      const { offsetToSendUs } = this.#clock;
      const taken = bounded.lane.takeFrames(this.#session.nextRef, now, offsetToSendUs);
      for (const [ref, frame] of taken) {
        this.#clock.onOffsetSent();
        this.#session.expect(ref, (answer) => this.#onAnswer(bounded, ref, answer));
        frames.push(frame);
      }
    }
    if (frames.length > 0 && this.#clock.isDue(now)) frames.unshift(this.#probe(now));
    return frames;
  }

  /** Return a ping. Its answer shows the broker's clock. */
  #probe(now) {
    const ref = this.#session.nextRef();
    this.#clock.onProbe(now);
    this.#session.expect(ref, (answer) => {
      const brokerUnixUs = answer?.clock_unix_us ?? null;
      if (brokerUnixUs !== null) this.#clock.onAnswer(now, brokerUnixUs, this.#environment.now());
    });
    return encode({ type: "ping", ref });
  }

  #onAnswer(bounded, ref, answer) {
    if (answer === null) return; // `onDisconnect` follows
    const now = this.#environment.now();
    if (answer.type === "ok") bounded.lane.onAnswer(answer, now);
    else bounded.lane.onRefusal(ref, exceptionOf(answer), now);
    bounded.onRoom();
    this.#session.markDirty(this);
    this.#session.wakeAt(bounded.lane.nextDeadline());
  }

  /** Return the earliest deadline of the lanes; Infinity without any. */
  nextDeadline() {
    return Math.min(...[...this.#lanes.values()].map(({ lane }) => lane.nextDeadline()));
  }

  /** Give up late publishes, and send again those that have waited long enough. */
  expire(now) {
    for (const bounded of this.#lanes.values()) {
      bounded.lane.expire(now);
      bounded.onRoom();
    }
    if (this.#lanes.size > 0) this.#session.markDirty(this);
  }
}
