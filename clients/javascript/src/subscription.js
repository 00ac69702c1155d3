/**
 * A place in a group, as the user sees it.
 *
 * @module
 */

import { ClientClosed, StaleDelivery, wordsOf } from "./errors.js";
import { State } from "./message.js";
import { Opened } from "./opened.js";
import { report } from "./requesting.js";

const REASON_CHARS_MAX = 500;

/**
 * Made by `Client.subscribe`. Without a handler it is an async iterable: each message comes when
 * its key is free, and several loops may run over it at once. Leaving a loop does not leave the
 * group: `close` does, and returns what is not settled.
 */
export class Subscription extends Opened {
  #part;
  #handler;

  /**
   * @param {import("./consumer.js").Consumer} part
   * @param {Function | null} handler
   * @param {number} concurrency
   */
  constructor(part, handler, concurrency) {
    super(part);
    this.#part = part;
    this.#handler = handler;
    if (handler !== null) {
      for (let worker = 0; worker < concurrency; worker += 1) this.#work(handler);
    }
  }

  get group() {
    return this.#part.group;
  }

  /** The next message whose key is free, if one is here; null: not now. */
  nextNowait() {
    return this.#part.takeNow();
  }

  /** As an async iterator. Rejects with why it is over, unless it was closed. */
  async next() {
    if (this.#handler !== null) {
      throw new TypeError("its messages go to the handler that subscribe was given");
    }
    const message = await this.#part.next();
    if (message !== null) return { value: message, done: false };
    const { failure } = this.#part;
    if (failure !== null && !(failure instanceof ClientClosed)) throw failure;
    return { value: undefined, done: true };
  }

  /** A loop was left. */
  async return(value) {
    return { value, done: true };
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  /** Handle one message after another, until it is over. */
  async #work(handler) {
    const part = this.#part;
    for (;;) {
      const message = await part.next();
      if (message === null) return;
      const { signal } = message;
      part.begins(message);
      try {
        await handler(message, { signal });
        await settle(message, () => message.ack());
      } catch (error) {
        if (message.state === State.HANDED) report(`the handler failed on ${message.id}`, error);
        const reason = reasonOf(error);
        await settle(message, () => message.nack({ reason }));
      } finally {
        part.finished(message);
      }
    }
  }
}

/** Settle it, unless the handler has, or it is gone. */
async function settle(message, how) {
  if (message.state !== State.HANDED) return;
  try {
    await how();
  } catch (error) {
    if (!(error instanceof StaleDelivery)) throw error;
  }
}

function reasonOf(error) {
  let kind = "";
  try {
    if (error instanceof Error) kind = `${error.name}: `;
  } catch {
    // then what it says is enough
  }
  return `${kind}${wordsOf(error)}`.toWellFormed().slice(0, REASON_CHARS_MAX);
}
