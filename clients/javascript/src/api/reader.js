/**
 * Readers of all messages of a queue, or of some keys, without a group. The user's view of a
 * reader, and the part of the session behind it.
 *
 * @module
 */

import { ClientClosed, Gap, TocsinError, wordsOf } from "../proto/errors.js";
import { ReadLedger } from "../proto/read-ledger.js";
import { ReaderOpening } from "../proto/reader-opening.js";
import { checkedPosition, encode, isObject, startAt } from "../proto/wire.js";
import { Deferred, report } from "../io/platform.js";
import { SubscriptionHandle, SubscriptionPart } from "./subscription.js";

/**
 * A reader. Made by `Client.read`.
 *
 * Without a handler it is an async iterable, and a message is done when the next one is requested.
 * With a handler, a message is done when the handler has ended. A handler that fails ends its
 * reader, before the message counts.
 */
export class Reader extends SubscriptionHandle {
  #part;
  #handler;
  #loop;
  /** The last messages of loops that were left. @type {object[]} */
  #left = [];
  #hasFailed = false;

  /**
   * @param {ReaderPart} part
   * @param {Function | null} handler
   * @param {number} concurrency
   */
  constructor(part, handler, concurrency) {
    super(part);
    this.#part = part;
    this.#handler = handler;
    this.#loop = new ReaderIterator(part, this.#left);
    if (handler !== null) this.#run(handler, concurrency);
  }

  /**
   * The position after the last message that was handed out, a plain object for JSON; null before
   * the reader is opened.
   *
   * Give it to `Client.read` as `start`, now or later, to continue from there.
   */
  get position() {
    return this.#part.ledger.position();
  }

  /** The verdict on the position in each partition, when the reader was opened last. */
  get verdicts() {
    return this.#part.verdicts;
  }

  /**
   * Return the next message, if one has arrived; otherwise null. Throws a Gap, as iterating does.
   */
  nextNowait() {
    return this.#loop.nextNowait();
  }

  /**
   * Wait for the next message. Rejects with a Gap (iterating again continues after it), or with the
   * error that ended the reader.
   */
  async next() {
    if (this.#handler !== null) {
      throw new TypeError("the messages go to the handler that read was given");
    }
    return this.#loop.next();
  }

  /** Leave the iteration. The last message is done when another loop requests one. */
  async return(value) {
    return this.#loop.return(value);
  }

  /** Return a separate loop. Several may run at once. */
  [Symbol.asyncIterator]() {
    return this.#handler === null ? new ReaderIterator(this.#part, this.#left) : this;
  }

  /** Run up to `concurrency` handlers at a time; those of a key run one after another. */
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
      report("the reader ends", error); // a gap without `onGap`, or a callback that threw
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
    this.#part.ledger.onHandled(message);
  }

  #fail(error) {
    this.#hasFailed = true;
    const more = { code: "handler", cause: error };
    const failure = error instanceof TocsinError ? error : new TocsinError(wordsOf(error), more);
    const { session, number, failure: before } = this.#part;
    if (before !== null) return;
    if (session.isOpen) {
      session.request({ type: "unsubscribe", ref: session.nextRef(), subscription: number });
    }
    this.#part.leave(failure);
  }
}

/** A loop over a reader. Its last message is in work until the loop requests another one. */
class ReaderIterator {
  #part;
  #left;
  #last = null;

  constructor(part, left) {
    this.#part = part;
    this.#left = left;
  }

  nextNowait() {
    this.#finishLast();
    this.#last = this.#part.take();
    return this.#last;
  }

  async next() {
    this.#finishLast();
    const message = await this.#part.next();
    if (message !== null) {
      if (this.#last !== null) this.#left.push(this.#last); // two requests at a time
      this.#last = message;
      return { value: message, done: false };
    }
    const { failure } = this.#part;
    if (failure !== null && !(failure instanceof ClientClosed)) throw failure;
    return { value: undefined, done: true };
  }

  /** End the loop. Its last message is done when another loop requests one. */
  async return(value) {
    if (this.#last !== null) this.#left.push(this.#last);
    this.#last = null;
    return { value, done: true };
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  #finishLast() {
    for (const message of this.#left.splice(0)) this.#part.ledger.onHandled(message);
    if (this.#last !== null) this.#part.ledger.onHandled(this.#last);
    this.#last = null;
  }
}

export class ReaderPart extends SubscriptionPart {
  /** The verdict on the position in each partition, when the reader was opened last. */
  verdicts = [];
  #keys;
  #start;
  #position;
  #onGap;
  #onUnknown;
  /** @type {ReaderOpening | null} */
  #opening = null;

  /**
   * @param {import("../io/session.js").Session} session
   * @param {import("../io/platform.js").Environment} environment
   * @param {{number: number, queue: string, keys: string[] | null, start: any, credit: number,
   *     onGap: any, onUnknown: any}} what
   */
  constructor(session, environment, what) {
    super(session, environment, what);
    this.#keys = what.keys;
    const isPosition = isObject(what.start) && !(what.start instanceof Date);
    this.#position = isPosition ? checkedPosition(what.start) : null;
    this.#start = isPosition ? undefined : startAt(what.start);
    this.#onGap = what.onGap;
    this.#onUnknown = what.onUnknown;
    this.ledger = new ReadLedger(what.credit);
  }

  // --- handing out -------------------------------------------------------------------------------

  /** Take the next message; null if there is none now. @throws {Gap} unless `onGap` is called */
  take() {
    for (;;) {
      const item = this.failure instanceof ClientClosed ? null : this.ledger.next();
      if (!(item instanceof Gap)) {
        if (item !== null) this.session.markDirty(this);
        return item;
      }
      this.ledger.onHandled(item);
      if (this.#onGap === "raise") throw item;
      this.#onGap(item);
    }
  }

  /** Wait for a message and take it; null if the reader has ended. */
  async next() {
    for (;;) {
      const message = this.take();
      if (message !== null) return message;
      if (this.failure !== null) return null;
      await this.wait();
    }
  }

  /** Continue as before a reload of the page. */
  restore({ position }) {
    this.#position = checkedPosition(position);
  }

  /**
   * Return a snapshot from which the page continues after a reload; null if there is nothing to
   * continue with.
   */
  snapshot() {
    const position = this.ledger.handledPosition() ?? this.#position;
    return position === null ? null : { queue: this.queue, keys: this.#keys, position };
  }

  // --- joining -----------------------------------------------------------------------------------

  subscribeFrame(ref) {
    const { ledger, session } = this;
    ledger.credit = Math.min(ledger.credit, session.welcome.credit_max);
    const { granted, position } = ledger.reopen();
    if (this.#opening === null) {
      const wanted = position ?? this.#position;
      const where = wanted === null ? { start: this.#start } : { position: wanted };
      this.#opening = new ReaderOpening(where, this.#onUnknown);
    }
    return {
      type: "subscribe", ref, subscription: this.number, queue: this.queue,
      ...this.#opening.where, credit: this.#opening.takesMessages ? granted : 0,
      keys: this.#keys ?? undefined,
    };
  }

  onAnswer(answer) {
    const opening = this.#opening;
    if (answer === null || this.failure !== null || opening === null) {
      super.onAnswer(answer); // the opening goes on over the next connection
      return;
    }
    let isLast;
    try {
      isLast = opening.onAnswer(answer);
    } catch (error) {
      if (!(error instanceof TocsinError)) throw error;
      this.leave(error);
      return;
    }
    if (isLast) {
      super.onAnswer(answer);
      return;
    }
    if (opening.leavesFirst) {
      const ref = this.session.nextRef();
      this.session.request({ type: "unsubscribe", ref, subscription: this.number });
    }
    this.join();
  }

  onAccept(answer) {
    const opening = this.#opening;
    this.#opening = null;
    this.verdicts = opening.verdicts(answer);
    this.ledger.onOpen(this.number, answer, opening.unknownPartitions(answer));
    this.session.markDirty(this);
    this.wake(this.ledger.ready);
  }

  // --- as a part of the session ------------------------------------------------------------------

  onPush(push) {
    if (!this.ledger.isOpen) return; // a push from before the reader is opened again
    this.ledger.receive(push);
    this.wake(this.ledger.ready);
  }

  /** Take the credit of this turn. */
  takeFrames() {
    return this.ledger.takeFrames().map(encode);
  }
}
