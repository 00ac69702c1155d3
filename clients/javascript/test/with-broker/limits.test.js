/** A producer over its limit, against the broker at TOCSIN_URL (tests/javascript/test_calls.py). */

import assert from "node:assert/strict";
import { test } from "node:test";

import { connect } from "../../src/index.js";

const RATE = 4000;
const COUNT = 8000;
const SOONEST_MS = (1000 * (COUNT - RATE)) / RATE;

for (const transport of ["websocket", "long-poll"]) {
  test(`over its limit a producer gets everything through by ${transport}, once`, async () => {
    const client = await connect(process.env.TOCSIN_URL, { transport });
    const queue = `over-${transport}`;
    try {
      await client.createQueue(queue, { partitions: 2, publishMessagesPerS: RATE });
      const began = performance.now();
      const numbers = Array.from({ length: COUNT }, (_, number) => number);
      const receipts = await Promise.all(
        numbers.map((number) => client.publish(queue, number, { key: `k${number % 10}` })),
      );
      const tookMs = performance.now() - began;
      assert.ok(tookMs >= 0.98 * SOONEST_MS, `too soon: ${tookMs} ms`);
      assert.ok(tookMs <= 3 * SOONEST_MS + 5000, `too late: ${tookMs} ms`);
      const places = receipts.map(({ partition, offset }) => [partition, offset]);
      assert.equal(new Set(places.map(String)).size, COUNT);
      const lasts = new Map();
      for (const [number, [partition, offset]] of places.entries()) { // P3
        const key = number % 10;
        const last = lasts.get(key);
        assert.ok(last === undefined || (last[0] === partition && last[1] < offset));
        lasts.set(key, [partition, offset]);
      }
      const described = await client.queue(queue);
      assert.equal(described.depth, COUNT);
      assert.ok(described.counters.refused > 0);
    } finally {
      await client.close();
    }
  });
}
