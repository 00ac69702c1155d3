/** The broker's codes, states and explanations as words. */

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  alsoOf, ownerOf, sentenceOf, triesOf, unsettledOf, whereItGoes,
} from "../console/explaining.js";
import { countersOf } from "../console/totals.js";
import {
  clusterStateOf, deathOf, originOf, stateOfQueue, transportOf, waitsFor,
} from "../console/words.js";

const GROUP = {
  group: "billing",
  owner: { consumer: "S.1", session: "S", client: "worker-1", transport: "websocket" },
  waits_for: "backoff",
  also: ["paused"],
  text: "Its first message, offset 121, failed 2 times and is tried again in 41 s.",
  head: { offset: 121, attempts: 2, in_flight: null },
  messages: { in_flight: 0, waiting: 17 },
  is_exact: true,
};

test("explain says where a key goes", () => {
  const answer = { queue: "orders", partition: 4, paused: false };
  assert.equal(whereItGoes(answer), "goes to partition 4 of orders.");
  assert.match(whereItGoes({ ...answer, paused: true }), /The queue is paused\.$/);
});

test("explain's sentence is the broker's; without one it is what its code means", () => {
  assert.equal(sentenceOf(GROUP), GROUP.text);
  assert.match(sentenceOf({ ...GROUP, text: "" }), /failed, and is tried again/);
  assert.match(sentenceOf({ ...GROUP, is_exact: false }), /Not all of the log was looked at/);
});

test("explain's facts in words", () => {
  assert.equal(ownerOf(GROUP.owner), "worker-1 (WebSocket)");
  assert.equal(ownerOf({ consumer: "S.1", client: "", transport: null }), "S.1 (lingering)");
  for (const consumer of ["pulls", "pulls-9f2c"]) { // alone, and of one of several gateways
    assert.equal(ownerOf({ consumer, transport: "pull" }), "whoever pulls, over HTTP");
  }
  assert.equal(ownerOf(null), "nobody");
  assert.equal(unsettledOf(GROUP), "0 in flight, 17 waiting");
  assert.equal(unsettledOf({ messages: { in_flight: 0, waiting: 0 } }), "none");
  const partly = { messages: { in_flight: 1, waiting: 2 }, is_exact: false };
  assert.equal(unsettledOf(partly), "at least 1 in flight, 2 waiting");
  assert.equal(unsettledOf({ is_exact: false }), "none found");
  assert.equal(alsoOf(GROUP), "paused");
  assert.equal(triesOf(GROUP.head), "failed 2 times");
  const running = { attempts: 1, in_flight: { attempt: 2 } };
  assert.equal(triesOf(running), "failed 1 time, attempt 2 is running");
  assert.equal(triesOf({ attempts: 0 }), "never failed");
  assert.equal(triesOf(null), "");
});

test("a code that is not known stands for itself, whatever it is", () => {
  assert.deepEqual(waitsFor("new_reason"), { word: "new reason", kind: "", means: "" });
  assert.equal(waitsFor("constructor").word, "constructor");
  assert.equal(waitsFor("").word, "nothing waits");
  assert.equal(deathOf("exhausted"), "exhausted: failed its last attempt");
  assert.equal(deathOf("toString"), "toString");
  assert.equal(transportOf("carrier-pigeon").word, "carrier-pigeon");
  assert.equal(transportOf(null).word, "lingering");
});

test("the state of a queue is the worst there is", () => {
  const group = { name: "g", lag: 0, consumers: 1, keys_parked: 0 };
  assert.equal(stateOfQueue({ groups: [group] }).word, "running");
  assert.equal(stateOfQueue({ groups: [] }).word, "no group");
  assert.equal(stateOfQueue({}).word, "not shown");
  const own = { ...group, name: "tocsin.redrive", lag: 5, consumers: 0 };
  assert.equal(stateOfQueue({ groups: [own] }).word, "no group");
  const left = { ...group, lag: 1, consumers: 0 };
  assert.equal(stateOfQueue({ groups: [group, left] }).word, "no consumer");
  assert.equal(stateOfQueue({ groups: [{ ...left, in_flight: 1 }] }).word, "running"); // pulled
  const two = { ...group, keys_parked: 2 };
  assert.equal(stateOfQueue({ groups: [left, two] }).word, "2 keys parked");
  assert.equal(stateOfQueue({ groups: [{ ...group, keys_parked: 1 }] }).word, "1 key parked");
  assert.equal(stateOfQueue({ paused: true, groups: [left] }).word, "paused");
});

test("a queue's counters are its own and its groups' added up, without the broker's groups", () => {
  const counters = { since_unix_ms: 5, given: 3, settled: 2, nacked: 1 };
  const queue = {
    queue_id: "q",
    counters: { since_unix_ms: 5, published: 10, refused: 1 },
    groups: [
      { name: "a", lag: 4, counters },
      { name: "b", lag: 6, counters },
      { name: "tocsin.redrive", lag: 99, counters },
    ],
  };
  const { values, lag, lagMost, era } = countersOf(queue);
  assert.deepEqual([values.published, values.given, values.settled], [10, 6, 4]);
  assert.deepEqual([lag, lagMost], [10, 6]);
  const anew = { ...queue, counters: { since_unix_ms: 6 } };
  assert.notEqual(countersOf(anew).era, era);
  assert.equal(countersOf({ queue_id: "q" }).lagMost, null);
});

test("a cluster that does not answer here is not called well", () => {
  const word = (/** @type {any} */ cluster) => clusterStateOf(cluster).word;
  const seen = { answers: true, since_unix_ms: 1 };
  assert.equal(word({ state: "well", ...seen }), "well");
  assert.equal(word({ state: "hot", ...seen }), "hot");
  assert.equal(word({ state: "away", ...seen }), "away");
  assert.equal(word({ state: "well", answers: false, since_unix_ms: 1 }), "not answering");
  assert.equal(word({ state: "well", answers: true, since_unix_ms: null }), "not looked at");
});

test("a dead letter whose group one's rights do not show names none", () => {
  const origin = { queue: "orders", group: "billing", partition: 4, offset: 121 };
  assert.equal(originOf(origin), "orders, group billing, partition 4, offset 121");
  const { group, ...hidden } = origin;
  assert.equal(originOf(hidden), "orders, partition 4, offset 121");
});
