/** Which transport is tried next, and how often a token. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  DIED_YOUNG_MAX, ReconnectDelay, TransportChoice, UNAUTHORIZED_MAX,
} from "../../src/proto/connect-policy.js";

const middle = () => 0.5;

test("a WebSocket that does not open, or dies young three times, makes way for long poll", () => {
  const choice = new TransportChoice("auto", middle);
  assert.equal(choice.onFailure("websocket"), true);
  assert.equal(choice.next, "long-poll");
  choice.onFailure("long-poll");
  for (let death = 1; death <= DIED_YOUNG_MAX; death += 1) {
    assert.equal(choice.next, "websocket");
    choice.onLoss("websocket", { livedMs: 59_999, wasTold: false });
  }
  assert.equal(choice.next, "long-poll");
  const steady = new TransportChoice("auto", middle);
  for (const livedMs of [0, 0, 60_000, 0, 0]) {
    steady.onLoss("websocket", { livedMs, wasTold: false });
  }
  assert.equal(steady.next, "websocket");
  assert.equal(new TransportChoice("websocket", middle).onFailure("websocket"), false);
});

test("a fresh token is tried so often, a fixed one once", () => {
  const fresh = new ReconnectDelay(middle, true);
  for (let time = 1; time <= UNAUTHORIZED_MAX; time += 1) assert.ok(fresh.onClose(4401));
  assert.ok(!fresh.onClose(4401));
  assert.ok(!new ReconnectDelay(middle, false).onClose(4401));
  assert.deepEqual([4499, 4500, 4999, 5000].map((code) => fresh.onClose(code)), [
    true, false, false, true,
  ]);
});
