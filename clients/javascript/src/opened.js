/**
 * What a subscription and a reader have in common for their user: a beginning and an end.
 *
 * @module
 */

/** A part of a session that was opened: begun, and over some day. */
export class Opened {
  #part;

  /** @param {import("./consumer.js").Consumer | import("./readpart.js").ReadPart} part */
  constructor(part) {
    this.#part = part;
  }

  get queue() {
    return this.#part.queue;
  }

  /** Resolves with this when the broker has let it in; rejects with what the broker says. */
  get opened() {
    const opened = this.#part.joined.promise.then(() => this);
    opened.catch(() => {}); // who does not ask learns it from the iteration, or from `ended`
    return opened;
  }

  /** Resolves when it is over: with null when it was closed, else with the error. */
  get ended() {
    return this.#part.over.promise;
  }

  /** Leave. A subscription sends the acks that are queued, and returns what is not settled. */
  async close() {
    await this.#part.close();
  }
}

if (Symbol.asyncDispose) {
  Opened.prototype[Symbol.asyncDispose] = function dispose() {
    return this.close();
  };
}
