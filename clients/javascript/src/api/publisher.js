/**
 * Publishing: a lane for each queue, and the callers that wait for room in it and for answers.
 *
 * @module
 */

import { BrokerClock } from "../proto/broker-clock.js";
import {
  OutcomeUnknown, PublishManyFailed, PublishTimeout, TocsinError, TooLarge,
} from "../proto/errors.js";
import { byteLength, encodeMessage } from "../proto/message.js";
import { PublishLane } from "../proto/publish-lane.js";
import { encode, exceptionOf } from "../proto/wire.js";
import { Deferred, Timer } from "../io/platform.js";

const FRAME_OVERHEAD_BYTES = 512;

/** A lane, and who waits, first come first served, for room in it. */
class LaneQueue {
  /** @type {Array<{fill: () => boolean, added: Deferred<void>}>} */
  #waiting = [];

  /** @param {PublishLane} lane */
  constructor(lane) {
    this.lane = lane;
  }

  /** Whether something may be added now: there is room, and nobody waits for it. */
  get hasRoom() {
    return this.#waiting.length === 0 && this.lane.room() > 0;
  }

  /**
   * Call `fill` as soon as there is room and it is this caller's turn, and again whenever there is
   * room, until it returns true: it has added everything. Resolves then; `giveUp` leaves the line.
   */
  add(fill) {
    const waiter = { fill, added: new Deferred().unobserved() };
    this.#waiting.push(waiter);
    const giveUp = (error) => {
      const at = this.#waiting.indexOf(waiter);
      if (at < 0) return;
      this.#waiting.splice(at, 1);
      waiter.added.reject(error);
      this.poke(); // it may have stood before somebody for whom there is room
    };
    return { added: waiter.added.promise, giveUp };
  }

  /** There may be room now. Everybody who fits adds at once, so that it travels in one frame. */
  poke() {
    while (this.#waiting.length > 0 && this.lane.room() > 0) {
      const { fill, added } = this.#waiting[0];
      if (!fill()) return;
      this.#waiting.shift();
      added.resolve();
    }
  }

  /** There never will be room. */
  fail(error) {
    for (const { added } of this.#waiting.splice(0)) added.reject(error);
  }
}

/** This client's lanes, one a queue. */
export class Publisher {
  #session;
  #environment;
  /** @type {Map<string, LaneQueue>} */
  #lines = new Map();
  #first;
  #clock;

  /**
   * @param {import("../io/session.js").Session} session
   * @param {import("../io/platform.js").Environment} environment
   * @param {Record<string, number>} [first] per queue, the sequence to go on with
   */
  constructor(session, environment, first = {}) {
    this.#session = session;
    this.#environment = environment;
    this.#first = new Map(Object.entries(first));
    this.#clock = new BrokerClock({ wallUnixMs: environment.wall(), now: environment.now() });
    session.add(this);
  }

  // --- for the client ---------------------------------------------------------------------------

  /** See Client.publish. Where there is room the message is queued when this returns. */
  async publish(queue, message, timeoutS) {
    const line = this.#line(queue);
    const encoded = this.#encode(message);
    const deadline = this.#deadline(timeoutS);
    const outcome = new Deferred();
    const fill = () => {
      const settle = (found) => {
        if (found instanceof TocsinError) outcome.reject(found);
        else outcome.resolve(found);
      };
      this.#add(line, encoded, settle, deadline);
      return true;
    };
    if (line.hasRoom) fill();
    else await this.#room(line, fill, deadline);
    return outcome.promise;
  }

  /** See Client.publishMany. */
  async publishMany(queue, messages, timeoutS) {
    const line = this.#line(queue);
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
      while (added < encoded.length && line.lane.room() > 0) {
        const settle = settleAt(added);
        const one = encoded[added];
        added += 1;
        if (one instanceof TocsinError) settle(one);
        else this.#add(line, one, settle, deadline);
      }
      return added === encoded.length;
    };
    if (!(line.hasRoom && fill())) {
      try {
        await this.#room(line, fill, deadline);
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

  /** Messages of this client that have no final answer yet. */
  get unanswered() {
    return this.#lanes().reduce((sum, lane) => sum + lane.unanswered, 0);
  }

  /** Per queue, the sequence that comes next; what is below will not be said again. */
  sequences() {
    const found = new Map(this.#first);
    for (const lane of this.#lanes()) found.set(lane.queue, lane.next);
    return Object.fromEntries(found);
  }

  /** What is unanswered was said under another name, which is no longer this client's. */
  forget() {
    const unknown = new OutcomeUnknown("unknown", "the page was left before the broker answered");
    for (const line of this.#lines.values()) {
      line.lane.fail(unknown);
      line.poke(); // what waited for room was never said
    }
  }

  async #room(line, fill, deadline) {
    const { added, giveUp } = line.add(fill);
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

  #add(line, encoded, settle, deadline) {
    line.lane.add(encoded, settle, deadline);
    this.#session.dirty(this);
    this.#session.wakeAt(deadline);
  }

  /** Encoded, or why it cannot be sent: its own outcome, not that of the others. */
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
      const detail = `the message has ${bytes} bytes; a frame has ${bytesMax}`;
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
    throw new TypeError("timeoutS is a number of seconds, or null: for ever");
  }

  #line(queue) {
    if (this.#session.failure !== null) throw this.#session.failure;
    let line = this.#lines.get(queue);
    if (line === undefined) {
      const { random } = this.#environment;
      const first = this.#first.get(queue) ?? 0;
      line = new LaneQueue(new PublishLane(queue, { random, bounds: this.#bounds(), first }));
      line.lane.tellsTime = this.#clock.isAnnounced;
      this.#lines.set(queue, line);
    }
    return line;
  }

  #bounds() {
    const { messages_per_publish_max, in_flight_max } = this.#session.welcome;
    return { messagesPerPublishMax: messages_per_publish_max, inFlightMax: in_flight_max };
  }

  #lanes() {
    return [...this.#lines.values()].map((line) => line.lane);
  }

  // --- session.Part -----------------------------------------------------------------------------

  /** Everything unanswered is sent again, under the same sequences (P4). */
  opened() {
    this.#clock.onWelcome(this.#session.welcome.clock_unix_us, this.#environment.now());
    for (const lane of this.#lanes()) {
      lane.bounds = this.#bounds();
      lane.tellsTime = this.#clock.isAnnounced;
    }
    this.#session.dirty(this);
  }

  /** What was in flight will be sent again. */
  disconnected() {
    for (const lane of this.#lanes()) lane.disconnected();
  }

  /** Nothing will be sent any more. */
  failed(error) {
    for (const line of this.#lines.values()) {
      line.lane.fail(error);
      line.fail(error);
    }
  }

  /** The publishes of this turn; none while the socket does not take them. */
  collect(now) {
    const frames = [];
    if (!this.#session.isWritable) return frames; // `onWritable` asks again
    for (const line of this.#lines.values()) {
      const { offsetToSendUs } = this.#clock;
      for (const [ref, frame] of line.lane.take(this.#session.nextRef, now, offsetToSendUs)) {
        this.#clock.onOffsetSent();
        this.#session.expect(ref, (answer) => this.#answered(line, ref, answer));
        frames.push(frame);
      }
    }
    if (frames.length > 0 && this.#clock.isDue(now)) frames.unshift(this.#ask(now));
    return frames;
  }

  /** What does the broker's clock show? */
  #ask(now) {
    const ref = this.#session.nextRef();
    this.#clock.onProbe(now);
    this.#session.expect(ref, (answer) => {
      const brokerUnixUs = answer?.clock_unix_us ?? null;
      if (brokerUnixUs !== null) this.#clock.onAnswer(now, brokerUnixUs, this.#environment.now());
    });
    return encode({ type: "ping", ref });
  }

  #answered(line, ref, answer) {
    if (answer === null) return; // `disconnected` follows
    const now = this.#environment.now();
    if (answer.type === "ok") line.lane.answered(answer, now);
    else line.lane.refused(ref, exceptionOf(answer), now);
    line.poke();
    this.#session.dirty(this);
    this.#session.wakeAt(line.lane.nextDeadline());
  }

  /** The earliest of the lanes. */
  nextDeadline() {
    return Math.min(...this.#lanes().map((lane) => lane.nextDeadline()));
  }

  /** Give up what is late; send again what has waited long enough. */
  expire(now) {
    for (const line of this.#lines.values()) {
      line.lane.expire(now);
      line.poke();
    }
    if (this.#lines.size > 0) this.#session.dirty(this);
  }
}
