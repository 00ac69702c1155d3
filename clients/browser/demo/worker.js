/**
 * One worker of this page: a session's place in the group. What it is given it handles in the
 * order of its keys; a wish of the visitor's (nack, park) is carried out on the next message of
 * that key.
 */

export const NACK_DELAY_S = 4;
export const PARK_DELAY_S = 1;
const CONCURRENCY = 16;

/** Takes part in the group until it is closed. */
export class Worker {
  /**
   * @param {object} options
   * @param {object} options.client a client of its own
   * @param {string} options.name as it is shown
   * @param {object} options.model gets told: `arrived`, `handled`, `nacked`
   */
  constructor({ client, name, model }) {
    this.client = client;
    this.name = name;
    this.model = model;
    this.isPaused = false;
    this.handled = 0;
    this.opening = null;
    this.waiting = [];
    this.subscription = null;
  }

  /** The name of its session; empty before there is one. */
  get session() {
    return this.client.sessionId ?? "";
  }

  /**
   * Joins the group. Resolves when the broker has said yes.
   * @param {string} queue @param {string} group @param {object} settings of the group
   */
  async join(queue, group, settings) {
    this.subscription = this.client.subscribe(
      queue,
      group,
      { concurrency: CONCURRENCY, ...settings },
      (message, context) => this.#handle(message, context?.signal),
    );
    this.subscription.ended.then((error) => error && this.model.failed(error));
    await this.subscription.opened;
  }

  /** From now on its handlers wait, and so the broker keeps what is its own. */
  pause() {
    this.isPaused = true;
  }

  /** Goes on. */
  resume() {
    this.isPaused = false;
    for (const go of this.waiting.splice(0)) {
      go();
    }
  }

  /** Leaves the group. What it holds unhandled goes back at once. */
  async leave() {
    this.isPaused = true;
    await this.subscription?.close();
  }

  async #handle(message, signal) {
    this.model.arrived(message, this);
    while (this.isPaused && !signal?.aborted) {
      await this.#resumed(signal);
    }
    if (signal?.aborted) {
      return;
    }
    const wish = this.model.wishFor(message);
    if (wish) {
      const delayS = wish === "park" ? PARK_DELAY_S : NACK_DELAY_S;
      this.model.nacked(message, delayS * 1000);
      await message.nack({ delayS, reason: `a visitor of the demo: ${wish}` });
      return;
    }
    if (this.model.isWatched(message)) {
      await message.ack({ confirm: true });
      this.model.acked(message);
    }
    this.handled += 1;
    this.model.handled(message, this);
  }

  #resumed(signal) {
    return new Promise((resolve) => {
      this.waiting.push(resolve);
      signal?.addEventListener("abort", resolve, { once: true });
    });
  }
}
