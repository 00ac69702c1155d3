/**
 * What a consumer says of its deliveries, and what of that the broker has perhaps not heard. Pure.
 *
 * An ack without an answer may be lost with the connection, or with a gateway that is killed before
 * it has written it. So what was acked is remembered until the broker, asked behind it, says that
 * it is durable; after coming back everything that was perhaps not heard is said again, which
 * settles nothing twice (R21).
 *
 * @module
 */

import { DeliveryState } from "./delivery.js";
import {
  containsDelivery, deliveryList, ranges, RANGES_PER_FRAME_MAX, splitDeliveries,
} from "./wire.js";

/** With so many rows of acks since the last question another one is asked. */
export const UNHEARD_ROWS = 64;
/**
 * Where the broker cannot say for long that they are durable, the oldest ones are forgotten: what
 * was handled may come again if the gateway is killed then, too.
 */
export const UNHEARD_ROWS_MAX = 4096;
/** More than a subscription holds; of what was acked and not heard, so much is named. */
export const NAMED_MESSAGES_MAX = 100_000;

/** The outgoing side of one subscription. */
export class AckLedger {
  #started;
  #acked;
  #again;
  /** Acked since the last question, and before it. */
  #unheard;
  #asked;
  #question;
  #confirm;
  #confirming;
  /** Of what is to be confirmed, what was asked before. */
  #repeated;
  #nacked;
  #nacking;
  /** Of what is nacked and is to be confirmed: by message, who waits for the answer. */
  #tickets;

  /** @param {number} subscription */
  constructor(subscription) {
    this.subscription = subscription;
    this.#forget();
  }

  #forget() {
    this.#started = [];
    this.#acked = [];
    this.#again = [];
    this.#unheard = [];
    this.#asked = [];
    this.#question = null;
    this.#confirm = [];
    this.#confirming = new Map();
    this.#repeated = new Set();
    this.#nacked = [];
    this.#nacking = new Map();
    this.#tickets = new Map();
  }

  // --- what the consumer says -------------------------------------------------------------------

  /** Its handler begins (R19). */
  start(message) {
    this.#started.push(message);
  }

  /** It is done. */
  ack(message) {
    const { held } = message;
    if (held.acked.length === 0) this.#acked.push(held);
    held.acked.push(message.offset);
  }

  /** It is done, and `ticket` waits for the answer. */
  confirm(message, ticket) {
    this.#confirm.push({ message, ticket });
  }

  /**
   * It is to come again, or (`reject`) goes the way of what has failed for good.
   *
   * @param {any} message
   * @param {{delayS?: number, reason?: string, reject?: boolean}} how
   * @param {any} ticket waits for the answer; null: nobody does
   */
  nack(message, how, ticket = null) {
    this.#nacked.push({ message, how });
    if (ticket !== null) this.#tickets.set(message, ticket);
  }

  // --- what goes out ----------------------------------------------------------------------------

  /** The frames that are to be sent now, in this order. `closed` learns of the nacks. */
  take(nextRef, closed) {
    const { subscription } = this;
    const marked = this.#started.filter((message) => message.state === DeliveryState.HANDED);
    const started = deliveryList(marked); // what is settled in the same breath needs no mark
    this.#started = [];
    let marks = splitDeliveries(started).map((rows) => {
      return { type: "extend", subscription, started: rows };
    });
    const acked = [
      ...this.#again,
      ...this.#acked.map((held) => [...held.place, ...ranges(held.acked)]),
    ];
    for (const held of this.#acked) held.acked = [];
    this.#acked = [];
    this.#again = [];
    const acks = splitDeliveries(acked).map((deliveries) => {
      return { type: "ack", subscription, deliveries };
    });
    if (marks.length === 1 && acks.length > 0) {
      acks[0].started = started; // the ordinary case: marks travel with the acks
      marks = [];
    }
    const frames = [...marks, ...acks, ...this.#confirms(nextRef), ...this.#nacks(nextRef, closed)];
    this.#unheard.push(...acked);
    this.#unheard.splice(0, this.#unheard.length - UNHEARD_ROWS_MAX);
    if (this.#question === null && this.#unheard.length >= UNHEARD_ROWS) {
      this.#question = nextRef();
      this.#asked = this.#unheard;
      this.#unheard = [];
      frames.push({ type: "ack", subscription, deliveries: [], ref: this.#question });
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
        closed.ask(ref, chunk);
        frames.push({
          type: "nack", subscription: this.subscription, ref,
          delay_s: how.delayS, reason: how.reason, reject: how.reject,
          deliveries: deliveryList(chunk),
        });
      }
    }
    return frames;
  }

  // --- what was heard ---------------------------------------------------------------------------

  /**
   * The question is answered: what was acked before it is durable, or another's by now; or else
   * nobody knows.
   */
  heard(ref, isDurable = true) {
    if (ref !== this.#question) return;
    this.#question = null;
    if (!isDurable) this.#unheard = [...this.#asked, ...this.#unheard];
    this.#asked = [];
  }

  /**
   * Take the answer to a nack: the broker has read it.
   *
   * @returns {{settled: any[], stale: any[], perhaps: any[]}} tickets, as `confirmed` sorts them
   */
  nackAnswered(ref, refused = []) {
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
   * The answer to a confirmed ack, of whose deliveries the broker did not settle `refused` now;
   * `perhaps`: it may have, when it was asked first.
   *
   * @returns {{settled: any[], stale: any[], perhaps: any[]}} tickets
   */
  confirmed(ref, refused) {
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

  // --- coming back ------------------------------------------------------------------------------

  /** What is settled or returned here, and perhaps not at the broker. */
  unheard() {
    const nacking = [...this.#nacking.values()].flatMap(({ messages }) => messages);
    const nacked = [...this.#nacked.map(({ message }) => message), ...nacking];
    return [...this.unheardAcks(), ...deliveryList(nacked)];
  }

  /** Of these, what is settled. */
  unheardAcks() {
    const confirming = [...this.#confirm, ...[...this.#confirming.values()].flat()];
    const queued = this.#acked.map((held) => [...held.place, ...ranges(held.acked)]);
    const confirmed = deliveryList(confirming.map(({ message }) => message));
    const heldThere = last([...this.#again, ...this.#asked, ...this.#unheard]);
    return [...heldThere, ...queued, ...confirmed];
  }

  /** Acks of an earlier life of this page: they are said (again). */
  recall(deliveries) {
    this.#again = deliveries;
  }

  /**
   * Whatever was perhaps not heard, and the marks of what is in hand (R19). Returns the messages
   * that are to be nacked again.
   */
  sayAgain(handed) {
    this.#again = [...this.#again, ...this.#asked, ...this.#unheard];
    this.#asked = [];
    this.#unheard = [];
    this.#question = null;
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

  /** Nothing that was said counts. Returns the tickets that still wait. */
  lost() {
    const waiting = [...this.#confirm, ...[...this.#confirming.values()].flat()];
    const tickets = [...waiting.map(({ ticket }) => ticket), ...this.#tickets.values()];
    this.#forget();
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

/** Of these rows the last ones, with as many messages as may be named. */
function last(rows) {
  let left = NAMED_MESSAGES_MAX;
  for (let index = rows.length - 1; index >= 0; index -= 1) {
    for (let at = 3; at + 1 < rows[index].length; at += 2) {
      left -= rows[index][at + 1] - rows[index][at] + 1;
    }
    if (left < 0) return rows.slice(index + 1);
  }
  return rows;
}
