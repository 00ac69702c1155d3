/**
 * A client's session with the broker. It outlives its carriers: see `connector`.
 *
 * The parts decide what is sent. Frames that they have to send in one turn of the event loop travel
 * together.
 *
 * @module
 */

import { ClientClosed, wordsOf } from "../proto/errors.js";
import { CloseCode, defaultWelcome, encode, exceptionOf, NotTheProtocol } from "../proto/wire.js";
import { Connector } from "./connector.js";
import { slowestMs } from "./http.js";
import { Deferred, report, Timer } from "./platform.js";

/**
 * The share of the broker's heartbeat after which a silent broker is pinged.
 *
 * After a whole heartbeat the carrier is given up, earlier than the broker gives up this client.
 */
const SILENT_SHARE = 0.5;
/** Codes with which an error without a request ends its subscription. */
const ENDING = new Set(["queue_not_found", "group_not_found", "unauthorized", "forbidden"]);
/** The time for a pong after `hurry`, because the socket may be dead. */
export const HURRIED_MS = 3000;
/** The number of rounds of microtasks with nothing more to send after which a turn is over. */
const QUIET_ROUNDS = 8;
/** The time after which a turn is over in any case. */
const TURN_MS = 5;

/**
 * A part of the session: a publisher, a subscription, a reader or the renewal of the token.
 *
 * @typedef {object} Part
 * @property {() => void} onOpen begins, or continues; see `resumed` and `isKnown`. Frames that were
 *     on their way when `onDisconnect` was called may be lost.
 * @property {() => void} onDisconnect notes that the carrier is lost; another one may follow
 * @property {(error: Error) => void} onFailure ends, because no other carrier follows
 * @property {(now: number) => string[]} takeFrames returns the frames to send now
 * @property {() => number} nextDeadline returns when to call `expire`; Infinity if nothing is timed
 * @property {(now: number) => void} expire does everything that is due by `now`  A part with a
 *     subscription has these as well:
 * @property {(push: object, now: number) => void} [onPush]
 * @property {(revoked: object) => void} [onRevoke] gives up deliveries that were taken back
 * @property {(error: Error) => void} [onEnd] ends, because the broker has ended the subscription
 */

export class Session {
  welcome = defaultWelcome();
  /** The error that ended the session for good, or null. */
  failure = null;
  /** The broker's id of this session; empty before the first welcome. */
  sessionId = "";
  /** The subscriptions that outlived the last change of carriers. */
  resumed = new Set();
  /** Whether the session kept its id at the last welcome. */
  isKnown = false;
  isOpen = false;
  isDraining = false;
  #settings;
  #connector;
  #carrier = null;
  /** @type {Set<Part>} */
  #parts = new Set();
  /** @type {Map<number, Part>} */
  #subscribers = new Map();
  /** @type {Set<number>} subscriptions from before a reload that may yet be claimed */
  #reserved = new Set();
  /** @type {Set<Part>} */
  #dirty = new Set();
  #isRestless = false;
  /** @type {Deferred<void> | null} a flush that is to come */
  #flushing = null;
  #ref = 0;
  /** @type {Map<number, (answer: any) => void>} */
  #pending = new Map();
  #timer;
  #timerAt = Infinity;
  /** The time of a ping that has no answer yet, or null. The answer is due at `#pongBy`. */
  #pingedAt = null;
  #pongBy = Infinity;
  #sentAt = 0;

  /**
   * @param {string} url
   * @param {{token: any, producer: string, name: string, mode: any, lingerS: number,
   *     connectTimeoutMs: number, environment: import("./platform.js").Environment,
   *     trace: Function, onChange: (reason: string) => void}} settings `onChange`: called when
   *     the session stands, does not stand any more, or is over
   */
  constructor(url, settings) {
    this.url = url;
    this.producer = settings.producer;
    this.#settings = settings;
    this.#connector = new Connector(this, url, settings);
    this.#timer = new Timer(settings.environment);
  }

  get #now() {
    return this.#settings.environment.now();
  }

  // --- life --------------------------------------------------------------------------------------

  /** Connect once. Rejects with CannotConnect, or with the broker's refusal. */
  open = () => this.#connector.open();

  /** Send what is queued, then end the session and everything that still waits. */
  async close() {
    if (this.isOpen) this.flush();
    if (this.failure === null) this.onFailure(new ClientClosed());
    await this.#connector.close();
  }

  /** The transport that carries the session now, or null. */
  get transport() {
    return this.isOpen ? (this.#carrier?.transport ?? null) : null;
  }

  /** The time of the next attempt to connect, by the environment's clock, or null. */
  get retryAt() {
    return this.#connector.retryAt;
  }

  /** Continue the session from before a reload, whose subscriptions may be claimed. */
  restore(sessionId, reserved, refMax) {
    this.sessionId = sessionId;
    this.#ref = refMax; // requests from before the reload may still be answered
    this.#reserved = new Set(reserved);
  }

  /** Claim a subscription from before the reload for this client. */
  claim(number) {
    this.#reserved.delete(number);
  }

  /** Give up the unclaimed subscriptions. */
  releaseReserved() {
    const left = [...this.#reserved].filter((number) => this.resumed.has(number));
    this.#reserved.clear();
    for (const number of left) this.#unsubscribe(number);
  }

  /** Send what is queued, and let the broker keep the session, because the page is left. */
  suspend() {
    this.flush();
    this.#connector.suspend();
    this.onCarrierLoss();
    this.#settings.onChange("the page is left");
  }

  /**
   * End the session, because nothing of the page runs from now on, perhaps ever.
   *
   * Its deliveries return, and others get its places at once.
   */
  pause() {
    this.flush();
    const isPolled = this.transport === "long-poll";
    if (isPolled) this.#carrier.deleteOnUnload(); // the carrier's own close would take too long
    this.#connector.suspend(isPolled ? CloseCode.LEAVING : CloseCode.GOOD_BYE);
    this.sessionId = "";
    this.onCarrierLoss();
    this.#settings.onChange("the page is frozen");
  }

  /** End a session that does not end with its carrier, because the page ends for good. */
  endOnUnload() {
    this.flush();
    this.#carrier?.deleteOnUnload?.();
  }

  /** Begin a new session, under this producer, because another client continues this one. */
  forget(producer) {
    this.sessionId = "";
    this.producer = producer;
  }

  /** Connect again, because the page is back. */
  wake() {
    this.#connector.wake();
  }

  /** Find out soon whether the carrier lives, because the page is visible or the network back. */
  hurry() {
    if (this.failure !== null) return;
    this.#connector.hurry();
    if (!this.isOpen) return;
    this.#ping(HURRIED_MS);
    this.#tick();
  }

  /** Ping the broker, which has this time for an answer, or less if it was pinged before. */
  #ping(graceMs) {
    const now = this.#now;
    this.#pongBy = Math.min(this.#settlePing() ? this.#pongBy : Infinity, now + graceMs);
    this.#pingedAt ??= now;
    this.#send([encode({ type: "ping" })]);
    this.wakeAt(this.#pongBy);
  }

  /** Note whether something was received since the ping. Returns whether its answer is missing. */
  #settlePing() {
    if (this.#pingedAt === null) return false;
    if (this.#carrier.lastReceivedAt >= this.#pingedAt) this.#pingedAt = null;
    return this.#pingedAt !== null;
  }

  // --- for the connector -------------------------------------------------------------------------

  /** Return the frame to begin with, with the id of the session to continue. */
  helloFrame(token) {
    return encode({
      type: "hello",
      client: this.#settings.name,
      producer: this.producer,
      linger_s: this.#settings.lingerS || undefined,
      session: this.sessionId || undefined,
      token: token ?? undefined,
    });
  }

  /** Continue the session over this carrier. */
  onWelcome(carrier, welcome) {
    this.#carrier = carrier;
    this.welcome = welcome;
    this.isKnown = this.sessionId !== "" && welcome.session === this.sessionId;
    this.resumed = new Set(this.isKnown ? welcome.resumed : []);
    this.sessionId = welcome.session;
    this.isOpen = true;
    this.isDraining = false;
    this.#pingedAt = null;
    this.wakeAt(this.#now + 1000 * welcome.heartbeat_s * SILENT_SHARE);
    for (const number of this.resumed) { // closed while nothing carried it
      if (!this.#subscribers.has(number) && !this.#reserved.has(number)) this.#unsubscribe(number);
    }
    for (const part of [...this.#parts]) part.onOpen();
    this.#settings.onChange("");
  }

  /** Note that the carrier is lost, with everything on its way. Another one may follow. */
  onCarrierLoss() {
    const wasOpen = this.isOpen;
    this.isOpen = false;
    this.#carrier = null;
    if (!wasOpen) return;
    this.#dropPending();
    for (const part of [...this.#parts]) part.onDisconnect();
  }

  /** End the session for good. Closing the client calls this, too. */
  onFailure(error) {
    this.failure = error;
    this.isOpen = false;
    this.#timer.cancel();
    this.#dropPending();
    for (const part of [...this.#parts]) part.onFailure(error);
    this.#settings.onChange(error.message);
  }

  /** End this session, and begin another one, because the broker contradicts itself about it. */
  restart() {
    this.sessionId = "";
    this.#leaveCarrier(CloseCode.GOOD_BYE, "another session is needed");
  }

  // --- for the parts -----------------------------------------------------------------------------

  /** Add a part, which is notified from now on. */
  add(part) {
    this.#parts.add(part);
  }

  /** Remove a part. */
  remove(part) {
    this.#parts.delete(part);
    this.#dirty.delete(part);
  }

  /** Route the pushes of a subscription to `part`; null discards them. */
  route(number, part) {
    if (part === null) this.#subscribers.delete(number);
    else this.#subscribers.set(number, part);
  }

  /** Take a fresh ref. */
  nextRef = () => (this.#ref += 1);

  /** Call `onAnswer` with the `ok` or `error` to the request with this ref; null if it is lost. */
  expect(ref, onAnswer) {
    this.#pending.set(ref, onAnswer);
  }

  /** Send a frame at once, after the frames of the parts. Without a carrier, does nothing. */
  request(frame) {
    this.flush();
    if (this.isOpen) this.#send([encode(frame)]);
  }

  #send(frames) {
    this.#sentAt = this.#now;
    this.#carrier?.send(frames);
  }

  #unsubscribe(number) {
    this.request({ type: "unsubscribe", ref: this.nextRef(), subscription: number });
  }

  /** Use this token from now on, because the broker has accepted it. */
  setToken(token) {
    this.#carrier?.setToken?.(token);
  }

  /** Send a part's frames at the end of this turn. */
  markDirty(part) {
    this.#dirty.add(part);
    this.#isRestless = true;
    if (this.#flushing !== null) return;
    this.#flushing = new Deferred();
    this.#awaitEndOfTurn(0, this.#now + TURN_MS);
  }

  #awaitEndOfTurn(round, until) {
    queueMicrotask(() => {
      const next = this.#isRestless ? 0 : round + 1;
      this.#isRestless = false;
      if (next < QUIET_ROUNDS && this.#now < until) {
        this.#awaitEndOfTurn(next, until);
        return;
      }
      const { resolve } = this.#flushing;
      this.#flushing = null;
      this.flush();
      resolve();
    });
  }

  /** Wait until the frames of this turn have been handed to the carrier. */
  async flushed() {
    await this.#flushing?.promise;
  }

  /** Send the frames of all marked parts now. */
  flush() {
    if (!this.isOpen || this.#dirty.size === 0) return;
    const now = this.#now;
    const dirty = this.#dirty;
    this.#dirty = new Set();
    const frames = [];
    for (const part of dirty) frames.push(...part.takeFrames(now));
    if (frames.length > 0) this.#send(frames);
  }

  /** Whether to publish: the socket's buffer has room, and the broker does not drain. */
  get isWritable() {
    return this.#carrier !== null && this.#carrier.isWritable && !this.isDraining;
  }

  /** Call the parts' `expire` at this time, or before. */
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
    this.#checkSilence(now);
    this.flush();
    for (const part of this.#parts) this.wakeAt(part.nextDeadline());
  }

  /**
   * Ping a broker that has been silent for long, and give up a carrier that stays silent.
   *
   * No carrier is given up without a ping before, because timers of a hidden or frozen page are
   * late by minutes. None is given up while a large message is on its way. Pings continue then, so
   * that the broker gets signs of life.
   */
  #checkSilence(now) {
    const carrier = this.#carrier;
    if (!this.isOpen || carrier === null) return;
    const shareMs = 1000 * this.welcome.heartbeat_s * SILENT_SHARE;
    const isOverdue = this.#settlePing() && now >= this.#pongBy;
    const isBusy = now < carrier.silenceOkUntil;
    const isMute = carrier.isReceiving && now >= this.#sentAt + shareMs;
    const isSilent = this.#pingedAt === null && now >= carrier.lastReceivedAt + shareMs;
    if (isOverdue && !isBusy) {
      carrier.abort("nothing was heard any more"); // `onClosed` follows
    } else if (isOverdue || isMute || isSilent) {
      this.#pingedAt = null;
      this.#ping(shareMs);
    } else {
      this.wakeAt(this.#pingedAt === null ? carrier.lastReceivedAt + shareMs : this.#pongBy);
    }
  }

  // --- as the listener of its carrier ------------------------------------------------------------

  /** Handle a message of one or several frames. */
  onFrames(read) {
    if (this.#carrier?.transport === "websocket") this.#carrier.silenceOkUntil = 0; // it came
    try {
      this.receive(read());
    } catch (error) {
      if (!(error instanceof NotTheProtocol)) report("a message that cannot be", error);
      this.#leaveCarrier(CloseCode.PROTOCOL_ERROR, `not tocsin.v1: ${wordsOf(error)}`);
    }
    if (this.#now >= this.#timerAt) this.#tick(); // timers of a hidden page are late
  }

  /** Continue over another carrier, without waiting for the end of this one. */
  #leaveCarrier(code, why) {
    const carrier = this.#carrier;
    if (carrier === null) return;
    carrier.listen(null);
    carrier.close(code, why);
    this.onClosed(code, why);
  }

  /** Dispatch frames, in order. */
  receive(frames) {
    const now = this.#now;
    for (const frame of frames) {
      if (frame.type === "push") this.#subscribers.get(frame.subscription)?.onPush(frame, now);
      else if (frame.type === "revoked") this.#subscribers.get(frame.subscription)?.onRevoke(frame);
      else if (frame.type === "drain") this.#onDrain(frame);
      else if (frame.type === "announce") this.#onAnnounce(frame.bytes, now);
      else if (frame.type !== "welcome") this.#onAnswer(frame); // `onWelcome` had the welcome
    }
  }

  /** Allow for silence, because the next message is so large that it may take long, unseen. */
  #onAnnounce(bytes, now) {
    if (this.#carrier !== null) this.#carrier.silenceOkUntil = now + slowestMs(bytes);
  }

  #onDrain(frame) {
    this.isDraining = true;
    this.#connector.onAdvice(frame.reconnect_after_s);
  }

  /** Handle an `ok`, an `error` or a `pong`. */
  #onAnswer(frame) {
    const onAnswer = frame.ref === null ? undefined : this.#pending.get(frame.ref);
    if (onAnswer !== undefined) {
      this.#pending.delete(frame.ref);
      onAnswer(frame);
    } else if (frame.type === "error" && ENDING.has(frame.code) && frame.subscription !== null) {
      this.#subscribers.get(frame.subscription)?.onEnd(exceptionOf(frame));
    }
  }

  /** Continue publishing, because the socket has drained. */
  onWritable() {
    for (const part of this.#parts) this.markDirty(part);
  }

  /** Give up the carrier, which has ended. */
  onClosed(closeCode, reason) {
    this.onCarrierLoss();
    this.#settings.onChange(reason || `the connection was lost (${closeCode})`);
    this.#connector.onCarrierEnd(closeCode, reason);
  }

  #dropPending() {
    const pending = [...this.#pending.values()];
    this.#pending.clear();
    for (const onAnswer of pending) onAnswer(null);
  }
}
