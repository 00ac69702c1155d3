/** A connection in silence, where timers are late as in a page that nobody looks at. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { connect } from "../src/index.js";

const WELCOME = JSON.stringify({ type: "welcome", session: "s", heartbeat_s: 20, linger_s: 30 });

/** A broker that answers hello, and pings as long as it is not `silent`; timers are late. */
function world(lateMs) {
  const made = { now: 0, timers: new Map(), sockets: [], silent: false };
  made.advance = async (untilMs) => {
    for (;;) {
      for (let turn = 0; turn < 50; turn += 1) await null;
      const [id, timer] = [...made.timers].sort((one, other) => one[1].at - other[1].at)[0] ?? [];
      if (id === undefined || timer.at > untilMs) break;
      made.timers.delete(id);
      made.now = Math.max(made.now, timer.at);
      timer.callback();
    }
    made.now = untilMs;
  };
  class FakeSocket extends EventTarget {
    readyState = 1;
    bufferedAmount = 0;
    said = [];
    closed = null;

    constructor() {
      super();
      made.sockets.push(this);
      queueMicrotask(() => this.dispatchEvent(new Event("open")));
    }

    send(text) {
      this.said.push(text);
      const { type } = JSON.parse(text);
      const answer = { hello: WELCOME, ping: '{"type":"pong"}' }[type];
      if (made.silent || answer === undefined) return;
      queueMicrotask(() => this.dispatchEvent(new MessageEvent("message", { data: answer })));
    }

    close(code) {
      this.closed = code;
    }
  }
  made.environment = {
    WebSocket: FakeSocket,
    fetch: async () => new Promise(() => {}),
    setTimeout: (callback, delayMs) => {
      const id = {};
      made.timers.set(id, { at: made.now + delayMs + lateMs, callback });
      return id;
    },
    clearTimeout: (id) => made.timers.delete(id),
    now: () => made.now,
    random: () => 0.5,
  };
  return made;
}

for (const lateMs of [0, 999, 60_000]) {
  test(`who answers is kept, and who does not is given up (timers ${lateMs} ms late)`, async () => {
    const made = world(lateMs);
    const { environment, sockets } = made;
    const client = await connect("http://broker.test", { transport: "websocket", environment });
    const twiceMs = 2 * (10_000 + lateMs);
    await made.advance(5 * twiceMs);
    assert.equal(sockets.length, 1);
    assert.ok(sockets[0].said.length > 2, "it was asked");
    made.silent = true;
    await made.advance(6.5 * twiceMs);
    assert.equal(sockets[0].closed, 4001);
    made.silent = false;
    await made.advance(8 * twiceMs);
    assert.ok(client.isConnected);
    assert.match(sockets.at(-1).said[0], /"session":"s"/);
    const closing = client.close();
    await made.advance(9 * twiceMs);
    await closing;
    assert.equal(sockets.at(-1).closed, 1000);
  });
}
