/**
 * How far the broker's clock is ahead: found by round trips, told when it is news, and when a
 * message was produced.
 */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  BrokerClock, FIRST_PROBE_MS, FIRST_PROBES, OFFSET_CHANGE_US, PROBE_MS, STEP_US,
} from "../../src/proto/broker-clock.js";
import { PublishLane } from "../../src/proto/publish-lane.js";

const WALL_MS = 1_763_726_400_000;

function opened(aheadUs = 7000) {
  const clock = new BrokerClock({ wallUnixMs: WALL_MS, now: 100 });
  clock.onWelcome(1000 * WALL_MS + aheadUs, 100);
  return clock;
}

/** A question that took so long there, and its answer back. */
function ask(clock, at, thereMs, backMs, aheadUs) {
  clock.onAnswer(at, clock.unixUs(at + thereMs) + aheadUs, at + thereMs + backMs);
}

test("a broker that does not say is not told", () => {
  const clock = new BrokerClock({ wallUnixMs: WALL_MS, now: 100 });
  clock.onWelcome(null, 100);
  const { isAnnounced, offsetToSendUs } = clock;
  assert.deepEqual([isAnnounced, offsetToSendUs, clock.isDue(100)], [false, null, false]);
});

test("the shortest round trip says most", () => {
  const clock = opened();
  for (const [there, back] of [[10, 2], [1, 1], [2, 30]]) ask(clock, 1000, there, back, 5000);
  assert.ok(Math.abs(clock.offsetToSendUs - 5000) <= 2);
});

test("what was told is told again when it is news", () => {
  const clock = opened(7000);
  assert.equal(clock.offsetToSendUs, 7000);
  clock.onOffsetSent();
  ask(clock, 1000, 1, 1, 7000 + OFFSET_CHANGE_US - 2);
  assert.equal(clock.offsetToSendUs, null);
  ask(clock, 2000, 0.5, 0.5, 7000 + OFFSET_CHANGE_US + 2);
  assert.notEqual(clock.offsetToSendUs, null);
  clock.onOffsetSent();
  clock.onWelcome(1000 * WALL_MS, 100);
  assert.equal(clock.offsetToSendUs, 0);
});

test("a clock that was stepped is believed at once, a slow answer is no step", () => {
  const clock = opened();
  ask(clock, 1000, 1, 1, 5000);
  ask(clock, 2000, 1, 201, 5000);
  assert.ok(Math.abs(clock.offsetToSendUs - 5000) <= 2);
  ask(clock, 3000, 1, 3, 5000 + 2 * STEP_US);
  assert.ok(Math.abs(clock.offsetToSendUs - (5000 + 2 * STEP_US - 1000)) <= 2);
});

test("it is asked often at first and rarely then", () => {
  const clock = opened();
  let now = 100;
  for (let count = 0; count < FIRST_PROBES; count += 1) {
    assert.ok(clock.isDue(now));
    clock.onProbe(now);
    assert.ok(!clock.isDue(now + FIRST_PROBE_MS - 1));
    now += FIRST_PROBE_MS;
  }
  assert.ok(!clock.isDue(now + PROBE_MS - FIRST_PROBE_MS - 1));
  assert.ok(clock.isDue(now + PROBE_MS - FIRST_PROBE_MS));
});

test("a frame says when its oldest message was produced, to a broker that tells its clock", () => {
  const bounds = { messagesPerPublishMax: 1000, inFlightMax: 10_000 };
  const lane = new PublishLane("orders", { random: () => 0.5, bounds });
  for (const producedUnixUs of [5, 6]) {
    lane.add({ text: "{}", bytes: 2, id: null, producedUnixUs }, () => {}, Infinity);
  }
  let ref = 0;
  const [[, first]] = lane.takeFrames(() => (ref += 1), 0);
  assert.ok(!("produced_unix_us" in JSON.parse(first)));
  lane.onDisconnect();
  lane.sendsTime = true;
  const [[, again]] = lane.takeFrames(() => (ref += 1), 1, -3);
  const said = JSON.parse(again);
  assert.deepEqual([said.produced_unix_us, said.clock_offset_us, said.messages.length], [5, -3, 2]);
});
