/** Bounds that waiting does not change, against the broker at TOCSIN_URL: the client says so. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Conflict, connect, PublishManyFailed, TooLarge } from "../../src/index.js";

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

/** A message of so many bytes as JSON, which is what `bytes_max` counts. */
const sized = (size) => ({ key: "k", body: "x".repeat(size - '{"key":"k","body":""}'.length) });

for (const transport of ["websocket", "long-poll"]) {
  test(`a message larger than its queue may be is refused at once, by ${transport}`, async () => {
    const client = await connect(process.env.TOCSIN_URL, { transport });
    const queue = `large-${transport}`;
    await client.createQueue(queue, { partitions: 1, bytesMax: 500 });
    const sizes = [50, 501, 50, 2000, 50];
    const failed = await client.publishMany(queue, sizes.map(sized)).then(
      () => assert.fail("two of them never fit"), (error) => error);
    assert.ok(failed instanceof PublishManyFailed);
    const isLarge = (error) => error instanceof TooLarge && error.code === "message_too_large"
      && !error.retry && /bytes_max=500/.test(error.message);
    assert.deepEqual(failed.outcomes.map(isLarge), [false, true, false, true, false]);
    assert.deepEqual(
      failed.outcomes.filter((one) => !(one instanceof Error)).map((one) => one.offset), [0, 1, 2]);
    await client.createQueue(`${queue}-empty`, { partitions: 1, bytesMax: 500 });
    await client.publishMany(`${queue}-empty`, [sized(500)]);
    await client.close();
  });
}
