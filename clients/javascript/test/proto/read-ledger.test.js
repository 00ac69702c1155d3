/** A reader's ledger: where it stands. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { ReadLedger } from "../../src/proto/read-ledger.js";
import { decode } from "../../src/proto/wire.js";

function push(fields) {
  return decode(JSON.stringify({ type: "push", subscription: 1, partition: 0, ...fields }))[0];
}

test("a reader goes on behind what it received, and a page behind what is done (R26)", () => {
  const reading = new ReadLedger(4);
  reading.reopen();
  const positions = [{ partition: 0, generation: 2, verdict: "resumed", from: 5 }];
  const ok = decode(JSON.stringify({ type: "ok", ref: 1, queue_id: "q", positions }))[0];
  reading.onOpen(1, ok, new Set());
  reading.receive(push({ offset: 5, next: 9, messages: [{ body: 1 }, { body: 2 }] }));
  const place = (position) => position.partitions["0"];
  assert.deepEqual(place(reading.position()), [2, 5]);
  const [first, second] = [reading.next(), reading.next()];
  assert.deepEqual(place(reading.position()), [2, 9], "and over what the filter skips");
  assert.deepEqual(place(reading.handledPosition()), [2, 5]);
  reading.onHandled(second);
  assert.deepEqual(place(reading.handledPosition()), [2, 5], "an earlier one is at work");
  reading.onHandled(first);
  assert.equal(reading.next(), null);
  assert.deepEqual(place(reading.handledPosition()), [2, 9]);
  assert.deepEqual(place(reading.reopen().position), [2, 9]);
});
