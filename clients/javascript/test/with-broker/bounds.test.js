/** Bounds that waiting does not change, against the broker at TOCSIN_URL: the client says so. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Conflict, connect } from "../../src/index.js";

const SUBSCRIPTIONS_MAX = 256;

for (const transport of ["websocket", "long-poll"]) {
  test(`a subscription beyond the bound of a session is refused, by ${transport}`, async () => {
    const client = await connect(process.env.TOCSIN_URL, { transport });
    const queue = `bounds-${transport}`;
    await client.createQueue(queue, { partitions: 1 });
    const readers = [];
    for (let n = 0; n < SUBSCRIPTIONS_MAX; n += 1) readers.push(client.read(queue, {}, () => {}));
    await Promise.all(readers.map((reader) => reader.opened));
    const isBound = (error) => error instanceof Conflict && error.code === "limit_reached"
      && !error.retry && /256 subscriptions/.test(error.message);
    await assert.rejects(client.read(queue, {}, () => {}).opened, isBound);
    await assert.rejects(client.subscribe(queue, "g", {}, () => {}).opened, isBound);
    await readers.pop().close(); // what waiting does not change, closing one does
    await client.read(queue, {}, () => {}).opened;
    await client.close();
  });
}
