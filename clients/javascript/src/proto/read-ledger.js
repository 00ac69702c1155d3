/**
 * Reading: a reader's buffer, its credit and its positions. Pure.
 *
 * A reader settles nothing: what has been handed out is past. It stands in three places at a time:
 *
 * - wanted: behind the last message received. From there a new connection goes on, because the
 *   buffer outlives the connection.
 * - handed: behind the last message handed out. That is the position that the user sees.
 * - handled: before the first message that was handed out and is not done. From there a later life
 *   of the page goes on.
 *
 * Places are, per partition, as text, the log's generation and the next offset.
 *
 * @module
 */

import { ReadMessage } from "./delivery.js";
import { Gap } from "./errors.js";
import { gapOf, offsetsOf, placeOf } from "./wire.js";

/** Credit is granted anew when a quarter of the window has been handed out. */
export const CREDIT_SHARE = 4;

/** From here on some partitions, or all of another queue, are another history. */
class HistoryChange {
  constructor(queueId, places) {
    this.queueId = queueId;
    this.places = places;
  }
}

/** A push: it ends here. */
class PushEnd {
  constructor(push) {
    this.push = push;
  }
}

/** What one reader has received and not yet handed out. `credit` bounds it, in messages. */
export class ReadLedger {
  subscription = 0;
  /** Whether the broker has opened it, on this connection. */
  isOpen = false;
  /** @type {Array<ReadMessage | Gap | PushEnd | HistoryChange>} */
  #items = [];
  #buffered = 0;
  /** On this connection. */
  #received = 0;
  #granted = 0;
  #queueId = "";
  /** Another one until what came of a queue that was deleted has been handed out. */
  #queueIdHanded = "";
  /** @type {Map<string, [number, number]>} */
  #wanted = new Map();
  /** @type {Map<string, [number, number]>} */
  #handed = new Map();
  /** What was handed out and is not done, with the generation it counts in. */
  #open = new Map();

  /** @param {number} credit */
  constructor(credit) {
    this.credit = credit;
  }

  /**
   * The broker has opened the reader, on this connection, at these positions. In the partitions of
   * `unknown` nothing of before means anything any more.
   *
   * @param {number} subscription
   * @param {any} answer
   * @param {Set<number>} unknown
   */
  opened(subscription, answer, unknown) {
    this.subscription = subscription;
    this.isOpen = true;
    const isFirst = this.#queueId === "";
    this.#queueId = answer.queue_id;
    const turned = new Map();
    for (const verdict of answer.positions) {
      const [place, gap, name] = [placeOf(verdict), gapOf(verdict), String(verdict.partition)];
      if (place !== null) {
        this.#wanted.set(name, place);
        const begin = gap === null ? place : [place[0], gap[0]]; // until it has been told
        if (unknown.has(verdict.partition)) turned.set(name, place);
        else if (!this.#handed.has(name)) this.#handed.set(name, begin);
      }
      if (gap !== null) this.#items.push(new Gap(verdict.partition, gap[0], gap[1]));
    }
    if (isFirst) {
      this.#queueIdHanded = answer.queue_id;
      for (const [name, place] of turned) this.#handed.set(name, place);
    } else if (turned.size > 0) {
      // Another queue may have fewer partitions.
      if (answer.queue_id !== this.#queueIdHanded) this.#wanted = new Map(turned);
      this.#items.push(new HistoryChange(answer.queue_id, turned));
    }
  }

  /**
   * What the next `subscribe` says: granted so far, and the position, or null at the first time.
   * Until it is answered no credit is granted, and no push belongs to it.
   */
  opening() {
    this.isOpen = false;
    this.#received = 0;
    this.#granted = Math.max(this.credit - this.#buffered, 0);
    return { granted: this.#granted, position: positionOf(this.#wanted, this.#queueId) };
  }

  /** Take in a push. */
  receive(push) {
    if (push.gap !== null) this.#items.push(new Gap(push.partition, push.gap[0], push.gap[1]));
    const places = offsetsOf(push);
    push.messages.forEach((said, index) => {
      this.#items.push(new ReadMessage(push, places[index], said));
    });
    this.#items.push(new PushEnd(push));
    this.#buffered += push.messages.length;
    this.#received += push.messages.length;
    advance(this.#wanted, push);
  }

  /** How many items could be taken now, at least as many as messages. */
  get ready() {
    return this.#items.length;
  }

  /** The next message, or the gap that comes before it; null: nothing is there now. */
  next() {
    while (this.#items.length > 0) {
      const item = this.#items.shift();
      if (item instanceof PushEnd) {
        advance(this.#handed, item.push);
      } else if (item instanceof HistoryChange) {
        this.#turn(item);
      } else {
        if (item instanceof ReadMessage) this.#buffered -= 1;
        const name = String(item.partition);
        this.#open.set(item, (this.#handed.get(name) ?? [0])[0]);
        move(this.#handed, name, behind(item));
        return item;
      }
    }
    return null;
  }

  /** What was handed out is done. */
  finished(item) {
    this.#open.delete(item);
  }

  #turn({ queueId, places }) {
    if (queueId !== this.#queueIdHanded) {
      this.#handed.clear();
      this.#open.clear();
      this.#queueIdHanded = queueId;
    }
    for (const [name, place] of places) this.#handed.set(name, place);
  }

  /** Behind the last message that was handed out; null: the broker has not said where. */
  position() {
    const places = new Map(this.#handed);
    for (const item of this.#items) {
      if (!(item instanceof PushEnd)) break;
      advance(places, item.push);
    }
    return positionOf(places, this.#queueIdHanded);
  }

  /** Before the first message that is not done; null: the broker has not said where. */
  handledPosition() {
    const places = new Map(this.#handed);
    for (const [item, generation] of this.#open) {
      const name = String(item.partition);
      const first = item instanceof Gap ? item.first : item.offset;
      const place = places.get(name);
      if (place !== undefined && place[0] === generation && first < place[1]) {
        places.set(name, [generation, first]);
      }
    }
    return positionOf(places, this.#queueIdHanded);
  }

  /** The credit that is to be granted now (R25). */
  take() {
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

function behind(item) {
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
