/**
 * The leases of what is held, as this client counts them, and their prolongation. Pure.
 *
 * A lease is counted from the moment the push was received, less a margin, so that it ends here
 * before it ends at the broker. More time is asked for while enough of it is left to try again.
 *
 * What only waits behind a message that is in hand for long is not prolonged with it for ever: that
 * is up to whoever holds the leases, who is told of what is in hand for long (`longInHand`).
 *
 * @module
 */

import { DeliveryState } from "./delivery.js";
import { containsDelivery, pushKey, ranges, splitDeliveries } from "./wire.js";

export const MARGIN_MS_MAX = 2000;
/** A lease ends here by this share of it earlier than at the broker, at most MARGIN_MS_MAX. */
export const MARGIN_SHARE = 0.1;
/** More time is asked for when this share of it is left. */
export const EXTEND_SHARE = 0.5;

/** How long a delivery may be worked on here when the broker grants so much. */
export function usableMs(leaseMs) {
  return leaseMs - Math.min(MARGIN_MS_MAX, MARGIN_SHARE * leaseMs);
}

export class Leases {
  #pushes;
  #autoExtend;
  #deadlines = new Deadlines();
  /** More time is to be asked for. */
  #late = [];
  /** ref -> what was asked for, and when */
  #asked = new Map();
  /** How often more time was asked for while a message was in hand. */
  #inHand = new Map();

  /**
   * @param {Map<string, import("./delivery.js").HeldPush>} pushes what is held; its owner keeps it
   * @param {{leaseMs: number, autoExtend: boolean}} settings `autoExtend`: what is held is
   *     prolonged until the broker refuses
   */
  constructor(pushes, { leaseMs, autoExtend }) {
    this.#pushes = pushes;
    this.#autoExtend = autoExtend;
    this.begin(leaseMs);
  }

  /** The group's leases are so long now; pushes are those that are held. */
  begin(leaseMs) {
    this.usableMs = usableMs(leaseMs);
    /** How long before the end of a lease more time is asked for. */
    this.leadMs = EXTEND_SHARE * this.usableMs;
    this.restart();
  }

  /** Whatever was asked for is asked for again. */
  restart() {
    this.#late = [];
    this.#asked.clear();
    for (const held of this.#pushes.values()) this.#setTimes(held);
    this.#deadlines.reset(this.#pushes.values());
  }

  /** Of a push that is received now. */
  times(now) {
    const deadline = now + this.usableMs;
    return { deadline, extendAt: this.#autoExtend ? deadline - this.leadMs : Infinity };
  }

  /** It is held, with these `times`. */
  received(held) {
    this.#deadlines.received(held);
  }

  /** This one may be worked on until then. */
  extended(message, until) {
    message.deadline = until;
    this.#setTimes(message.held);
    this.#deadlines.put(message.held);
  }

  /** The held messages whose lease is over. */
  expire(now) {
    const over = [];
    for (const held of this.#deadlines.take(now)) {
      if (held.deadline <= now) {
        const open = held.open();
        over.push(...open.filter((message) => message.deadline <= now));
        held.deadline = earliest(open.filter((message) => message.deadline > now));
      }
      if (held.extendAt <= now) {
        this.#late.push(held);
        held.extendAt = Infinity;
      }
      this.#deadlines.put(held);
    }
    return over;
  }

  /** When `expire` should be called, if nothing else happens before. */
  nextDeadline() {
    return this.#deadlines.next();
  }

  /** What was in hand when more time was asked for, and was so the time before. */
  longInHand() {
    for (const message of this.#inHand.keys()) {
      if (message.state !== DeliveryState.HANDED) this.#inHand.delete(message);
    }
    return [...this.#inHand].filter(([, times]) => times > 1).map(([message]) => message);
  }

  /**
   * The frames that ask for more time for what needs it, but for what is `far` from its turn; see
   * `answered`.
   */
  ask(nextRef, subscription, far, now) {
    if (this.#late.length === 0) return [];
    const soon = now + this.leadMs;
    const late = this.#late.map((held) => {
      return { held, due: held.open().filter((message) => message.deadline <= soon) };
    });
    this.#late = [];
    for (const message of late.flatMap(({ due }) => due)) {
      if (message.state !== DeliveryState.HANDED) continue;
      this.#inHand.set(message, (this.#inHand.get(message) ?? 0) + 1);
    }
    const without = far();
    const rows = [];
    for (const { held, due } of late) {
      const offsets = due.filter((message) => !without.has(message)).map(offsetOf);
      if (offsets.length > 0) {
        rows.push([...held.place, ...ranges(offsets)]);
      } else if (due.length > 0) {
        held.extendAt = now + this.leadMs / 2; // its turn may be nearer by then
        this.#deadlines.put(held);
      }
    }
    return splitDeliveries(rows).map((deliveries) => {
      const ref = nextRef();
      this.#asked.set(ref, { deliveries, askedAt: now });
      return { type: "extend", subscription, deliveries, ref };
    });
  }

  /**
   * Of what was asked for, all but this. What was refused ends with its lease, and is not asked for
   * again.
   */
  answered(ref, refused) {
    const { deliveries, askedAt } = this.#take(ref);
    const until = askedAt + this.usableMs;
    for (const row of deliveries) {
      const held = this.#pushes.get(pushKey(row));
      if (held === undefined) continue;
      const isGranted = ({ offset }) =>
        containsDelivery([row], held.place, offset) &&
        !containsDelivery(refused, held.place, offset);
      const granted = held.open().filter(isGranted);
      for (const message of granted) message.deadline = Math.max(message.deadline, until);
      held.deadline = earliest(held.open());
      held.extendAt = Infinity;
      if (granted.length > 0) {
        const againAt = earliest(granted) - this.leadMs;
        held.extendAt = Math.max(againAt, askedAt + this.leadMs / 2);
      }
      this.#deadlines.put(held);
    }
  }

  /** It could not be answered: leases end when they did, and it is asked again before. */
  failed(ref) {
    const { deliveries, askedAt } = this.#take(ref);
    for (const row of deliveries) {
      const held = this.#pushes.get(pushKey(row));
      if (held === undefined) continue;
      held.extendAt = askedAt + this.leadMs / 2;
      this.#deadlines.put(held);
    }
  }

  #take(ref) {
    const asked = this.#asked.get(ref) ?? { deliveries: [], askedAt: 0 };
    this.#asked.delete(ref);
    return asked;
  }

  #setTimes(held) {
    held.deadline = earliest(held.open());
    held.extendAt = this.#autoExtend ? held.deadline - this.leadMs : Infinity;
  }
}

function earliest(messages) {
  return messages.reduce((least, { deadline }) => Math.min(least, deadline), Infinity);
}

function offsetOf(message) {
  return message.offset;
}

/**
 * Held pushes by what is due next: a lease to be prolonged, or one that is over.
 *
 * Pushes come in the order of their deadlines, so those that are settled in time, nearly all, cost
 * a queue; only what is held for long is sorted. An entry counts while its push is due at the time
 * that the entry names: a push whose times have changed was put again, and one that is settled
 * drops out by itself.
 */
class Deadlines {
  /** @type {Array<{due: number, held: import("./delivery.js").HeldPush}>} in order */
  #fresh = [];
  /** @type {Array<{due: number, held: import("./delivery.js").HeldPush}>} a heap */
  #others = [];

  /** A push with the latest deadline so far. */
  received(held) {
    this.#fresh.push({ due: held.due, held });
  }

  /** A push whose times have changed. */
  put(held) {
    const heap = this.#others;
    let at = heap.push({ due: held.due, held }) - 1;
    while (at > 0) {
      const above = (at - 1) >> 1;
      if (heap[above].due <= heap[at].due) return;
      [heap[above], heap[at]] = [heap[at], heap[above]];
      at = above;
    }
  }

  /** These are all there are. @param {Iterable<import("./delivery.js").HeldPush>} pushes */
  reset(pushes) {
    this.#fresh = [];
    this.#others = [];
    for (const held of pushes) this.put(held);
  }

  /** The pushes of which something is due; whoever is done with one puts it again. */
  take(now) {
    const due = [];
    for (let first = this.#oldest(); first !== undefined && first.due <= now; ) {
      this.#fresh.shift();
      due.push(first.held);
      first = this.#oldest();
    }
    for (let first = this.#first(); first !== undefined && first.due <= now; ) {
      this.#pop();
      due.push(first.held);
      first = this.#first();
    }
    return due;
  }

  /** When something will be due; Infinity: nothing is held. */
  next() {
    return Math.min(this.#oldest()?.due ?? Infinity, this.#first()?.due ?? Infinity);
  }

  /** The first of the queue that still counts. */
  #oldest() {
    const fresh = this.#fresh;
    while (fresh.length > 0 && !counts(fresh[0])) fresh.shift();
    return fresh[0];
  }

  /** The first of the heap that still counts. */
  #first() {
    const heap = this.#others;
    while (heap.length > 0 && !counts(heap[0])) this.#pop();
    return heap[0];
  }

  #pop() {
    const heap = this.#others;
    const last = heap.pop();
    if (heap.length === 0) return;
    heap[0] = last;
    for (let at = 0; ; ) {
      let least = at;
      for (const below of [2 * at + 1, 2 * at + 2]) {
        if (below < heap.length && heap[below].due < heap[least].due) least = below;
      }
      if (least === at) return;
      [heap[least], heap[at]] = [heap[at], heap[least]];
      at = least;
    }
  }
}

/** Whether its push is not settled, and was not put again since. */
function counts({ due, held }) {
  return held.left > 0 && due === held.due;
}
