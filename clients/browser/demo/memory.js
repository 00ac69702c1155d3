/**
 * What a reload of this tab keeps: which steps are done, how many workers it had, what it is
 * called. It stands in sessionStorage; where that is forbidden, it lasts as long as the page.
 */

const STORED = "tocsin.demo";

/** Reads once, writes at each change. */
export class Memory {
  /** @param {Storage|null} storage */
  constructor(storage) {
    this.storage = storage;
    this.kept = { tab: `tab-${randomName()}`, workers: 1, done: [] };
    /** Whether this tab has no past here. */
    this.isNew = true;
    try {
      const stored = JSON.parse(storage?.getItem(STORED) ?? "null");
      if (/^tab-[a-z0-9]{3}$/.test(stored?.tab)) {
        this.kept.tab = stored.tab;
        this.isNew = false;
      }
      if (Number.isInteger(stored?.workers)) {
        this.kept.workers = Math.min(Math.max(stored.workers, 1), 4);
      }
      if (Array.isArray(stored?.done)) {
        this.kept.done = stored.done.filter((step) => Number.isInteger(step));
      }
    } catch {
      // What stands there is not ours: begin anew.
    }
    this.#store();
  }

  /** What this tab is called in the names of its sessions. */
  get tab() {
    return this.kept.tab;
  }

  get workers() {
    return this.kept.workers;
  }

  set workers(count) {
    this.kept.workers = count;
    this.#store();
  }

  /** @param {number} step 1 to 7 */
  isDone(step) {
    return this.kept.done.includes(step);
  }

  /** @returns {boolean} whether that is new */
  setDone(step) {
    if (this.isDone(step)) {
      return false;
    }
    this.kept.done.push(step);
    this.#store();
    return true;
  }

  get doneCount() {
    return this.kept.done.length;
  }

  #store() {
    try {
      this.storage?.setItem(STORED, JSON.stringify(this.kept));
    } catch {
      // Full or forbidden: it lasts as long as the page.
    }
  }
}

function randomName() {
  return Array.from(
    crypto.getRandomValues(new Uint8Array(3)),
    (byte) => "abcdefghjkmnpqrstuvwxyz23456789"[byte % 31],
  ).join("");
}
