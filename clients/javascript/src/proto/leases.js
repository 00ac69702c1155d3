/**
 * Leases of held messages, as this client counts them, and their extension. Pure.
 *
 * A lease is counted from the moment at which the push was received, less a margin. So it ends here
 * before it ends at the broker. It is extended while enough is left to try again.
 *
 * Messages that only wait behind one that is in hand for long are not extended with it forever. The
 * caller leaves them out, with the result of `longInHand`.
 *
 * @module
 */

import { DeliveryState } from "./message.js";
import { containsDelivery, pushKey, ranges, splitDeliveries } from "./wire.js";

export const MARGIN_MS_MAX = 2000;
/**
 * The share of a lease by which it ends here before it ends at the broker, at most MARGIN_MS_MAX.
 */
export const MARGIN_SHARE = 0.1;
/** The share of a lease that is left when it is extended. */
export const EXTEND_SHARE = 0.5;

/** Return the time for work on a delivery here, for a lease that the broker grants. */
export function usableMs(leaseMs) {
  return leaseMs - Math.min(MARGIN_MS_MAX, MARGIN_SHARE * leaseMs);
}

export class Leases {
  #pushes;
  #autoExtend;
  #deadlines = new Deadlines();
  /** Pushes whose leases have to be extended. */
  #toExtend = [];
  /** ref -> the delivery list of an extend, and the time at which it was sent */
  #extends = new Map();
  /** message in hand -> the number of its extensions */
  #extensions = new Map();

  /**
   * @param {Map<string, import("./message.js").HeldPush>} pushes what is held; its owner keeps it
   * @param {{leaseMs: number, autoExtend: boolean}} settings `autoExtend`: what is held is
   *     prolonged until the broker refuses
   */
  constructor(pushes, { leaseMs, autoExtend }) {
    this.#pushes = pushes;
    this.#autoExtend = autoExtend;
    this.begin(leaseMs);
  }

  /** Begin with leases of this length, for the held pushes. */
  begin(leaseMs) {
    this.usableMs = usableMs(leaseMs);
    /** The time before the end of a lease at which it is extended. */
    this.leadMs = EXTEND_SHARE * this.usableMs;
    this.restart();
  }

  /** Forget the extends that were sent; all held deliveries are extended again. */
  restart() {
    this.#toExtend = [];
    this.#extends.clear();
    for (const held of this.#pushes.values()) this.#setTimes(held);
    this.#deadlines.reset(this.#pushes.values());
  }

  /** Return the times of a push that is received now. */
  times(now) {
    const deadline = now + this.usableMs;
    return { deadline, extendAt: this.#autoExtend ? deadline - this.leadMs : Infinity };
  }

  /** Add a held push that was made with `times`. */
  add(held) {
    this.#deadlines.append(held);
  }

  /** Set the deadline of a message to this time. */
  extend(message, until) {
    message.deadline = until;
    this.#setTimes(message.held);
    this.#deadlines.insert(message.held);
  }

  /** Take the held messages whose leases are over. */
  expire(now) {
    const over = [];
    for (const held of this.#deadlines.takeDue(now)) {
      if (held.deadline <= now) {
        const open = held.heldMessages();
        over.push(...open.filter((message) => message.deadline <= now));
        held.deadline = earliest(open.filter((message) => message.deadline > now));
      }
      if (held.extendAt <= now) {
        this.#toExtend.push(held);
        held.extendAt = Infinity;
      }
      this.#deadlines.insert(held);
    }
    return over;
  }

  /** Return the time at which to call `expire`, if nothing else happens before. */
  nextDeadline() {
    return this.#deadlines.next;
  }

  /** Return messages that were extended more than once while they were in hand. */
  longInHand() {
    for (const message of this.#extensions.keys()) {
      if (message.state !== DeliveryState.HANDED) this.#extensions.delete(message);
    }
    return [...this.#extensions].filter(([, times]) => times > 1).map(([message]) => message);
  }

  /**
   * Take the frames that extend all due leases, except those of messages that `far` returns, whose
   * turn is far off. `onAnswer` handles the answers.
   */
  takeFrames(nextRef, subscription, far, now) {
    if (this.#toExtend.length === 0) return [];
    const soon = now + this.leadMs;
    const pushes = this.#toExtend.map((held) => {
      return { held, due: held.heldMessages().filter((message) => message.deadline <= soon) };
    });
    this.#toExtend = [];
    for (const message of pushes.flatMap(({ due }) => due)) {
      if (message.state !== DeliveryState.HANDED) continue;
      this.#extensions.set(message, (this.#extensions.get(message) ?? 0) + 1);
    }
    const distant = far();
    const rows = [];
    for (const { held, due } of pushes) {
      const offsets = due.filter((message) => !distant.has(message)).map(offsetOf);
      if (offsets.length > 0) {
        rows.push([...held.place, ...ranges(offsets)]);
      } else if (due.length > 0) {
        held.extendAt = now + this.leadMs / 2; // its turn may be nearer by then
        this.#deadlines.insert(held);
      }
    }
    return splitDeliveries(rows).map((deliveries) => {
      const ref = nextRef();
      this.#extends.set(ref, { deliveries, sentAt: now });
      return { type: "extend", subscription, deliveries, ref };
    });
  }

  /**
   * Handle the answer to an extend: all leases but `refused` are extended. A refused delivery ends
   * with its lease, and is not extended again.
   */
  onAnswer(ref, refused) {
    const { deliveries, sentAt } = this.#takeExtend(ref);
    const until = sentAt + this.usableMs;
    for (const row of deliveries) {
      const held = this.#pushes.get(pushKey(row));
      if (held === undefined) continue;
      const isGranted = ({ offset }) =>
        containsDelivery([row], held.place, offset) &&
        !containsDelivery(refused, held.place, offset);
      const granted = held.heldMessages().filter(isGranted);
      for (const message of granted) message.deadline = Math.max(message.deadline, until);
      held.deadline = earliest(held.heldMessages());
      held.extendAt = Infinity;
      if (granted.length > 0) {
        const againAt = earliest(granted) - this.leadMs;
        held.extendAt = Math.max(againAt, sentAt + this.leadMs / 2);
      }
      this.#deadlines.insert(held);
    }
  }

  /**
   * Leave the leases as they are, because an extend failed. Another one is sent before they end.
   */
  onFailure(ref) {
    const { deliveries, sentAt } = this.#takeExtend(ref);
    for (const row of deliveries) {
      const held = this.#pushes.get(pushKey(row));
      if (held === undefined) continue;
      held.extendAt = sentAt + this.leadMs / 2;
      this.#deadlines.insert(held);
    }
  }

  #takeExtend(ref) {
    const found = this.#extends.get(ref) ?? { deliveries: [], sentAt: 0 };
    this.#extends.delete(ref);
    return found;
  }

  #setTimes(held) {
    held.deadline = earliest(held.heldMessages());
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
 * Held pushes by the next event: a lease to be extended, or the end of one.
 *
 * Pushes arrive in the order of their deadlines. Nearly all of them are settled in time and cost a
 * queue; only those that are held for long are sorted. An entry counts if its push is due at the
 * entry's time. A push whose times have changed was inserted again, and a settled one drops out by
 * itself.
 */
class Deadlines {
  /** @type {Array<{due: number, held: import("./message.js").HeldPush}>} in order */
  #queue = [];
  /** @type {Array<{due: number, held: import("./message.js").HeldPush}>} a heap */
  #heap = [];

  /** Add a push with the latest deadline up to now. */
  append(held) {
    this.#queue.push({ due: held.due, held });
  }

  /** Add a push whose times have changed. */
  insert(held) {
    const heap = this.#heap;
    let at = heap.push({ due: held.due, held }) - 1;
    while (at > 0) {
      const above = (at - 1) >> 1;
      if (heap[above].due <= heap[at].due) return;
      [heap[above], heap[at]] = [heap[at], heap[above]];
      at = above;
    }
  }

  /** Replace all pushes by these. @param {Iterable<import("./message.js").HeldPush>} pushes */
  reset(pushes) {
    this.#queue = [];
    this.#heap = [];
    for (const held of pushes) this.insert(held);
  }

  /** Take the pushes that are due; the caller inserts each again. */
  takeDue(now) {
    const due = [];
    for (let first = this.#queueHead(); first !== undefined && first.due <= now; ) {
      this.#queue.shift();
      due.push(first.held);
      first = this.#queueHead();
    }
    for (let first = this.#heapHead(); first !== undefined && first.due <= now; ) {
      this.#pop();
      due.push(first.held);
      first = this.#heapHead();
    }
    return due;
  }

  /** The time at which a push will be due; Infinity if nothing is held. */
  get next() {
    return Math.min(this.#queueHead()?.due ?? Infinity, this.#heapHead()?.due ?? Infinity);
  }

  /** Drop stale entries, and return the first of the queue. */
  #queueHead() {
    const queue = this.#queue;
    while (queue.length > 0 && !isCurrent(queue[0])) queue.shift();
    return queue[0];
  }

  /** Drop stale entries, and return the first of the heap. */
  #heapHead() {
    const heap = this.#heap;
    while (heap.length > 0 && !isCurrent(heap[0])) this.#pop();
    return heap[0];
  }

  #pop() {
    const heap = this.#heap;
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

/** Whether the push of an entry is not settled, and was not inserted again since. */
function isCurrent({ due, held }) {
  return held.left > 0 && due === held.due;
}
