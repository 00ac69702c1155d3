/**
 * The shell around a consumer's ledger: a place in a group, as a part of the session.
 *
 * @module
 */

import { Ledger } from "./consuming.js";
import { Deferred } from "./environment.js";
import { OutcomeUnknown, StaleDelivery } from "./errors.js";
import { Joining, startAt } from "./joining.js";
import { usableMs } from "./leasing.js";
import { State } from "./message.js";
import { parts } from "./places.js";
import { report } from "./requesting.js";
import { encode, exceptionOf } from "./wire.js";

/** Where the broker does not name the group's. */
const LEASE_MS_DEFAULT = 30_000;

export class Consumer extends Joining {
  /** Whether the broker may still know of what is held here. */
  #isHeld = false;
  #credit;
  #start;
  #deletesMax;
  /** @type {Set<object>} messages whose handlers run */
  #running = new Set();

  /**
   * @param {import("./session.js").Session} session
   * @param {import("./environment.js").Environment} environment
   * @param {{number: number, queue: string, group: string, credit: number, start: any,
   *     autoExtend: boolean}} what
   */
  constructor(session, environment, what) {
    super(session, environment, what);
    this.group = what.group;
    this.#credit = what.credit;
    this.#start = startAt(what.start);
    this.#deletesMax = what.deletesMax ?? Number.MAX_SAFE_INTEGER;
    this.ledger = new Ledger(this, {
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
        if (message.state === State.HANDED) return message;
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
    this.ledger.finished(message);
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
      ledger.extended(message, now + usableMs(leaseMs));
      session.wakeAt(ledger.nextDeadline());
      return;
    }
  }

  /**
   * A message that was handed out is no longer this consumer's: whoever works on it is told, unless
   * it was nacked. Returns whether a handler still runs: then nothing of its key is handed out
   * before that has ended.
   */
  gone(message) {
    if (message.state === State.GONE) message.abort();
    return this.#running.has(message);
  }

  // --- joining ----------------------------------------------------------------------------------

  subscribe(ref) {
    const { session, ledger } = this;
    this.#credit = Math.min(this.#credit, session.welcome.credit_max);
    // Known, and yet not resumed: the broker has started anew, and may let us keep what we hold.
    const comesBack = this.#isHeld && session.isKnown;
    if (comesBack) ledger.countAnew();
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
    this.ledger.recall(place);
    this.#isHeld = true;
  }

  /** What a later life of this page needs to go on; null: there is nothing to go on with. */
  snapshot() {
    if (!this.#isHeld) return null;
    const { ledger } = this;
    return {
      number: this.number, queue: this.queue, group: this.group, leaseMs: ledger.leaseMs,
      received: ledger.receivedThere, acked: ledger.settlements.unheardAcks(),
    };
  }

  /** Say what is held (R22); the answer to the last frame says what of it is not ours. */
  #hold() {
    const { ledger, session } = this;
    const lists = parts(ledger.holding());
    if (lists.length === 0) lists.push([]);
    lists.forEach((deliveries, index) => {
      const ref = session.nextRef();
      const isLast = index === lists.length - 1;
      session.expect(ref, isLast ? (answer) => this.#resumed(answer) : () => {});
      session.request({
        type: "held", ref, subscription: this.number, received: ledger.receivedThere, deliveries,
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
    this.ledger.resumed(answer.revoked);
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
    for (const ticket of this.ledger.lost()) ticket.reject(lost);
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
    const frames = this.ledger.take(this.session.nextRef, now);
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
      this.#finish(answer, (refused) => this.ledger.nackAnswered(ref, refused));
    }
    else this.#prolonged(ref, answer);
  }

  #prolonged(ref, answer) {
    const { leases } = this.ledger;
    if (answer.type === "ok") leases.answered(ref, answer.stale);
    else if (answer.deliveries.length > 0) {
      leases.answered(ref, [...answer.stale, ...answer.deliveries]);
    } else leases.failed(ref);
    this.session.wakeAt(this.ledger.nextDeadline());
  }

  #confirmed(ref, answer) {
    this.ledger.settlements.heard(ref, answer.type !== "error");
    this.#finish(answer, (refused) => this.ledger.settlements.confirmed(ref, refused));
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
