/**
 * Virtual time: seconds cost nothing, and it passes only when whoever replays lets it. Give
 * `setTimeout`, `clearTimeout` and `now` to what is tested.
 */

const START_MS = 1_000_000;
const TURNS = 4;
/** Turns of the real event loop after which everything that needs no time has happened. */
const AT_ONCE_MAX = 10_000;

/** `report(error)` is told what a timer's callback throws. */
export class VirtualClock {
  #timers = new Map();
  #lastId = 0;
  #nowMs = START_MS;
  #atOnce = 0;
  #report;

  constructor(report) {
    this.#report = report;
  }

  /** Milliseconds since an hour that nobody knows. */
  now = () => this.#nowMs;

  /** As the global one. */
  setTimeout = (callback, delayMs = 0, ...args) => {
    this.#lastId += 1;
    const at = this.#nowMs + Math.max(0, Number(delayMs) || 0);
    this.#timers.set(this.#lastId, { at, callback, args });
    return this.#lastId;
  };

  /** As the global one. */
  clearTimeout = (id) => {
    this.#timers.delete(id);
  };

  /**
   * Let time pass until a condition holds; all that can happen before it moves on happens.
   *
   * @param {number} untilMs when to give up
   * @param {() => boolean} holds
   * @returns {Promise<boolean>} whether it holds; if not, it is `untilMs` now
   */
  async pass(untilMs, holds = () => false) {
    for (;;) {
      await settled();
      if (holds()) return true;
      const [id, timer] = this.#next();
      if (timer === undefined || timer.at > untilMs) {
        this.#nowMs = Math.max(this.#nowMs, untilMs);
        return false;
      }
      this.#atOnce = timer.at > this.#nowMs ? 0 : this.#atOnce + 1;
      if (this.#atOnce > AT_ONCE_MAX) throw new Error("timers of no delay follow without end");
      this.#nowMs = Math.max(this.#nowMs, timer.at);
      this.#timers.delete(id);
      try {
        timer.callback(...timer.args);
      } catch (error) {
        this.#report(error);
      }
    }
  }

  #next() {
    let first = [0, undefined];
    for (const entry of this.#timers) {
      if (first[1] === undefined || entry[1].at < first[1].at) first = entry;
    }
    return first;
  }
}

/** When all that can happen without time passing has happened. */
export async function settled() {
  const { port1, port2 } = new MessageChannel();
  try {
    for (let turn = 0; turn < TURNS; turn += 1) {
      await new Promise((resolve) => {
        port1.onmessage = resolve;
        port2.postMessage(null);
      });
    }
  } finally {
    port1.close();
  }
}
