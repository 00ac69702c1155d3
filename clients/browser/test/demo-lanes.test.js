/** The lanes of keys in step 6: what they say, wishes, and what is told after a release. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Lanes, standing } from "../demo/lanes.js";
import { Releases } from "../demo/releasing.js";

const message = (over) => ({ key: "cpu0", partition: 3, offset: 1, attempt: 1, ...over });

const HERE = { name: "worker 1", isHere: true };
const STANDING = {
  nowMs: 0, attemptsMax: 3, parked: null, waiting: 0, isPaused: false, isQueuePaused: false,
  owner: HERE,
};

test("a nacked key is held until its message comes again", () => {
  const lanes = new Lanes({ attemptsMax: 3 });
  lanes.started(message(), "worker 1", 0);
  assert.equal(lanes.nacked(message(), 0, 4000), true);
  const lane = lanes.find("cpu0");
  const at = (nowMs, more) => standing(lane, { ...STANDING, nowMs, ...more });
  assert.deepEqual(at(0), { state: "held", text: "held: again in 4 s, attempt 2 of 3" });
  assert.match(at(0, { waiting: 7 }).text, /attempt 2 of 3; 7 wait$/);
  assert.match(at(3001).text, /in 1 s/);
  assert.match(at(4000).text, /again now/);
  lanes.started(message({ attempt: 2 }), "worker 1", 4001);
  assert.deepEqual(at(4001), { state: "quiet", text: "waits for its worker" });
  lanes.handled(message({ attempt: 2 }), 4002);
  assert.deepEqual(at(4003), { state: "flowing", text: "flowing, 0.2 a second" });
  assert.deepEqual(at(9003), { state: "quiet", text: "quiet" });
});

test("a quiet key is handled elsewhere only where its worker is", () => {
  const lanes = new Lanes();
  const lane = lanes.read(message(), 0);
  const said = (more) => standing(lane, { ...STANDING, ...more }).text;
  assert.equal(said({}), "waits for its worker");
  assert.equal(said({ owner: null }), "no worker yet");
  const owner = { name: "worker 1 of tab k3a", isHere: false };
  assert.equal(said({ owner }), "handled by worker 1 of tab k3a");
  assert.equal(said({ owner, isQueuePaused: true }), "the queue is paused");
  assert.equal(said({ isQueuePaused: true }), "the queue is paused");
});

test("the last attempt parks", () => {
  const lanes = new Lanes({ attemptsMax: 3 });
  assert.equal(lanes.nacked(message({ attempt: 3 }), 0, 1000), false);
  const lane = lanes.find("cpu0");
  const now = { ...STANDING, nowMs: 1, isPaused: true };
  assert.equal(standing(lane, now).text, "attempt 3 of 3 failed: being parked");
  const parked = { messages: 12, attempts: 3 };
  assert.equal(
    standing(lane, { ...now, parked }).text,
    "parked after 3 attempts: 12 messages wait",
  );
  const least = { messages: 12, attempts: 1, is_exact: false };
  assert.match(standing(lane, { ...now, parked: least }).text, /1 attempt: at least 12 messages/);
  lanes.freed("cpu0");
  assert.equal(standing(lane, now).state, "paused");
});

test("a wish can be taken back, and lapses when no message meets it in 30 s", () => {
  const lanes = new Lanes();
  const lane = lanes.read(message(), 0);
  lanes.wish("cpu0", "nack", 1000);
  assert.match(standing(lane, STANDING).text, /^nacks its next message; press again to cancel$/);
  assert.equal(lanes.wishFor("cpu0", 30_999), "nack");
  assert.equal(lanes.wishFor("cpu0", 31_000), null);
  lanes.wish("cpu0", "park", 40_000);
  assert.match(standing(lane, STANDING).text, /^parks its next/);
  lanes.nacked(message(), 69_000, 1000);
  lanes.started(message({ attempt: 2 }), "worker 1", 70_000);
  assert.equal(lanes.wishFor("cpu0", 70_000), "park", "its attempts go on");
  lanes.wish("cpu0", null, 70_001);
  assert.equal(lanes.wishFor("cpu0", 70_001), null);
  assert.equal(lane.heardMs, 70_000, "a wish is not heard of the key");
});

test("an inversion is seen, a redelivery is none", () => {
  const lanes = new Lanes();
  lanes.handled(message({ offset: 5 }), 1);
  lanes.handled(message({ offset: 6 }), 2);
  lanes.handled(message({ offset: 4, attempt: 2 }), 3);
  assert.equal(lanes.inversions, 0);
  lanes.handled(message({ offset: 6 }), 4); // its ack was lost
  assert.equal(lanes.inversions, 0);
  lanes.handled(message({ offset: 3 }), 5);
  assert.equal(lanes.inversions, 1);
});

test("lanes are bounded; a key that is held is not forgotten", () => {
  const lanes = new Lanes({ keysMax: 2 });
  lanes.nacked(message({ key: "held" }), 0, 1000);
  lanes.read(message({ key: "b" }), 1);
  lanes.read(message({ key: "c" }), 2);
  lanes.read(message({ key: null }), 3);
  assert.deepEqual(
    lanes.list().map(({ key }) => key),
    ["held", null],
  );
  assert.equal(lanes.forgotten, 2);
});

const lettersOf = (...offsets) => ({
  async deadLetters(queue, { key, reason }) {
    assert.deepEqual([queue, key, reason], ["machine", "cpu0", "expired"]);
    return offsets.map((offset) => ({ origin: { group: "page", partition: 3, offset } }));
  },
});

test("what waited behind a parked key is counted after its release", async () => {
  const releases = new Releases();
  const lane = { key: "cpu0", partition: 3, message: message({ offset: 9 }) };
  releases.begin(lane, { offset: 5 }, 0);
  releases.handled(message({ offset: 7 }), 100);
  releases.handled(message({ key: "load", offset: 9 }), 150);
  assert.deepEqual(await releases.over(lettersOf(), 200), [], "not through");
  releases.handled(message({ offset: 9 }), 300);
  releases.handled(message({ offset: 12 }), 4000);
  const handled = "2 messages handled in 300 ms, in order";
  const expired = "1 had expired: they are among the dead letters.";
  assert.deepEqual(await releases.over(lettersOf(4, 5, 10), 4001), [
    { key: "cpu0", text: `${handled}; ${expired}` },
  ]);
  assert.deepEqual(await releases.over(lettersOf(), 9999), [], "told once");
  releases.begin(lane, { offset: 5 }, 0);
  assert.deepEqual(await releases.over(lettersOf(5, 6), 5000), []);
  assert.equal(
    (await releases.over(lettersOf(5, 6), 5001))[0].text,
    "none handled; 2 had expired: they are among the dead letters.",
  );
  releases.begin(lane, { offset: 5 }, 0);
  assert.deepEqual(await releases.over(lettersOf(), 5001), [], "another tab handled them");
});
