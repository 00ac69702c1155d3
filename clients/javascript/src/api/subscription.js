/**
 * A place in a group: what the user sees of it, and what has it on the session. Its base classes
 * serve readers as well.
 *
 * @module
 */

import { DeliveryLedger } from "../proto/delivery-ledger.js";
import { DeliveryState } from "../proto/delivery.js";
import {
  ClientClosed, OutcomeUnknown, StaleDelivery, TocsinError, wordsOf,
} from "../proto/errors.js";
import { usableMs } from "../proto/leases.js";
import { encode, exceptionOf, splitDeliveries, startAt } from "../proto/wire.js";
import { Deferred, report, Timer } from "../io/platform.js";

/** After a subscribe that was refused for the moment, it is tried again so much later. */
export const RESUBSCRIBE_MS = 500;
const LEAVE_TIMEOUT_MS = 5000;
/** Where the broker does not name the group's. */
const LEASE_MS_DEFAULT = 30_000;
const REASON_CHARS_MAX = 500;

// --- what subscriptions and readers have in common -----------------------------------------------

/** A part of a session that was opened: begun, and over some day. */
export class SubscriptionHandle {
  #part;

  /** @param {ConsumerPart | import("./reader.js").ReaderPart} part */
  constructor(part) {
    this.#part = part;
  }

  get queue() {
    return this.#part.queue;
  }

  /** Resolves with this when the broker has let it in; rejects with what the broker says. */
  get opened() {
    const opened = this.#part.joined.promise.then(() => this);
    opened.catch(() => {}); // who does not ask learns it from the iteration, or from `ended`
    return opened;
  }

  /** Resolves when it is over: with null when it was closed, else with the error. */
  get ended() {
    return this.#part.over.promise;
  }

  /** Leave. A subscription sends the acks that are queued, and returns what is not settled. */
  async close() {
    await this.#part.close();
  }
}

if (Symbol.asyncDispose) {
  SubscriptionHandle.prototype[Symbol.asyncDispose] = function dispose() {
    return this.close();
  };
}

/** A numbered subscription of a session, joined again where it has not outlived a carrier. */
export class SubscriptionPart {
  /** Why it is over, or null. @type {TocsinError | null} */
  failure = null;
  /** Settled when the broker has let it in. @type {Deferred<void>} */
  joined = new Deferred().unobserved();
  /** Resolved when it is over: with null when it was closed, else with the error. */
  over = new Deferred();
  /** @type {Array<() => void>} */
  #waiting = [];
  #retry;

  /**
   * @param {import("../io/session.js").Session} session
   * @param {import("../io/platform.js").Environment} environment
   * @param {{number: number, queue: string}} what
   */
  constructor(session, environment, { number, queue }) {
    this.session = session;
    this.environment = environment;
    this.number = number;
    this.queue = queue;
    this.#retry = new Timer(environment);
  }

  get now() {
    return this.environment.now();
  }

  // --- what differs -----------------------------------------------------------------------------

  /** The frame that is said to join. @param {number} _ref @returns {object} */
  subscribe(_ref) {
    throw new Error("abstract");
  }

  /** The broker has let us in. @param {any} _answer */
  accepted(_answer) {}

  /** Go on where the subscription still stands at the broker; false: it has to be joined. */
  resume() {
    return false;
  }

  // --- joining and leaving ----------------------------------------------------------------------

  /** Join, after `prepare`. How it went is told by `joined` and `over`. */
  async begin(prepare = null) {
    try {
      if (prepare !== null) await prepare();
      if (this.failure !== null) return; // closed meanwhile
      if (this.session.failure !== null) throw this.session.failure;
      this.session.add(this);
      this.session.route(this.number, this);
      this.opened();
    } catch (error) {
      if (!(error instanceof TocsinError)) report("an unexpected error", error);
      this.leave(error instanceof TocsinError ? error : new TocsinError(wordsOf(error)));
    }
  }

  /** Leave: send what is queued, end the iteration. Calling it again does nothing. */
  async close() {
    if (this.failure !== null) return;
    const left = new Deferred();
    const { session } = this;
    if (session.isOpen) {
      session.dirty(this);
      const ref = session.nextRef();
      session.expect(ref, () => left.resolve());
      session.request({ type: "unsubscribe", ref, subscription: this.number });
    } else {
      left.resolve();
    }
    this.leave(new ClientClosed("the subscription has been closed"));
    const timer = new Timer(this.environment);
    timer.set(LEAVE_TIMEOUT_MS, () => left.resolve());
    await left.promise;
    timer.cancel();
  }

  /** It is over, and this is why. */
  leave(error) {
    if (this.failure !== null) return;
    this.failure = error;
    this.session.route(this.number, null);
    this.session.remove(this);
    this.disconnected();
    this.joined.reject(error);
    this.over.resolve(error instanceof ClientClosed ? null : error);
    this.wake(Infinity);
  }

  // --- waiting ----------------------------------------------------------------------------------

  /** Until there may be something to hand out, or it is over. */
  wait() {
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  /** Let the first `count` that wait go on. */
  wake(count) {
    for (const resolve of this.#waiting.splice(0, count)) resolve();
  }

  // --- session.Part -----------------------------------------------------------------------------

  /** The session stands: join, or go on. */
  opened() {
    this.#retry.cancel();
    const { session } = this;
    if (this.failure !== null || !session.isOpen || this.resume()) return;
    if (session.resumed.has(this.number)) { // a reader, or its answer was lost
      const ref = session.nextRef();
      session.request({ type: "unsubscribe", ref, subscription: this.number });
    }
    this.join();
  }

  join() {
    if (this.failure !== null || !this.session.isOpen) return;
    const ref = this.session.nextRef();
    this.session.expect(ref, (answer) => this.answered(answer));
    this.session.request(this.subscribe(ref));
  }

  /** The answer to the subscribe; null: the connection was lost, `opened` follows. */
  answered(answer) {
    if (answer === null) return;
    const { session } = this;
    if (this.failure !== null) { // left before the broker had let us in
      if (answer.type !== "ok") return;
      const ref = session.nextRef();
      session.request({ type: "unsubscribe", ref, subscription: this.number });
    } else if (answer.type === "ok") {
      this.accepted(answer);
      this.joined.resolve();
    } else if (!answer.retry) {
      this.leave(exceptionOf(answer));
    } else if (!session.isDraining) { // else the next connection follows
      const pauseMs = Math.max(RESUBSCRIBE_MS, 1000 * (answer.retry_after_s ?? 0));
      this.#retry.set(pauseMs, () => this.join());
    }
  }

  /** The connection is lost. */
  disconnected() {
    this.#retry.cancel();
  }

  /** No other connection follows. */
  failed(error) {
    this.leave(error);
  }

  /** The broker has ended the subscription, e.g. because its queue was deleted. */
  ended(error) {
    this.leave(error);
  }

  /** From a reader nothing is ever taken back. */
  revoked(_revoked) {}

  /** Of a reader nothing is timed. */
  nextDeadline() {
    return Infinity;
  }

  /** Time has passed. */
  expire(_now) {}
}

// --- a place in a group --------------------------------------------------------------------------

/**
 * Made by `Client.subscribe`. Without a handler it is an async iterable: each message comes when
 * its key is free, and several loops may run over it at once. Leaving a loop does not leave the
 * group: `close` does, and returns what is not settled.
 */
export class Subscription extends SubscriptionHandle {
  #part;
  #handler;

  /**
   * @param {ConsumerPart} part
   * @param {Function | null} handler
   * @param {number} concurrency
   */
  constructor(part, handler, concurrency) {
    super(part);
    this.#part = part;
    this.#handler = handler;
    if (handler !== null) {
      for (let worker = 0; worker < concurrency; worker += 1) this.#work(handler);
    }
  }

  get group() {
    return this.#part.group;
  }

  /** The next message whose key is free, if one is here; null: not now. */
  nextNowait() {
    return this.#part.takeNow();
  }

  /** As an async iterator. Rejects with why it is over, unless it was closed. */
  async next() {
    if (this.#handler !== null) {
      throw new TypeError("its messages go to the handler that subscribe was given");
    }
    const message = await this.#part.next();
    if (message !== null) return { value: message, done: false };
    const { failure } = this.#part;
    if (failure !== null && !(failure instanceof ClientClosed)) throw failure;
    return { value: undefined, done: true };
  }

  /** A loop was left. */
  async return(value) {
    return { value, done: true };
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  /** Handle one message after another, until it is over. */
  async #work(handler) {
    const part = this.#part;
    for (;;) {
      const message = await part.next();
      if (message === null) return;
      const { signal } = message;
      part.begins(message);
      try {
        await handler(message, { signal });
        await settle(message, () => message.ack());
      } catch (error) {
        if (message.isHeld) report(`the handler failed on ${message.id}`, error);
        const reason = reasonOf(error);
        await settle(message, () => message.nack({ reason }));
      } finally {
        part.finished(message);
      }
    }
  }
}

/** Settle it, unless the handler has, or it is gone. */
async function settle(message, how) {
  if (!message.isHeld) return;
  try {
    await how();
  } catch (error) {
    if (!(error instanceof StaleDelivery)) throw error;
  }
}

function reasonOf(error) {
  let kind = "";
  try {
    if (error instanceof Error) kind = `${error.name}: `;
  } catch {
    // then what it says is enough
  }
  return `${kind}${wordsOf(error)}`.toWellFormed().slice(0, REASON_CHARS_MAX);
}

export class ConsumerPart extends SubscriptionPart {
  /** Whether the broker may still know of what is held here. */
  #isHeld = false;
  #credit;
  #start;
  #deletesMax;
  /** @type {Set<object>} messages whose handlers run */
  #running = new Set();

  /**
   * @param {import("../io/session.js").Session} session
   * @param {import("../io/platform.js").Environment} environment
   * @param {{number: number, queue: string, group: string, credit: number, start: any,
   *     autoExtend: boolean}} what
   */
  constructor(session, environment, what) {
    super(session, environment, what);
    this.group = what.group;
    this.#credit = what.credit;
    this.#start = startAt(what.start);
    this.#deletesMax = what.deletesMax ?? Number.MAX_SAFE_INTEGER;
    this.ledger = new DeliveryLedger(this, {
      subscription: what.number,
      credit: what.credit,
      leaseMs: LEASE_MS_DEFAULT,
      autoExtend: what.autoExtend,
    });
  }

  // --- handing out ------------------------------------------------------------------------------

  /** The next message whose key is free, if one is here; null: not now. */
  take() {
    const message = this.ledger.next(this.now);
    if (message !== null) this.session.dirty(this);
    return message;
  }

  /** As `take`, for a caller that does not wait: the mark of what may kill goes first (R19). */
  takeNow() {
    const message = this.take();
    if (message !== null && mayBeAKiller(message)) this.session.flush();
    return message;
  }

  /** As `take`, as soon as there is one; null: it is over. Several may wait at once. */
  async next() {
    for (;;) {
      const message = this.take();
      if (message !== null && !mayBeAKiller(message)) return message;
      if (message !== null) {
        await this.session.flushed(); // the marks of this turn leave together, before handlers run
        if (message.isHeld) return message;
      } else if (this.failure === null) {
        await this.wait();
      } else {
        return null;
      }
    }
  }

  /** Its handler begins. */
  begins(message) {
    this.#running.add(message);
  }

  /** Its handler has ended: what comes again of its key may follow. */
  finished(message) {
    this.#running.delete(message);
    this.ledger.onHandlerEnd(message);
    this.wake(this.ledger.ready);
  }

  // --- what is said of messages (message.Settler) -----------------------------------------------

  /** Queue an ack. */
  async ack(message) {
    this.ledger.ack(message, this.now);
    this.session.dirty(this);
  }

  /** Ack, and wait until it is durable. */
  async ackConfirmed(message) {
    const confirmed = new Deferred();
    this.ledger.ack(message, this.now, confirmed);
    this.session.dirty(this);
    await confirmed.promise;
  }

  /** Queue a nack. */
  async nack(message, how) {
    this.ledger.nack(message, this.now, how);
    this.session.dirty(this);
  }

  /** Nack, and wait until it is durable. */
  async nackConfirmed(message, how) {
    const confirmed = new Deferred();
    this.ledger.nack(message, this.now, how, confirmed);
    this.session.dirty(this);
    await confirmed.promise;
  }

  /** Prolong the lease, and wait for the answer. */
  async extend(message, leaseS) {
    const { ledger, session } = this;
    const deliveries = [[...message.held.place, message.offset, message.offset]];
    for (;;) {
      while (!session.isOpen || ledger.isPaused) {
        ledger.checkHeld(message, this.now);
        await this.wait();
      }
      const { now } = this;
      ledger.checkHeld(message, now);
      const answered = new Deferred();
      const ref = session.nextRef();
      session.expect(ref, answered.resolve);
      session.request({
        type: "extend", subscription: this.number, deliveries, started: deliveries,
        lease_s: leaseS ?? undefined, ref,
      });
      const answer = await answered.promise;
      if (answer === null) continue; // lost on the way: it is asked again
      if (answer.type === "error" && answer.deliveries.length === 0) throw exceptionOf(answer);
      if (answer.type === "error" || answer.stale.length > 0) {
        throw new StaleDelivery(`message ${message.id}: its lease was not prolonged`);
      }
      ledger.checkHeld(message, this.now);
      const leaseMs = (leaseS ?? null) === null ? ledger.leaseMs : 1000 * leaseS;
      ledger.extend(message, now + usableMs(leaseMs));
      session.wakeAt(ledger.nextDeadline());
      return;
    }
  }

  /**
   * A message that was handed out is no longer this consumer's: whoever works on it is told, unless
   * it was nacked. Returns whether a handler still runs: then nothing of its key is handed out
   * before that has ended.
   */
  onGone(message) {
    if (message.state === DeliveryState.GONE) message.abort();
    return this.#running.has(message);
  }

  // --- joining ----------------------------------------------------------------------------------

  subscribe(ref) {
    const { session, ledger } = this;
    this.#credit = Math.min(this.#credit, session.welcome.credit_max);
    // Known, and yet not resumed: the broker has started anew, and may let us keep what we hold.
    const comesBack = this.#isHeld && session.isKnown;
    if (comesBack) ledger.resetCounts();
    else this.#abandon();
    return {
      type: "subscribe", ref, subscription: this.number, queue: this.queue, group: this.group,
      credit: comesBack ? ledger.granted : this.#credit,
      start: this.#start, deletes_max: this.#deletesMax || undefined,
      held: comesBack || undefined,
    };
  }

  accepted(answer) {
    if (this.#isHeld) {
      this.#hold();
      return;
    }
    const leaseMs = answer.lease_s === null ? LEASE_MS_DEFAULT : 1000 * answer.lease_s;
    this.ledger.begin(this.#credit, leaseMs);
    this.#isHeld = true;
  }

  resume() {
    if (!this.#isHeld || !this.session.resumed.has(this.number)) return false;
    this.#hold();
    return true;
  }

  /** Go on where an earlier life of this page was. */
  recall(place) {
    this.ledger.begin(Math.min(this.#credit, this.session.welcome.credit_max), place.leaseMs);
    this.ledger.restore(place);
    this.#isHeld = true;
  }

  /** What a later life of this page needs to go on; null: there is nothing to go on with. */
  snapshot() {
    if (!this.#isHeld) return null;
    const { ledger } = this;
    return {
      number: this.number, queue: this.queue, group: this.group, leaseMs: ledger.leaseMs,
      received: ledger.receivedCount, acked: ledger.unconfirmedAcks,
    };
  }

  /** Say what is held (R22); the answer to the last frame says what of it is not ours. */
  #hold() {
    const { ledger, session } = this;
    const lists = splitDeliveries(ledger.report());
    if (lists.length === 0) lists.push([]);
    lists.forEach((deliveries, index) => {
      const ref = session.nextRef();
      const isLast = index === lists.length - 1;
      session.expect(ref, isLast ? (answer) => this.#resumed(answer) : () => {});
      session.request({
        type: "held", ref, subscription: this.number, received: ledger.receivedCount, deliveries,
        more: isLast ? undefined : true,
      });
    });
  }

  #resumed(answer) {
    if (answer === null || this.failure !== null) return; // the next welcome asks again
    if (answer.type === "error") {
      report("the broker does not take what is held here", exceptionOf(answer));
      this.session.beginAnew();
      return;
    }
    this.ledger.onResume(answer.revoked);
    this.joined.resolve();
    this.session.dirty(this);
    this.session.wakeAt(this.ledger.nextDeadline());
    this.wake(Infinity);
  }

  /** Nothing is handed out until the session goes on. */
  disconnected() {
    super.disconnected();
    this.ledger.pause();
    if (this.failure !== null) this.#abandon();
  }

  /** Nothing that was delivered can be settled any more. */
  #abandon() {
    this.#isHeld = false;
    const lost = new OutcomeUnknown("unknown", "the session was lost before it was confirmed");
    for (const ticket of this.ledger.onSessionLoss()) ticket.reject(lost);
    this.wake(Infinity);
  }

  // --- session.Part -----------------------------------------------------------------------------

  pushed(push, now) {
    const { released } = this.ledger;
    this.ledger.receive(push, now);
    if (this.ledger.released !== released) this.session.dirty(this); // R25: it makes room at once
    this.session.wakeAt(this.ledger.nextDeadline());
    this.wake(this.ledger.ready);
  }

  /** Discard what was taken back (R17). */
  revoked(revoked) {
    this.ledger.revoke(revoked.deliveries);
    this.session.dirty(this);
  }

  /** Acks, nacks, marks, prolongations and credit of this turn. */
  collect(now) {
    const frames = this.ledger.takeFrames(this.session.nextRef, now);
    for (const { type, ref } of frames) {
      if (ref !== undefined) this.session.expect(ref, (answer) => this.#heard(type, ref, answer));
    }
    this.wake(this.ledger.ready);
    return frames.map(encode);
  }

  /** The answer to a frame of `collect`. */
  #heard(type, ref, answer) {
    if (answer === null) return; // it is said again
    if (type === "ack") this.#confirmed(ref, answer);
    else if (type === "nack") {
      this.#finish(answer, (refused) => this.ledger.onNackAnswer(ref, refused));
    }
    else this.#prolonged(ref, answer);
  }

  #prolonged(ref, answer) {
    const { ledger } = this;
    if (answer.type === "ok") ledger.onExtendAnswer(ref, answer.stale);
    else if (answer.deliveries.length > 0) {
      ledger.onExtendAnswer(ref, [...answer.stale, ...answer.deliveries]);
    } else ledger.onExtendFailure(ref);
    this.session.wakeAt(ledger.nextDeadline());
  }

  #confirmed(ref, answer) {
    const isDurable = answer.type !== "error";
    this.#finish(answer, (refused) => this.ledger.onAckAnswer(ref, refused, isDurable));
  }

  /** End the waits for the answer to a confirmed ack or nack. */
  #finish(answer, outcome) {
    const isError = answer.type === "error";
    const refused = isError ? [...answer.stale, ...answer.deliveries] : answer.stale;
    const failure = isError && answer.deliveries.length === 0 ? exceptionOf(answer) : null;
    const { settled, stale, perhaps } = outcome(refused);
    for (const ticket of settled) {
      if (failure === null) ticket.resolve();
      else ticket.reject(failure);
    }
    for (const ticket of stale) {
      ticket.reject(new StaleDelivery("the broker had taken the delivery back already"));
    }
    const lost = "the connection was lost before it was confirmed, and its delivery has ended";
    for (const ticket of perhaps) ticket.reject(new OutcomeUnknown("unknown", lost));
  }

  nextDeadline() {
    return this.ledger.nextDeadline();
  }

  /** Discard what has been held for as long as its lease. */
  expire(now) {
    this.ledger.expire(now);
    this.session.dirty(this);
    if (this.ledger.isPaused) this.wake(Infinity); // who waits to prolong what is over now
  }
}

/**
 * R19: whether it may have killed a consumer already, and is to be marked as started before its
 * handler runs, so that a message that kills is counted before it kills.
 */
function mayBeAKiller(message) {
  return message.held.isDoubtful || message.attempt > 1;
}
