/**
 * A consumer's acks, nacks and marks, and those that the broker may not have received. Pure.
 *
 * An ack without an answer may be lost with the connection, or with a gateway that is killed before
 * it has written the ack. So acks are kept until the broker confirms, to a probe sent after them,
 * that they are durable. After a lost connection all unconfirmed acks are sent again, which settles
 * nothing twice (R21).
 *
 * @module
 */

import { DeliveryState } from "./message.js";
import {
  containsDelivery, deliveryList, ranges, RANGES_PER_FRAME_MAX, splitDeliveries,
} from "./wire.js";

/** The number of rows of acks after which the next probe is sent. */
export const UNCONFIRMED_ROWS = 64;
/**
 * The largest number of unconfirmed rows. Beyond it the oldest rows are forgotten. If the gateway
 * is killed then, too, their messages may come again.
 */
export const UNCONFIRMED_ROWS_MAX = 4096;
/** The largest number of acked and unconfirmed messages to name. A subscription holds fewer. */
export const NAMED_MESSAGES_MAX = 100_000;

/** The acks, nacks and marks of one subscription. */
export class AckLedger {
  #started;
  #acked;
  /** Rows to be sent again. */
  #resends;
  /** Rows acked since the last probe. */
  #unconfirmed;
  /** Rows acked before the probe that is under way. */
  #probed;
  /** The ref of the probe that is under way; null without one. */
  #probe;
  #confirm;
  #confirming;
  /** Messages to be confirmed that were sent before. */
  #repeated;
  #nacked;
  #nacking;
  /** Tickets of nacks to be confirmed, by message. */
  #tickets;

  /** @param {number} subscription */
  constructor(subscription) {
    this.subscription = subscription;
    this.#reset();
  }

  #reset() {
    this.#started = [];
    this.#acked = [];
    this.#resends = [];
    this.#unconfirmed = [];
    this.#probed = [];
    this.#probe = null;
    this.#confirm = [];
    this.#confirming = new Map();
    this.#repeated = new Set();
    this.#nacked = [];
    this.#nacking = new Map();
    this.#tickets = new Map();
  }

  // --- what the consumer does --------------------------------------------------------------------

  /** Mark a message as started, because its handler begins (R19). */
  markStarted(message) {
    this.#started.push(message);
  }

  /** Ack a message. */
  ack(message) {
    const { held } = message;
    if (held.acked.length === 0) this.#acked.push(held);
    held.acked.push(message.offset);
  }

  /** Ack a message; `ticket` waits for the answer. */
  ackConfirmed(message, ticket) {
    this.#confirm.push({ message, ticket });
  }

  /**
   * Nack a message, so that it comes again, or (`reject`) is treated as failed for good.
   *
   * @param {any} message
   * @param {{delayS?: number, reason?: string, reject?: boolean}} how
   * @param {any} ticket waits for the answer; null if nothing waits
   */
  nack(message, how, ticket = null) {
    this.#nacked.push({ message, how });
    if (ticket !== null) this.#tickets.set(message, ticket);
  }

  // --- what goes out -----------------------------------------------------------------------------

  /** Take the frames to be sent now, in this order. Their nacks are noted in `closed`. */
  takeFrames(nextRef, closed) {
    const { subscription } = this;
    const marked = this.#started.filter((message) => message.state === DeliveryState.HANDED);
    const started = deliveryList(marked); // settled ones need no mark
    this.#started = [];
    let marks = splitDeliveries(started).map((rows) => {
      return { type: "extend", subscription, started: rows };
    });
    const acked = [
      ...this.#resends,
      ...this.#acked.map((held) => [...held.place, ...ranges(held.acked)]),
    ];
    for (const held of this.#acked) held.acked = [];
    this.#acked = [];
    this.#resends = [];
    const acks = splitDeliveries(acked).map((deliveries) => {
      return { type: "ack", subscription, deliveries };
    });
    if (marks.length === 1 && acks.length > 0) {
      acks[0].started = started; // the ordinary case: marks travel with the acks
      marks = [];
    }
    const frames = [...marks, ...acks, ...this.#confirms(nextRef), ...this.#nacks(nextRef, closed)];
    this.#unconfirmed.push(...acked);
    this.#unconfirmed.splice(0, this.#unconfirmed.length - UNCONFIRMED_ROWS_MAX);
    if (this.#probe === null && this.#unconfirmed.length >= UNCONFIRMED_ROWS) {
      this.#probe = nextRef();
      this.#probed = this.#unconfirmed;
      this.#unconfirmed = [];
      frames.push({ type: "ack", subscription, deliveries: [], ref: this.#probe });
    }
    return frames;
  }

  #confirms(nextRef) {
    const waiting = this.#confirm;
    this.#confirm = [];
    return chunks(waiting).map((chunk) => {
      const ref = nextRef();
      this.#confirming.set(ref, chunk);
      const deliveries = deliveryList(chunk.map(({ message }) => message));
      return { type: "ack", subscription: this.subscription, deliveries, ref };
    });
  }

  #nacks(nextRef, closed) {
    const alike = new Map();
    for (const { message, how } of this.#nacked) {
      const name = JSON.stringify([how.delayS, how.reason, how.reject]);
      if (!alike.has(name)) alike.set(name, { how, messages: [] });
      alike.get(name).messages.push(message);
    }
    this.#nacked = [];
    const frames = [];
    for (const { how, messages } of alike.values()) {
      for (const chunk of chunks(messages)) {
        const ref = nextRef();
        this.#nacking.set(ref, { how, messages: chunk });
        closed.expectAnswer(ref, chunk);
        frames.push({
          type: "nack", subscription: this.subscription, ref,
          delay_s: how.delayS, reason: how.reason, reject: how.reject,
          deliveries: deliveryList(chunk),
        });
      }
    }
    return frames;
  }

  // --- answers -----------------------------------------------------------------------------------

  /**
   * Handle the answer to a probe. Deliveries acked before it are durable, or no longer ours. With
   * `isDurable` false they stay unconfirmed.
   */
  onProbeAnswer(ref, isDurable = true) {
    if (ref !== this.#probe) return;
    this.#probe = null;
    if (!isDurable) this.#unconfirmed = [...this.#probed, ...this.#unconfirmed];
    this.#probed = [];
  }

  /**
   * Handle the answer to a nack: the broker has read it.
   *
   * @returns {{settled: any[], stale: any[], perhaps: any[]}} tickets, as of `onAckAnswer`
   */
  onNackAnswer(ref, refused = []) {
    const waiting = [];
    for (const message of this.#nacking.get(ref)?.messages ?? []) {
      const ticket = this.#tickets.get(message);
      if (ticket !== undefined) waiting.push({ message, ticket });
      this.#tickets.delete(message);
    }
    this.#nacking.delete(ref);
    return this.#outcome(waiting, refused);
  }

  /**
   * Handle the answer to a confirmed ack. The broker did not settle `refused` now. It may have
   * settled those in `perhaps` when the ack was sent first.
   *
   * @returns {{settled: any[], stale: any[], perhaps: any[]}} tickets
   */
  onAckAnswer(ref, refused) {
    const waiting = this.#confirming.get(ref) ?? [];
    this.#confirming.delete(ref);
    return this.#outcome(waiting, refused);
  }

  #outcome(waiting, refused) {
    const found = { settled: [], stale: [], perhaps: [] };
    for (const { message, ticket } of waiting) {
      const isGone = containsDelivery(refused, message.held.place, message.offset);
      const refusal = this.#repeated.has(message) ? "perhaps" : "stale";
      found[isGone ? refusal : "settled"].push(ticket);
      this.#repeated.delete(message);
    }
    return found;
  }

  // --- coming back -------------------------------------------------------------------------------

  /**
   * Return the delivery list of everything settled or returned here, and perhaps not at the broker.
   */
  unconfirmed() {
    const nacking = [...this.#nacking.values()].flatMap(({ messages }) => messages);
    const nacked = [...this.#nacked.map(({ message }) => message), ...nacking];
    return [...this.unconfirmedAcks(), ...deliveryList(nacked)];
  }

  /** Return the delivery list of everything settled here, and perhaps not at the broker. */
  unconfirmedAcks() {
    const confirming = [...this.#confirm, ...[...this.#confirming.values()].flat()];
    const queued = this.#acked.map((held) => [...held.place, ...ranges(held.acked)]);
    const confirmed = deliveryList(confirming.map(({ message }) => message));
    const sent = lastNamed([...this.#resends, ...this.#probed, ...this.#unconfirmed]);
    return [...sent, ...queued, ...confirmed];
  }

  /** Take over acks from before a reload of the page, which are sent again. */
  restore(deliveries) {
    this.#resends = deliveries;
  }

  /**
   * Queue unconfirmed acks and nacks again, and the marks of messages in hand (R19). Returns the
   * messages that are nacked again.
   */
  resend(handed) {
    this.#resends = [...this.#resends, ...this.#probed, ...this.#unconfirmed];
    this.#probed = [];
    this.#unconfirmed = [];
    this.#probe = null;
    const repeated = [...this.#confirming.values()].flat();
    for (const { message } of repeated) this.#repeated.add(message);
    this.#confirm = [...repeated, ...this.#confirm];
    this.#confirming.clear();
    const nacking = [...this.#nacking.values()];
    const again = nacking.flatMap(({ how, messages }) =>
      messages.map((message) => ({ message, how })),
    );
    for (const { message } of again) {
      if (this.#tickets.has(message)) this.#repeated.add(message);
    }
    this.#nacked = [...this.#nacked, ...again];
    this.#nacking.clear();
    this.#started = [...handed];
    return this.#nacked.map(({ message }) => message);
  }

  /** Forget everything, because the session is lost. Returns the tickets that still wait. */
  onSessionLoss() {
    const waiting = [...this.#confirm, ...[...this.#confirming.values()].flat()];
    const tickets = [...waiting.map(({ ticket }) => ticket), ...this.#tickets.values()];
    this.#reset();
    return tickets;
  }
}

function chunks(list) {
  const found = [];
  for (let at = 0; at < list.length; at += RANGES_PER_FRAME_MAX) {
    found.push(list.slice(at, at + RANGES_PER_FRAME_MAX));
  }
  return found;
}

/** Return the last of these rows, with at most as many messages as may be named. */
function lastNamed(rows) {
  let left = NAMED_MESSAGES_MAX;
  for (let index = rows.length - 1; index >= 0; index -= 1) {
    for (let at = 3; at + 1 < rows[index].length; at += 2) {
      left -= rows[index][at + 1] - rows[index][at] + 1;
    }
    if (left < 0) return rows.slice(index + 1);
  }
  return rows;
}
