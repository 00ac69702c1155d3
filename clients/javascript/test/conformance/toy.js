/**
 * A client that can do just enough to try the replayer with, and goes wrong when it is told to.
 * It neither comes back nor holds anything: no example of how to write one.
 */

/** What goes wrong, by name; each breaks one rule that a replayer must see. */
export const BUGS = [
  "says too much",
  "says too much later",
  "acks twice",
  "never acks",
  "acks before it is asked",
  "grants too much",
  "hands out too early",
  "swallows",
  "throws in a timer",
  "brings no token",
  "never closes",
  "leaves without a word",
];

/** One that ends a test of node:test, too: to be replayed in a process of its own. */
export const LOUD_BUG = "loses an error";

/** The toy as a module: what index.js exports, with this bug, or none. */
export function toy(bug = null) {
  return { connect: (url, options) => new Toy(url, options, bug).open(), TocsinError: ToyError };
}

class ToyError extends Error {
  code = "cannot_connect";
}

class Toy {
  #answers = new Map();
  #subscriptions = new Map();
  #refs = 0;

  constructor(url, options, bug) {
    Object.assign(this, { url, ...options, bug });
  }

  async open() {
    const kind = this.transport === "long-poll" ? ByRequests : ByWebSocket;
    this.carrier = new kind(this.url, this.environment, (frame) => this.take(frame));
    const { token } = this;
    const hello = { type: "hello", client: "toy", producer: this.producer, linger_s: this.lingerS };
    const hasToken = token !== undefined && this.bug !== "brings no token";
    const isWelcome = new Promise((resolve) => {
      this.welcomed = resolve;
    });
    await this.carrier.open({ ...hello, ...(hasToken ? { token } : {}) });
    await isWelcome;
    return this;
  }

  say(frame) {
    this.carrier.say(frame);
  }

  async ask(frame) {
    this.#refs += 1;
    this.say({ ...frame, ref: this.#refs });
    return new Promise((resolve) => this.#answers.set(this.#refs, resolve));
  }

  take(frame) {
    if (frame.type === "welcome") this.welcomed();
    this.#answers.get(frame.ref)?.(frame);
    if (frame.type === "push") this.#subscriptions.get(frame.subscription).take(frame);
  }

  subscribe(queue, group, { concurrency }) {
    const made = new Subscription(this, this.#subscriptions.size + 1, concurrency);
    this.#subscriptions.set(made.number, made);
    const { number: subscription } = made;
    const frame = { type: "subscribe", subscription, queue, group, credit: concurrency };
    made.opened = this.ask(frame);
    return made;
  }

  async close() {
    if (this.bug === "never closes") await new Promise(() => {});
    await this.carrier.close(this.bug === "leaves without a word" ? undefined : 1000);
  }
}

class Subscription {
  #messages = [];
  #wanting = [];

  constructor(toy, number, granted) {
    Object.assign(this, { toy, number, granted });
  }

  take({ partition, epoch, push, offset, messages }) {
    const { toy, number: subscription } = this;
    for (const [place, { key, body }] of messages.entries()) {
      const at = offset + place;
      const deliveries = [[partition, epoch, push, at, at]];
      const frame = { type: "ack", subscription, deliveries };
      const ack = () => {
        if (toy.bug !== "never acks") toy.say(frame);
        if (toy.bug === "acks twice") toy.say(frame);
      };
      if (toy.bug === "acks before it is asked") ack();
      if (toy.bug !== "swallows") this.#messages.push({ key, body, offset: at, ack });
    }
    this.#misbehave(messages.length);
    this.#hand();
  }

  #misbehave(count) {
    const { toy, number: subscription } = this;
    const { setTimeout } = toy.environment;
    this.granted += toy.bug === "grants too much" ? count + 1 : count;
    toy.say({ type: "credit", subscription, granted: this.granted });
    toy.say({ type: "ping" });
    const unasked = { type: "unsubscribe", subscription, ref: 99 };
    if (toy.bug === "says too much") toy.say(unasked);
    if (toy.bug === "says too much later") setTimeout(() => toy.say(unasked), 700);
    if (toy.bug === LOUD_BUG) Promise.reject(new Error("nobody looks"));
    if (toy.bug === "hands out too early") this.#messages.push({ key: "a", body: "none" });
    if (toy.bug === "throws in a timer") {
      setTimeout(() => {
        throw new Error("in a timer");
      }, 1);
    }
  }

  #hand() {
    while (this.#messages.length && this.#wanting.length) {
      this.#wanting.shift()({ done: false, value: this.#messages.shift() });
    }
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  next() {
    return new Promise((resolve) => {
      this.#wanting.push(resolve);
      this.#hand();
    });
  }
}

class ByWebSocket {
  constructor(url, environment, take) {
    this.socket = new environment.WebSocket(`${url.replace("http", "ws")}/v1/ws`, ["tocsin.v1"]);
    this.socket.onmessage = ({ data }) => [JSON.parse(data)].flat().forEach(take);
    this.closed = new Promise((resolve) => {
      this.socket.addEventListener("close", resolve);
    });
  }

  async open(hello) {
    await new Promise((resolve, reject) => {
      this.socket.addEventListener("open", resolve, { once: true });
      this.socket.addEventListener("error", () => reject(new ToyError("refused")));
    });
    this.say(hello);
  }

  say(frame) {
    this.socket.send(JSON.stringify(frame));
  }

  async close(code) {
    this.socket.close(code);
    await this.closed;
  }
}

class ByRequests {
  #number = 0;
  #leaving = new AbortController();

  constructor(url, { fetch }, take) {
    this.ask = async (method, path, frame) => {
      const { signal } = this.#leaving;
      const options = { method, signal, ...(frame && { body: JSON.stringify(frame) }) };
      const asked = fetch(`${url}/v1/sessions${path}`, options);
      const answer = await asked.catch(() => ({ ok: false }));
      if (path === "" && !answer.ok) throw new ToyError("refused");
      return answer.ok && answer.status !== 204 ? answer.json() : {};
    };
    this.take = take;
  }

  async open(hello) {
    const first = await this.ask("POST", "", hello);
    this.path = `/${first.session}/frames`;
    first.frames.forEach(this.take);
    this.poll(first.batch).catch(() => {});
  }

  async poll(after) {
    const { batch, frames } = await this.ask("GET", `${this.path}?after=${after}&wait_s=20`);
    frames?.forEach(this.take);
    if (batch !== undefined) await this.poll(batch);
  }

  say(frame) {
    this.#number += 1;
    this.ask("POST", `${this.path}?number=${this.#number}`, frame);
  }

  async close(code) {
    if (code === undefined) this.#leaving.abort();
    else await this.ask("DELETE", this.path.replace("/frames", ""));
  }
}
