/**
 * A reader, as the user sees it: all messages of a queue, or of some keys, without a group.
 *
 * @module
 */

import { Deferred } from "./environment.js";
import { ClientClosed, TocsinError, wordsOf } from "./errors.js";
import { Opened } from "./opened.js";
import { report } from "./requesting.js";

/**
 * Made by `Client.read`. Without a handler it is an async iterable; a message counts as done when
 * the next one is asked for. With one, a message is done when its handler has ended; a handler that
 * fails ends its reader, before the message counts.
 */
export class Reader extends Opened {
  #part;
  #handler;
  #loop;
  /** What loops that were left had been handed out last. @type {object[]} */
  #left = [];
  #hasFailed = false;

  /**
   * @param {import("./readpart.js").ReadPart} part
   * @param {Function | null} handler
   * @param {number} concurrency
   */
  constructor(part, handler, concurrency) {
    super(part);
    this.#part = part;
    this.#handler = handler;
    this.#loop = new Loop(part, this.#left);
    if (handler !== null) this.#run(handler, concurrency);
  }

  /**
   * Behind the last message that was handed out: give it to `Client.read` as `start`, today or
   * later, to go on from there. A plain object, for JSON. Null: not opened yet.
   */
  get position() {
    return this.#part.ledger.position();
  }

  /** Per partition, what was said of the position when the reader was opened, or opened again. */
  get verdicts() {
    return this.#part.verdicts;
  }

  /** The next message, if one is here; null: not now. Throws a Gap as iterating does. */
  nextNowait() {
    return this.#loop.nextNowait();
  }

  /** As an async iterator. Rejects with a Gap (iterating again goes on behind it), or the end. */
  async next() {
    if (this.#handler !== null) {
      throw new TypeError("its messages go to the handler that read was given");
    }
    return this.#loop.next();
  }

  /** As an async iterator. What was handed out last is done when somebody asks again. */
  async return(value) {
    return this.#loop.return(value);
  }

  /** A loop of its own: several may run at once. */
  [Symbol.asyncIterator]() {
    return this.#handler === null ? new Loop(this.#part, this.#left) : this;
  }

  /** Up to `concurrency` handlers at a time; those of a key one after another. */
  async #run(handler, concurrency) {
    const part = this.#part;
    const tails = new Map();
    let running = 0;
    let freed = new Deferred();
    try {
      for (;;) {
        const message = this.#hasFailed ? null : await part.next();
        if (message === null) return;
        const { key } = message;
        const before = key === null ? null : (tails.get(key) ?? null);
        const handling = this.#handle(handler, message, before).finally(() => {
          running -= 1;
          freed.resolve();
          if (tails.get(key) === handling) tails.delete(key);
        });
        handling.catch(() => {}); // it has ended the reader
        running += 1;
        if (key !== null) tails.set(key, handling);
        if (running < concurrency) continue;
        freed = new Deferred();
        await freed.promise;
      }
    } catch (error) {
      report("the reader ends", error); // a gap that nobody is told of, or a callback that threw
      this.#fail(error);
    }
  }

  async #handle(handler, message, before) {
    if (before !== null) await before;
    if (this.#part.failure !== null) throw this.#part.failure; // an earlier one has failed
    try {
      await handler(message);
    } catch (error) {
      report(`the handler failed on ${message.id}: the reader ends`, error);
      this.#fail(error);
      throw error;
    }
    this.#part.ledger.finished(message);
  }

  #fail(error) {
    this.#hasFailed = true;
    const its = { code: "handler", cause: error };
    const failure = error instanceof TocsinError ? error : new TocsinError(wordsOf(error), its);
    const { session, number, failure: before } = this.#part;
    if (before !== null) return;
    if (session.isOpen) {
      session.request({ type: "unsubscribe", ref: session.nextRef(), subscription: number });
    }
    this.#part.leave(failure);
  }
}

/** One loop over a reader: what it was handed out last is at work until it asks again. */
class Loop {
  #part;
  #left;
  #last = null;

  constructor(part, left) {
    this.#part = part;
    this.#left = left;
  }

  nextNowait() {
    this.#done();
    this.#last = this.#part.take();
    return this.#last;
  }

  async next() {
    this.#done();
    const message = await this.#part.next();
    if (message !== null) {
      if (this.#last !== null) this.#left.push(this.#last); // asked for twice at a time
      this.#last = message;
      return { value: message, done: false };
    }
    const { failure } = this.#part;
    if (failure !== null && !(failure instanceof ClientClosed)) throw failure;
    return { value: undefined, done: true };
  }

  /** It was left: what it was handed out last is done when somebody asks again. */
  async return(value) {
    if (this.#last !== null) this.#left.push(this.#last);
    this.#last = null;
    return { value, done: true };
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  #done() {
    for (const message of this.#left.splice(0)) this.#part.ledger.finished(message);
    if (this.#last !== null) this.#part.ledger.finished(this.#last);
    this.#last = null;
  }
}
