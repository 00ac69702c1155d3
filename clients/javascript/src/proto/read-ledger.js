/**
 * A reader's ledger: its buffer, its credit and its positions. Pure.
 *
 * A reader settles nothing: a message that has been handed out is past. It has three positions at a
 * time:
 *
 * - received: after the last message received. A new connection continues from there, because the
 *   buffer outlives the connection.
 * - handed: after the last message handed out. The user sees this position.
 * - handled: before the first message that was handed out and is not done. After a reload the page
 *   continues from there.
 *
 * A position has per partition, as text, the log's generation and the next offset.
 *
 * @module
 */

import { ReadMessage } from "./message.js";
import { Gap } from "./errors.js";
import { gapOf, offsetsOf, placeOf } from "./wire.js";

/** The share of the window after which credit is granted again: a quarter. */
export const CREDIT_SHARE = 4;

/** A mark in the buffer after which some partitions, or all, have another history. */
class HistoryChange {
  constructor(queueId, places) {
    this.queueId = queueId;
    this.places = places;
  }
}

/** A mark in the buffer at the end of a push. */
class PushEnd {
  constructor(push) {
    this.push = push;
  }
}

/** The messages that one reader has received and not yet handed out, at most `credit` of them. */
export class ReadLedger {
  subscription = 0;
  /** Whether the broker has opened the reader, on this connection. */
  isOpen = false;
  /** @type {Array<ReadMessage | Gap | PushEnd | HistoryChange>} */
  #items = [];
  #buffered = 0;
  /** The number of messages received on this connection. */
  #received = 0;
  #granted = 0;
  #queueId = "";
  /** The id of the queue of the message handed out last, which may be that of a deleted queue. */
  #queueIdHanded = "";
  /** @type {Map<string, [number, number]>} */
  #nextReceived = new Map();
  /** @type {Map<string, [number, number]>} */
  #nextHanded = new Map();
  /** Items that were handed out and are not done, each with its generation. */
  #inHand = new Map();

  /** @param {number} credit */
  constructor(credit) {
    this.credit = credit;
  }

  /**
   * Begin at the positions at which the broker has opened the reader, on this connection. In the
   * partitions of `unknown` no earlier position has a meaning any more.
   *
   * @param {number} subscription
   * @param {any} answer
   * @param {Set<number>} unknown
   */
  onOpen(subscription, answer, unknown) {
    this.subscription = subscription;
    this.isOpen = true;
    const isFirst = this.#queueId === "";
    this.#queueId = answer.queue_id;
    const turned = new Map();
    for (const verdict of answer.positions) {
      const [place, gap, name] = [placeOf(verdict), gapOf(verdict), String(verdict.partition)];
      if (place !== null) {
        this.#nextReceived.set(name, place);
        const begin = gap === null ? place : [place[0], gap[0]]; // until the gap is handed out
        if (unknown.has(verdict.partition)) turned.set(name, place);
        else if (!this.#nextHanded.has(name)) this.#nextHanded.set(name, begin);
      }
      if (gap !== null) this.#items.push(new Gap(verdict.partition, gap[0], gap[1]));
    }
    if (isFirst) {
      this.#queueIdHanded = answer.queue_id;
      for (const [name, place] of turned) this.#nextHanded.set(name, place);
    } else if (turned.size > 0) {
      // Another queue may have fewer partitions.
      if (answer.queue_id !== this.#queueIdHanded) this.#nextReceived = new Map(turned);
      this.#items.push(new HistoryChange(answer.queue_id, turned));
    }
  }

  /**
   * Begin to open the reader again. Returns the credit granted and the position for the next
   * `subscribe`; the position is null at the first time.
   *
   * Until the answer no credit is granted, and no push belongs to it.
   */
  reopen() {
    this.isOpen = false;
    this.#received = 0;
    this.#granted = Math.max(this.credit - this.#buffered, 0);
    return { granted: this.#granted, position: positionOf(this.#nextReceived, this.#queueId) };
  }

  /** Buffer the messages of a push. */
  receive(push) {
    if (push.gap !== null) this.#items.push(new Gap(push.partition, push.gap[0], push.gap[1]));
    const places = offsetsOf(push);
    push.messages.forEach((fields, index) => {
      this.#items.push(new ReadMessage(push, places[index], fields));
    });
    this.#items.push(new PushEnd(push));
    this.#buffered += push.messages.length;
    this.#received += push.messages.length;
    advance(this.#nextReceived, push);
  }

  /** The number of buffered items, at least that of the messages. */
  get ready() {
    return this.#items.length;
  }

  /** Hand out the next message, or the gap before it; null if there is none now. */
  next() {
    while (this.#items.length > 0) {
      const item = this.#items.shift();
      if (item instanceof PushEnd) {
        advance(this.#nextHanded, item.push);
      } else if (item instanceof HistoryChange) {
        this.#changeHistory(item);
      } else {
        if (item instanceof ReadMessage) this.#buffered -= 1;
        const name = String(item.partition);
        this.#inHand.set(item, (this.#nextHanded.get(name) ?? [0])[0]);
        move(this.#nextHanded, name, offsetBehind(item));
        return item;
      }
    }
    return null;
  }

  /** Note that an item that was handed out is done. */
  onHandled(item) {
    this.#inHand.delete(item);
  }

  #changeHistory({ queueId, places }) {
    if (queueId !== this.#queueIdHanded) {
      this.#nextHanded.clear();
      this.#inHand.clear();
      this.#queueIdHanded = queueId;
    }
    for (const [name, place] of places) this.#nextHanded.set(name, place);
  }

  /**
   * Return the position after the last message that was handed out; null before the first opening.
   */
  position() {
    const places = new Map(this.#nextHanded);
    for (const item of this.#items) {
      if (!(item instanceof PushEnd)) break;
      advance(places, item.push);
    }
    return positionOf(places, this.#queueIdHanded);
  }

  /**
   * Return the position before the first message that is not done; null before the first opening.
   */
  handledPosition() {
    const places = new Map(this.#nextHanded);
    for (const [item, generation] of this.#inHand) {
      const name = String(item.partition);
      const first = item instanceof Gap ? item.first : item.offset;
      const place = places.get(name);
      if (place !== undefined && place[0] === generation && first < place[1]) {
        places.set(name, [generation, first]);
      }
    }
    return positionOf(places, this.#queueIdHanded);
  }

  /** Take the frames that grant credit now (R25). */
  takeFrames() {
    const granted = this.#received + Math.max(this.credit - this.#buffered, 0);
    const isDue = (granted - this.#granted) * CREDIT_SHARE >= Math.max(this.credit, 1);
    if (!this.isOpen || !isDue) return [];
    this.#granted = granted;
    return [{ type: "credit", subscription: this.subscription, granted }];
  }
}

function positionOf(places, queueId) {
  if (queueId === "") return null;
  const partitions = Object.fromEntries([...places].map(([name, place]) => [name, [...place]]));
  return { queue_id: queueId, ring_epoch: 1, partitions };
}

function offsetBehind(item) {
  return (item instanceof Gap ? item.last : item.offset) + 1;
}

function advance(places, push) {
  for (const [name, [, wanted]] of Object.entries(push.positions)) move(places, name, wanted);
  const offsets = push.next === null && push.messages.length > 0 ? offsetsOf(push) : null;
  const following = offsets === null ? push.next : offsets[offsets.length - 1] + 1;
  if (following !== null) move(places, String(push.partition), following);
}

function move(places, name, following) {
  const [generation, wanted] = places.get(name) ?? [0, 0];
  if (following > wanted) places.set(name, [generation, following]);
}
