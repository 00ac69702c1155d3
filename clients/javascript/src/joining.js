/**
 * What a consumer of a group and a reader have in common: joining, leaving, waiting. A part of the
 * session; `subscription` and `reader` are what the user sees of it.
 *
 * @module
 */

import { Deferred, Timer } from "./environment.js";
import { ClientClosed, TocsinError, wordsOf } from "./errors.js";
import { report } from "./requesting.js";
import { exceptionOf } from "./wire.js";

/** After a subscribe that was refused for the moment, it is tried again so much later. */
export const RESUBSCRIBE_MS = 500;
const LEAVE_TIMEOUT_MS = 5000;

/**
 * A publisher, a subscription or a reader: what has something to say on the session.
 *
 * @typedef {object} Part
 * @property {() => void} opened the session stands, or stands again: see `resumed` and `isKnown`.
 *     What was on its way when `disconnected` was called may be lost.
 * @property {() => void} disconnected what carried the session is lost; perhaps another follows
 * @property {(error: Error) => void} failed no other one follows
 * @property {(now: number) => string[]} collect the frames that are to be sent now
 * @property {() => number} nextDeadline when to call `expire`; Infinity: nothing is timed
 * @property {(now: number) => void} expire time has passed
 *
 * One that is pushed to has these as well:
 * @property {(push: object, now: number) => void} [pushed]
 * @property {(revoked: object) => void} [revoked] deliveries were taken back
 * @property {(error: Error) => void} [ended] the broker has ended the subscription
 */

/** A numbered subscription of a session, joined again where it has not outlived a carrier. */
export class Joining {
  /** Why it is over, or null. @type {TocsinError | null} */
  failure = null;
  /** Settled when the broker has let it in. @type {Deferred<void>} */
  joined = new Deferred().unobserved();
  /** Resolved when it is over: with null when it was closed, else with the error. */
  over = new Deferred();
  /** @type {Array<() => void>} */
  #waiting = [];
  #retry;

  /**
   * @param {import("./session.js").Session} session
   * @param {import("./environment.js").Environment} environment
   * @param {{number: number, queue: string}} what
   */
  constructor(session, environment, { number, queue }) {
    this.session = session;
    this.environment = environment;
    this.number = number;
    this.queue = queue;
    this.#retry = new Timer(environment);
  }

  get now() {
    return this.environment.now();
  }

  // --- what differs -----------------------------------------------------------------------------

  /** The frame that is said to join. @param {number} _ref @returns {object} */
  subscribe(_ref) {
    throw new Error("abstract");
  }

  /** The broker has let us in. @param {any} _answer */
  accepted(_answer) {}

  /** Go on where the subscription still stands at the broker; false: it has to be joined. */
  resume() {
    return false;
  }

  // --- joining and leaving ----------------------------------------------------------------------

  /** Join, after `prepare`. How it went is told by `joined` and `over`. */
  async begin(prepare = null) {
    try {
      if (prepare !== null) await prepare();
      if (this.failure !== null) return; // closed meanwhile
      if (this.session.failure !== null) throw this.session.failure;
      this.session.add(this);
      this.session.route(this.number, this);
      this.opened();
    } catch (error) {
      if (!(error instanceof TocsinError)) report("an unexpected error", error);
      this.leave(error instanceof TocsinError ? error : new TocsinError(wordsOf(error)));
    }
  }

  /** Leave: send what is queued, end the iteration. Calling it again does nothing. */
  async close() {
    if (this.failure !== null) return;
    const left = new Deferred();
    const { session } = this;
    if (session.isOpen) {
      session.dirty(this);
      const ref = session.nextRef();
      session.expect(ref, () => left.resolve());
      session.request({ type: "unsubscribe", ref, subscription: this.number });
    } else {
      left.resolve();
    }
    this.leave(new ClientClosed("the subscription has been closed"));
    const timer = new Timer(this.environment);
    timer.set(LEAVE_TIMEOUT_MS, () => left.resolve());
    await left.promise;
    timer.cancel();
  }

  /** It is over, and this is why. */
  leave(error) {
    if (this.failure !== null) return;
    this.failure = error;
    this.session.route(this.number, null);
    this.session.remove(this);
    this.disconnected();
    this.joined.reject(error);
    this.over.resolve(error instanceof ClientClosed ? null : error);
    this.wake(Infinity);
  }

  // --- waiting ----------------------------------------------------------------------------------

  /** Until there may be something to hand out, or it is over. */
  wait() {
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  /** Let the first `count` that wait go on. */
  wake(count) {
    for (const resolve of this.#waiting.splice(0, count)) resolve();
  }

  // --- session.Part -----------------------------------------------------------------------------

  /** The session stands: join, or go on. */
  opened() {
    this.#retry.cancel();
    const { session } = this;
    if (this.failure !== null || !session.isOpen || this.resume()) return;
    if (session.resumed.has(this.number)) { // a reader, or its answer was lost
      const ref = session.nextRef();
      session.request({ type: "unsubscribe", ref, subscription: this.number });
    }
    this.join();
  }

  join() {
    if (this.failure !== null || !this.session.isOpen) return;
    const ref = this.session.nextRef();
    this.session.expect(ref, (answer) => this.answered(answer));
    this.session.request(this.subscribe(ref));
  }

  /** The answer to the subscribe; null: the connection was lost, `opened` follows. */
  answered(answer) {
    if (answer === null) return;
    const { session } = this;
    if (this.failure !== null) { // left before the broker had let us in
      if (answer.type !== "ok") return;
      const ref = session.nextRef();
      session.request({ type: "unsubscribe", ref, subscription: this.number });
    } else if (answer.type === "ok") {
      this.accepted(answer);
      this.joined.resolve();
    } else if (!answer.retry) {
      this.leave(exceptionOf(answer));
    } else if (!session.isDraining) { // else the next connection follows
      const pauseMs = Math.max(RESUBSCRIBE_MS, 1000 * (answer.retry_after_s ?? 0));
      this.#retry.set(pauseMs, () => this.join());
    }
  }

  /** The connection is lost. */
  disconnected() {
    this.#retry.cancel();
  }

  /** No other connection follows. */
  failed(error) {
    this.leave(error);
  }

  /** The broker has ended the subscription, e.g. because its queue was deleted. */
  ended(error) {
    this.leave(error);
  }

  /** From a reader nothing is ever taken back. */
  revoked(_revoked) {}

  /** Of a reader nothing is timed. */
  nextDeadline() {
    return Infinity;
  }

  /** Time has passed. */
  expire(_now) {}
}

/** A start as frames and requests say it. Throws TypeError: it is none. */
export function startAt(start) {
  if (start === undefined || start === null) return undefined;
  if (start === "earliest" || start === "latest") return start;
  if (start instanceof Date && Number.isFinite(start.getTime())) {
    return { unix_ms: start.getTime() };
  }
  throw new TypeError('a start is "earliest", "latest" or a Date');
}

/** A whole number that is at least 1. Throws TypeError: it is none. */
export function atLeastOne(name, value) {
  if (Number.isSafeInteger(value) && value >= 1) return value;
  throw new TypeError(`${name} is a whole number from 1 on, not ${String(value)}`);
}
