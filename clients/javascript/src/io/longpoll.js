/**
 * Long poll as a carrier of frames (docs/protocol.md). One loop posts the frames of the session,
 * another polls for the broker's frames.
 *
 * Posts are numbered, and polls name the batch that arrived last. So either request is repeated
 * when its answer is lost, and no frame is lost or doubled. Requests that fail for longer than
 * PATIENCE_MS end the carrier. The session then continues over another one.
 *
 * @module
 */

import {
  BrokerError, CannotConnect, NotABroker, NotFound, Unauthorized, wordsOf,
} from "../proto/errors.js";
import {
  CloseCode, FRAMES_PER_MESSAGE_MAX, framesOf, isObject, joinFrames,
} from "../proto/wire.js";
import { headersOf, refusal, slowestMs, textInParts } from "./http.js";
import { Deferred, report, Timer } from "./platform.js";
import { WRITE_BUFFER_BYTES } from "./websocket.js";

/** The time for which the broker holds a poll that has nothing to return, in seconds. */
export const WAIT_S = 20;
/**
 * The time for an answer to begin, and to continue. A poll has WAIT_S more. A post has the time
 * that the slowest line needs for it, because its progress cannot be seen.
 */
export const REQUEST_TIMEOUT_MS = 8000;
/**
 * The time for the rest of an answer. It grows with the bytes that have arrived, at the rate of the
 * slowest line. So an answer that trickles forever fails.
 */
export const BODY_TIMEOUT_MS = 30_000;
/** The time after which requests that keep failing end the carrier. */
export const PATIENCE_MS = 10_000;
/** The pause before a request is repeated. */
export const PAUSE_MS = 200;
/** The largest size of a post in characters, unless one frame is longer. */
const REQUEST_CHARS_AIM = 512 * 1024;
const CLOSE_TIMEOUT_MS = 2000;
/** The time for which a WebSocket that will take over waits for a post that is under way. */
const REST_MS = 1000;
const SESSIONS = "/v1/sessions";
const LAST_WORDS = new Set([1000, 1001]);

/** A carrier with the interface of `WebSocketCarrier`. The first frame sent is the hello. */
export class LongPollCarrier {
  transport = "long-poll";
  refusal = null;
  /** Whether a poll's answer is being received. */
  isReceiving = false;
  /** The time until which silence is normal, while a post is under way; otherwise 0. */
  silenceOkUntil = 0;
  /** @type {import("./websocket.js").Listener | null} */
  #listener = null;
  #url;
  #environment;
  #token;
  #trace;
  /** @type {string[]} */
  #queue = [];
  #queuedChars = 0;
  /** Resolved when there is something to post, or the session has to end. */
  #work = new Deferred();
  /** @type {Deferred<void> | null} posts wait for it */
  #hold = null;
  /** @type {Deferred<void> | null} a post is under way */
  #posting = null;
  #path = "";
  #ending = null;
  #isOver = false;
  #closed = new Deferred();
  #closeTimer;
  /** @type {Set<AbortController>} */
  #requests = new Set();
  /** @type {Set<Timer>} */
  #timers = new Set();

  /**
   * @param {string} url the broker's
   * @param {{environment: import("./platform.js").Environment, trace: Function,
   *     token: string | null}} settings
   */
  constructor(url, { environment, trace, token }) {
    this.#url = url;
    this.#environment = environment;
    this.#token = token;
    this.#trace = trace;
    this.#closeTimer = this.#newTimer();
    this.lastReceivedAt = environment.now();
    this.isWritable = true;
  }

  start() {
    this.#listener?.onOpen();
    this.#run(this.#postAll());
  }

  listen(listener) {
    this.#listener = listener;
  }

  /** Use this token in requests from now on. */
  setToken(token) {
    this.#token = token;
  }

  /** @param {string[]} frames */
  send(frames) {
    if (this.#isOver) return;
    this.#queue.push(...frames);
    for (const frame of frames) this.#queuedChars += frame.length;
    this.isWritable = this.#queuedChars < WRITE_BUFFER_BYTES;
    this.#work.resolve();
  }

  /**
   * Post the queued frames, then delete the session.
   *
   * A code other than those of a good-bye ends the carrier at once, because the session continues
   * without it.
   */
  close(code = CloseCode.GOOD_BYE, reason = "") {
    if (!LAST_WORDS.has(code)) {
      this.#end(code, reason); // a deleted session could not continue elsewhere
    } else if (this.#ending === null && !this.#isOver) {
      this.#ending = [code, reason];
      this.#work.resolve();
      this.#closeTimer.set(CLOSE_TIMEOUT_MS, () => this.#end(code, reason));
    }
  }

  /**
   * Post nothing until `releasePosts`, because another carrier is about to take over. Resolves when
   * the post that was under way has been answered.
   */
  async holdPosts() {
    this.#hold ??= new Deferred();
    if (this.#posting !== null) await Promise.race([this.#posting.promise, this.#sleep(REST_MS)]);
  }

  /** Post again, because no other carrier has taken over. */
  releasePosts() {
    this.#hold?.resolve();
    this.#hold = null;
  }

  get closed() {
    return this.#closed.promise;
  }

  abort(reason = "") {
    this.#end(CloseCode.ABNORMAL, reason);
  }

  /**
   * Delete the session with a request that outlives the page, because the page is left for good.
   */
  deleteOnUnload() {
    if (this.#isOver || this.#path === "") return;
    const options = { method: "DELETE", headers: headersOf(this.#token, false), keepalive: true };
    const url = this.#url + this.#path.slice(0, -"/frames".length);
    try {
      Promise.resolve(this.#environment.fetch(url, options)).catch(() => {});
    } catch {
      // then the session ends with the broker's patience
    }
  }

  // --- the two loops -----------------------------------------------------------------------------

  /** Run a loop, and end the carrier if it fails. */
  async #run(loop) {
    try {
      await loop;
    } catch (error) {
      if (error instanceof NotFound) {
        this.#end(CloseCode.ABNORMAL, "the broker does not know the session any more");
        return;
      }
      if (!(error instanceof BrokerError || error instanceof CannotConnect)) {
        report("an unexpected error: the long poll ends", error); // half a carrier would be silent
      }
      this.refusal = error instanceof Error ? error : null;
      const code = error instanceof Unauthorized ? CloseCode.UNAUTHORIZED : CloseCode.ABNORMAL;
      this.#end(code, wordsOf(error));
    }
  }

  async #postAll() {
    await this.#work.promise;
    const hello = this.#queue.shift() ?? "{}";
    this.#queuedChars -= hello.length;
    this.#trace("sent", this.transport, hello);
    const batch = batchOf(await this.#request("POST", SESSIONS, hello));
    this.#path = `${SESSIONS}/${encodeURIComponent(batch.session)}/frames`;
    this.#deliver(batch);
    if (this.#isOver) return;
    this.#run(this.#pollAll(batch));
    for (let number = 0; !this.#isOver; ) {
      while (this.#queue.length > 0) {
        if (this.#hold !== null) {
          await this.#hold.promise;
          continue;
        }
        const { message, count } = this.#nextMessage();
        number += 1;
        this.#posting = new Deferred();
        this.#trace("sent", this.transport, message);
        await this.#repeat("POST", `${this.#path}?number=${number}`, message);
        this.#posting.resolve();
        this.#posting = null;
        for (const frame of this.#queue.splice(0, count)) this.#queuedChars -= frame.length;
        this.#drained();
      }
      if (this.#ending !== null) {
        await this.#request("DELETE", this.#path.slice(0, -"/frames".length), null).catch(() => {});
        this.#end(...this.#ending);
        return;
      }
      this.#work = new Deferred();
      await this.#work.promise;
    }
  }

  /** Return the queued frames that fit into one message, and their number. */
  #nextMessage() {
    let count = 0;
    let size = 0;
    for (const frame of this.#queue) {
      const isFull = size + frame.length > REQUEST_CHARS_AIM || count >= FRAMES_PER_MESSAGE_MAX;
      if (count > 0 && isFull) break;
      count += 1;
      size += frame.length + 1;
    }
    return { message: joinFrames(this.#queue.slice(0, count), REQUEST_CHARS_AIM)[0], count };
  }

  #drained() {
    if (this.isWritable || this.#queuedChars >= WRITE_BUFFER_BYTES) return;
    this.isWritable = true;
    this.#listener?.onWritable();
  }

  async #pollAll(first) {
    let after = first.batch;
    while (!this.#isOver) {
      const askedAt = this.#environment.now();
      const query = `after=${after}&wait_s=${WAIT_S}`;
      const batch = batchOf(await this.#repeat("GET", `${this.#path}?${query}`, null));
      const isNext = batch.batch === after || batch.batch === after + 1;
      if (batch.session !== first.session || !isNext) {
        throw new NotABroker(
          `batch ${batch.batch} of ${batch.session} answers a poll of ${first.session} after ` +
            `${after}: a proxy on the way mixes answers up`,
        );
      }
      if (batch.batch !== after) {
        after = batch.batch;
        this.#deliver(batch);
      } else if (batch.close === null && this.#environment.now() < askedAt + PAUSE_MS) {
        await this.#sleep(PAUSE_MS); // the answer came without a wait
      }
      if (batch.close !== null) this.#end(batch.close.code, String(batch.close.reason ?? ""));
    }
  }

  #deliver({ frames }) {
    if (frames.length === 0 || this.#isOver) return;
    this.#trace("received", this.transport, frames);
    this.#listener?.onFrames(() => framesOf(frames));
  }

  // --- requests ----------------------------------------------------------------------------------

  /**
   * Repeat a request until it is answered, or has failed for PATIENCE_MS. A request so large that
   * it alone took longer than that is not repeated.
   */
  async #repeat(method, path, content) {
    let giveUpAt = null;
    for (;;) {
      const beganAt = this.#environment.now();
      let pauseMs = PAUSE_MS;
      try {
        return await this.#request(method, path, content);
      } catch (error) {
        if (error instanceof BrokerError) {
          if (!error.retry) throw error;
          pauseMs = error.retryAfterS ? 1000 * error.retryAfterS : PAUSE_MS;
          giveUpAt = null; // the broker can be reached
        } else {
          const now = this.#environment.now();
          giveUpAt ??= beganAt + timeoutMsOf(method) + PATIENCE_MS;
          if (!(error instanceof CannotConnect) || error instanceof NotABroker) throw error;
          if (now >= giveUpAt) throw error;
        }
      }
      await this.#sleep(pauseMs);
    }
  }

  async #request(method, path, content) {
    const upMs = slowestMs(content?.length ?? 0);
    const timeoutMs = timeoutMsOf(method) + upMs;
    const controller = new AbortController();
    const timer = this.#newTimer();
    const giveUp = () => controller.abort(new Error("it does not answer"));
    this.#requests.add(controller);
    timer.set(timeoutMs, giveUp);
    if (method === "POST") this.silenceOkUntil = this.#environment.now() + upMs;
    try {
      const response = await this.#environment.fetch(this.#url + path, {
        method,
        headers: headersOf(this.#token, content !== null),
        signal: controller.signal,
        cache: "no-store",
        ...(content === null ? {} : { body: content }),
      });
      const text = await this.#textOf(response, timer, giveUp, method === "GET");
      if (response.ok) return text;
      throw refusal(response.status, text);
    } catch (error) {
      if (error instanceof BrokerError || error instanceof CannotConnect) throw error;
      throw new CannotConnect(`a request failed: ${wordsOf(error)}`, { cause: error });
    } finally {
      timer.cancel();
      this.#timers.delete(timer);
      this.#requests.delete(controller);
      if (method === "POST") this.silenceOkUntil = 0;
      else this.isReceiving = false;
    }
  }

  /** Read the text of an answer, while more of it comes. */
  async #textOf(response, timer, giveUp, isPolled) {
    const beganAt = this.#environment.now();
    this.lastReceivedAt = beganAt;
    timer.set(REQUEST_TIMEOUT_MS, giveUp);
    const text = await textInParts(response, (bytes) => {
      this.lastReceivedAt = this.#environment.now();
      this.isReceiving ||= isPolled;
      const overMs = beganAt + BODY_TIMEOUT_MS + slowestMs(bytes) - this.lastReceivedAt;
      timer.set(Math.min(REQUEST_TIMEOUT_MS, overMs), giveUp);
    });
    this.lastReceivedAt = this.#environment.now();
    return text;
  }

  // --- time and the end --------------------------------------------------------------------------

  #newTimer() {
    const timer = new Timer(this.#environment);
    this.#timers.add(timer);
    return timer;
  }

  #sleep(delayMs) {
    const timer = this.#newTimer();
    return new Promise((resolve) => {
      timer.set(delayMs, () => {
        this.#timers.delete(timer);
        resolve();
      });
    });
  }

  #end(code, reason) {
    if (this.#isOver) return;
    this.#isOver = true;
    for (const timer of this.#timers) timer.cancel();
    for (const controller of this.#requests) controller.abort(new Error("the long poll ends"));
    const listener = this.#listener;
    this.#listener = null;
    this.#closed.resolve();
    listener?.onClosed(code, reason);
  }
}

function timeoutMsOf(method) {
  return REQUEST_TIMEOUT_MS + (method === "GET" ? 1000 * WAIT_S : 0);
}

/** Decode an answer's batch. @throws {NotABroker} if the text is no batch */
function batchOf(text) {
  let answer = null;
  try {
    answer = JSON.parse(text);
  } catch {
    // then `answer` stays null
  }
  const isBatch =
    isObject(answer) && typeof answer.session === "string" && Number.isSafeInteger(answer.batch);
  const { frames = [], close = null } = isBatch ? answer : {};
  const isClose = close === null || (isObject(close) && Number.isSafeInteger(close.code));
  if (!isBatch || !Array.isArray(frames) || !isClose) {
    throw new NotABroker("the server is not a Tocsin broker: its answer is no batch of frames");
  }
  return { session: answer.session, batch: answer.batch, frames, close };
}
