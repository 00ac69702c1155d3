/** What goes through a client for long leaves nothing behind. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

import { connect } from "../../src/index.js";

const MESSAGES = Number(process.env.TOCSIN_MESSAGES ?? 40_000);
const PER_PUSH = 100;
/** Less than the smallest object for each message, more than what comes and goes by itself. */
const GROWTH_BYTES_MAX = 4_000_000;
const WINDOWS_MAX = 4;

setFlagsFromString("--expose-gc");
const collect = runInNewContext("gc");

/** A broker that pushes as fast as it is granted, on any subscription. */
class Source extends EventTarget {
  readyState = 1;
  bufferedAmount = 0;
  #granted = 0;
  #given = 0;
  #kind = "group";

  constructor() {
    super();
    queueMicrotask(() => this.dispatchEvent(new Event("open")));
  }

  send(text) {
    for (const frame of [JSON.parse(text)].flat()) this.#hear(frame);
  }

  close(code) {
    this.readyState = 3;
    queueMicrotask(() => this.dispatchEvent(Object.assign(new Event("close"), { code })));
  }

  #hear({ type, ref, credit, granted = credit, group }) {
    const positions = [{ partition: 0, generation: 1, verdict: "resumed", from: 0 }];
    if (type === "subscribe") this.#kind = group === undefined ? "reader" : "group";
    if (type === "hello") this.#say({ type: "welcome", session: "s", heartbeat_s: 1000 });
    else if (type === "ping") this.#say({ type: "pong", ref });
    else if (ref !== undefined) this.#say({ type: "ok", ref, queue_id: "q", positions });
    this.#granted = Math.max(this.#granted, granted ?? 0);
    setImmediate(() => this.#push());
  }

  #push() {
    if (this.#given + PER_PUSH > this.#granted) return;
    const offset = this.#given;
    this.#given += PER_PUSH;
    const messages = Array.from({ length: PER_PUSH }, (_, at) => ({
      key: offset + at === 0 ? "first" : `k${(offset + at) % 5000}`, body: at,
    }));
    const named = { subscription: 1, partition: 0, id_prefix: "q-1-0-", published_unix_ms: 0 };
    const its = this.#kind === "reader" ? { next: offset + PER_PUSH }
      : { epoch: 1, push: this.#given };
    this.#say({ type: "push", ...named, ...its, offset, messages });
    setImmediate(() => this.#push());
  }

  #say(frame) {
    const data = JSON.stringify(frame);
    queueMicrotask(() => this.dispatchEvent(new MessageEvent("message", { data })));
  }
}

async function grownBy(begin) {
  const environment = { WebSocket: Source };
  const client = await connect("http://broker.test", { transport: "websocket", environment });
  let [count, before, least] = [0, 0, Infinity];
  const done = Promise.withResolvers();
  const heap = () => {
    collect();
    return process.memoryUsage().heapUsed;
  };
  const note = () => {
    count += 1;
    if (count % MESSAGES) return;
    const now = heap(); // the first time: what it needs once it has
    if (count > MESSAGES) least = Math.min(least, now - before);
    before = now;
    // What is left behind is there each time; what comes and goes by itself is not.
    if (least < GROWTH_BYTES_MAX || count === WINDOWS_MAX * MESSAGES) done.resolve(least);
  };
  await begin(client, note);
  const grown = await done.promise;
  await client.close();
  return grown;
}

async function loop(messages, note) {
  for await (const message of messages) {
    note();
    message.ack?.();
  }
}

const WAYS = {
  "a handler": (client, note) => {
    client.subscribe("q", "g", { credit: 1000 }, (message) => note(message));
  },
  "two loops over a subscription": (client, note) => {
    const messages = client.subscribe("q", "g", { credit: 1000 });
    for (const _ of [1, 2]) loop(messages, note);
  },
  "a reader's handler beside one that never ends": (client, note) => {
    let isFirst = true;
    client.read("q", { concurrency: 2 }, () => {
      note();
      if (!isFirst) return undefined;
      isFirst = false;
      return new Promise(() => {});
    });
  },
  "two loops over a reader": (client, note) => {
    const reader = client.read("q");
    for (const _ of [1, 2]) loop(reader, note);
  },
};

for (const [name, begin] of Object.entries(WAYS)) {
  test(`what went through ${name} leaves nothing behind`, async (t) => {
    const grown = await grownBy(begin);
    t.diagnostic(`${grown} bytes for ${MESSAGES} messages`);
    assert.ok(grown < GROWTH_BYTES_MAX, `${grown} bytes for ${MESSAGES} messages`);
  });
}
