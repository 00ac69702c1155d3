/**
 * The user of a transcript: what its lines do is called, and what they show must come of it.
 */

import { settled } from "./clock.js";
import { Deviation, show } from "./matching.js";

const URL = "http://broker.test";
const CLOSING_S = 30;
/** Within so long `client.close()` returns, whatever stands. */
const SOON_S = 0.002;

/** A promise, and what has become of it. */
class Call {
  isDone = false;

  constructor(promise) {
    Promise.resolve(promise).then(
      (value) => Object.assign(this, { isDone: true, value }),
      (error) => Object.assign(this, { isDone: true, error, hasFailed: true }),
    );
  }
}

/** Calls the client. `replay` has the clock and the captures. */
export class User {
  #replay;
  #tocsin;
  #environment;
  #settings;
  #client = null;
  #calls = new Map();
  /** What the user has made: subscriptions, readers, messages. */
  #things = new Map();
  /** Per source, its iterator and the `next` that has not returned yet. */
  #iterators = new Map();

  constructor(replay, tocsin, environment) {
    this.#replay = replay;
    this.#tocsin = tocsin;
    this.#environment = environment;
    this.#settings = replay.transcript.head.client ?? {};
  }

  /** Do what a line says. */
  async do(line) {
    const verb = VERBS[line.get("do")];
    if (verb === undefined) throw new Deviation(`no user does ${line.get("do")}`);
    await this[verb](line, line.get("with", {}));
  }

  /** What a call has returned, or thrown. Throws a Deviation. */
  async see(line) {
    const { told } = line.fields;
    await this.#wait(this.#found(this.#calls, told), line.by, told);
    this.#check(line, this.#calls.get(told));
  }

  /** Close the client, which must return. */
  async finish() {
    if (this.#client === null) return;
    const call = new Call(this.#client.close());
    await this.#wait(call, this.#replay.now + CLOSING_S, "close at the end");
  }

  /** Nothing is waited for any more. */
  abandon() {
    Promise.resolve(this.#client?.close()).catch(() => {});
    this.#client = null;
  }

  async #wait(call, by, what) {
    const until = Math.max(this.#replay.now + SOON_S, by);
    if (!(await this.#replay.pass(until, () => call.isDone))) {
      throw new Deviation(`${what} does not return by ${by} s`);
    }
  }

  #found(things, name) {
    if (!things.has(name)) throw new Deviation(`the user has no ${name}`);
    return things.get(name);
  }

  #check(line, call) {
    const value = call.hasFailed ? this.#describeError(call.error) : this.#describe(call.value);
    const isShown = line.has("gets") || line.has("error");
    if (!isShown && !call.hasFailed) return;
    const shown = line.has("error") ? { error: line.get("error") } : line.get("gets");
    const why = isShown ? this.#replay.captures.match(shown, value) : show(value);
    if (why !== null) {
      const trace = call.hasFailed ? `\n${call.error?.stack}` : "";
      throw new Deviation(`the user: ${why}${trace}`);
    }
  }

  // --- verbs ----------------------------------------------------------------------------------

  async connect(line) {
    const { linger_s: lingerS = 30, transport = this.#replay.transport, tokens } = this.#settings;
    const left = [...(tokens ?? [])];
    const token = tokens ? () => (left.length > 1 ? left.shift() : left[0]) : this.#settings.token;
    const opening = this.#tocsin.connect(URL, {
      transport,
      lingerS,
      token,
      producer: "producer-1",
      environment: this.#environment,
    });
    const made = Promise.resolve(opening).then((client) => {
      this.#client = client;
    });
    this.#calls.set(line.get("as"), new Call(made));
  }

  async publish(line, { queue = "orders", messages }) {
    const made = messages.map(({ body, ...more }) => ({ body, ...camel(more) }));
    this.#calls.set(line.get("as"), new Call(this.#connected.publishMany(queue, made)));
  }

  async subscribe(line, { queue = "orders", group, credit, ...more }) {
    const options = { autoExtend: false, ...camel(more), concurrency: credit, credit };
    this.#open(line, this.#connected.subscribe(queue, group, options));
  }

  async read(line, { queue = "orders", credit, position, ...more }) {
    const options = { ...camel(more), concurrency: credit, credit };
    if (position !== undefined) options.start = this.#replay.captures.fill(position);
    this.#open(line, this.#connected.read(queue, options));
  }

  #open(line, made) {
    this.#things.set(line.get("as"), made);
    this.#calls.set(line.get("as"), new Call(made.opened));
  }

  async next(line) {
    const name = line.get("of");
    const source = this.#found(this.#things, name);
    if (!this.#iterators.has(name)) {
      this.#iterators.set(name, { iterator: source[Symbol.asyncIterator](), waiting: null });
    }
    const entry = this.#iterators.get(name);
    const call = (entry.waiting ??= new Call(entry.iterator.next()));
    if (line.get("gets", "") === null) {
      await settled();
      if (call.isDone) this.#check(line, handedOut(call));
      return;
    }
    await this.#wait(call, line.by, `next of ${name}`);
    entry.waiting = null;
    const got = handedOut(call);
    this.#things.set(line.get("as", ""), got.value);
    this.#check(line, got);
  }

  async settle(line, { confirm, delay_s: delayS, reason, lease_s: leaseS }) {
    const message = this.#found(this.#things, line.get("of"));
    const verb = line.get("do");
    const how = defined({ confirm, delayS, leaseS });
    const said = verb === "reject" ? [reason, how] : [defined({ ...how, reason })];
    const call = new Call((async () => message[verb](...said))());
    if (line.has("as")) {
      this.#calls.set(line.get("as"), call);
      return;
    }
    await this.#wait(call, this.#replay.now, line.get("do"));
    this.#check(line, call);
  }

  async leave(line) {
    const left = this.#found(this.#things, line.get("of")).close();
    this.#calls.set(line.get("as"), new Call(left));
  }

  async close(line) {
    this.#calls.set(line.get("as"), new Call(this.#connected.close()));
  }

  async position(line) {
    const { position } = this.#found(this.#things, line.get("of"));
    this.#check(line, { value: JSON.parse(JSON.stringify(position ?? null)) });
  }

  async transport(line) {
    this.#check(line, { value: this.#connected.transport });
  }

  get #connected() {
    if (this.#client === null) throw new Deviation("the client is not connected yet");
    return this.#client;
  }

  // --- in the words of the format ---------------------------------------------------------------

  #describe(got) {
    if (Array.isArray(got)) {
      return got.map((one) => this.#describe(one));
    }
    if (got instanceof Error) return this.#describeError(got);
    if (got === DONE) return { error: "closed" };
    if (got && typeof got === "object" && "duplicate" in got && got.isScheduled) {
      const { partition, ticket, dueUnixMs, duplicate } = got;
      return { partition, ticket, due_unix_ms: dueUnixMs, duplicate };
    }
    if (got && typeof got === "object" && "duplicate" in got) {
      return { partition: got.partition, offset: got.offset, duplicate: got.duplicate };
    }
    if (got && typeof got === "object" && "key" in got) {
      const { key, body, offset, id, attempt } = got;
      return defined({ key, body, offset, id, attempt });
    }
    return got ?? null;
  }

  #describeError(error) {
    const { PublishManyFailed, Gap, SessionEnded, CannotConnect, TocsinError } = this.#tocsin;
    if (PublishManyFailed && error instanceof PublishManyFailed) {
      return this.#describe(error.outcomes);
    }
    if (Gap && error instanceof Gap) {
      return { gap: [error.first, error.last], partition: error.partition };
    }
    if (SessionEnded && error instanceof SessionEnded) {
      return { error: `session_ended ${error.closeCode}` };
    }
    if (CannotConnect && error instanceof CannotConnect) return { error: "cannot_connect" };
    return { error: error instanceof TocsinError ? error.code : String(error) };
  }
}

const DONE = Symbol("the iteration has ended");
const VERBS = {
  connect: "connect",
  publish: "publish",
  subscribe: "subscribe",
  read: "read",
  next: "next",
  ack: "settle",
  nack: "settle",
  reject: "settle",
  extend: "settle",
  leave: "leave",
  close: "close",
  position: "position",
  transport: "transport",
};

/** A finished `iterator.next()` as the call that hands out a message. */
function handedOut(call) {
  if (call.hasFailed) return call;
  return { isDone: true, value: call.value.done ? DONE : call.value.value };
}

/** The fields that have a value. */
function defined(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}

/** Names as JavaScript has them: `delay_s` is `delayS`. */
function camel(fields) {
  return Object.fromEntries(
    Object.entries(fields).map(([name, value]) => [
      name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase()),
      value,
    ]),
  );
}
