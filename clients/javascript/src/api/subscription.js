/**
 * Subscriptions to groups: the user's view of a subscription, and the part of the session behind
 * it. Their base classes serve readers, too.
 *
 * @module
 */

import { DeliveryLedger } from "../proto/delivery-ledger.js";
import { DeliveryState } from "../proto/message.js";
import {
  ClientClosed, OutcomeUnknown, StaleDelivery, TocsinError, wordsOf,
} from "../proto/errors.js";
import { usableMs } from "../proto/leases.js";
import { encode, exceptionOf, splitDeliveries, startAt } from "../proto/wire.js";
import { Deferred, report, Timer } from "../io/platform.js";

/** The pause before a subscribe that was refused for the moment is tried again. */
export const RESUBSCRIBE_MS = 500;
const LEAVE_TIMEOUT_MS = 5000;
/** The lease if the broker does not name the group's. */
const LEASE_MS_DEFAULT = 30_000;
const REASON_CHARS_MAX = 500;

// --- what subscriptions and readers have in common -----------------------------------------------

/** The user's view of a subscription or a reader: its beginning and its end. */
export class SubscriptionHandle {
  #part;

  /** @param {ConsumerPart | import("./reader.js").ReaderPart} part */
  constructor(part) {
    this.#part = part;
  }

  get queue() {
    return this.#part.queue;
  }

  /**
   * A promise that resolves with this object when the broker has accepted it, and rejects with the
   * broker's error.
   */
  get opened() {
    const opened = this.#part.joined.promise.then(() => this);
    opened.catch(() => {}); // the iteration and `ended` report it, too
    return opened;
  }

  /** A promise that resolves at the end: with null after `close`, otherwise with the error. */
  get ended() {
    return this.#part.over.promise;
  }

  /** Leave. A subscription sends its queued acks, and returns its unsettled messages. */
  async close() {
    await this.#part.close();
  }
}

if (Symbol.asyncDispose) {
  SubscriptionHandle.prototype[Symbol.asyncDispose] = function dispose() {
    return this.close();
  };
}

/**
 * A numbered subscription of a session. It joins again if the broker did not keep it when the
 * carrier was lost.
 */
export class SubscriptionPart {
  /** The error that ended it, or null. @type {TocsinError | null} */
  failure = null;
  /** Settled when the broker has accepted it. @type {Deferred<void>} */
  joined = new Deferred().unobserved();
  /** Resolved at the end: with null after `close`, otherwise with the error. */
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

  // --- for subclasses ----------------------------------------------------------------------------

  /** Return the frame to join with. @param {number} _ref @returns {object} */
  subscribeFrame(_ref) {
    throw new Error("abstract");
  }

  /** Begin, because the broker has accepted the subscribe. @param {any} _answer */
  onAccept(_answer) {}

  /** Continue a subscription that the broker still has; false if it has to be joined again. */
  resume() {
    return false;
  }

  // --- joining and leaving -----------------------------------------------------------------------

  /** Join, after `prepare`. `joined` and `over` have the outcome. */
  async begin(prepare = null) {
    try {
      if (prepare !== null) await prepare();
      if (this.failure !== null) return; // closed meanwhile
      if (this.session.failure !== null) throw this.session.failure;
      this.session.add(this);
      this.session.route(this.number, this);
      this.onOpen();
    } catch (error) {
      if (!(error instanceof TocsinError)) report("an unexpected error", error);
      this.leave(error instanceof TocsinError ? error : new TocsinError(wordsOf(error)));
    }
  }

  /** Leave: send what is queued, then end the iteration. Closing again does nothing. */
  async close() {
    if (this.failure !== null) return;
    const left = new Deferred();
    const { session } = this;
    if (session.isOpen) {
      session.markDirty(this);
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

  /** End the subscription with this error. A second call does nothing. */
  leave(error) {
    if (this.failure !== null) return;
    this.failure = error;
    this.session.route(this.number, null);
    this.session.remove(this);
    this.onDisconnect();
    this.joined.reject(error);
    this.over.resolve(error instanceof ClientClosed ? null : error);
    this.wake(Infinity);
  }

  // --- waiting -----------------------------------------------------------------------------------

  /** Wait until there may be something to hand out, or the end. */
  wait() {
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  /** Wake the first `count` waiting callers. */
  wake(count) {
    for (const resolve of this.#waiting.splice(0, count)) resolve();
  }

  // --- as a part of the session ------------------------------------------------------------------

  /** Join, or continue, because the session is open. */
  onOpen() {
    this.#retry.cancel();
    const { session } = this;
    if (this.failure !== null || !session.isOpen || this.resume()) return;
    if (session.resumed.has(this.number)) { // a reader, or the answer was lost
      const ref = session.nextRef();
      session.request({ type: "unsubscribe", ref, subscription: this.number });
    }
    this.join();
  }

  join() {
    if (this.failure !== null || !this.session.isOpen) return;
    const ref = this.session.nextRef();
    this.session.expect(ref, (answer) => this.onAnswer(answer));
    this.session.request(this.subscribeFrame(ref));
  }

  /**
   * Handle the answer to the subscribe. Null means that the connection was lost; `onOpen` follows.
   */
  onAnswer(answer) {
    if (answer === null) return;
    const { session } = this;
    if (this.failure !== null) { // left before the broker accepted
      if (answer.type !== "ok") return;
      const ref = session.nextRef();
      session.request({ type: "unsubscribe", ref, subscription: this.number });
    } else if (answer.type === "ok") {
      this.onAccept(answer);
      this.joined.resolve();
    } else if (!answer.retry) {
      this.leave(exceptionOf(answer));
    } else if (!session.isDraining) { // otherwise the next connection follows
      const pauseMs = Math.max(RESUBSCRIBE_MS, 1000 * (answer.retry_after_s ?? 0));
      this.#retry.set(pauseMs, () => this.join());
    }
  }

  /** Stop trying to join, because the connection is lost. */
  onDisconnect() {
    this.#retry.cancel();
  }

  /** End with this error, because no other connection follows. */
  onFailure(error) {
    this.leave(error);
  }

  /** End with the broker's error, for example because its queue was deleted. */
  onEnd(error) {
    this.leave(error);
  }

  /** Give up deliveries that were taken back; none ever are from a reader. */
  onRevoke(_revoked) {}

  /** Return the time at which to call `expire`; Infinity for a reader. */
  nextDeadline() {
    return Infinity;
  }

  /** Do everything that is due by now. */
  expire(_now) {}
}

// --- a place in a group --------------------------------------------------------------------------

/**
 * A place in a group. Made by `Client.subscribe`.
 *
 * Without a handler it is an async iterable: each message comes when its key is free, and several
 * loops may run over it at once. Leaving a loop does not leave the group. `close` does, and returns
 * unsettled messages.
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

  /** Return the next message whose key is free, if one has arrived; otherwise null. */
  nextNowait() {
    return this.#part.takeNow();
  }

  /**
   * Wait for the next message. Rejects with the error that ended the subscription, unless it was
   * closed.
   */
  async next() {
    if (this.#handler !== null) {
      throw new TypeError("the messages go to the handler that subscribe was given");
    }
    const message = await this.#part.next();
    if (message !== null) return { value: message, done: false };
    const { failure } = this.#part;
    if (failure !== null && !(failure instanceof ClientClosed)) throw failure;
    return { value: undefined, done: true };
  }

  /** Note that a loop was left; does not leave the group. */
  async return(value) {
    return { value, done: true };
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  /** Handle one message after another, until the end. */
  async #work(handler) {
    const part = this.#part;
    for (;;) {
      const message = await part.next();
      if (message === null) return;
      const { signal } = message;
      part.onHandlerStart(message);
      try {
        await handler(message, { signal });
        await settle(message, () => message.ack());
      } catch (error) {
        if (message.isHeld) report(`the handler failed on ${message.id}`, error);
        const reason = reasonOf(error);
        await settle(message, () => message.nack({ reason }));
      } finally {
        part.onHandlerEnd(message);
      }
    }
  }
}

/** Settle a message, unless the handler has, or it is lost. */
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
    // then its text suffices
  }
  return `${kind}${wordsOf(error)}`.toWellFormed().slice(0, REASON_CHARS_MAX);
}

export class ConsumerPart extends SubscriptionPart {
  /** Whether the broker may still know this subscription. */
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

  // --- handing out -------------------------------------------------------------------------------

  /** Take the next message whose key is free; null if there is none now. */
  take() {
    const message = this.ledger.next(this.now);
    if (message !== null) this.session.markDirty(this);
    return message;
  }

  /** Take a message for a caller that does not wait. A mark that is needed is sent first (R19). */
  takeNow() {
    const message = this.take();
    if (message !== null && needsStartMark(message)) this.session.flush();
    return message;
  }

  /** Wait for a message and take it; null at the end. Several callers may wait at once. */
  async next() {
    for (;;) {
      const message = this.take();
      if (message !== null && !needsStartMark(message)) return message;
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

  /** Note that the handler of a message begins. */
  onHandlerStart(message) {
    this.#running.add(message);
  }

  /** Release the key of a message, because its handler has ended. */
  onHandlerEnd(message) {
    this.#running.delete(message);
    this.ledger.onHandlerEnd(message);
    this.wake(this.ledger.ready);
  }

  // --- settling, for the ledger's messages -------------------------------------------------------

  /** Queue an ack. */
  async ack(message) {
    this.ledger.ack(message, this.now);
    this.session.markDirty(this);
  }

  /** Ack, and wait until the ack is durable. */
  async ackConfirmed(message) {
    const confirmed = new Deferred();
    this.ledger.ack(message, this.now, confirmed);
    this.session.markDirty(this);
    await confirmed.promise;
  }

  /** Queue a nack. */
  async nack(message, how) {
    this.ledger.nack(message, this.now, how);
    this.session.markDirty(this);
  }

  /** Nack, and wait until the nack is durable. */
  async nackConfirmed(message, how) {
    const confirmed = new Deferred();
    this.ledger.nack(message, this.now, how, confirmed);
    this.session.markDirty(this);
    await confirmed.promise;
  }

  /** Extend the lease, and wait for the answer. */
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
      if (answer === null) continue; // the answer was lost: ask again
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
   * Abort the signal of a message that was handed out and is lost, unless it was nacked.
   *
   * Returns whether its handler still runs. If so, no message of its key is handed out before the
   * handler has ended.
   */
  onGone(message) {
    if (message.state === DeliveryState.GONE) message.abort();
    return this.#running.has(message);
  }

  // --- joining -----------------------------------------------------------------------------------

  subscribeFrame(ref) {
    const { session, ledger } = this;
    this.#credit = Math.min(this.#credit, session.welcome.credit_max);
    // Known but not resumed: the broker has restarted, and may let us keep what we hold.
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

  onAccept(answer) {
    if (this.#isHeld) {
      this.#reportHeld();
      return;
    }
    const leaseMs = answer.lease_s === null ? LEASE_MS_DEFAULT : 1000 * answer.lease_s;
    this.ledger.begin(this.#credit, leaseMs);
    this.#isHeld = true;
  }

  resume() {
    if (!this.#isHeld || !this.session.resumed.has(this.number)) return false;
    this.#reportHeld();
    return true;
  }

  /** Continue as before a reload of the page. */
  restore(place) {
    this.ledger.begin(Math.min(this.#credit, this.session.welcome.credit_max), place.leaseMs);
    this.ledger.restore(place);
    this.#isHeld = true;
  }

  /**
   * Return a snapshot from which the page continues after a reload; null if there is nothing to
   * continue with.
   */
  snapshot() {
    if (!this.#isHeld) return null;
    const { ledger } = this;
    return {
      number: this.number, queue: this.queue, group: this.group, leaseMs: ledger.leaseMs,
      received: ledger.receivedCount, acked: ledger.unconfirmedAcks,
    };
  }

  /** Report the held deliveries (R22). The answer to the last frame names those that have ended. */
  #reportHeld() {
    const { ledger, session } = this;
    const lists = splitDeliveries(ledger.report());
    if (lists.length === 0) lists.push([]);
    lists.forEach((deliveries, index) => {
      const ref = session.nextRef();
      const isLast = index === lists.length - 1;
      session.expect(ref, isLast ? (answer) => this.#onResume(answer) : () => {});
      session.request({
        type: "held", ref, subscription: this.number, received: ledger.receivedCount, deliveries,
        more: isLast ? undefined : true,
      });
    });
  }

  #onResume(answer) {
    if (answer === null || this.failure !== null) return; // the next welcome leads here again
    if (answer.type === "error") {
      report("the broker does not take what is held here", exceptionOf(answer));
      this.session.restart();
      return;
    }
    this.ledger.onResume(answer.revoked);
    this.joined.resolve();
    this.session.markDirty(this);
    this.session.wakeAt(this.ledger.nextDeadline());
    this.wake(Infinity);
  }

  /** Hand out nothing until the session continues. */
  onDisconnect() {
    super.onDisconnect();
    this.ledger.pause();
    if (this.failure !== null) this.#abandon();
  }

  /** Drop all deliveries, because they cannot be settled any more. */
  #abandon() {
    this.#isHeld = false;
    const lost = new OutcomeUnknown("unknown", "the session was lost before it was confirmed");
    for (const ticket of this.ledger.onSessionLoss()) ticket.reject(lost);
    this.wake(Infinity);
  }

  // --- as a part of the session ------------------------------------------------------------------

  onPush(push, now) {
    const { released } = this.ledger;
    this.ledger.receive(push, now);
    const hasRoom = this.ledger.released !== released;
    if (hasRoom) this.session.markDirty(this); // R25: at once
    this.session.wakeAt(this.ledger.nextDeadline());
    this.wake(this.ledger.ready);
  }

  /** Discard the deliveries that the broker took back (R17). */
  onRevoke(revoked) {
    this.ledger.revoke(revoked.deliveries);
    this.session.markDirty(this);
  }

  /** Take the acks, nacks, marks, extends and credit of this turn. */
  takeFrames(now) {
    const frames = this.ledger.takeFrames(this.session.nextRef, now);
    for (const { type, ref } of frames) {
      if (ref === undefined) continue;
      this.session.expect(ref, (answer) => this.#onFrameAnswer(type, ref, answer));
    }
    this.wake(this.ledger.ready);
    return frames.map(encode);
  }

  /** Handle the answer to a frame of `takeFrames`. */
  #onFrameAnswer(type, ref, answer) {
    if (answer === null) return; // it is sent again
    if (type === "ack") this.#onAckAnswer(ref, answer);
    else if (type === "nack") {
      this.#finish(answer, (refused) => this.ledger.onNackAnswer(ref, refused));
    }
    else this.#onExtendAnswer(ref, answer);
  }

  #onExtendAnswer(ref, answer) {
    const { ledger } = this;
    if (answer.type === "ok") ledger.onExtendAnswer(ref, answer.stale);
    else if (answer.deliveries.length > 0) {
      ledger.onExtendAnswer(ref, [...answer.stale, ...answer.deliveries]);
    } else ledger.onExtendFailure(ref);
    this.session.wakeAt(ledger.nextDeadline());
  }

  #onAckAnswer(ref, answer) {
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

  /** Discard deliveries whose leases have ended. */
  expire(now) {
    this.ledger.expire(now);
    this.session.markDirty(this);
    if (this.ledger.isPaused) this.wake(Infinity); // wakes `extend`, whose lease may have ended
  }
}

/**
 * Whether a message may have killed a consumer already (R19). Such a message is marked as started
 * before its handler runs, so that the attempt counts even if the handler kills the process.
 */
function needsStartMark(message) {
  return message.held.mayBeRedelivery || message.attempt > 1;
}
