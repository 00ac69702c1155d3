/**
 * A WebSocket, as browsers have it, whose other end is a transcript.
 *
 * A `network` is told what the client does: `attempt({transport, token, accept, refuse})` that it
 * wants a connection, `happened(kind, over, what)` what it says on one, `report(error)` what no
 * browser would let pass.
 */

export const ABNORMAL = 1006;
const NO_CODE = 1005;
const SUBPROTOCOL = "tocsin.v1";
const HANDSHAKE_TIMEOUT_MS = 2000;
const REASON_BYTES_MAX = 123;
const [CONNECTING, OPEN, CLOSING, CLOSED] = [0, 1, 2, 3];

/** The broker's end of a WebSocket. */
class SocketLink {
  transport = "websocket";
  isSilent = false;

  constructor(name, socket) {
    this.name = name;
    this.socket = socket;
  }

  /** The broker says this. */
  deliver(text) {
    if (!this.isSilent) this.socket.receive(text);
  }

  /** The broker closes it; ABNORMAL: it is cut. */
  finish(code) {
    this.socket.finish(code);
  }
}

/** The class of WebSockets of one network. */
export function webSocketOf(network) {
  return class extends FakeWebSocket {
    constructor(url, protocols = []) {
      super(network, url, [protocols].flat());
    }
  };
}

class FakeWebSocket {
  static CONNECTING = CONNECTING;
  static OPEN = OPEN;
  static CLOSING = CLOSING;
  static CLOSED = CLOSED;
  CONNECTING = CONNECTING;
  OPEN = OPEN;
  CLOSING = CLOSING;
  CLOSED = CLOSED;
  readyState = CONNECTING;
  bufferedAmount = 0;
  protocol = "";
  extensions = "";
  binaryType = "blob";
  onopen = null;
  onmessage = null;
  onerror = null;
  onclose = null;
  #listeners = [];
  #network;
  #link = null;

  constructor(network, url, protocols) {
    const { protocol, pathname } = new URL(url);
    this.url = String(url);
    this.#network = network;
    if (!/^(ws|http)s?:$/.test(protocol) || pathname !== "/v1/ws") {
      network.report(new Error(`a WebSocket to ${url}`));
    }
    if (!protocols.includes(SUBPROTOCOL)) network.report(new Error(`no ${SUBPROTOCOL} is offered`));
    network.attempt({
      transport: "websocket",
      accept: (name) => this.#accept(name),
      refuse: () => this.finish(ABNORMAL),
    });
  }

  #accept(name) {
    this.#link = new SocketLink(name, this);
    if (this.readyState === CONNECTING) {
      this.readyState = OPEN;
      this.protocol = SUBPROTOCOL;
      this.#tell("open", {});
    }
    return this.#link;
  }

  /** The broker's end says this. */
  receive(text) {
    if (this.readyState === OPEN) this.#tell("message", { data: text });
  }

  /** It is over, for both. */
  finish(code) {
    if (this.readyState === CLOSED) return;
    this.readyState = CLOSED;
    if (code === ABNORMAL) this.#tell("error", {});
    this.#tell("close", { code, reason: "", wasClean: code !== ABNORMAL });
  }

  // --- what the client calls ---------------------------------------------------------------

  /** As in a browser. */
  send(data) {
    if (this.readyState === CONNECTING) throw new DOMException("connecting", "InvalidStateError");
    if (this.readyState !== OPEN) return;
    if (typeof data !== "string") this.#network.report(new Error("a message that is no text"));
    for (const frame of [JSON.parse(data)].flat()) {
      this.#network.happened("frame", this.#link.name, frame);
    }
  }

  /** As in a browser, which says no code but 1000 and those from 3000 on. */
  close(code = NO_CODE, reason = "") {
    if (code !== NO_CODE && code !== 1000 && !(code >= 3000 && code <= 4999)) {
      const error = new DOMException(`close code ${code}`, "InvalidAccessError");
      this.#network.report(error); // the caller may swallow it
      throw error;
    }
    if (new TextEncoder().encode(reason).length > REASON_BYTES_MAX) {
      throw new DOMException("a long reason", "SyntaxError");
    }
    if (this.readyState === CLOSING || this.readyState === CLOSED) return;
    const { clock } = this.#network;
    if (this.readyState === CONNECTING) {
      this.readyState = CLOSING;
      clock.setTimeout(() => this.finish(ABNORMAL), 0);
      return;
    }
    this.readyState = CLOSING;
    this.#network.happened("close", this.#link.name, code);
    if (this.#link.isSilent) clock.setTimeout(() => this.finish(ABNORMAL), HANDSHAKE_TIMEOUT_MS);
    else clock.setTimeout(() => this.finish(code), 0);
  }

  /** As in a browser. */
  addEventListener(type, listener, options = {}) {
    if (this.#listeners.some((one) => one.type === type && one.listener === listener)) return;
    const entry = { type, listener, isOnce: Boolean(options?.once) };
    this.#listeners.push(entry);
    options?.signal?.addEventListener("abort", () => this.removeEventListener(type, listener));
  }

  /** As in a browser. */
  removeEventListener(type, listener) {
    this.#listeners = this.#listeners.filter(
      (one) => one.type !== type || one.listener !== listener,
    );
  }

  #tell(type, fields) {
    const event = { type, target: this, currentTarget: this, ...fields };
    const heard = this.#listeners.filter((one) => one.type === type);
    for (const { listener, isOnce } of heard) {
      if (isOnce) this.removeEventListener(type, listener);
    }
    const callbacks = heard.map(({ listener }) => listener.handleEvent?.bind(listener) ?? listener);
    for (const callback of [this[`on${type}`], ...callbacks]) {
      try {
        callback?.call(this, event);
      } catch (error) {
        this.#network.report(error);
      }
    }
  }
}
