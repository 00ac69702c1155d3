/**
 * The shell around a reader's ledger, as a part of the session. After a lost connection it goes on
 * behind what it has received.
 *
 * @module
 */

import { ClientClosed, Gap, TocsinError } from "./errors.js";
import { Joining, startAt } from "./joining.js";
import { Opening } from "./opening.js";
import { checkedPosition } from "./places.js";
import { ReadLedger } from "./reading.js";
import { encode, isObject } from "./wire.js";

export class ReadPart extends Joining {
  /** Per partition, what was said of the position when the reader was opened (again). */
  verdicts = [];
  #keys;
  #start;
  #position;
  #onGap;
  #onUnknown;
  /** @type {Opening | null} */
  #opening = null;

  /**
   * @param {import("./session.js").Session} session
   * @param {import("./environment.js").Environment} environment
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

  // --- handing out ------------------------------------------------------------------------------

  /** The next message, if one is here; null: not now. Throws a Gap, where it is to be thrown. */
  take() {
    for (;;) {
      const item = this.failure instanceof ClientClosed ? null : this.ledger.next();
      if (!(item instanceof Gap)) {
        if (item !== null) this.session.dirty(this);
        return item;
      }
      this.ledger.finished(item);
      if (this.#onGap === "raise") throw item;
      this.#onGap(item);
    }
  }

  /** The same, as soon as there is one; null: it is over. */
  async next() {
    for (;;) {
      const message = this.take();
      if (message !== null) return message;
      if (this.failure !== null) return null;
      await this.wait();
    }
  }

  /** Go on where an earlier life of this page was. */
  recall({ position }) {
    this.#position = checkedPosition(position);
  }

  /** What a later life of this page needs to go on; null: there is nothing to go on with. */
  snapshot() {
    const position = this.ledger.handledPosition() ?? this.#position;
    return position === null ? null : { queue: this.queue, keys: this.#keys, position };
  }

  // --- joining ----------------------------------------------------------------------------------

  subscribe(ref) {
    const { ledger, session } = this;
    ledger.credit = Math.min(ledger.credit, session.welcome.credit_max);
    const { granted, position } = ledger.opening();
    if (this.#opening === null) {
      const wanted = position ?? this.#position;
      const where = wanted === null ? { start: this.#start } : { position: wanted };
      this.#opening = new Opening(where, this.#onUnknown);
    }
    return {
      type: "subscribe", ref, subscription: this.number, queue: this.queue,
      ...this.#opening.where, credit: this.#opening.takesMessages ? granted : 0,
      keys: this.#keys ?? undefined,
    };
  }

  answered(answer) {
    const opening = this.#opening;
    if (answer === null || this.failure !== null || opening === null) {
      super.answered(answer); // the opening goes on over the next connection
      return;
    }
    let isLast;
    try {
      isLast = opening.answered(answer);
    } catch (error) {
      if (!(error instanceof TocsinError)) throw error;
      this.leave(error);
      return;
    }
    if (isLast) {
      super.answered(answer);
      return;
    }
    if (opening.leavesFirst) {
      const ref = this.session.nextRef();
      this.session.request({ type: "unsubscribe", ref, subscription: this.number });
    }
    this.join();
  }

  accepted(answer) {
    const opening = this.#opening;
    this.#opening = null;
    this.verdicts = opening.verdicts(answer);
    this.ledger.opened(this.number, answer, opening.unknown(answer));
    this.session.dirty(this);
    this.wake(this.ledger.ready);
  }

  // --- session.Part -----------------------------------------------------------------------------

  pushed(push) {
    if (!this.ledger.isOpen) return; // of a reader that is being opened anew elsewhere
    this.ledger.receive(push);
    this.wake(this.ledger.ready);
  }

  /** Credit of this turn. */
  collect() {
    return this.ledger.take().map(encode);
  }
}
