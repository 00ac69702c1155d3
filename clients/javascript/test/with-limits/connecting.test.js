/** Clients of a broker that lets few in at a time (tests/javascript/test_limits.py). */

import assert from "node:assert/strict";
import { test } from "node:test";

import { CannotConnect, connect } from "../../src/index.js";

const url = process.env.TOCSIN_URL;
const CALLS = 20;

/** Those that connect, and why the others do not; all are closed when `use` has ended. */
async function connected(settings, use) {
  const results = await Promise.allSettled(settings.map((one) => connect(url, one)));
  const clients = results.flatMap(({ value }) => value ?? []);
  try {
    await use(clients, results.flatMap(({ reason }) => reason ?? []));
  } finally {
    await Promise.all(clients.map((client) => client.close()));
  }
}

test("clients connect, and call, as soon as the broker allows", async () => {
  const began = performance.now();
  const transports = ["websocket", "websocket", "auto", "auto"];
  await connected(transports.map((transport) => ({ transport })), async (clients, refused) => {
    assert.deepEqual(refused, []);
    assert.ok(performance.now() - began >= 590, "one at once, then five a second");
    const before = performance.now();
    await Promise.all(Array.from({ length: CALLS }, () => clients[0].queues()));
    assert.ok(performance.now() - before >= 490, "ten at once, then twenty a second");
  });
});

test("who does not wait so long hears why", async () => {
  const settings = { transport: "websocket", connectTimeoutS: 0.3 };
  await connected(new Array(8).fill(settings), async (_, refused) => {
    assert.ok(refused.length > 0);
    for (const error of refused) {
      assert.ok(error.code === "rate_limited" || error instanceof CannotConnect, error.message);
    }
  });
});
