/**
 * A WebSocket class with a switch. Off, it behaves as a network in which WebSockets do not pass:
 * those that are open break off without a word, and new ones fail.
 */

const ABNORMAL = 1006;
const OWN_CODE = 3999;
const CONNECTING = 0;
const OPEN = 1;
const CLOSED = 3;

/** What its user takes for a WebSocket, in front of one; off, `network` lets nothing pass. */
class Socket extends EventTarget {
  static CONNECTING = 0;
  static OPEN = 1;
  static CLOSING = 2;
  static CLOSED = 3;
  #network;
  #real = null;
  #isBroken = false;

  constructor(network, url, protocols) {
    super();
    this.#network = network;
    this.onopen = this.onmessage = this.onerror = this.onclose = null;
    this.url = String(url);
    if (!network.isOn) {
      setTimeout(() => this.breakOff(), 0);
      return;
    }
    this.#real = new network.Real(url, protocols);
    network.open.add(this);
    for (const type of ["open", "message", "error", "close"]) {
      this.#real.addEventListener(type, (event) => this.#pass(type, event));
    }
  }

  get readyState() {
    return this.#isBroken ? CLOSED : (this.#real?.readyState ?? CONNECTING);
  }

  get protocol() {
    return this.#real?.protocol ?? "";
  }

  get extensions() {
    return this.#real?.extensions ?? "";
  }

  get bufferedAmount() {
    return this.#real?.bufferedAmount ?? 0;
  }

  get binaryType() {
    return this.#real?.binaryType ?? "blob";
  }

  set binaryType(type) {
    if (this.#real) {
      this.#real.binaryType = type;
    }
  }

  send(data) {
    if (!this.#isBroken) {
      this.#real?.send(data);
    }
  }

  close(code, reason) {
    if (this.#real && !this.#isBroken) {
      this.#real.close(...(code === undefined ? [] : [code, reason ?? ""]));
    } else {
      this.breakOff();
    }
  }

  /** As if the network were gone: nothing passes any more, in neither direction. */
  breakOff() {
    if (this.#isBroken) {
      return;
    }
    this.#isBroken = true;
    this.#network.open.delete(this);
    if (this.#real && this.#real.readyState <= OPEN) {
      this.#real.close(OWN_CODE);
    }
    this.#tell("error", new Event("error"));
    this.#tell("close", closeEvent(ABNORMAL, "", false));
  }

  #pass(type, event) {
    if (this.#isBroken) {
      return;
    }
    if (type === "close") {
      this.#isBroken = true;
      this.#network.open.delete(this);
      this.#tell(type, closeEvent(event.code, event.reason, event.wasClean));
    } else if (type === "message") {
      this.#tell(type, new MessageEvent("message", { data: event.data }));
    } else {
      this.#tell(type, new Event(type));
    }
  }

  #tell(type, event) {
    this[`on${type}`]?.call(this, event);
    this.dispatchEvent(event);
  }
}
Object.assign(Socket.prototype, { CONNECTING: 0, OPEN: 1, CLOSING: 2, CLOSED: 3 });

/**
 * @param {typeof WebSocket} Real what it opens as long as it is on
 * @returns {{WebSocket: Function, isOn: () => boolean, set: (isOn: boolean) => void}}
 */
export function makeSwitch(Real) {
  const network = { Real, isOn: true, open: new Set() };
  return {
    WebSocket: class extends Socket {
      constructor(url, protocols) {
        super(network, url, protocols);
      }
    },
    isOn: () => network.isOn,
    set(isOn) {
      network.isOn = isOn;
      if (!isOn) {
        for (const socket of [...network.open]) {
          socket.breakOff();
        }
      }
    },
  };
}

/** Node has no CloseEvent in all of its versions. */
function closeEvent(code, reason, wasClean) {
  return Object.assign(new Event("close"), { code, reason, wasClean });
}
