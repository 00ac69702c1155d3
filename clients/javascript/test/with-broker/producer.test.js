/** Runs of a program under one producer's name, against the broker at TOCSIN_URL. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { connect } from "../../src/index.js";

const RUNS = 3;
const COUNT = 5;
const NAMED = "checkout-1";

for (const transport of ["websocket", "long-poll"]) {
  test(`each run under the same name stores its messages, by ${transport}`, async () => {
    const queue = `named-${transport}`;
    const receipts = [];
    for (let run = 0; run < RUNS; run += 1) { // within a second
      const client = await connect(process.env.TOCSIN_URL, { transport, producer: NAMED });
      try {
        assert.equal(client.producer, NAMED);
        await client.createQueue(queue, { partitions: 1 });
        receipts.push(await client.publish(queue, [run, 0], { key: "k" }));
        const bodies = Array.from({ length: COUNT - 1 }, (_, n) => [run, n + 1]);
        const others = bodies.map((body) => ({ body, key: "k" }));
        receipts.push(...await client.publishMany(queue, others));
      } finally {
        await client.close();
      }
    }
    assert.ok(receipts.every(({ duplicate }) => !duplicate));
    assert.deepEqual(receipts.map(({ offset }) => offset), [...Array(RUNS * COUNT).keys()]);
    const reading = await connect(process.env.TOCSIN_URL);
    assert.equal((await reading.queue(queue)).depth, RUNS * COUNT);
    await reading.close();
  });
}
