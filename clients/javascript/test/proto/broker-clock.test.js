/**
 * How far the broker's clock is ahead: found by round trips, told when it is news, and when a
 * message was produced.
 */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  BrokerClock, EVERY_MS, FIRST, FIRST_EVERY_MS, NEWS_US, STEP_US,
} from "../../src/proto/broker-clock.js";
import { PublishLane } from "../../src/proto/publish-lane.js";

const WALL_MS = 1_763_726_400_000;

function opened(aheadUs = 7000) {
  const clock = new BrokerClock({ wallUnixMs: WALL_MS, now: 100 });
  clock.opened(1000 * WALL_MS + aheadUs, 100);
  return clock;
}

/** A question that took so long there, and its answer back. */
function ask(clock, at, thereMs, backMs, aheadUs) {
  clock.answered(at, clock.unixUs(at + thereMs) + aheadUs, at + thereMs + backMs);
}

test("a broker that does not say is not told", () => {
  const clock = new BrokerClock({ wallUnixMs: WALL_MS, now: 100 });
  clock.opened(null, 100);
  assert.deepEqual([clock.isTold, clock.newsUs, clock.isDue(100)], [false, null, false]);
});

test("the shortest round trip says most", () => {
  const clock = opened();
  for (const [there, back] of [[10, 2], [1, 1], [2, 30]]) ask(clock, 1000, there, back, 5000);
  assert.ok(Math.abs(clock.newsUs - 5000) <= 2);
});

test("what was told is told again when it is news", () => {
  const clock = opened(7000);
  assert.equal(clock.newsUs, 7000);
  clock.told();
  ask(clock, 1000, 1, 1, 7000 + NEWS_US - 2);
  assert.equal(clock.newsUs, null);
  ask(clock, 2000, 0.5, 0.5, 7000 + NEWS_US + 2);
  assert.notEqual(clock.newsUs, null);
  clock.told();
  clock.opened(1000 * WALL_MS, 100);
  assert.equal(clock.newsUs, 0);
});

test("a clock that was stepped is believed at once, a slow answer is no step", () => {
  const clock = opened();
  ask(clock, 1000, 1, 1, 5000);
  ask(clock, 2000, 1, 201, 5000);
  assert.ok(Math.abs(clock.newsUs - 5000) <= 2);
  ask(clock, 3000, 1, 3, 5000 + 2 * STEP_US);
  assert.ok(Math.abs(clock.newsUs - (5000 + 2 * STEP_US - 1000)) <= 2);
});

test("it is asked often at first and rarely then", () => {
  const clock = opened();
  let now = 100;
  for (let count = 0; count < FIRST; count += 1) {
    assert.ok(clock.isDue(now));
    clock.asked(now);
    assert.ok(!clock.isDue(now + FIRST_EVERY_MS - 1));
    now += FIRST_EVERY_MS;
  }
  assert.ok(!clock.isDue(now + EVERY_MS - FIRST_EVERY_MS - 1));
  assert.ok(clock.isDue(now + EVERY_MS - FIRST_EVERY_MS));
});

test("a frame says when its oldest message was produced, to a broker that tells its clock", () => {
  const bounds = { messagesPerPublishMax: 1000, inFlightMax: 10_000 };
  const lane = new PublishLane("orders", { random: () => 0.5, bounds });
  for (const producedUnixUs of [5, 6]) {
    lane.add({ text: "{}", bytes: 2, id: null, producedUnixUs }, () => {}, Infinity);
  }
  let ref = 0;
  const [[, first]] = lane.take(() => (ref += 1), 0);
  assert.ok(!("produced_unix_us" in JSON.parse(first)));
  lane.disconnected();
  lane.tellsTime = true;
  const [[, again]] = lane.take(() => (ref += 1), 1, -3);
  const said = JSON.parse(again);
  assert.deepEqual([said.produced_unix_us, said.clock_offset_us, said.messages.length], [5, -3, 2]);
});
