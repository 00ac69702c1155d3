/**
 * Consuming: the ledger of the deliveries that this consumer holds. Pure.
 *
 *     receive -> QUEUED -> READY -- next --> HANDED -- ack, nack --> settled
 *                  |         |                 |
 *                  └─────────┴───── GONE <─────┘   revoked, lease over, session lost
 *
 * - Of one key, a message is handed out only when the one before it has been settled (R17): the
 *   first one of a key is READY, the others are QUEUED in the key's line.
 * - When a message is returned or goes, the later ones of its key that are held go with it, and
 *   what is under way of it is not let in (see `ClosedKeys`). While something is still at work on
 *   it, it stands before the key's line as a ghost: what comes again waits until that `finished`.
 * - What is over by this client's own clock (see `leases`) is treated as revoked (R17), so nothing
 *   is handed out that another consumer may have by now.
 * - Behind a message that is in hand for longer than a lease no more than AHEAD of its key are
 *   prolonged: the others go back when their leases end, uncounted, and make room (P8).
 * - Between two carriers nothing is handed out (`pause`). Coming back the client says what it holds
 *   (`holding`), and goes on with what is still its own (`resumed`, R22).
 * - Credit is granted in total: what was asked for at first, and one for each released (R25).
 *
 * @module
 */

import { AckLedger } from "./ack-ledger.js";
import { DeliveryState, HeldPush, Message, staleness } from "./delivery.js";
import { Leases } from "./leases.js";
import { isWithin, offsetsOf, pushKey, ranges } from "./wire.js";

/** Credit is granted anew when a quarter of the window has been used up. */
export const CREDIT_SHARE = 4;
/** So many of a key are held behind one that is in hand for longer than a lease. */
export const AHEAD = 8;
const READY_GONE_MIN = 64;

const { QUEUED, READY, HANDED, ACKED, NACKED, GONE } = DeliveryState;

/** What one consumer holds. `now` is in milliseconds of a monotonic clock. */
export class DeliveryLedger {
  #settler;
  /** @type {Map<string, Message[]>} per held key, those behind its first */
  #lines = new Map();
  /** @type {Map<string, Message>} per key, what is gone and still at work */
  #ghosts = new Map();
  /** @type {Map<string, HeldPush>} */
  #pushes = new Map();
  /** @type {Message[]} */
  #ready;
  /** Of these, no longer READY. */
  #readyGone;
  /** @type {Map<number, [number, number]>} partition -> (epoch, push) */
  #newest;
  /** @type {Map<number, number>} partition -> so many more may have been given before */
  #doubtful;
  #closed;
  #releasedGranted;

  /**
   * @param {object} settler carries out what is called on the messages, and is told what is `gone`
   * @param {{subscription: number, credit: number, leaseMs: number, autoExtend?: boolean}} settings
   *     `credit`: how many deliveries may be held at a time; `leaseMs`: the group's; `autoExtend`:
   *     what is held is prolonged in time
   */
  constructor(settler, { subscription, credit, leaseMs, autoExtend = false }) {
    this.subscription = subscription;
    this.#settler = settler;
    this.leases = new Leases(this.#pushes, { leaseMs, autoExtend });
    this.settlements = new AckLedger(subscription);
    this.begin(credit, leaseMs);
  }

  /** The subscription has been opened anew, and nothing is held: `lost` came before. */
  begin(credit, leaseMs) {
    this.credit = credit;
    this.leaseMs = leaseMs;
    this.leases.begin(leaseMs);
    this.#ready = [];
    this.#readyGone = 0;
    this.#newest = new Map();
    this.#doubtful = new Map();
    this.#closed = new ClosedKeys();
    this.isPaused = false;
    this.received = 0;
    this.released = 0;
    /** Of what was received, what an earlier life of the broker had given. */
    this.uncounted = 0;
    this.#releasedGranted = 0;
  }

  /** Go on where an earlier life of this page was, which held nothing else than these acks. */
  recall({ received, acked }) {
    this.received = this.released = received;
    this.settlements.recall(acked);
    this.isPaused = true;
  }

  // --- what comes in ----------------------------------------------------------------------------

  /**
   * Take in a push. One that is not newer than the newest of its partition is discarded (R16); what
   * it gives again supersedes what is held of it.
   */
  receive(push, now) {
    const { partition, epoch, messages } = push;
    this.received += messages.length;
    const newest = this.#newest.get(partition);
    if (newest !== undefined) {
      if (epoch < newest[0] || (epoch === newest[0] && push.push <= newest[1])) {
        this.released += messages.length;
        return;
      }
      if (push.attempt > 1 || epoch > newest[0]) this.#supersede(push);
    }
    this.#newest.set(partition, [epoch, push.push]);
    const held = new HeldPush(push, this.#settler, this.leases.times(now));
    if (held.left === 0) return;
    if (newest === undefined || epoch > newest[0]) this.#doubtful.set(partition, this.credit);
    const doubtful = this.#doubtful.get(partition) ?? 0;
    if (doubtful > 0) {
      held.isDoubtful = true;
      this.#doubtful.set(partition, Math.max(0, doubtful - held.left));
    }
    this.#pushes.set(pushKey(held.place), held);
    this.leases.received(held);
    offsetsOf(push).forEach((offset, index) => this.#take(held, offset, messages[index]));
  }

  #take(held, offset, said) {
    const message = new Message(held, offset, said);
    held.deliveries.push(message);
    const { key } = message;
    if (key !== null && !this.#closed.admits(key, message.partition, offset)) {
      this.#drop(message, GONE);
    } else if (key !== null && this.#lines.has(key)) {
      message.state = QUEUED;
      this.#lines.get(key).push(message);
    } else {
      if (key !== null) this.#lines.set(key, []);
      this.#ready.push(message);
    }
  }

  #supersede(push) {
    if (push.messages.length === 0) return;
    const again = ranges(offsetsOf(push));
    for (const held of [...this.#pushes.values()]) {
      if (held.place[0] === push.partition) this.#lose(held, again);
    }
  }

  /** The broker has taken these back. What is not held is left alone. */
  revoke(deliveries) {
    for (const row of deliveries) {
      const held = this.#pushes.get(pushKey(row));
      const pairs = row.slice(3);
      if (held !== undefined) this.#lose(held, pairs);
      for (let at = 0; at + 1 < pairs.length; at += 2) {
        this.#closed.revoked(row[0], pairs[at], pairs[at + 1]);
      }
    }
  }

  /** Discard what has been held for as long as its lease. */
  expire(now) {
    for (const message of this.leases.expire(now)) {
      if (message.state > HANDED) continue; // it went with an earlier one of its key
      this.#close(message, GONE);
      this.#closed.close(message);
    }
  }

  /** When `expire` should be called, if nothing else happens before. */
  nextDeadline() {
    return this.leases.nextDeadline();
  }

  // --- coming back ------------------------------------------------------------------------------

  /** Nothing carries the session: what is not handed out yet stays here. */
  pause() {
    this.isPaused = true;
  }

  /** What is held, and what was settled or returned and perhaps not heard. */
  holding() {
    this.#closed.tell();
    const rows = [];
    for (const held of this.#pushes.values()) {
      const offsets = held.open().map((message) => message.offset);
      if (offsets.length > 0) rows.push([...held.place, ...ranges(offsets)]);
    }
    return [...rows, ...this.settlements.unheard()];
  }

  /** The broker has started anew, and counts only what it gives from now on. */
  countAnew() {
    this.uncounted = this.received -= this.released;
    this.released = this.#releasedGranted = 0;
  }

  /** The credit granted in total, as the broker counts (R25). */
  get granted() {
    return Math.max(0, this.credit + this.released - this.uncounted);
  }

  /** How many messages ever came, as the broker counts. */
  get receivedThere() {
    return this.received - this.uncounted;
  }

  /**
   * The broker knows what is held; of that, these are not this consumer's any more. What it sends
   * from now on it sends knowing that: keys are open, but for those whose nack it may not have
   * heard, and those closed since that was said.
   */
  resumed(revoked) {
    this.revoke(revoked);
    this.#closed.told();
    const handed = [];
    for (const held of this.#pushes.values()) {
      handed.push(...held.open().filter((message) => message.state === HANDED));
    }
    for (const message of this.settlements.sayAgain(handed)) this.#closed.close(message);
    this.leases.restart();
    this.#releasedGranted = -this.credit; // the grant, too, is said again
    this.isPaused = false;
  }

  /**
   * The session is gone, and every delivery with it. Returns the tickets of the acks whose
   * confirmation has not come.
   */
  lost() {
    for (const held of [...this.#pushes.values()]) this.#lose(held, [0, Infinity]);
    this.#ready = [];
    this.#readyGone = 0;
    this.#closed = new ClosedKeys();
    this.leases.restart();
    this.#releasedGranted = this.released; // there is nobody left to grant it
    return this.settlements.lost();
  }

  // --- handing out and settling -----------------------------------------------------------------

  /** How many could be handed out now. */
  get ready() {
    return this.isPaused ? 0 : this.#ready.length - this.#readyGone;
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
        this.settlements.start(message);
        return message;
      }
      this.#readyGone -= 1;
    }
    return null;
  }

  /**
   * Settle a message that was handed out. With a ticket the ack is confirmed: see `confirmed`.
   * Without, an ack of what was acked already does nothing. Throws StaleDelivery: it is no longer
   * this consumer's.
   */
  ack(message, now, ticket = null) {
    if (message.state === ACKED && ticket === null) return;
    this.checkHeld(message, now);
    message.state = ACKED;
    if (ticket === null) this.settlements.ack(message);
    else this.settlements.confirm(message, ticket);
    this.#release(message.held);
    if (message.key !== null) this.#promote(message.key);
  }

  /** The first one of its line is out of the way. */
  #promote(key) {
    const following = this.#lines.get(key).shift();
    if (following === undefined) {
      this.#lines.delete(key);
      return;
    }
    following.state = READY;
    this.#ready.push(following);
  }

  /** Nothing is at work on it any more. It was not gone: nothing happens. */
  finished(message) {
    const { key } = message;
    if (key === null || this.#ghosts.get(key) !== message) return;
    this.#ghosts.delete(key);
    this.#promote(key);
  }

  /**
   * Return a message that was handed out; the later ones of its key that are held go too. Throws
   * StaleDelivery: it is no longer this consumer's. With a ticket the nack is confirmed: see
   * `nackAnswered`.
   *
   * @param {Message} message
   * @param {number} now
   * @param {{delayS?: number, reason?: string, reject?: boolean}} how
   * @param {any} [ticket]
   */
  nack(message, now, how, ticket = null) {
    this.checkHeld(message, now);
    this.#close(message, NACKED);
    this.#closed.close(message);
    this.settlements.nack(message, how, ticket);
  }

  /** Throws StaleDelivery unless it was handed out and is still this consumer's. */
  checkHeld(message, now) {
    if (message.state === HANDED && message.deadline <= now) this.expire(now);
    if (message.state !== HANDED) throw staleness(message);
  }

  /** The broker has prolonged the lease; it may be worked on until `until`. */
  extended(message, until) {
    if (message.state <= HANDED) this.leases.extended(message, until);
  }

  /**
   * Take the answer to a nack: what the broker sends from now on may be let in. `refused` are the
   * deliveries that it did not return now.
   *
   * @returns {{settled: any[], stale: any[], perhaps: any[]}} tickets, as of `confirmed`
   */
  nackAnswered(ref, refused = []) {
    this.#closed.answered(ref);
    return this.settlements.nackAnswered(ref, refused);
  }

  // --- leaving ----------------------------------------------------------------------------------

  /** Of this push, what stands in these pairs of first and last offsets. */
  #lose(held, pairs) {
    for (const message of [...held.deliveries]) {
      if (message.state <= HANDED && isWithin(pairs, message.offset)) this.#close(message, GONE);
    }
  }

  /** Take a held message out, and with it what is held behind it in its key's line (R17). */
  #close(message, state) {
    const was = message.state;
    const { key } = message;
    this.#drop(message, state);
    const line = key === null ? [] : this.#lines.get(key);
    if (was === QUEUED) {
      for (const later of line.splice(line.indexOf(message)).slice(1)) this.#drop(later, GONE);
      return;
    }
    const isAtWork = was === HANDED && this.#settler.gone(message);
    if (key !== null) {
      this.#lines.delete(key);
      if (isAtWork) {
        this.#ghosts.set(key, message);
        this.#lines.set(key, []);
      }
      for (const later of line) this.#drop(later, GONE);
    }
    if (was === READY) this.#tidy();
  }

  #tidy() {
    this.#readyGone += 1;
    if (this.#readyGone <= Math.max(READY_GONE_MIN, this.#ready.length / 2)) return;
    this.#ready = this.#ready.filter((message) => message.state === READY); // P9
    this.#readyGone = 0;
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

  // --- what goes out ----------------------------------------------------------------------------

  #far() {
    const keys = this.leases.longInHand().map(({ key }) => key);
    return new Set(keys.flatMap((key) => (this.#lines.get(key) ?? []).slice(AHEAD)));
  }

  /** The frames that are to be sent now, in this order; none while it is paused. */
  take(nextRef, now) {
    if (this.isPaused) return [];
    const { subscription } = this;
    const frames = [
      ...this.settlements.take(nextRef, this.#closed),
      ...this.leases.ask(nextRef, subscription, () => this.#far(), now),
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
  /** @type {Map<string, {key: string, partition: number, offset: number, isTold: boolean}>} */
  #byKey = new Map();
  /** @type {Map<number, Array<{key: string}>>} */
  #asked = new Map();

  get isEmpty() {
    return this.#byKey.size === 0;
  }

  /** @param {string} key */
  has(key) {
    return this.#byKey.has(key);
  }

  /** This message of its key is returned; an earlier one that is stands for it too. */
  close({ key, partition, offset }) {
    if (key === null) return;
    const closing = this.#byKey.get(key);
    if (closing?.partition === partition && closing.offset <= offset) return;
    this.#byKey.set(key, { key, partition, offset, isTold: false });
  }

  /** The broker has been told of these in one nack; its answer opens their keys. */
  ask(ref, messages) {
    const keys = new Set(messages.map((message) => message.key));
    const closings = [...keys].map((key) => this.#byKey.get(key));
    this.#asked.set(ref, closings.filter((closing) => closing !== undefined));
  }

  /** It has answered: what it sends from now on it sends knowing of the nack. */
  answered(ref) {
    for (const closing of this.#asked.get(ref) ?? []) {
      if (this.#byKey.get(closing.key) === closing) this.#byKey.delete(closing.key);
    }
    this.#asked.delete(ref);
  }

  /** The broker is about to be told what is held, and with that what is not. */
  tell() {
    for (const closing of this.#byKey.values()) closing.isTold = true;
  }

  /** It has answered, and has heard no nack that is still to be answered. */
  told() {
    for (const { key, isTold } of [...this.#byKey.values()]) {
      if (isTold) this.#byKey.delete(key);
    }
    this.#asked.clear();
  }

  /** It has taken these back. */
  revoked(partition, first, last) {
    for (const closing of [...this.#byKey.values()]) {
      const { offset } = closing;
      if (closing.partition === partition && first <= offset && offset <= last) {
        this.#byKey.delete(closing.key);
      }
    }
  }

  /** Whether this message may come in. The one that closed the key opens it. */
  admits(key, partition, offset) {
    const closing = this.#byKey.get(key);
    if (closing === undefined) return true;
    if (closing.partition !== partition || closing.offset !== offset) return false;
    this.#byKey.delete(key);
    return true;
  }
}
