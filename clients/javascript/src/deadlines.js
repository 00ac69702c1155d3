/**
 * When something of a held push is due: its lease to be prolonged, or over. Pure.
 *
 * Pushes come in the order of their deadlines, so those that are settled in time, nearly all, cost
 * a queue; only what is held for long is sorted.
 *
 * @module
 */

/** @typedef {import("./message.js").HeldPush} HeldPush */

/** The held pushes by what is due next. A push that is settled drops out by itself. */
export class Deadlines {
  /** @type {HeldPush[]} */
  #fresh = [];
  /** @type {Array<{due: number, held: HeldPush}>} a heap */
  #others = [];

  /** A push with the latest deadline so far. */
  received(held) {
    this.#fresh.push(held);
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
    const fresh = this.#fresh;
    while (fresh.length > 0 && (fresh[0].left === 0 || fresh[0].due <= now)) {
      const held = fresh.shift();
      if (held.left > 0) due.push(held);
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
    const fresh = this.#fresh;
    while (fresh.length > 0 && fresh[0].left === 0) fresh.shift();
    return Math.min(fresh[0]?.due ?? Infinity, this.#first()?.due ?? Infinity);
  }

  /** The first of the heap that still counts: not settled, and not put again since. */
  #first() {
    const heap = this.#others;
    while (heap.length > 0 && !(heap[0].held.left > 0 && heap[0].due === heap[0].held.due)) {
      this.#pop();
    }
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
