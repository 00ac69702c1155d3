/**
 * The search for a carrier to the broker, and for the next one when a carrier is lost.
 *
 *     open ──► a session is open ──lost──► wait ──► open again, with the session's id
 *                    │
 *                    └── over long poll: a WebSocket is tried beside it, and takes over
 *
 * @module
 */

import { ReconnectDelay, TransportChoice } from "../proto/connect-policy.js";
import {
  BrokerError, CannotConnect, NotABroker, SessionEnded, TocsinError, Unauthorized, wordsOf,
} from "../proto/errors.js";
import { CloseCode, exceptionOf, mayReconnect } from "../proto/wire.js";
import { LongPollCarrier } from "./longpoll.js";
import { Deferred, report, Timer } from "./platform.js";
import { freshToken } from "./token.js";
import { WebSocketCarrier } from "./websocket.js";

/**
 * The number of times in a row that another server may answer, for example a proxy without its
 * broker, before a client that was connected gives up. Reaching it takes a few minutes.
 */
export const NOT_A_BROKER_MAX = 20;
/** The age of an attempt to reconnect after which `hurry` begins it again. */
const STALE_MS = 3000;
/** The share of an attempt's time for the WebSocket, if a long poll may follow. */
const UPGRADE_SHARE = 0.5;

/** The connections of a session. The session listens to the carrier in use. */
export class Connector {
  /** The carrier in use, or null. */
  carrier = null;
  /** The time of the next attempt, by the environment's clock; null if none waits. */
  retryAt = null;
  #session;
  #url;
  #settings;
  #choice;
  #policy;
  #welcomedAt = 0;
  #opening = null;
  /** The close code and reason of a carrier that ended during an attempt, or null. */
  #lossMeanwhile = null;
  #isClosed = false;
  #isSuspended = false;
  /** Whether a session was open before, so that attempts have to bring it back. */
  #reconnects = false;
  /** The number of times that the page was left. Attempts from before are over. */
  #departures = 0;
  #retryTimer;
  #returnTimer;
  /** Ends the wait for the next attempt; null if none waits. */
  #retryNow = null;
  /** Tries a WebSocket beside a long poll at once; null if there is nothing to try. */
  #returnNow = null;
  /** The start of the present attempt to bring a session back, or null. */
  #attemptAt = null;
  /** Whether the attempt was given up for another one that begins at once. */
  #isRestarted = false;

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
    this.#policy = new ReconnectDelay(environment.random, typeof token === "function");
    this.#retryTimer = new Timer(environment);
    this.#returnTimer = new Timer(environment);
  }

  get #now() {
    return this.#settings.environment.now();
  }

  // --- life --------------------------------------------------------------------------------------

  /**
   * Connect once. Rejects with CannotConnect, or with the broker's refusal.
   *
   * If too many clients connect, waits for the time that the broker names, within the time limit of
   * an attempt.
   */
  async open() {
    const giveUpAt = this.#now + this.#settings.connectTimeoutMs;
    for (;;) {
      try {
        await this.#attemptTransports();
        return;
      } catch (error) {
        if (error.code !== "rate_limited" || this.#isClosed || this.#isSuspended) throw error;
        this.#onLimit(error);
        const delayMs = this.#policy.nextDelayMs(this.#now);
        if (this.#now + delayMs > giveUpAt) throw error;
        await this.#waitToOpen(delayMs);
      }
    }
  }

  async #waitToOpen(delayMs) {
    const waited = new Deferred();
    this.#opening = { refuse: (error) => waited.reject(error) };
    this.#retryTimer.set(delayMs, () => waited.resolve());
    try {
      await waited.promise;
    } finally {
      this.#retryTimer.cancel();
      this.#opening = null;
    }
  }

  /** End the session in an orderly way. */
  async close() {
    this.#isClosed = true;
    this.#cancelRetry();
    this.#cancelReturn();
    this.#opening?.refuse(new CannotConnect("the client has been closed"));
    const { carrier } = this;
    if (carrier === null) return;
    carrier.listen(null);
    carrier.close();
    await carrier.closed;
  }

  /**
   * End the carrier, because the page is left, or frozen. The broker keeps the session after this
   * code.
   *
   * @param {number} [code]
   */
  suspend(code = CloseCode.LEAVING) {
    this.#isSuspended = true;
    this.#departures += 1;
    this.#cancelRetry();
    this.#cancelReturn();
    this.#opening?.refuse(new CannotConnect("the page is left"));
    const { carrier } = this;
    this.carrier = null;
    carrier?.listen(null);
    carrier?.close(code, "the page is left");
  }

  /** Connect again, because the page is back. */
  wake() {
    if (!this.#isSuspended) return;
    this.#isSuspended = false;
    if (this.carrier === null) this.#onLoss(CloseCode.ABNORMAL, "the page was left");
  }

  /**
   * Connect at once, or try at once to leave long poll. An attempt to reconnect that takes too long
   * begins again, because it may have begun on a network that no longer exists.
   */
  hurry() {
    this.#retryNow?.();
    this.#returnNow?.();
    if (this.#attemptAt !== null && this.#now >= this.#attemptAt + STALE_MS) {
      this.#isRestarted = true;
      this.#opening?.refuse(new CannotConnect("it does not answer, and the network is another"));
    }
  }

  /** Let the carrier in use post nothing more until the present attempt has ended. */
  async holdPosts() {
    await this.carrier?.holdPosts?.();
  }

  /** Return the text for the user when a carrier ended before its welcome. */
  unreachableText(closeCode, reason) {
    const why = reason || (closeCode === CloseCode.ABNORMAL ? "" : `close code ${closeCode}`);
    return (
      `cannot reach a Tocsin broker at ${this.#url}${why ? `: ${why}` : ""}. Does it run, is the ` +
      "URL right, and may this page talk to it (its origin, TOCSIN_ORIGINS)?"
    );
  }

  // --- attempts ----------------------------------------------------------------------------------

  /** Make one attempt, and if a WebSocket failed, one by long poll. */
  async #attemptTransports() {
    const departures = this.#departures;
    const token = await freshToken(this.#settings.token); // this may take its time
    if (departures !== this.#departures) throw new CannotConnect("the page was left");
    const transport = this.#choice.next;
    try {
      await this.#attempt(transport, token);
      return;
    } catch (error) {
      if (this.#isRestarted && !this.#isClosed && !this.#isSuspended) {
        this.#isRestarted = false;
        await this.#attemptTransports();
        return;
      }
      const isOver = this.#isClosed || this.#isSuspended || !(error instanceof CannotConnect);
      if (isOver || !this.#choice.onFailure(transport)) throw error;
    }
    try {
      await this.#attempt(this.#choice.next, token);
    } catch (error) {
      if (this.#isRestarted && !this.#isClosed && !this.#isSuspended) {
        this.#isRestarted = false;
        await this.#attemptTransports();
        return;
      }
      if (error instanceof CannotConnect) this.#choice.onFailure("long-poll");
      throw error;
    }
  }

  /**
   * Open a session over this transport. A carrier in use stays in use meanwhile; its end counts
   * only if this attempt fails.
   */
  async #attempt(transport, token) {
    if (this.#isClosed || this.#isSuspended) throw new CannotConnect("the client has been closed");
    const { environment, trace, connectTimeoutMs } = this.#settings;
    const isShort = transport === "websocket" && this.#choice.hasBoth;
    const settings = { environment, trace, token };
    const Kind = transport === "websocket" ? WebSocketCarrier : LongPollCarrier;
    const carrier = new Kind(this.#url, settings);
    const hello = this.#session.helloFrame(transport === "websocket" ? token : null);
    const handshake = new Handshake(this, carrier, hello);
    const timer = new Timer(environment);
    this.#opening = handshake;
    this.#isRestarted = false;
    this.#attemptAt = this.#reconnects ? this.#now : null;
    this.#lossMeanwhile = null;
    const silent = this.unreachableText(CloseCode.ABNORMAL, "it does not answer");
    timer.set(connectTimeoutMs * (isShort ? UPGRADE_SHARE : 1), () =>
      handshake.refuse(new CannotConnect(silent)),
    );
    try {
      carrier.listen(handshake);
      carrier.start();
      await handshake.welcomed.promise;
    } catch (error) {
      if (carrier !== this.carrier) {
        carrier.listen(null); // its end must not be mistaken for that of the next one
        carrier.abort();
      }
      throw error;
    } finally {
      timer.cancel();
      this.#opening = null;
      this.#attemptAt = null;
      this.carrier?.releasePosts?.();
      const loss = this.#lossMeanwhile;
      this.#lossMeanwhile = null;
      if (loss !== null) this.#onLoss(...loss);
    }
  }

  /** Continue the session on this carrier. `frames` are those of the message with the welcome. */
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
      this.#session.onCarrierLoss();
    }
    this.#lossMeanwhile = null;
    this.#welcomedAt = this.#now;
    this.#choice.onWelcome(carrier.transport);
    this.#policy.onConnect();
    carrier.listen(this.#session);
    this.#session.onWelcome(carrier, welcome);
    this.#session.receive(frames);
    const isPolled = carrier.transport === "long-poll" && this.carrier === carrier;
    if (isPolled && this.#choice.hasBoth && !this.#isClosed) this.#scheduleReturn(carrier);
    else this.#cancelReturn();
  }

  /** Return to a WebSocket as soon as one gets through. */
  #scheduleReturn(standing) {
    this.#returnNow = async () => {
      this.#cancelReturn();
      if (this.carrier !== standing || this.#opening !== null) return;
      try {
        const token = await freshToken(this.#settings.token);
        if (this.carrier !== standing || this.#opening !== null) return;
        await this.#attempt("websocket", token);
      } catch (error) {
        if (!(error instanceof TocsinError)) report("an unexpected error", error);
        const isOver = this.#isClosed || this.#isSuspended || this.carrier !== standing;
        if (!isOver) this.#scheduleReturn(standing);
      }
    };
    this.#returnTimer.set(this.#choice.nextReturnDelayMs(), this.#returnNow);
  }

  #cancelReturn() {
    this.#returnNow = null;
    this.#returnTimer.cancel();
  }

  // --- notifications of the session --------------------------------------------------------------

  /** Note the broker's advice to reconnect after this number of seconds. */
  onAdvice(afterS) {
    this.#policy.onAdvice(1000 * afterS, this.#now);
  }

  /** Find another carrier, because the one in use has ended. */
  onCarrierEnd(closeCode, reason) {
    if (this.carrier !== null) {
      this.#choice.onLoss(this.carrier.transport, {
        livedMs: this.#now - this.#welcomedAt,
        wasTold: closeCode !== CloseCode.ABNORMAL,
      });
    }
    this.carrier = null;
    if (closeCode === CloseCode.PROTOCOL_ERROR) this.#policy.onProtocolError();
    // The attempt that replaced it was this client's own, and its welcome may be lost.
    const code = closeCode === CloseCode.REPLACED ? CloseCode.ABNORMAL : closeCode;
    if (this.#opening !== null) this.#lossMeanwhile = [code, reason];
    else this.#onLoss(code, reason);
  }

  #onLoss(closeCode, reason) {
    if (this.#isClosed || this.#isSuspended) return;
    this.#cancelReturn();
    if (!this.#policy.onClose(closeCode)) {
      this.#session.onFailure(endError(closeCode, reason));
      return;
    }
    this.#reconnect().catch((error) => {
      report("the client breaks off", error);
      this.#session.onFailure(new TocsinError(`an unexpected error: ${wordsOf(error)}`));
    });
  }

  /** Attempt to connect until a session is open, or has ended for good. */
  async #reconnect() {
    const departures = this.#departures;
    this.#reconnects = true;
    for (let foreignAnswers = 0; ; ) {
      await this.#waitToRetry(this.#policy.nextDelayMs(this.#now));
      try {
        await this.#attemptTransports();
        return;
      } catch (error) {
        if (this.#isClosed || departures !== this.#departures) return;
        if (!(error instanceof TocsinError)) throw error;
        if (error instanceof NotABroker) foreignAnswers += 1;
        const isEnough = error instanceof NotABroker && foreignAnswers >= NOT_A_BROKER_MAX;
        if (isEnough || !this.#isWorthRepeating(error)) {
          this.#session.onFailure(error);
          return;
        }
        this.#onLimit(error);
      }
    }
  }

  #onLimit(error) {
    if (error instanceof BrokerError && error.retryAfterS !== null) {
      this.#policy.onLimit(1000 * error.retryAfterS);
    }
  }

  /** Wait before an attempt, or until `hurry`. Never ends if closed or suspended meanwhile. */
  #waitToRetry(delayMs) {
    this.retryAt = this.#now + delayMs;
    return new Promise((resolve) => {
      this.#retryNow = () => {
        this.#cancelRetry();
        resolve();
      };
      this.#retryTimer.set(delayMs, this.#retryNow);
    });
  }

  #cancelRetry() {
    this.#retryNow = null;
    this.retryAt = null;
    this.#retryTimer.cancel();
  }

  #isWorthRepeating(error) {
    if (error instanceof Unauthorized) {
      return this.#policy.onClose(CloseCode.UNAUTHORIZED);
    }
    if (error instanceof CannotConnect) return true;
    return error instanceof BrokerError && error.retry;
  }
}

/** The listener of a carrier until its welcome. It sends the hello. */
class Handshake {
  /** @type {Deferred<void>} */
  welcomed = new Deferred().unobserved();
  #connector;
  #carrier;
  #hello;

  constructor(connector, carrier, hello) {
    this.#connector = connector;
    this.#carrier = carrier;
    this.#hello = hello;
  }

  /**
   * Send the hello. If a long poll is in use, its posts stop first. A post that arrived after this
   * hello would be refused, and its frames would be sent again.
   */
  async onOpen() {
    await this.#connector.holdPosts();
    this.#carrier.send([this.#hello]);
  }

  /** Handle the welcome, or the error that comes in its place. */
  onFrames(read) {
    let frames;
    try {
      frames = read();
    } catch (error) {
      const why = wordsOf(error);
      this.refuse(new NotABroker(`the server does not speak tocsin.v1: ${why}`));
      return;
    }
    for (const frame of frames) {
      if (frame.type === "welcome") {
        this.welcomed.resolve();
        this.#connector.onWelcome(this.#carrier, frame, frames);
        return;
      }
      if (frame.type === "error") this.refuse(exceptionOf(frame));
    }
  }

  onWritable() {}

  /** Fail, because the carrier ended before a welcome. */
  onClosed(closeCode, reason) {
    const { refusal } = this.#carrier;
    if (refusal !== null && refusal.code !== "cannot_connect") this.refuse(refusal);
    else if (closeCode === CloseCode.UNAUTHORIZED || !mayReconnect(closeCode)) {
      this.refuse(endError(closeCode, reason));
    } else this.refuse(new CannotConnect(this.#connector.unreachableText(closeCode, reason)));
  }

  refuse(error) {
    this.welcomed.reject(error);
  }
}

/** Return the error with which a session ends for good. */
function endError(closeCode, reason) {
  if (closeCode === CloseCode.UNAUTHORIZED) return new Unauthorized("unauthorized", reason);
  return new SessionEnded(closeCode, reason);
}
