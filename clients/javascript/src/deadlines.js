/**
 * When something of a held push is due: its lease to be prolonged, or over. Pure.
 *
 * Pushes come in the order of their deadlines, so those that are settled in time, nearly all, cost
 * a queue; only what is held for long is sorted. An entry counts while its push is due when it
 * says: one whose times have changed was put again.
 *
 * @module
 */

/** @typedef {import("./message.js").HeldPush} HeldPush */

/** The held pushes by what is due next. A push that is settled drops out by itself. */
export class Deadlines {
  /** @type {Array<{due: number, held: HeldPush}>} in order */
  #fresh = [];
  /** @type {Array<{due: number, held: HeldPush}>} a heap */
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

  /** These are all there are. @param {Iterable<HeldPush>} pushes */
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
