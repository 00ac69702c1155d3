/**
 * A WebSocket as a carrier of frames.
 *
 * All carriers have one interface: `start` opens one, and its listener is notified by `onOpen`,
 * `onFrames`, `onWritable` and, last, `onClosed`. See `longpoll` for the other one.
 *
 * @module
 */

import { CloseCode, decode, joinFrames, NotTheProtocol, SUBPROTOCOL } from "../proto/wire.js";
import { Deferred, Timer } from "./platform.js";

/** The number of unsent bytes above which nothing is published. */
export const WRITE_BUFFER_BYTES = 1_048_576;
/**
 * The time between two checks of the buffer, because a WebSocket does not report that it has
 * drained.
 */
const DRAIN_MS = 50;
const CLOSE_TIMEOUT_MS = 2000;
const OPEN = 1;
const REASON_CHARS_MAX = 40;

/**
 * The receiver of a carrier's messages.
 *
 * @typedef {object} Listener
 * @property {() => void} [onOpen] frames can be sent
 * @property {(read: () => object[]) => void} onFrames a message; `read` throws NotTheProtocol
 * @property {() => void} onWritable `isWritable` has become true again
 * @property {(closeCode: number, reason: string) => void} onClosed the carrier has ended
 */

export class WebSocketCarrier {
  transport = "websocket";
  /** Always false, because parts of an incomplete message cannot be seen. */
  isReceiving = false;
  /**
   * The time until which silence is normal, by the environment's clock; 0 if it is not.
   *
   * Until then a large message is on its way, and nothing else can be received.
   */
  silenceOkUntil = 0;
  /** The reason why no session was opened, if more is known than a close code; or null. */
  refusal = null;
  /** @type {Listener | null} */
  #listener = null;
  #environment;
  #trace;
  #url;
  #socket = null;
  #isOver = false;
  #closed = new Deferred();
  #drainTimer;
  #closeTimer;

  /**
   * @param {string} url the broker's, http or https
   * @param {{environment: import("./platform.js").Environment, trace: Function}} settings
   */
  constructor(url, { environment, trace }) {
    this.#url = `ws${url.slice("http".length)}/v1/ws`;
    this.#environment = environment;
    this.#trace = trace;
    this.#drainTimer = new Timer(environment);
    this.#closeTimer = new Timer(environment);
    /** The time of the last message received, by the environment's clock. */
    this.lastReceivedAt = environment.now();
  }

  /** Begin to open it. The listener is notified of failures. */
  start() {
    let socket;
    try {
      socket = new this.#environment.WebSocket(this.#url, [SUBPROTOCOL]);
    } catch (error) { // no WebSocket here, or a policy of the page forbids it
      this.#end(CloseCode.ABNORMAL, `no WebSocket: ${/** @type {Error} */ (error).message}`);
      return;
    }
    this.#socket = socket;
    socket.binaryType = "arraybuffer";
    socket.addEventListener("open", () => this.#onOpen());
    socket.addEventListener("message", (event) => this.#onMessage(event.data));
    socket.addEventListener("error", () => {}); // a close follows, with the same information
    socket.addEventListener("close", (event) => this.#end(event.code, event.reason));
  }

  #onOpen() {
    if (this.#isOver) return;
    this.lastReceivedAt = this.#environment.now();
    this.#listener?.onOpen?.();
  }

  #onMessage(data) {
    if (this.#isOver) return;
    this.lastReceivedAt = this.#environment.now();
    const isText = typeof data === "string";
    if (isText) this.#trace("received", this.transport, data);
    this.#listener?.onFrames(() => {
      if (!isText) throw new NotTheProtocol("a binary message");
      return decode(data);
    });
  }

  /** Whether to send more; false if too much waits. */
  get isWritable() {
    return (this.#socket?.bufferedAmount ?? 0) < WRITE_BUFFER_BYTES;
  }

  /** Notify this listener from now on; null for none. */
  listen(listener) {
    this.#listener = listener;
  }

  /** Send frames; nothing is sent after the end. @param {string[]} frames */
  send(frames) {
    if (this.#isOver || this.#socket?.readyState !== OPEN) return;
    for (const message of joinFrames(frames)) {
      this.#trace("sent", this.transport, message);
      this.#socket.send(message);
    }
    if (!this.isWritable) this.#awaitDrain();
  }

  #awaitDrain() {
    if (this.#drainTimer.isSet) return;
    this.#drainTimer.set(DRAIN_MS, () => {
      if (this.isWritable) this.#listener?.onWritable();
      else this.#awaitDrain();
    });
  }

  /** End in an orderly way: frames sent before still arrive. `closed` resolves then. */
  close(code = CloseCode.GOOD_BYE, reason = "") {
    if (this.#isOver) return;
    if (this.#socket === null) {
      this.#end(code, reason);
      return;
    }
    this.#hangUp(code, reason);
    this.#closeTimer.set(CLOSE_TIMEOUT_MS, () => this.#end(code, reason));
  }

  /** A promise that resolves when the carrier has ended. */
  get closed() {
    return this.#closed.promise;
  }

  /** End at once, without waiting for the other side. The session continues elsewhere. */
  abort(reason = "") {
    if (this.#isOver) return;
    if (this.#socket !== null) this.#hangUp(CloseCode.SILENT, reason);
    this.#end(CloseCode.ABNORMAL, reason);
  }

  #hangUp(code, reason) {
    try {
      this.#socket.close(code, reason.slice(0, REASON_CHARS_MAX));
    } catch { // it was never open, or is closed
      this.#end(code, reason);
    }
  }

  #end(code, reason) {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#drainTimer.cancel();
    this.#closeTimer.cancel();
    const listener = this.#listener;
    this.#listener = null;
    this.#closed.resolve();
    listener?.onClosed(code, reason);
  }
}
