/**
 * Connecting to the broker, and again when the carrier is lost, until the client is closed.
 *
 *     open ──► a session stands ──lost──► wait ──► open again, with the session's id
 *                    │
 *                    └── over long poll: a WebSocket is tried beside it, and takes over
 *
 * @module
 */

import { ReconnectPolicy, TransportChoice } from "../proto/connect-policy.js";
import {
  BrokerError, CannotConnect, NotABroker, SessionEnded, TocsinError, Unauthorized, wordsOf,
} from "../proto/errors.js";
import { CloseCode, exceptionOf, mayReconnect } from "../proto/wire.js";
import { LongPollCarrier } from "./longpoll.js";
import { Deferred, report, Timer } from "./platform.js";
import { freshToken } from "./token.js";
import { WebSocketCarrier } from "./websocket.js";

/**
 * So often in a row something else may answer, a proxy whose broker is gone perhaps, before a
 * client that was connected once gives up; a few minutes.
 */
export const NOT_A_BROKER_MAX = 20;
/** An attempt to come back that is under way for so long is begun anew by who is in a hurry. */
const STALE_MS = 3000;
/** Of the time for an attempt a WebSocket has so much, where long poll may follow. */
const UPGRADE_SHARE = 0.5;

/** Opens carriers for a session, which listens to the one that stands. */
export class Connector {
  /** The carrier that stands, or null. */
  carrier = null;
  /** When the next attempt begins, by the environment's clock; null: none is waited for. */
  retryAt = null;
  #session;
  #url;
  #settings;
  #choice;
  #policy;
  #welcomedAt = 0;
  #opening = null;
  #endedMeanwhile = null;
  #isClosed = false;
  #isSuspended = false;
  /** A session has stood: attempts are to bring it back. */
  #isBack = false;
  /** How often the page was left: what was begun before is over. */
  #departures = 0;
  #waiting;
  #returning;
  #goOn = null;
  #return = null;
  /** When the attempt of now began, where it is to bring a session back; or null. */
  #attemptAt = null;
  /** It was given up for one that begins anew. */
  #isAnew = false;

  /**
   * @param {import("./session.js").Session} session
   * @param {string} url
   * @param {{token: any, mode: "auto" | "websocket" | "long-poll", connectTimeoutMs: number,
   *     environment: import("./platform.js").Environment, trace: Function}} settings
   */
  constructor(session, url, settings) {
    const { environment, mode, token } = settings;
    this.#session = session;
    this.#url = url;
    this.#settings = settings;
    this.#choice = new TransportChoice(mode, environment.random);
    this.#policy = new ReconnectPolicy(environment.random, typeof token === "function");
    this.#waiting = new Timer(environment);
    this.#returning = new Timer(environment);
  }

  get #now() {
    return this.#settings.environment.now();
  }

  // --- life -------------------------------------------------------------------------------------

  /**
   * Connect once; where too many connect, as soon as the broker allows, if that is within the time
   * for an attempt. Rejects with CannotConnect, or with the broker's refusal.
   */
  async open() {
    const giveUpAt = this.#now + this.#settings.connectTimeoutMs;
    for (;;) {
      try {
        await this.#attemptEach();
        return;
      } catch (error) {
        if (error.code !== "rate_limited" || this.#isClosed || this.#isSuspended) throw error;
        this.#limited(error);
        const delayMs = this.#policy.nextDelayMs(this.#now);
        if (this.#now + delayMs > giveUpAt) throw error;
        await this.#waitToOpen(delayMs);
      }
    }
  }

  async #waitToOpen(delayMs) {
    const waited = new Deferred();
    this.#opening = { refuse: (error) => waited.reject(error) };
    this.#waiting.set(delayMs, () => waited.resolve());
    try {
      await waited.promise;
    } finally {
      this.#waiting.cancel();
      this.#opening = null;
    }
  }

  /** End the session in an orderly way. */
  async close() {
    this.#isClosed = true;
    this.#stopWaiting();
    this.#stopReturning();
    this.#opening?.refuse(new CannotConnect("the client has been closed"));
    const { carrier } = this;
    if (carrier === null) return;
    carrier.listen(null);
    carrier.close();
    await carrier.closed;
  }

  /**
   * The page is left, or frozen: end the carrier; the broker keeps the session by this code.
   *
   * @param {number} [code]
   */
  suspend(code = CloseCode.LEAVING) {
    this.#isSuspended = true;
    this.#departures += 1;
    this.#stopWaiting();
    this.#stopReturning();
    this.#opening?.refuse(new CannotConnect("the page is left"));
    const { carrier } = this;
    this.carrier = null;
    carrier?.listen(null);
    carrier?.close(code, "the page is left");
  }

  /** The page is there again. */
  wake() {
    if (!this.#isSuspended) return;
    this.#isSuspended = false;
    if (this.carrier === null) this.#lost(CloseCode.ABNORMAL, "the page was left");
  }

  /**
   * There may be a way now, or from long poll one back: do not wait any longer, nor for an attempt
   * to come back that has had its time: it may have begun on a network that is gone.
   */
  hurry() {
    this.#goOn?.();
    this.#return?.();
    if (this.#attemptAt !== null && this.#now >= this.#attemptAt + STALE_MS) {
      this.#isAnew = true;
      this.#opening?.refuse(new CannotConnect("it does not answer, and the network is another"));
    }
  }

  /** What stands says nothing more until the attempt of now has ended. */
  async rest() {
    await this.carrier?.rest?.();
  }

  /** What a user reads when a carrier ended before its welcome. */
  unopened(closeCode, reason) {
    const why = reason || (closeCode === CloseCode.ABNORMAL ? "" : `close code ${closeCode}`);
    return (
      `cannot reach a Tocsin broker at ${this.#url}${why ? `: ${why}` : ""}. Does it run, is the ` +
      "URL right, and may this page talk to it (its origin, TOCSIN_ORIGINS)?"
    );
  }

  // --- attempts ---------------------------------------------------------------------------------

  /** One attempt, and where a WebSocket failed, one by long poll. */
  async #attemptEach() {
    const departures = this.#departures;
    const token = await freshToken(this.#settings.token); // that may take its time
    if (departures !== this.#departures) throw new CannotConnect("the page was left");
    const transport = this.#choice.next;
    try {
      await this.#attempt(transport, token);
      return;
    } catch (error) {
      if (this.#isAnew && !this.#isClosed && !this.#isSuspended) {
        this.#isAnew = false;
        await this.#attemptEach();
        return;
      }
      const isOver = this.#isClosed || this.#isSuspended || !(error instanceof CannotConnect);
      if (isOver || !this.#choice.onFailure(transport)) throw error;
    }
    try {
      await this.#attempt(this.#choice.next, token);
    } catch (error) {
      if (this.#isAnew && !this.#isClosed && !this.#isSuspended) {
        this.#isAnew = false;
        await this.#attemptEach();
        return;
      }
      if (error instanceof CannotConnect) this.#choice.onFailure("long-poll");
      throw error;
    }
  }

  /**
   * A session over this transport, or an error. Another one that stands goes on meanwhile: whatever
   * ends it counts only when this fails.
   */
  async #attempt(transport, token) {
    if (this.#isClosed || this.#isSuspended) throw new CannotConnect("the client has been closed");
    const { environment, trace, connectTimeoutMs } = this.#settings;
    const isShort = transport === "websocket" && this.#choice.hasBoth;
    const settings = { environment, trace, token };
    const Kind = transport === "websocket" ? WebSocketCarrier : LongPollCarrier;
    const carrier = new Kind(this.#url, settings);
    const hello = this.#session.hello(transport === "websocket" ? token : null);
    const greeting = new Handshake(this, carrier, hello);
    const timer = new Timer(environment);
    this.#opening = greeting;
    this.#isAnew = false;
    this.#attemptAt = this.#isBack ? this.#now : null;
    this.#endedMeanwhile = null;
    timer.set(connectTimeoutMs * (isShort ? UPGRADE_SHARE : 1), () =>
      greeting.refuse(new CannotConnect(this.unopened(CloseCode.ABNORMAL, "it does not answer"))),
    );
    try {
      carrier.listen(greeting);
      carrier.start();
      await greeting.welcomed.promise;
    } catch (error) {
      if (carrier !== this.carrier) {
        carrier.listen(null); // its end must not be taken for that of the next one
        carrier.abort();
      }
      throw error;
    } finally {
      timer.cancel();
      this.#opening = null;
      this.#attemptAt = null;
      this.carrier?.goOn?.();
      const ended = this.#endedMeanwhile;
      this.#endedMeanwhile = null;
      if (ended !== null) this.#lost(...ended);
    }
  }

  /** A session stands on this carrier. What is in the message with the welcome follows. */
  onWelcome(carrier, welcome, frames) {
    if (this.#isClosed || this.#isSuspended) {
      carrier.listen(null);
      carrier.abort();
      return;
    }
    const before = this.carrier;
    this.carrier = carrier;
    if (before !== null) {
      before.listen(null);
      before.abort();
      this.#session.lost();
    }
    this.#endedMeanwhile = null;
    this.#welcomedAt = this.#now;
    this.#choice.onWelcome(carrier.transport);
    this.#policy.onConnect();
    carrier.listen(this.#session);
    this.#session.welcomed(carrier, welcome);
    this.#session.takeIn(frames);
    const isPolled = carrier.transport === "long-poll" && this.carrier === carrier;
    if (isPolled && this.#choice.hasBoth && !this.#isClosed) this.#returnSoon(carrier);
    else this.#stopReturning();
  }

  /** Back to a WebSocket as soon as one gets through. */
  #returnSoon(standing) {
    this.#return = async () => {
      this.#stopReturning();
      if (this.carrier !== standing || this.#opening !== null) return;
      try {
        const token = await freshToken(this.#settings.token);
        if (this.carrier !== standing || this.#opening !== null) return;
        await this.#attempt("websocket", token);
      } catch (error) {
        if (!(error instanceof TocsinError)) report("an unexpected error", error);
        const isOver = this.#isClosed || this.#isSuspended || this.carrier !== standing;
        if (!isOver) this.#returnSoon(standing);
      }
    };
    this.#returning.set(this.#choice.nextReturnDelayMs(), this.#return);
  }

  #stopReturning() {
    this.#return = null;
    this.#returning.cancel();
  }

  // --- what the session tells -------------------------------------------------------------------

  /** The broker has said to come back after so many seconds. */
  advised(afterS) {
    this.#policy.onAdvice(1000 * afterS, this.#now);
  }

  /** The carrier that stood has ended. */
  ended(closeCode, reason) {
    if (this.carrier !== null) {
      this.#choice.onLoss(this.carrier.transport, {
        livedMs: this.#now - this.#welcomedAt,
        wasTold: closeCode !== CloseCode.ABNORMAL,
      });
    }
    this.carrier = null;
    if (closeCode === CloseCode.PROTOCOL_ERROR) this.#policy.onProtocolError();
    // One that was replaced was so by an attempt of this client, whose welcome may be lost.
    const code = closeCode === CloseCode.REPLACED ? CloseCode.ABNORMAL : closeCode;
    if (this.#opening !== null) this.#endedMeanwhile = [code, reason];
    else this.#lost(code, reason);
  }

  #lost(closeCode, reason) {
    if (this.#isClosed || this.#isSuspended) return;
    this.#stopReturning();
    if (!this.#policy.onClose(closeCode)) {
      this.#session.failed(endOf(closeCode, reason));
      return;
    }
    this.#reconnect().catch((error) => {
      report("the client breaks off", error);
      this.#session.failed(new TocsinError(`an unexpected error: ${wordsOf(error)}`));
    });
  }

  /** Until a session stands, or there will be none. */
  async #reconnect() {
    const departures = this.#departures;
    this.#isBack = true;
    for (let strangers = 0; ; ) {
      await this.#pause(this.#policy.nextDelayMs(this.#now));
      try {
        await this.#attemptEach();
        return;
      } catch (error) {
        if (this.#isClosed || departures !== this.#departures) return;
        if (!(error instanceof TocsinError)) throw error;
        if (error instanceof NotABroker) strangers += 1;
        const isEnough = error instanceof NotABroker && strangers >= NOT_A_BROKER_MAX;
        if (isEnough || !this.#isWorthRepeating(error)) {
          this.#session.failed(error);
          return;
        }
        this.#limited(error);
      }
    }
  }

  #limited(error) {
    if (error instanceof BrokerError && error.retryAfterS !== null) {
      this.#policy.onLimit(1000 * error.retryAfterS);
    }
  }

  /** Wait, until somebody is in a hurry. Closed or suspended meanwhile it never ends. */
  #pause(delayMs) {
    this.retryAt = this.#now + delayMs;
    return new Promise((resolve) => {
      this.#goOn = () => {
        this.#stopWaiting();
        resolve();
      };
      this.#waiting.set(delayMs, this.#goOn);
    });
  }

  #stopWaiting() {
    this.#goOn = null;
    this.retryAt = null;
    this.#waiting.cancel();
  }

  #isWorthRepeating(error) {
    if (error instanceof Unauthorized) {
      return this.#policy.onClose(CloseCode.UNAUTHORIZED);
    }
    if (error instanceof CannotConnect) return true;
    return error instanceof BrokerError && error.retry;
  }
}

/** The listener of a carrier until its welcome. */
class Handshake {
  /** @type {Deferred<void>} */
  welcomed = new Deferred().unobserved();
  #dialer;
  #carrier;
  #hello;

  constructor(dialer, carrier, hello) {
    this.#dialer = dialer;
    this.#carrier = carrier;
    this.#hello = hello;
  }

  /**
   * Where a long poll stands, it first comes to rest: a post that arrived behind this hello would
   * be refused, and what it said be said again.
   */
  async onOpen() {
    await this.#dialer.rest();
    this.#carrier.send([this.#hello]);
  }

  /** The welcome, or why there is none. */
  onFrames(read) {
    let frames;
    try {
      frames = read();
    } catch (error) {
      const why = wordsOf(error);
      this.refuse(new NotABroker(`what answers does not talk tocsin.v1: ${why}`));
      return;
    }
    for (const frame of frames) {
      if (frame.type === "welcome") {
        this.welcomed.resolve();
        this.#dialer.onWelcome(this.#carrier, frame, frames);
        return;
      }
      if (frame.type === "error") this.refuse(exceptionOf(frame));
    }
  }

  onWritable() {}

  /** There was no welcome. */
  onClosed(closeCode, reason) {
    const { refusal } = this.#carrier;
    if (refusal !== null && refusal.code !== "cannot_connect") this.refuse(refusal);
    else if (closeCode === CloseCode.UNAUTHORIZED || !mayReconnect(closeCode)) {
      this.refuse(endOf(closeCode, reason));
    } else this.refuse(new CannotConnect(this.#dialer.unopened(closeCode, reason)));
  }

  refuse(error) {
    this.welcomed.reject(error);
  }
}

/** Why a session goes on nowhere. */
function endOf(closeCode, reason) {
  if (closeCode === CloseCode.UNAUTHORIZED) return new Unauthorized("unauthorized", reason);
  return new SessionEnded(closeCode, reason);
}
