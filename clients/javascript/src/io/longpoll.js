/**
 * Long poll as a carrier of frames (PROTOCOL.md): two loops, of which one posts what the session
 * sends and the other one polls for what there is for it.
 *
 * Posts are numbered and polls name the batch that arrived last, so either is repeated when its
 * answer is lost, and no frame is lost or doubled. What fails for longer than PATIENCE_MS ends the
 * carrier; the session then goes on over another one.
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

/** How long a poll waits for something to come. */
export const WAIT_S = 20;
/**
 * For an answer to begin, and to go on; a poll's WAIT_S comes on top, and the time that the slowest
 * line needs for what is posted: nobody sees how much of it has gone.
 */
export const REQUEST_TIMEOUT_MS = 8000;
/**
 * For the rest of it, and longer by what has come at the rate of the slowest line: an answer that
 * trickles for ever is none.
 */
export const BODY_TIMEOUT_MS = 30_000;
/** What cannot be said or heard for so long ends the carrier. */
export const PATIENCE_MS = 10_000;
/** Before a request is repeated. */
export const PAUSE_MS = 200;
/** Frames are posted together up to so many characters; each post is a round trip. */
const REQUEST_CHARS_AIM = 512 * 1024;
const CLOSE_TIMEOUT_MS = 2000;
/** So long a WebSocket that would take over waits for a post that is under way. */
const REST_MS = 1000;
const SESSIONS = "/v1/sessions";
const LAST_WORDS = new Set([1000, 1001]);

/** See `websocket` for what carriers have in common. Its first frame is the hello. */
export class LongPollCarrier {
  transport = "long-poll";
  refusal = null;
  /** In the middle of an answer. */
  isReceiving = false;
  /** As of WebSocketCarrier: while a post is under way. */
  patientUntil = 0;
  /** @type {import("./websocket.js").Listener | null} */
  #listener = null;
  #url;
  #environment;
  #token;
  #trace;
  /** @type {string[]} */
  #said = [];
  #saidChars = 0;
  #something = new Deferred();
  /** @type {Deferred<void> | null} posts wait for it */
  #resting = null;
  /** @type {Deferred<void> | null} a post is under way */
  #posting = null;
  #path = "";
  #ending = null;
  #isOver = false;
  #closed = new Deferred();
  #closing;
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
    this.#closing = this.#newTimer();
    this.heardAt = environment.now();
    this.isWritable = true;
  }

  /** As WebSocketCarrier.start. */
  start() {
    this.#listener?.onOpen();
    this.#work(this.#postAll());
  }

  /** As WebSocketCarrier.listen. */
  listen(listener) {
    this.#listener = listener;
  }

  /** What is asked from now on comes with this token. */
  present(token) {
    this.#token = token;
  }

  /** As WebSocketCarrier.send. @param {string[]} frames */
  send(frames) {
    if (this.#isOver) return;
    this.#said.push(...frames);
    for (const frame of frames) this.#saidChars += frame.length;
    this.isWritable = this.#saidChars < WRITE_BUFFER_BYTES;
    this.#something.resolve();
  }

  /**
   * Post what was sent, then delete the session. With another code than those of a good-bye the
   * session goes on without this carrier, which ends at once.
   */
  close(code = CloseCode.GOOD_BYE, reason = "") {
    if (!LAST_WORDS.has(code)) {
      this.#end(code, reason); // deleted, the session could not go on elsewhere
    } else if (this.#ending === null && !this.#isOver) {
      this.#ending = [code, reason];
      this.#something.resolve();
      this.#closing.set(CLOSE_TIMEOUT_MS, () => this.#end(code, reason));
    }
  }

  /**
   * What is said waits until goOn: something else is about to take over. Resolves when what was
   * under way has been answered.
   */
  async rest() {
    this.#resting ??= new Deferred();
    if (this.#posting !== null) await Promise.race([this.#posting.promise, this.#sleep(REST_MS)]);
  }

  /** Nothing has taken over. */
  goOn() {
    this.#resting?.resolve();
    this.#resting = null;
  }

  /** As WebSocketCarrier.closed. */
  get closed() {
    return this.#closed.promise;
  }

  /** As WebSocketCarrier.abort. */
  abort(reason = "") {
    this.#end(CloseCode.ABNORMAL, reason);
  }

  /** The page goes, and will not come back: the session ends, as far as a page can still say so. */
  bequeath() {
    if (this.#isOver || this.#path === "") return;
    const options = { method: "DELETE", headers: headersOf(this.#token, false), keepalive: true };
    const url = this.#url + this.#path.slice(0, -"/frames".length);
    try {
      Promise.resolve(this.#environment.fetch(url, options)).catch(() => {});
    } catch {
      // then the broker's own patience ends it
    }
  }

  // --- the two loops ----------------------------------------------------------------------------

  /** Do it until the carrier ends, or it ends the carrier. */
  async #work(work) {
    try {
      await work;
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
    await this.#something.promise;
    const hello = this.#said.shift() ?? "{}";
    this.#saidChars -= hello.length;
    this.#trace("sent", this.transport, hello);
    const batch = batchOf(await this.#request("POST", SESSIONS, hello));
    this.#path = `${SESSIONS}/${encodeURIComponent(batch.session)}/frames`;
    this.#tell(batch);
    if (this.#isOver) return;
    this.#work(this.#pollAll(batch));
    for (let number = 0; !this.#isOver; ) {
      while (this.#said.length > 0) {
        if (this.#resting !== null) {
          await this.#resting.promise;
          continue;
        }
        const { message, count } = this.#nextMessage();
        number += 1;
        this.#posting = new Deferred();
        this.#trace("sent", this.transport, message);
        await this.#repeat("POST", `${this.#path}?number=${number}`, message);
        this.#posting.resolve();
        this.#posting = null;
        for (const frame of this.#said.splice(0, count)) this.#saidChars -= frame.length;
        this.#drained();
      }
      if (this.#ending !== null) {
        await this.#request("DELETE", this.#path.slice(0, -"/frames".length), null).catch(() => {});
        this.#end(...this.#ending);
        return;
      }
      this.#something = new Deferred();
      await this.#something.promise;
    }
  }

  /** What waits, as far as one message takes it. */
  #nextMessage() {
    let count = 0;
    let size = 0;
    for (const frame of this.#said) {
      const isFull = size + frame.length > REQUEST_CHARS_AIM || count >= FRAMES_PER_MESSAGE_MAX;
      if (count > 0 && isFull) break;
      count += 1;
      size += frame.length + 1;
    }
    return { message: joinFrames(this.#said.slice(0, count), REQUEST_CHARS_AIM)[0], count };
  }

  #drained() {
    if (this.isWritable || this.#saidChars >= WRITE_BUFFER_BYTES) return;
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
            `${after}: something between here and the broker mixes answers up`,
        );
      }
      if (batch.batch !== after) {
        after = batch.batch;
        this.#tell(batch);
      } else if (batch.close === null && this.#environment.now() < askedAt + PAUSE_MS) {
        await this.#sleep(PAUSE_MS); // whatever answers does not wait
      }
      if (batch.close !== null) this.#end(batch.close.code, String(batch.close.reason ?? ""));
    }
  }

  #tell({ frames }) {
    if (frames.length === 0 || this.#isOver) return;
    this.#trace("received", this.transport, frames);
    this.#listener?.onFrames(() => framesOf(frames));
  }

  // --- requests ---------------------------------------------------------------------------------

  /**
   * Until it is answered, or has failed for PATIENCE_MS. What is so large that it took longer than
   * that alone is not said again here.
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
    if (method === "POST") this.patientUntil = this.#environment.now() + upMs;
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
      if (method === "POST") this.patientUntil = 0;
      else this.isReceiving = false;
    }
  }

  /** The text of an answer; as long as it goes on, it is waited for. */
  async #textOf(response, timer, giveUp, isPolled) {
    const beganAt = this.#environment.now();
    this.heardAt = beganAt;
    timer.set(REQUEST_TIMEOUT_MS, giveUp);
    const text = await textInParts(response, (bytes) => {
      this.heardAt = this.#environment.now();
      this.isReceiving ||= isPolled;
      const overMs = beganAt + BODY_TIMEOUT_MS + slowestMs(bytes) - this.heardAt;
      timer.set(Math.min(REQUEST_TIMEOUT_MS, overMs), giveUp);
    });
    this.heardAt = this.#environment.now();
    return text;
  }

  // --- time and the end -------------------------------------------------------------------------

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

/** An answer's batch. Throws NotABroker: it is none. */
function batchOf(text) {
  let said = null;
  try {
    said = JSON.parse(text);
  } catch {
    // what it says is looked at below
  }
  const isBatch =
    isObject(said) && typeof said.session === "string" && Number.isSafeInteger(said.batch);
  const { frames = [], close = null } = isBatch ? said : {};
  const isClose = close === null || (isObject(close) && Number.isSafeInteger(close.code));
  if (!isBatch || !Array.isArray(frames) || !isClose) {
    throw new NotABroker("what answers is not a Tocsin broker: its answer is no batch of frames");
  }
  return { session: said.session, batch: said.batch, frames, close };
}
