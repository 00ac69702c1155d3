/** A connection in silence, where timers are late as in a page that nobody looks at. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { connect } from "../src/index.js";
import { world } from "./broker.js";

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
