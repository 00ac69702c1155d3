/** A connection in silence, where timers are late as in a page that nobody looks at. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { connect } from "../../src/index.js";
import { world } from "../broker.js";

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

const LARGE = 1_048_576;

test("what has been announced may take its time, and no longer", async () => {
  const made = world();
  const { environment, sockets } = made;
  await connect("http://broker.test", { transport: "websocket", environment });
  sockets[0].say({ type: "announce", bytes: LARGE });
  made.silent = true; // its answers come behind what is large
  await made.advance(127_000);
  assert.equal(sockets[0].closed, null);
  assert.ok(sockets[0].said.length >= 12, "the broker hears from it meanwhile");
  await made.advance(150_000);
  assert.equal(sockets[0].closed, 4001);
});

test("behind what has come, silence is what it was", async () => {
  const made = world();
  const { environment, sockets } = made;
  await connect("http://broker.test", { transport: "websocket", environment });
  sockets[0].say({ type: "announce", bytes: LARGE });
  await made.advance(5000);
  made.silent = true;
  sockets[0].say({ type: "something large" });
  await made.advance(24_999);
  assert.equal(sockets[0].closed, null);
  await made.advance(25_000);
  assert.equal(sockets[0].closed, 4001);
});

test("what is posted is waited for by its size, and no longer", async () => {
  const made = world();
  Object.assign(made, { gone: true, pollable: true });
  const { fetch } = made;
  let posted = 0;
  made.fetch = (url, method, signal) => {
    if (!url.includes("/frames")) return fetch(url, method, signal);
    if (method === "POST") posted += 1;
    const batch = JSON.stringify({ session: "p1", batch: 1, frames: [] });
    return new Promise((resolve, reject) => {
      signal.addEventListener("abort", () => reject(signal.reason));
      if (method === "GET") made.environment.setTimeout(() => resolve(new Response(batch)), 20_000);
    });
  };
  const { environment } = made;
  const client = await connect("http://broker.test", { transport: "long-poll", environment });
  const losses = [];
  client.addEventListener("connection", ({ detail }) => {
    if (detail.transport === null) losses.push(detail.reason);
  });
  client.publish("orders", "x".repeat(LARGE), { timeoutS: 1000 }).catch(() => {});
  await made.advance(1000);
  assert.equal(posted, 1);
  const pass = async (untilMs) => {
    while (made.now < untilMs && losses.length === 0) {
      await made.advance(made.now + 1000);
      await new Promise(setImmediate); // a Response's text takes its own time
    }
  };
  await pass(120_000);
  assert.deepEqual([posted, losses.length], [1, 0], "it is on its way");
  await pass(300_000);
  assert.equal(losses.length, 1, "it was given up");
  assert.ok(made.now < 160_000);
});
