/**
 * A WebSocket as a carrier of frames.
 *
 * Carriers are alike: `start` opens one, its listener hears `onOpen`, `onFrames`, `onWritable` and,
 * as the last thing, `onClosed`. See `longpoll` for the other one.
 *
 * @module
 */

import { CloseCode, decode, joinFrames, NotTheProtocol, SUBPROTOCOL } from "../proto/wire.js";
import { Deferred, Timer } from "./platform.js";

/** Above this nothing is published until the broker has taken what waits. */
export const WRITE_BUFFER_BYTES = 1_048_576;
/** So often it is looked whether the buffer has drained: a WebSocket does not say. */
const DRAIN_MS = 50;
const CLOSE_TIMEOUT_MS = 2000;
const OPEN = 1;
const REASON_CHARS_MAX = 40;

/**
 * @typedef {object} Listener
 * @property {() => void} onOpen it can be talked to
 * @property {(read: () => object[]) => void} onFrames a message; `read` throws NotTheProtocol
 * @property {() => void} onWritable `isWritable` has become true again
 * @property {(closeCode: number, reason: string) => void} onClosed it has ended
 */

export class WebSocketCarrier {
  transport = "websocket";
  /** Nobody sees the parts of a message that is not complete. */
  isReceiving = false;
  /**
   * Until then silence is no bad sign: something large is on its way, and nothing else can be heard
   * meanwhile. By the environment's clock; 0: nothing is.
   */
  patientUntil = 0;
  /** Why there was no session, where more is known than a close code says. */
  refusal = null;
  /** @type {Listener | null} */
  #listener = null;
  #environment;
  #trace;
  #url;
  #socket = null;
  #isOver = false;
  #closed = new Deferred();
  #draining;
  #closing;

  /**
   * @param {string} url the broker's, http or https
   * @param {{environment: import("./platform.js").Environment, trace: Function}} settings
   */
  constructor(url, { environment, trace }) {
    this.#url = `ws${url.slice("http".length)}/v1/ws`;
    this.#environment = environment;
    this.#trace = trace;
    this.#draining = new Timer(environment);
    this.#closing = new Timer(environment);
    /** When something was received last, by the environment's clock. */
    this.heardAt = environment.now();
  }

  /** Begin to open it. What goes wrong is told to the listener. */
  start() {
    let socket;
    try {
      socket = new this.#environment.WebSocket(this.#url, [SUBPROTOCOL]);
    } catch (error) { // no such thing here, or a policy of the page forbids it
      this.#finish(CloseCode.ABNORMAL, `no WebSocket: ${/** @type {Error} */ (error).message}`);
      return;
    }
    this.#socket = socket;
    socket.binaryType = "arraybuffer";
    socket.addEventListener("open", () => this.#opened());
    socket.addEventListener("message", (event) => this.#heard(event.data));
    socket.addEventListener("error", () => {}); // a close follows, and says as much
    socket.addEventListener("close", (event) => this.#finish(event.code, event.reason));
  }

  #opened() {
    if (this.#isOver) return;
    this.heardAt = this.#environment.now();
    this.#listener?.onOpen();
  }

  #heard(data) {
    if (this.#isOver) return;
    this.heardAt = this.#environment.now();
    const isText = typeof data === "string";
    if (isText) this.#trace("received", this.transport, data);
    this.#listener?.onFrames(() => {
      if (!isText) throw new NotTheProtocol("a binary message");
      return decode(data);
    });
  }

  /** Whether what is sent still goes out; false: too much waits. */
  get isWritable() {
    return (this.#socket?.bufferedAmount ?? 0) < WRITE_BUFFER_BYTES;
  }

  /** From now on `listener` is told; null: nobody. */
  listen(listener) {
    this.#listener = listener;
  }

  /** Send frames. After the end nothing happens. @param {string[]} frames */
  send(frames) {
    if (this.#isOver || this.#socket?.readyState !== OPEN) return;
    for (const message of joinFrames(frames)) {
      this.#trace("sent", this.transport, message);
      this.#socket.send(message);
    }
    if (!this.isWritable) this.#awaitDrain();
  }

  #awaitDrain() {
    if (this.#draining.isSet) return;
    this.#draining.set(DRAIN_MS, () => {
      if (this.isWritable) this.#listener?.onWritable();
      else this.#awaitDrain();
    });
  }

  /** End in an orderly way: what was sent still arrives. `closed` says when. */
  close(code = CloseCode.GOOD_BYE, reason = "") {
    if (this.#isOver) return;
    if (this.#socket === null) {
      this.#finish(code, reason);
      return;
    }
    this.#hangUp(code, reason);
    this.#closing.set(CLOSE_TIMEOUT_MS, () => this.#finish(code, reason));
  }

  /** Resolves when it has ended. */
  get closed() {
    return this.#closed.promise;
  }

  /** End at once, without waiting for a word of the other side. The session goes on elsewhere. */
  abort(reason = "") {
    if (this.#isOver) return;
    if (this.#socket !== null) this.#hangUp(CloseCode.SILENT, reason);
    this.#finish(CloseCode.ABNORMAL, reason);
  }

  #hangUp(code, reason) {
    try {
      this.#socket.close(code, reason.slice(0, REASON_CHARS_MAX));
    } catch { // it was never open, or is closed
      this.#finish(code, reason);
    }
  }

  #finish(code, reason) {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#draining.cancel();
    this.#closing.cancel();
    const listener = this.#listener;
    this.#listener = null;
    this.#closed.resolve();
    listener?.onClosed(code, reason);
  }
}
