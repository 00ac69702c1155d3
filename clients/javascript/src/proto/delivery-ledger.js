/**
 * A consumer's ledger: the deliveries that it holds. Pure.
 *
 *     receive -> QUEUED -> READY -- next --> HANDED -- ack, nack --> settled
 *                  |         |                 |
 *                  └─────────┴───── GONE <─────┘   revoked, lease over, session lost
 *
 * - A message is handed out only after the message of its key before it has been settled (R17). The
 *   first message of a key is READY, the others are QUEUED.
 * - When a message is returned or lost, the later held messages of its key are lost with it. Those
 *   on their way are not let in (R17; see `ClosedKeys`). While a handler still works on a lost
 *   message, messages of its key that come again wait until that handler ends.
 * - A lease that is over by this client's own clock (see `leases`) is treated as revoked (R17). So
 *   nothing is handed out that another consumer may have by now.
 * - If a message is in hand for longer than a lease, at most AHEAD later messages of its key are
 *   extended. The others return when their leases end, uncounted, and make room (P8).
 * - Without a carrier nothing is handed out (`pause`). On a new carrier the client reports what it
 *   holds (`report`), and continues with the deliveries that are still its own (`onResume`, R22).
 * - Credit is granted in total: the first window, and one for each message that was released (R25).
 *
 * @module
 */

import { AckLedger } from "./ack-ledger.js";
import { DeliveryState, HeldPush, Message, staleError } from "./message.js";
import { Leases } from "./leases.js";
import { isWithin, offsetsOf, pushKey, ranges } from "./wire.js";

/** The share of the window after which credit is granted again: one part in this number. */
export const CREDIT_SHARE = 4;
/** The number of messages of a key that stay held behind one in hand for longer than a lease. */
export const AHEAD = 8;
const READY_GONE_MIN = 64;

const { QUEUED, READY, HANDED, ACKED, NACKED, GONE } = DeliveryState;

/** The deliveries that one consumer holds. `now` is in milliseconds of a monotonic clock. */
export class DeliveryLedger {
  #settler;
  /** @type {Map<string, Message[]>} per held key, the messages behind its first */
  #queued = new Map();
  /** @type {Map<string, Message>} per key, a message that is gone while its handler runs on */
  #goneAtWork = new Map();
  /** @type {Map<string, HeldPush>} */
  #pushes = new Map();
  /** @type {Message[]} */
  #ready;
  /** The number of entries of `#ready` that are no longer READY. */
  #readyStale;
  /** @type {Map<number, [number, number]>} partition -> (epoch, push) */
  #newestPush;
  /** @type {Map<number, number>} partition -> messages to come that may be redeliveries */
  #redeliveriesMax;
  #closed;
  #releasedGranted;

  /**
   * Make a ledger with nothing held.
   *
   * @param {object} settler carries out calls on the messages; its `onGone` is called with lost
   *     ones, and returns whether a handler works on one
   * @param {{subscription: number, credit: number, leaseMs: number, autoExtend?: boolean}} settings
   *     `credit`: the largest number of held deliveries; `leaseMs`: the group's; `autoExtend`:
   *     whether leases are extended in time
   */
  constructor(settler, { subscription, credit, leaseMs, autoExtend = false }) {
    this.subscription = subscription;
    this.#settler = settler;
    this.leases = new Leases(this.#pushes, { leaseMs, autoExtend });
    this.acks = new AckLedger(subscription);
    this.begin(credit, leaseMs);
  }

  /**
   * Begin with nothing held, because the subscription has been opened again. `onSessionLoss` was
   * called before.
   */
  begin(credit, leaseMs) {
    this.credit = credit;
    this.leaseMs = leaseMs;
    this.leases.begin(leaseMs);
    this.#ready = [];
    this.#readyStale = 0;
    this.#newestPush = new Map();
    this.#redeliveriesMax = new Map();
    this.#closed = new ClosedKeys();
    this.isPaused = false;
    this.received = 0;
    this.released = 0;
    /** The number of received messages that the broker gave before it was restarted. */
    this.uncounted = 0;
    this.#releasedGranted = 0;
  }

  /** Continue as before a reload of the page, with nothing held, and these acks to send. */
  restore({ received, acked }) {
    this.received = this.released = received;
    this.acks.restore(acked);
    this.isPaused = true;
  }

  // --- receiving ---------------------------------------------------------------------------------

  /**
   * Hold the messages of a push. A push that is not newer than the newest of its partition is
   * discarded (R16). A newer push supersedes held deliveries of the same messages.
   */
  receive(push, now) {
    const { partition, epoch, messages } = push;
    this.received += messages.length;
    const newest = this.#newestPush.get(partition);
    if (newest !== undefined) {
      if (epoch < newest[0] || (epoch === newest[0] && push.push <= newest[1])) {
        this.released += messages.length;
        return;
      }
      if (push.attempt > 1 || epoch > newest[0]) this.#supersede(push);
    }
    this.#newestPush.set(partition, [epoch, push.push]);
    const held = new HeldPush(push, this.#settler, this.leases.times(now));
    if (held.left === 0) return;
    const isNewHistory = newest === undefined || epoch > newest[0];
    if (isNewHistory) this.#redeliveriesMax.set(partition, this.credit);
    const redeliveries = this.#redeliveriesMax.get(partition) ?? 0;
    if (redeliveries > 0) {
      held.mayBeRedelivery = true;
      this.#redeliveriesMax.set(partition, Math.max(0, redeliveries - held.left));
    }
    this.#pushes.set(pushKey(held.place), held);
    this.leases.add(held);
    offsetsOf(push).forEach((offset, index) => this.#admit(held, offset, messages[index]));
  }

  #admit(held, offset, fields) {
    const message = new Message(held, offset, fields);
    held.deliveries.push(message);
    const { key } = message;
    if (key !== null && !this.#closed.admit(key, message.partition, offset)) {
      this.#drop(message, GONE);
    } else if (key !== null && this.#queued.has(key)) {
      message.state = QUEUED;
      this.#queued.get(key).push(message);
    } else {
      if (key !== null) this.#queued.set(key, []);
      this.#ready.push(message);
    }
  }

  #supersede(push) {
    if (push.messages.length === 0) return;
    const again = ranges(offsetsOf(push));
    for (const held of [...this.#pushes.values()]) {
      if (held.place[0] === push.partition) this.#removeWithin(held, again);
    }
  }

  /** Drop deliveries that the broker has taken back; others are ignored. */
  revoke(deliveries) {
    for (const row of deliveries) {
      const held = this.#pushes.get(pushKey(row));
      const pairs = row.slice(3);
      if (held !== undefined) this.#removeWithin(held, pairs);
      for (let at = 0; at + 1 < pairs.length; at += 2) {
        this.#closed.onRevoke(row[0], pairs[at], pairs[at + 1]);
      }
    }
  }

  /** Discard messages that have been held for as long as their lease. */
  expire(now) {
    for (const message of this.leases.expire(now)) {
      if (message.state > HANDED) continue; // it went with an earlier one of its key
      this.#remove(message, GONE);
      this.#closed.close(message);
    }
  }

  /** Return the time at which to call `expire`, if nothing else happens before. */
  nextDeadline() {
    return this.leases.nextDeadline();
  }

  // --- coming back -------------------------------------------------------------------------------

  /** Hand out nothing, because nothing carries the session. */
  pause() {
    this.isPaused = true;
  }

  /**
   * Return the delivery list for the broker: deliveries that are held, or that were settled or
   * returned without confirmation.
   */
  report() {
    this.#closed.onReport();
    const rows = [];
    for (const held of this.#pushes.values()) {
      const offsets = held.heldMessages().map((message) => message.offset);
      if (offsets.length > 0) rows.push([...held.place, ...ranges(offsets)]);
    }
    return [...rows, ...this.acks.unconfirmed()];
  }

  /** Restart the counts, because the broker was restarted and counts only later deliveries. */
  resetCounts() {
    this.uncounted = this.received -= this.released;
    this.released = this.#releasedGranted = 0;
  }

  /** The credit granted in total, as the broker counts (R25). */
  get granted() {
    return Math.max(0, this.credit + this.released - this.uncounted);
  }

  /** The number of messages received, as the broker counts. */
  get receivedCount() {
    return this.received - this.uncounted;
  }

  /**
   * Handle the answer to the report: deliveries in `revoked` are no longer this consumer's.
   *
   * Frames that the broker sends from now on take account of the held deliveries. So keys open,
   * except those whose nack the broker may not have received, and those closed since the report.
   */
  onResume(revoked) {
    this.revoke(revoked);
    this.#closed.onReportAnswer();
    const handed = [];
    for (const held of this.#pushes.values()) {
      handed.push(...held.heldMessages().filter((message) => message.state === HANDED));
    }
    for (const message of this.acks.resend(handed)) this.#closed.close(message);
    this.leases.restart();
    this.#releasedGranted = -this.credit; // the grant, too, is sent again
    this.isPaused = false;
  }

  /**
   * Drop every delivery, because the session is lost. Returns the tickets of the unconfirmed acks
   * and nacks.
   */
  onSessionLoss() {
    for (const held of [...this.#pushes.values()]) this.#removeWithin(held, [0, Infinity]);
    this.#ready = [];
    this.#readyStale = 0;
    this.#closed = new ClosedKeys();
    this.leases.restart();
    this.#releasedGranted = this.released; // nobody is left to grant it
    return this.acks.onSessionLoss();
  }

  // --- handing out and settling ------------------------------------------------------------------

  /** The number of messages that could be handed out now. */
  get ready() {
    return this.isPaused ? 0 : this.#ready.length - this.#readyStale;
  }

  /** Hand out a message whose key is free; null if there is none now. */
  next(now) {
    if (this.isPaused) return null;
    while (this.#ready.length > 0) {
      const message = this.#ready[0];
      if (message.state === READY && message.deadline <= now) {
        this.expire(now);
        continue;
      }
      this.#ready.shift();
      if (message.state === READY) {
        message.state = HANDED;
        this.acks.markStarted(message);
        return message;
      }
      this.#readyStale -= 1;
    }
    return null;
  }

  /**
   * Ack a message that was handed out. With a ticket the ack is confirmed: `onAckAnswer` returns
   * the ticket when the broker has answered. Without a ticket, acking an acked message does
   * nothing.
   *
   * @throws {StaleDelivery} if the message is no longer this consumer's
   */
  ack(message, now, ticket = null) {
    if (message.state === ACKED && ticket === null) return;
    this.checkHeld(message, now);
    message.state = ACKED;
    if (ticket === null) this.acks.ack(message);
    else this.acks.ackConfirmed(message, ticket);
    this.#release(message.held);
    if (message.key !== null) this.#promote(message.key);
  }

  /** Make the next message of a key READY. */
  #promote(key) {
    const following = this.#queued.get(key).shift();
    if (following === undefined) {
      this.#queued.delete(key);
      return;
    }
    following.state = READY;
    this.#ready.push(following);
  }

  /** Release the key of a message that was lost before its handler ended. */
  onHandlerEnd(message) {
    const { key } = message;
    if (key === null || this.#goneAtWork.get(key) !== message) return;
    this.#goneAtWork.delete(key);
    this.#promote(key);
  }

  /**
   * Return a message that was handed out, and with it the later held messages of its key. With a
   * ticket the nack is confirmed: `onNackAnswer` returns it when the broker has answered.
   *
   * @param {Message} message
   * @param {number} now
   * @param {{delayS?: number, reason?: string, reject?: boolean}} how
   * @param {any} [ticket]
   * @throws {StaleDelivery} if the message is no longer this consumer's
   */
  nack(message, now, how, ticket = null) {
    this.checkHeld(message, now);
    this.#remove(message, NACKED);
    this.#closed.close(message);
    this.acks.nack(message, how, ticket);
  }

  /** Check that a message is in hand. @throws {StaleDelivery} if it is not */
  checkHeld(message, now) {
    if (message.state === HANDED && message.deadline <= now) this.expire(now);
    if (message.state !== HANDED) throw staleError(message);
  }

  /** Set the end of a message's lease, which the broker has extended. */
  extend(message, until) {
    if (message.state <= HANDED) this.leases.extend(message, until);
  }

  /**
   * Handle the answer to an ack. `isDurable` says whether deliveries acked before it are durable;
   * `refused` are the deliveries that the broker did not settle now.
   *
   * @returns {{settled: any[], stale: any[], perhaps: any[]}} tickets, by the outcome of their
   *     deliveries
   */
  onAckAnswer(ref, refused, isDurable = true) {
    this.acks.onProbeAnswer(ref, isDurable);
    return this.acks.onAckAnswer(ref, refused);
  }

  /**
   * Handle the answer to a nack. Messages that the broker sends from now on may be let in.
   * `refused` are the deliveries that it did not return now.
   *
   * @returns {{settled: any[], stale: any[], perhaps: any[]}} tickets, as of `onAckAnswer`
   */
  onNackAnswer(ref, refused = []) {
    this.#closed.onAnswer(ref);
    return this.acks.onNackAnswer(ref, refused);
  }

  /** Handle the answer to an extend, which extends all leases except `refused`. */
  onExtendAnswer(ref, refused) {
    this.leases.onAnswer(ref, refused);
  }

  /** Note that an extend failed. Another one is sent before its leases end. */
  onExtendFailure(ref) {
    this.leases.onFailure(ref);
  }

  /** The delivery list of unconfirmed acks. */
  get unconfirmedAcks() {
    return this.acks.unconfirmedAcks();
  }

  // --- dropping ----------------------------------------------------------------------------------

  /** Remove the messages of a push whose offsets are in these ranges. */
  #removeWithin(held, pairs) {
    for (const message of [...held.deliveries]) {
      if (message.state <= HANDED && isWithin(pairs, message.offset)) this.#remove(message, GONE);
    }
  }

  /** Remove a held message, and with it the held messages of its key after it (R17). */
  #remove(message, state) {
    const was = message.state;
    const { key } = message;
    this.#drop(message, state);
    const behind = key === null ? [] : this.#queued.get(key);
    if (was === QUEUED) {
      const gone = behind.splice(behind.indexOf(message));
      for (const later of gone.slice(1)) this.#drop(later, GONE);
      return;
    }
    const isAtWork = was === HANDED && this.#settler.onGone(message);
    if (key !== null) {
      this.#queued.delete(key);
      if (isAtWork) {
        this.#goneAtWork.set(key, message);
        this.#queued.set(key, []);
      }
      for (const later of behind) this.#drop(later, GONE);
    }
    if (was === READY) this.#compactReady();
  }

  #compactReady() {
    this.#readyStale += 1;
    if (this.#readyStale <= Math.max(READY_GONE_MIN, this.#ready.length / 2)) return;
    this.#ready = this.#ready.filter((message) => message.state === READY); // P9
    this.#readyStale = 0;
  }

  #drop(message, state) {
    message.state = state;
    this.#release(message.held);
  }

  #release(held) {
    this.released += 1;
    held.left -= 1;
    if (held.left === 0) this.#pushes.delete(pushKey(held.place));
  }

  // --- sending -----------------------------------------------------------------------------------

  /** Return messages whose turn is far off, after one that is in hand for long. */
  #distant() {
    const keys = this.leases.longInHand().map(({ key }) => key);
    return new Set(keys.flatMap((key) => (this.#queued.get(key) ?? []).slice(AHEAD)));
  }

  /** Take the frames to be sent now, in this order; none while the ledger is paused. */
  takeFrames(nextRef, now) {
    if (this.isPaused) return [];
    const { subscription } = this;
    const frames = [
      ...this.acks.takeFrames(nextRef, this.#closed),
      ...this.leases.takeFrames(nextRef, subscription, () => this.#distant(), now),
    ];
    const due = this.released - this.#releasedGranted;
    if (due > 0 && (frames.length > 0 || due * CREDIT_SHARE >= Math.max(this.credit, 1))) {
      this.#releasedGranted = this.released;
      frames.push({ type: "credit", subscription, granted: this.granted });
    }
    return frames;
  }
}

/**
 * Closed keys, whose messages arrive too early (R17).
 *
 * A client returns a message, by a nack or because its own deadline has passed, while later
 * messages of the key may be on their way to it. The broker takes those back when it learns of the
 * return, and gives all of them again, in order.
 *
 *     [m is nacked; m+1, pushed before the broker has read the nack, arrives and is handled; m
 *     comes again: the key is out of order.]
 *
 * A closed key opens when the broker has answered the nack, has revoked the message itself, or
 * gives that very message again. On a new carrier the client reports what it holds. The answer
 * opens keys that were closed before the report, and no others.
 *
 *     [m is reported as held, and its time is over before the answer comes: the broker takes it for
 *     held, and gives m+1, which is handled; m comes again when the broker's lease has ended.]
 */
class ClosedKeys {
  /** @type {Map<string, {key: string, partition: number, offset: number, isReported: boolean}>} */
  #byKey = new Map();
  /** @type {Map<number, Array<{key: string}>>} */
  #expected = new Map();

  get isEmpty() {
    return this.#byKey.size === 0;
  }

  /** @param {string} key */
  has(key) {
    return this.#byKey.has(key);
  }

  /** Close the key of a returned message, unless an earlier message has closed it. */
  close({ key, partition, offset }) {
    if (key === null) return;
    const closing = this.#byKey.get(key);
    if (closing?.partition === partition && closing.offset <= offset) return;
    this.#byKey.set(key, { key, partition, offset, isReported: false });
  }

  /** Expect the answer to a nack of these messages, which opens their keys. */
  expectAnswer(ref, messages) {
    const keys = new Set(messages.map((message) => message.key));
    const closings = [...keys].map((key) => this.#byKey.get(key));
    this.#expected.set(ref, closings.filter((closing) => closing !== undefined));
  }

  /** Open the keys of a nack, because frames sent after its answer take account of it. */
  onAnswer(ref) {
    for (const closing of this.#expected.get(ref) ?? []) {
      if (this.#byKey.get(closing.key) === closing) this.#byKey.delete(closing.key);
    }
    this.#expected.delete(ref);
  }

  /** Note that the client is about to report what is held, and so what is not. */
  onReport() {
    for (const closing of this.#byKey.values()) closing.isReported = true;
  }

  /** Open the keys that were closed before the report. Earlier nacks get no answer any more. */
  onReportAnswer() {
    for (const { key, isReported } of [...this.#byKey.values()]) {
      if (isReported) this.#byKey.delete(key);
    }
    this.#expected.clear();
  }

  /** Open the keys that one of these deliveries has closed. */
  onRevoke(partition, first, last) {
    for (const closing of [...this.#byKey.values()]) {
      const { offset } = closing;
      if (closing.partition === partition && first <= offset && offset <= last) {
        this.#byKey.delete(closing.key);
      }
    }
  }

  /**
   * Return whether to let a message in. The message that closed its key opens it. @returns
   * {boolean}
   */
  admit(key, partition, offset) {
    const closing = this.#byKey.get(key);
    if (closing === undefined) return true;
    if (closing.partition !== partition || closing.offset !== offset) return false;
    this.#byKey.delete(key);
    return true;
  }
}
