/**
 * A consumer's ledger: the deliveries that it holds. Pure.
 *
 *     receive -> QUEUED -> READY -- next --> HANDED -- ack, nack --> settled
 *                  |         |                 |
 *                  └─────────┴───── GONE <─────┘   revoked, lease over, session lost
 *
 * - Of one key, a message is handed out only when the one before it has been settled (R17): the
 *   first one of a key is READY, the others are QUEUED behind it.
 * - When a message is returned or goes, the later ones of its key that are held go with it, and
 *   what is under way of the key is not let in (R17; see `ClosedKeys`). While a handler still works
 *   on a message that is gone, what comes again of its key waits until that handler ends.
 * - What is over by this client's own clock (see `leases`) is treated as revoked (R17), so nothing
 *   is handed out that another consumer may have by now.
 * - Behind a message that is in hand for longer than a lease no more than AHEAD of its key are
 *   prolonged: the others go back when their leases end, uncounted, and make room (P8).
 * - Between two carriers nothing is handed out (`pause`). Coming back the client reports what it
 *   holds (`report`), and goes on with what is still its own (`onResume`, R22).
 * - Credit is granted in total: what was asked for at first, and one for each released (R25).
 *
 * @module
 */

import { AckLedger } from "./ack-ledger.js";
import { DeliveryState, HeldPush, Message, staleError } from "./message.js";
import { Leases } from "./leases.js";
import { isWithin, offsetsOf, pushKey, ranges } from "./wire.js";

/** Credit is granted anew when this part of the window has been used up. */
export const CREDIT_SHARE = 4;
/** Messages of a key that stay held behind one that is in hand for longer than a lease. */
export const AHEAD = 8;
const READY_GONE_MIN = 64;

const { QUEUED, READY, HANDED, ACKED, NACKED, GONE } = DeliveryState;

/** Deliveries that one consumer holds. `now` is in milliseconds of a monotonic clock. */
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
  /** Entries of `#ready` that are no longer READY. */
  #readyStale;
  /** @type {Map<number, [number, number]>} partition -> (epoch, push) */
  #newestPush;
  /** @type {Map<number, number>} partition -> messages to come that may be redeliveries */
  #redeliveriesMax;
  #closed;
  #releasedGranted;

  /**
   * @param {object} settler carries out what is called on the messages; its `onGone` gets those
   *     that are gone, and returns whether a handler works on one
   * @param {{subscription: number, credit: number, leaseMs: number, autoExtend?: boolean}} settings
   *     `credit`: how many deliveries may be held at a time; `leaseMs`: the group's; `autoExtend`:
   *     what is held is prolonged in time
   */
  constructor(settler, { subscription, credit, leaseMs, autoExtend = false }) {
    this.subscription = subscription;
    this.#settler = settler;
    this.leases = new Leases(this.#pushes, { leaseMs, autoExtend });
    this.acks = new AckLedger(subscription);
    this.begin(credit, leaseMs);
  }

  /** The subscription has been opened anew, and nothing is held: `lost` came before. */
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
    /** Messages that were received from the broker before it started anew. */
    this.uncounted = 0;
    this.#releasedGranted = 0;
  }

  /** Go on as before a reload of the page, with nothing held but these acks. */
  restore({ received, acked }) {
    this.received = this.released = received;
    this.acks.restore(acked);
    this.isPaused = true;
  }

  // --- receiving ---------------------------------------------------------------------------------

  /**
   * Take in a push. It is discarded if it is not newer than the newest of its partition (R16).
   * Messages that it delivers again supersede those that are held.
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

  /** Drop deliveries that the broker has taken back. Those that are not held are left alone. */
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

  /** Discard what has been held for as long as its lease. */
  expire(now) {
    for (const message of this.leases.expire(now)) {
      if (message.state > HANDED) continue; // it went with an earlier one of its key
      this.#remove(message, GONE);
      this.#closed.close(message);
    }
  }

  /** The time when `expire` should be called, if nothing else happens before. */
  nextDeadline() {
    return this.leases.nextDeadline();
  }

  // --- coming back -------------------------------------------------------------------------------

  /** Hand out nothing, because nothing carries the session. */
  pause() {
    this.isPaused = true;
  }

  /**
   * Make the delivery list for the broker: what is held, and what was settled or returned and is
   * unconfirmed.
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

  /** The broker has started anew, and counts only what it delivers from now on. */
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
   * Take the answer to the report: of what is held, `revoked` is not this consumer's any more. The
   * broker sends from now on with that knowledge, so keys are open, but for those whose nack it may
   * not have received, and those closed since the report.
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
   * The session is gone, and every delivery with it. Returns the tickets of the acks and nacks that
   * are not confirmed.
   */
  onSessionLoss() {
    for (const held of [...this.#pushes.values()]) this.#removeWithin(held, [0, Infinity]);
    this.#ready = [];
    this.#readyStale = 0;
    this.#closed = new ClosedKeys();
    this.leases.restart();
    this.#releasedGranted = this.released; // there is nobody left to grant it
    return this.acks.onSessionLoss();
  }

  // --- handing out and settling ------------------------------------------------------------------

  /** The number of messages that could be handed out now. */
  get ready() {
    return this.isPaused ? 0 : this.#ready.length - this.#readyStale;
  }

  /** Hand out a message whose key is free; null: there is none now. */
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
   * Ack a message that was handed out. With a ticket the ack is confirmed: see `onAckAnswer`.
   * Without, an ack of what was acked already does nothing.
   *
   * @throws {StaleDelivery} when it is no longer this consumer's
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

  /** The handler of a message has ended: if it was gone, what comes again of its key may follow. */
  onHandlerEnd(message) {
    const { key } = message;
    if (key === null || this.#goneAtWork.get(key) !== message) return;
    this.#goneAtWork.delete(key);
    this.#promote(key);
  }

  /**
   * Return a message that was handed out; the later ones of its key that are held go too. With a
   * ticket the nack is confirmed: see `onNackAnswer`.
   *
   * @param {Message} message
   * @param {number} now
   * @param {{delayS?: number, reason?: string, reject?: boolean}} how
   * @param {any} [ticket]
   * @throws {StaleDelivery} when it is no longer this consumer's
   */
  nack(message, now, how, ticket = null) {
    this.checkHeld(message, now);
    this.#remove(message, NACKED);
    this.#closed.close(message);
    this.acks.nack(message, how, ticket);
  }

  /** Check that a message is in hand. @throws {StaleDelivery} when it is not any more */
  checkHeld(message, now) {
    if (message.state === HANDED && message.deadline <= now) this.expire(now);
    if (message.state !== HANDED) throw staleError(message);
  }

  /** Prolong the lease of a message until this time, as the broker has. */
  extend(message, until) {
    if (message.state <= HANDED) this.leases.extend(message, until);
  }

  /**
   * Take the answer to an ack: `isDurable` says whether what was acked before it is, and `refused`
   * are the deliveries that the broker did not settle now.
   *
   * @returns {{settled: any[], stale: any[], perhaps: any[]}} tickets, by what is known of them
   */
  onAckAnswer(ref, refused, isDurable = true) {
    this.acks.onProbeAnswer(ref, isDurable);
    return this.acks.onAckAnswer(ref, refused);
  }

  /**
   * Take the answer to a nack: what the broker sends from now on may be let in. `refused` are the
   * deliveries that it did not return now.
   *
   * @returns {{settled: any[], stale: any[], perhaps: any[]}} tickets, as of `onAckAnswer`
   */
  onNackAnswer(ref, refused = []) {
    this.#closed.onAnswer(ref);
    return this.acks.onNackAnswer(ref, refused);
  }

  /** Take the answer to an extend: all but `refused` is prolonged. */
  onExtendAnswer(ref, refused) {
    this.leases.onAnswer(ref, refused);
  }

  /** An extend failed; another one is sent before its leases end. */
  onExtendFailure(ref) {
    this.leases.onFailure(ref);
  }

  /** The delivery list of acks that are unconfirmed. */
  get unconfirmedAcks() {
    return this.acks.unconfirmedAcks();
  }

  // --- dropping ----------------------------------------------------------------------------------

  /** Remove the messages of a push that lie in these ranges of offsets. */
  #removeWithin(held, pairs) {
    for (const message of [...held.deliveries]) {
      if (message.state <= HANDED && isWithin(pairs, message.offset)) this.#remove(message, GONE);
    }
  }

  /** Remove a held message, and with it what is held behind it of its key (R17). */
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

  /** Messages whose turn is far off, behind one that is in hand for long. */
  #distant() {
    const keys = this.leases.longInHand().map(({ key }) => key);
    return new Set(keys.flatMap((key) => (this.#queued.get(key) ?? []).slice(AHEAD)));
  }

  /** Take the frames to be sent now, in this order; none while it is paused. */
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
 * Keys of which nothing may be let in, because what still comes of them was sent too early (R17).
 *
 * The client returns a message, by a nack or because its own deadline has come, at a moment when
 * later messages of the key may be under way to it. The broker will take those back as soon as it
 * knows, and give everything again in order.
 *
 *     [m is nacked; m+1, pushed before the broker has read the nack, arrives and is handled; m
 *     comes again: the key is out of order.]
 *
 * A closed key opens when the broker has answered the nack, or has revoked the message itself, or
 * gives that very message again. A key that was closed before the client, coming back, reported
 * what it holds opens with the answer to that report; one that was closed since does not.
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

  /** Close the key of a message that is returned; an earlier one of the key stands for it too. */
  close({ key, partition, offset }) {
    if (key === null) return;
    const closing = this.#byKey.get(key);
    if (closing?.partition === partition && closing.offset <= offset) return;
    this.#byKey.set(key, { key, partition, offset, isReported: false });
  }

  /** Expect the answer to one nack of these messages, which opens their keys. */
  expectAnswer(ref, messages) {
    const keys = new Set(messages.map((message) => message.key));
    const closings = [...keys].map((key) => this.#byKey.get(key));
    this.#expected.set(ref, closings.filter((closing) => closing !== undefined));
  }

  /** The broker has answered a nack: it sends from now on with that knowledge. */
  onAnswer(ref) {
    for (const closing of this.#expected.get(ref) ?? []) {
      if (this.#byKey.get(closing.key) === closing) this.#byKey.delete(closing.key);
    }
    this.#expected.delete(ref);
  }

  /** The client is about to report what is held, and with that what is not. */
  onReport() {
    for (const closing of this.#byKey.values()) closing.isReported = true;
  }

  /** The broker has answered the report; it has received no nack that is not answered yet. */
  onReportAnswer() {
    for (const { key, isReported } of [...this.#byKey.values()]) {
      if (isReported) this.#byKey.delete(key);
    }
    this.#expected.clear();
  }

  /** The broker has taken these back. */
  onRevoke(partition, first, last) {
    for (const closing of [...this.#byKey.values()]) {
      const { offset } = closing;
      if (closing.partition === partition && first <= offset && offset <= last) {
        this.#byKey.delete(closing.key);
      }
    }
  }

  /** Let in a message, or not. The one that closed its key opens it. @returns {boolean} */
  admit(key, partition, offset) {
    const closing = this.#byKey.get(key);
    if (closing === undefined) return true;
    if (closing.partition !== partition || closing.offset !== offset) return false;
    this.#byKey.delete(key);
    return true;
  }
}
