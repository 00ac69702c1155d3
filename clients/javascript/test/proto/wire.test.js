/** Frames and delivery lists, as they are written and read. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  decode, deliveryList, encode, joinFrames, MESSAGE_CHARS_AIM, NotTheProtocol, ranges,
  RANGES_PER_FRAME_MAX, splitDeliveries,
} from "../../src/proto/wire.js";

test("half a surrogate pair does not spoil what travels beside it", () => {
  assert.equal(encode({ reason: "a\ud800" }), '{"reason":"a\ufffd"}');
  assert.equal(encode({ reason: "\\ud800" }), '{"reason":"\\\\ud800"}');
});

test("what is no frame, or has a field of a wrong type, is not the protocol", () => {
  for (const text of [
    "<html>", "5", "null", "[[]]", "{}", '{"type":7}', '{"type":"push"}', '{"type":"ok","ref":"1"}',
    '{"type":"push","subscription":1,"messages":[5]}',
    '{"type":"push","subscription":1,"messages":[{"key":5}]}',
    '{"type":"revoked","subscription":1,"deliveries":[[1,2]]}',
    '{"type":"welcome","heartbeat_s":"20"}',
  ]) {
    assert.throws(() => decode(text), NotTheProtocol, text);
  }
  assert.deepEqual(decode('{"type":"news","ref":"a"}'), []);
  assert.equal(decode('{"type":"pong","colour":"blue"}')[0].ref, null);
});

test("messages hold what the broker takes", () => {
  assert.deepEqual(joinFrames(["{}"]), ["{}"]);
  assert.equal(joinFrames(Array(257).fill("{}")).length, 2);
  assert.equal(joinFrames(["a".repeat(MESSAGE_CHARS_AIM - 1), "b", "c"]).length, 2);
});

test("offsets are named as ranges, and long lists in parts that the broker takes", () => {
  assert.deepEqual(ranges([5, 3, 4, 9]), [3, 5, 9, 9]);
  const held = { place: [0, 1, 2] };
  const odd = Array.from({ length: RANGES_PER_FRAME_MAX + 1 }, (_, index) => 2 * index);
  const found = splitDeliveries(deliveryList(odd.map((offset) => ({ held, offset }))));
  assert.deepEqual(found.map((part) => (part[0].length - 3) / 2), [RANGES_PER_FRAME_MAX, 1]);
});
