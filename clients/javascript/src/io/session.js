/**
 * A client's session with the broker. It outlives its carriers: see `connector`.
 *
 * The parts say what is sent. All frames that they have to send in one turn of the event loop
 * travel together.
 *
 * @module
 */

import { ClientClosed, wordsOf } from "../proto/errors.js";
import { CloseCode, defaultWelcome, encode, exceptionOf, NotTheProtocol } from "../proto/wire.js";
import { Connector } from "./connector.js";
import { slowestMs } from "./http.js";
import { Deferred, report, Timer } from "./platform.js";

/**
 * After this share of the broker's heartbeat without a sound it is asked for a sign of life, and
 * after the whole of it given up: sooner than the broker gives up this client.
 */
const SILENT_SHARE = 0.5;
/** With these an error that answers nothing ends its subscription. */
const ENDING = new Set(["queue_not_found", "group_not_found", "unauthorized", "forbidden"]);
/** A sign of life has so long to come where somebody is in a hurry: the socket may be dead. */
export const HURRIED_MS = 3000;
/** A turn is over when in so many rounds of microtasks nothing more is to be said … */
const QUIET_ROUNDS = 8;
/** … or after so long. */
const TURN_MS = 5;

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

export class Session {
  welcome = defaultWelcome();
  /** Why there is no session any more, and will be none; or null. */
  failure = null;
  /** The broker's name for this session; empty: there is none yet. */
  sessionId = "";
  /** The subscriptions that stand since the last welcome without having been opened anew. */
  resumed = new Set();
  /** Whether the session has kept its name at the last welcome. */
  isKnown = false;
  isOpen = false;
  isDraining = false;
  #settings;
  #dialer;
  #carrier = null;
  /** @type {Set<Part>} */
  #parts = new Set();
  /** @type {Map<number, Part>} */
  #subscribers = new Map();
  /** @type {Set<number>} subscriptions of an earlier life of this page that may yet be claimed */
  #reserved = new Set();
  /** @type {Set<Part>} */
  #dirty = new Set();
  #isStirred = false;
  /** @type {Deferred<void> | null} there is a flush to come */
  #flushing = null;
  #ref = 0;
  /** @type {Map<number, (answer: any) => void>} */
  #pending = new Map();
  #timer;
  #timerAt = Infinity;
  /** When it asked for a sign of life that has not come yet, or null; it has until `#answerBy`. */
  #askedAt = null;
  #answerBy = Infinity;
  #saidAt = 0;

  /**
   * @param {string} url
   * @param {{token: any, producer: string, name: string, mode: any, lingerS: number,
   *     connectTimeoutMs: number, environment: import("./platform.js").Environment,
   *     trace: Function, changed: (reason: string) => void}} settings `changed`: told when the
   *     session stands, does not stand any more, or is over
   */
  constructor(url, settings) {
    this.url = url;
    this.producer = settings.producer;
    this.#settings = settings;
    this.#dialer = new Connector(this, url, settings);
    this.#timer = new Timer(settings.environment);
  }

  get #now() {
    return this.#settings.environment.now();
  }

  // --- life -------------------------------------------------------------------------------------

  /** Connect once. Rejects with CannotConnect, or with the broker's refusal. */
  open = () => this.#dialer.open();

  /** Send what is queued, end the session and everything that still waits. */
  async close() {
    if (this.isOpen) this.flush();
    if (this.failure === null) this.failed(new ClientClosed());
    await this.#dialer.close();
  }

  /** What carries the session now; null: nothing does. */
  get transport() {
    return this.isOpen ? (this.#carrier?.transport ?? null) : null;
  }

  /** When the next attempt to connect begins, by the environment's clock; null: none waits. */
  get retryAt() {
    return this.#dialer.retryAt;
  }

  /** Go on with the session of an earlier life of this page, whose places may be claimed. */
  recall(sessionId, reserved, refMax) {
    this.sessionId = sessionId;
    this.#ref = refMax; // what that life asked may be answered yet
    this.#reserved = new Set(reserved);
  }

  /** A place of before has been taken. */
  claim(number) {
    this.#reserved.delete(number);
  }

  /** Nobody has taken these places: they are given up. */
  releaseReserved() {
    const left = [...this.#reserved].filter((number) => this.resumed.has(number));
    this.#reserved.clear();
    for (const number of left) this.#unsubscribe(number);
  }

  /** The page is left: say what is to be said, and let the broker keep the session. */
  suspend() {
    this.flush();
    this.#dialer.suspend();
    this.lost();
    this.#settings.changed("the page is left");
  }

  /**
   * Nothing of the page runs from now on, and perhaps never again: end the session, so that what it
   * holds returns and others have its places at once.
   */
  pause() {
    this.flush();
    const isPolled = this.transport === "long-poll";
    if (isPolled) this.#carrier.bequeath(); // the carrier's own good-bye would take too long
    this.#dialer.suspend(isPolled ? CloseCode.LEAVING : CloseCode.GOOD_BYE);
    this.sessionId = "";
    this.lost();
    this.#settings.changed("the page is frozen");
  }

  /** The page ends for good: a session that nobody else would end is ended. */
  bequeath() {
    this.flush();
    this.#carrier?.bequeath?.();
  }

  /** Others go on with this session: this one begins anew, under another producer. */
  forget(producer) {
    this.sessionId = "";
    this.producer = producer;
  }

  /** The page is there again. */
  wake() {
    this.#dialer.wake();
  }

  /** The page is looked at again, or the network is back: is what stands alive? */
  hurry() {
    if (this.failure !== null) return;
    this.#dialer.hurry();
    if (!this.isOpen) return;
    this.#ask(HURRIED_MS);
    this.#tick();
  }

  /** Ask for a sign of life, which has so long to come; asked already: not longer than it had. */
  #ask(graceMs) {
    const now = this.#now;
    this.#answerBy = Math.min(this.#awaitsAnswer() ? this.#answerBy : Infinity, now + graceMs);
    this.#askedAt ??= now;
    this.#send([encode({ type: "ping" })]);
    this.wakeAt(this.#answerBy);
  }

  #awaitsAnswer() {
    if (this.#askedAt !== null && this.#carrier.heardAt >= this.#askedAt) this.#askedAt = null;
    return this.#askedAt !== null;
  }

  // --- for the connector -------------------------------------------------------------------------

  /** With the name of the session that is to go on. */
  hello(token) {
    return encode({
      type: "hello",
      client: this.#settings.name,
      producer: this.producer,
      linger_s: this.#settings.lingerS || undefined,
      session: this.sessionId || undefined,
      token: token ?? undefined,
    });
  }

  welcomed(carrier, welcome) {
    this.#carrier = carrier;
    this.welcome = welcome;
    this.isKnown = this.sessionId !== "" && welcome.session === this.sessionId;
    this.resumed = new Set(this.isKnown ? welcome.resumed : []);
    this.sessionId = welcome.session;
    this.isOpen = true;
    this.isDraining = false;
    this.#askedAt = null;
    this.wakeAt(this.#now + 1000 * welcome.heartbeat_s * SILENT_SHARE);
    for (const number of this.resumed) { // closed while nothing carried it
      if (!this.#subscribers.has(number) && !this.#reserved.has(number)) this.#unsubscribe(number);
    }
    for (const part of [...this.#parts]) part.opened();
    this.#settings.changed("");
  }

  lost() {
    const wasOpen = this.isOpen;
    this.isOpen = false;
    this.#carrier = null;
    if (!wasOpen) return;
    this.#answerAllLost();
    for (const part of [...this.#parts]) part.disconnected();
  }

  /** Also when the client is closed. */
  failed(error) {
    this.failure = error;
    this.isOpen = false;
    this.#timer.cancel();
    this.#answerAllLost();
    for (const part of [...this.#parts]) part.failed(error);
    this.#settings.changed(error.message);
  }

  /** What the broker says of this session cannot be: end it, and go on with another one. */
  beginAnew() {
    this.sessionId = "";
    this.#breakOff(CloseCode.GOOD_BYE, "another session is needed");
  }

  // --- for the parts ----------------------------------------------------------------------------

  /** From now on it is told what happens. */
  add(part) {
    this.#parts.add(part);
  }

  /** It has left. */
  remove(part) {
    this.#parts.delete(part);
    this.#dirty.delete(part);
  }

  /** Pushes of this subscription go to `part`; null: to nobody. */
  route(number, part) {
    if (part === null) this.#subscribers.delete(number);
    else this.#subscribers.set(number, part);
  }

  /** A fresh ref. */
  nextRef = () => (this.#ref += 1);

  /** `answered` gets the `ok` or `error` to the request with this ref; null: it was lost. */
  expect(ref, answered) {
    this.#pending.set(ref, answered);
  }

  /** Send a frame at once, behind what the parts have to send. Not open: nothing happens. */
  request(frame) {
    this.flush();
    if (this.isOpen) this.#send([encode(frame)]);
  }

  #send(frames) {
    this.#saidAt = this.#now;
    this.#carrier?.send(frames);
  }

  #unsubscribe(number) {
    this.request({ type: "unsubscribe", ref: this.nextRef(), subscription: number });
  }

  /** The broker has taken this token in the place of the one before. */
  present(token) {
    this.#carrier?.present?.(token);
  }

  /** It has something to send: at the end of this turn. */
  dirty(part) {
    this.#dirty.add(part);
    this.#isStirred = true;
    if (this.#flushing !== null) return;
    this.#flushing = new Deferred();
    this.#settle(0, this.#now + TURN_MS);
  }

  #settle(round, until) {
    queueMicrotask(() => {
      const next = this.#isStirred ? 0 : round + 1;
      this.#isStirred = false;
      if (next < QUIET_ROUNDS && this.#now < until) {
        this.#settle(next, until);
        return;
      }
      const { resolve } = this.#flushing;
      this.#flushing = null;
      this.flush();
      resolve();
    });
  }

  /** Resolves when what is to be said in this turn has been handed to the carrier. */
  async flushed() {
    await this.#flushing?.promise;
  }

  /** Send what the parts have to send, now. */
  flush() {
    if (!this.isOpen || this.#dirty.size === 0) return;
    const now = this.#now;
    const dirty = this.#dirty;
    this.#dirty = new Set();
    const frames = [];
    for (const part of dirty) frames.push(...part.collect(now));
    if (frames.length > 0) this.#send(frames);
  }

  /** False: the socket's buffer is full, or the broker drains; publish nothing more now. */
  get isWritable() {
    return this.#carrier !== null && this.#carrier.isWritable && !this.isDraining;
  }

  /** Call the parts' `expire` then, or before. */
  wakeAt(when) {
    if (when === Infinity || this.failure !== null || this.#timerAt <= when) return;
    this.#timerAt = when;
    this.#timer.set(when - this.#now, () => this.#tick());
  }

  #tick() {
    this.#timer.cancel();
    this.#timerAt = Infinity;
    const now = this.#now;
    for (const part of [...this.#parts]) part.expire(now);
    this.#beat(now);
    this.flush();
    for (const part of this.#parts) this.wakeAt(part.nextDeadline());
  }

  /**
   * Ask for a sign of life where there was none for long, and give up where none comes. Not without
   * having asked: in a page that nobody looks at, or that was frozen, timers are late by minutes.
   * Nor while something large is on its way; then it asks on, so that the broker hears one.
   */
  #beat(now) {
    const carrier = this.#carrier;
    if (!this.isOpen || carrier === null) return;
    const shareMs = 1000 * this.welcome.heartbeat_s * SILENT_SHARE;
    const isOverdue = this.#awaitsAnswer() && now >= this.#answerBy;
    const isBusy = now < carrier.patientUntil;
    const isMute = carrier.isReceiving && now >= this.#saidAt + shareMs;
    const isSilent = this.#askedAt === null && now >= carrier.heardAt + shareMs;
    if (isOverdue && !isBusy) {
      carrier.abort("nothing was heard any more"); // its end is told, and it goes on elsewhere
    } else if (isOverdue || isMute || isSilent) {
      this.#askedAt = null;
      this.#ask(shareMs);
    } else {
      this.wakeAt(this.#askedAt === null ? carrier.heardAt + shareMs : this.#answerBy);
    }
  }

  // --- what the carrier tells (websocket.Listener) ----------------------------------------------

  /** A message: one frame or several. */
  onFrames(read) {
    if (this.#carrier?.transport === "websocket") this.#carrier.patientUntil = 0; // it has come
    try {
      this.takeIn(read());
    } catch (error) {
      if (!(error instanceof NotTheProtocol)) report("a message that cannot be", error);
      this.#breakOff(CloseCode.PROTOCOL_ERROR, `not tocsin.v1: ${wordsOf(error)}`);
    }
    if (this.#now >= this.#timerAt) this.#tick(); // timers of a page that is not looked at are late
  }

  /** Go on over another carrier, without waiting for the end of this one. */
  #breakOff(code, why) {
    const carrier = this.#carrier;
    if (carrier === null) return;
    carrier.listen(null);
    carrier.close(code, why);
    this.onClosed(code, why);
  }

  /** Frames, in order. */
  takeIn(frames) {
    const now = this.#now;
    for (const frame of frames) {
      if (frame.type === "push") this.#subscribers.get(frame.subscription)?.pushed(frame, now);
      else if (frame.type === "revoked") this.#subscribers.get(frame.subscription)?.revoked(frame);
      else if (frame.type === "drain") this.#drain(frame);
      else if (frame.type === "announce") this.#expectLarge(frame.bytes, now);
      else if (frame.type !== "welcome") this.#answer(frame); // for that `welcomed` was called
    }
  }

  /** The next message is so large that it may take its time, unseen. */
  #expectLarge(bytes, now) {
    if (this.#carrier !== null) this.#carrier.patientUntil = now + slowestMs(bytes);
  }

  #drain(frame) {
    this.isDraining = true;
    this.#dialer.advised(frame.reconnect_after_s);
  }

  /** An `ok`, an `error` or a `pong`. */
  #answer(frame) {
    const answered = frame.ref === null ? undefined : this.#pending.get(frame.ref);
    if (answered !== undefined) {
      this.#pending.delete(frame.ref);
      answered(frame);
    } else if (frame.type === "error" && ENDING.has(frame.code) && frame.subscription !== null) {
      this.#subscribers.get(frame.subscription)?.ended(exceptionOf(frame));
    }
  }

  /** The socket has drained: go on publishing. */
  onWritable() {
    for (const part of this.#parts) this.dirty(part);
  }

  /** The carrier has ended. */
  onClosed(closeCode, reason) {
    this.lost();
    this.#settings.changed(reason || `the connection was lost (${closeCode})`);
    this.#dialer.ended(closeCode, reason);
  }

  #answerAllLost() {
    const pending = [...this.#pending.values()];
    this.#pending.clear();
    for (const answered of pending) answered(null);
  }
}
