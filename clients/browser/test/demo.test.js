/** What is pure of the demo: measures, ways, names, memory, beginning. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { skippedSentence, skipsBacklog } from "../demo/beginning.js";
import { Division } from "../demo/division.js";
import { readFigure, sayFigures } from "../demo/figures.js";
import { ClockOffset, Latencies, percentile } from "../demo/latency.js";
import { Memory } from "../demo/memory.js";
import { Names, namesIn } from "../demo/names.js";
import { Ring } from "../demo/ring.js";
import { parseBody, remarkOn } from "../demo/typed.js";
import { dueText, segments, waitsFor, Ways } from "../demo/ways.js";

test("a ring keeps the newest", () => {
  const ring = new Ring(3);
  assert.equal(ring.last, undefined);
  for (const value of [1, 2, 3, 4]) {
    ring.push(value);
  }
  assert.deepEqual(
    [ring.at(0), ring.at(1), ring.at(2), ring.at(3), ring.at(-1)],
    [2, 3, 4, undefined, undefined],
  );
  assert.equal(ring.last, 4);
  ring.clear();
  assert.equal(ring.length, 0);
});

test("percentiles are the nearest rank", () => {
  const sorted = Float64Array.from({ length: 100 }, (_, i) => i + 1);
  assert.equal(percentile(sorted, 50), 50);
  assert.equal(percentile(sorted, 99), 99);
  assert.equal(percentile(sorted, 100), 100);
  assert.equal(percentile(sorted.subarray(0, 1), 99), 1);
  assert.equal(percentile(sorted.subarray(0, 0), 50), null);
});

test("latencies: of the window, and second by second, with gaps", () => {
  const latencies = new Latencies({ windowS: 3, samplesMax: 100 });
  assert.equal(latencies.tick(1000), false);
  latencies.add(1100, 5);
  latencies.add(1200, 7);
  assert.equal(latencies.tick(1999), false);
  assert.equal(latencies.tick(2000), true);
  assert.deepEqual(latencies.summary(2000), { p50Ms: 5, p99Ms: 7, count: 2 });
  assert.equal(latencies.tick(3000), true); // nothing came: a gap
  latencies.add(3500, 9);
  latencies.tick(4000);
  const data = [[], [], []];
  latencies.fill(data);
  assert.deepEqual(data, [
    [-2, -1, 0],
    [5, null, 9],
    [7, null, 9],
  ]);
  assert.equal(latencies.summary(4100).count, 3);
  assert.equal(latencies.summary(4101).count, 2); // the first is older than 3 s
});

test("a tab that slept for an hour closes no more seconds than the window has", () => {
  const latencies = new Latencies({ windowS: 3 });
  latencies.tick(0);
  latencies.add(500, 4);
  latencies.tick(3_600_000);
  const data = [[], [], []];
  latencies.fill(data);
  assert.deepEqual(data[1], [null, null, null]);
});

test("the newest samples count when there are too many", () => {
  const latencies = new Latencies({ windowS: 60, samplesMax: 2 });
  for (const ms of [1, 2, 3]) {
    latencies.add(100, ms);
  }
  assert.deepEqual(latencies.summary(200), { p50Ms: 2, p99Ms: 3, count: 2 });
});

test("two clocks are compared by what is published", () => {
  const offset = new ClockOffset({ isSameMachine: false });
  assert.equal(offset.isKnown, false);
  offset.learn(1000, 1510, 1020); // ahead by 490 to 511
  assert.equal(offset.isKnown, true);
  assert.equal(offset.offsetMs, 500.5);
  offset.learn(2000, 2502, 2004); // 498 to 503
  assert.equal(offset.offsetMs, 500.5);
  offset.learn(3000, 3501, 3001); // 500 to 502
  assert.equal(offset.offsetMs, 501);
  assert.equal(offset.sinceMs(4000, 4491), 10);
  assert.equal(offset.sinceMs(4000, 4600), 0);
  offset.learn(5000, 4000, 5010); // set anew: begin again
  assert.equal(offset.offsetMs, -1004.5);
  offset.learn(5000, 4000, 4999); // its own clock went back: means nothing
  assert.equal(offset.offsetMs, -1004.5);
  const same = new ClockOffset({ isSameMachine: true });
  same.learn(1, 900, 2);
  assert.equal(same.offsetMs, 0);
});

test("a message's way, the push before the receipt", () => {
  const ways = new Ways(2);
  const way = ways.begin({ id: "a", key: "k", text: "t", nowMs: 100, isOwn: true });
  ways.read("a", 103, { partition: 1, offset: 7 });
  assert.equal(way.atMs.pushed, null, "a reader is of no group");
  ways.pushed("a", 104, { partition: 1, offset: 7, handler: "worker 1", attempt: 1 });
  ways.durable("a", 105, { partition: 1, offset: 7 });
  ways.pushed("a", 109, { partition: 1, offset: 7, handler: "worker 1", attempt: 1 });
  assert.deepEqual(way.atMs, { durable: 5, pushed: 4, acked: null });
  assert.equal(way.handler, "worker 1");
  assert.deepEqual(
    segments(way).map(({ from, to }) => [from, to]),
    [
      [0.8, 1],
      [0, 0.8],
      [null, null],
    ],
  );
  ways.acked("a", 110);
  assert.deepEqual(
    segments(way).map(({ from, to }) => [from, to]),
    [
      [0.4, 0.5],
      [0, 0.4],
      [0.5, 1],
    ],
  );
});

test("each part of a way can be seen, and they fill the bar", () => {
  for (const atMs of [
    { durable: 4, pushed: 4, acked: 900 },
    { durable: 0, pushed: 0, acked: 0 },
  ]) {
    const parts = segments({ atMs });
    assert.deepEqual([parts[0].from, Math.round(parts[2].to * 1e9)], [0, 1e9]);
    parts.forEach(({ from, to }) => assert.ok(to - from > 0.05));
  }
});

test("what another tab's worker is given was pushed when it was read here", () => {
  const ways = new Ways();
  const way = ways.begin({ id: "a", key: "k", text: "t", nowMs: 100, isOwn: true });
  ways.elsewhere("a", "worker 1 of tab k3a");
  assert.equal(way.atMs.pushed, null, "not before it was read");
  ways.read("a", 107, { partition: 1, offset: 7 });
  ways.elsewhere("a", "worker 1 of tab k3a");
  assert.deepEqual([way.atMs.pushed, way.handler], [7, "worker 1 of tab k3a"]);
});

test("a message says what it waits for: the broker, or the queue's pause", () => {
  const ways = new Ways();
  const way = ways.begin({ id: "a", key: "k", text: "t", nowMs: 100, isOwn: true });
  const now = (isConnected, isQueuePaused) => waitsFor(way, { isConnected, isQueuePaused });
  assert.equal(now(true, false), "");
  assert.equal(now(false, false), "waits for the broker");
  ways.durable("a", 105, { partition: 1, offset: 7 });
  assert.equal(now(false, false), "");
  assert.equal(now(true, true), "waits: the queue is paused");
  ways.pushed("a", 109, { partition: 1, offset: 7, handler: "worker 1", attempt: 1 });
  assert.equal(now(true, true), "", "it was given before");
});

test("a scheduled message is measured from when it was due", () => {
  const ways = new Ways();
  const way = ways.begin({ id: "a", key: "k", text: "t", nowMs: 100, isOwn: true });
  const now = { isConnected: true, isQueuePaused: true };
  ways.due("a", 500);
  assert.equal(way.calledMs, 100, "it is not scheduled");
  ways.scheduled("a", 105, { partition: 1, dueUnixMs: 9000 });
  assert.deepEqual([way.atMs.durable, way.partition, way.offset], [5, 1, null]);
  assert.ok(ways.isAnyScheduled);
  assert.equal(waitsFor(way, now), "", "whatever is paused, it is not due");
  const texts = ["due in 9 s", "due in 8 s", "due now", "due now"];
  assert.deepEqual([8001, 8000, 0, -5].map(dueText), texts);
  ways.due("a", 10_100);
  ways.pushed("a", 10_104, { partition: 1, offset: 7, handler: "worker 1", attempt: 1 });
  assert.deepEqual(way.atMs, { durable: 0, pushed: 4, acked: null });
  assert.ok(!ways.isAnyScheduled);
});

test("what was taken back waits for nothing", () => {
  const ways = new Ways();
  const way = ways.begin({ id: "a", key: "k", text: "t", nowMs: 100, isOwn: true });
  ways.scheduled("a", 105, { partition: 1, dueUnixMs: 9000 });
  ways.takenBack("a");
  assert.deepEqual([way.dueUnixMs, way.trouble, way.isTakenBack], [null, "taken back", true]);
  assert.equal(waitsFor(way, { isConnected: true, isQueuePaused: true }), "");
  ways.takenBack("b");
});

test("ways are bounded, and what is forgotten does no harm", () => {
  const ways = new Ways(2);
  for (const id of ["a", "b", "c"]) {
    ways.begin({ id, key: null, text: "", nowMs: 0, isOwn: true });
  }
  assert.deepEqual(
    ways.list.map(({ id }) => id),
    ["c", "b"],
  );
  ways.acked("a", 5);
  ways.trouble("a", "late");
  assert.equal(ways.find("a"), null);
  assert.equal(ways.byId.size, 2);
});

test("the host's figures", () => {
  const figure = (body) => readFigure({ body });
  assert.deepEqual(figure({ busy_percent: 12.5, run: "x" }), {
    isKnown: true,
    text: "12.5 % busy",
    value: 12.5,
  });
  assert.equal(
    figure({ used_percent: 2, used_mib: 551, total_mib: 24105 }).text,
    "2 % of 23.5 GiB",
  );
  assert.equal(figure({ used_percent: 2 }).text, "2 % used");
  const disk = figure({ read_bytes_per_s: 1024, written_bytes_per_s: 2048 });
  assert.deepEqual([disk.text, disk.value], ["2.0 KiB/s written", 3072]);
  assert.equal(figure({ m1: 0.5 }).text, "0.5 load");
});

test("bodies that are no figures are text", () => {
  const figure = (body) => readFigure({ body });
  assert.deepEqual(figure(7), { isKnown: false, text: "7", value: 7 });
  for (const body of [null, [1], "<b>", { busy_percent: "9" }, { busy_percent: NaN }, {}]) {
    assert.equal(figure(body).isKnown, false);
    assert.equal(figure(body).value, null);
  }
  assert.equal(figure("<b>").text, "<b>");
  const broken = {
    get body() {
      throw new Error("no JSON");
    },
    bytes: new Uint8Array([255]),
  };
  assert.equal(readFigure(broken).text, "binary, 1 byte: ff");
});

test("workers of other tabs have names where the broker tells", async () => {
  const sessions = [
    { session: "s1", client: "tab-k3a/worker-2" },
    { session: "s2", client: "<b>/worker-1" },
    { session: "s3" },
  ];
  assert.deepEqual([...namesIn(sessions)], [["s1", "worker 2 of tab k3a"]]);
  let asked = 0;
  const client = (answer) => ({
    async sessions() {
      asked += 1;
      return answer ?? Promise.reject(new Error("overloaded"));
    },
  });
  const names = new Names();
  const here = new Map([["s3", "worker 1"]]);
  await names.ask(client(sessions), ["s3.1"], here); // nobody else: not asked
  assert.equal(asked, 0);
  assert.equal((await names.ask(client(null), ["s3.1", "s1.1"], here)).size, 0);
  for (let look = 0; look < 3; look += 1) {
    const known = await names.ask(client(sessions), ["s3.1", "s1.1", "s2.1"], here);
    assert.deepEqual([...known], [["s1", "worker 2 of tab k3a"], ["s2", undefined]]);
  }
  assert.equal(asked, 2, "again after a failure, and then never");
  assert.equal((await names.ask(client(null), ["s3.1"], here)).size, 0);
});

test("a tab without a past skips what waits, unless somebody is there or a key is parked", () => {
  const nobody = { consumers: 0, keys_parked: 0 };
  assert.equal(skipsBacklog(nobody, true), true);
  assert.equal(skipsBacklog(nobody, false), false);
  assert.equal(skipsBacklog({ ...nobody, consumers: 1 }, true), false);
  assert.equal(skipsBacklog({ ...nobody, keys_parked: 1 }, true), false);
  assert.equal(skippedSentence(0), "");
  assert.equal(
    skippedSentence(2128),
    "2,128 messages from before this visit were skipped.",
  );
  assert.equal(skippedSentence(1), "1 message from before this visit was skipped.");
});

test("work is seen shared when it moves after the page was ready, or by what is done here", () => {
  const [one, two] = [{ session: "one" }, { session: "two" }];
  const late = new Division(); // a second tab: it comes, partitions move to it, that is all
  assert.equal(late.look([one, null]), false);
  for (const owners of [[one, one], [one, two], [one, two], [one, two], [one, two]]) {
    assert.equal(late.look(owners), false);
  }
  assert.equal(late.look([one, null]), false, "under way");
  assert.equal(late.look([one, one]), true, "the other has gone");
  const early = new Division();
  early.acted();
  assert.equal(early.look([one, one]), false);
  assert.equal(early.look([one, two]), true);
  assert.equal(new Division().look([]), false);
});

test("silence is told only after it has lasted", () => {
  const figures = { shown: 11, live: 0, more: 0, silentMs: 0 };
  assert.equal(sayFigures({ ...figures, silentMs: 4999 }), "Waiting for new figures.");
  assert.match(sayFigures({ ...figures, silentMs: 5000 }), /^No new figures/);
  assert.match(sayFigures({ ...figures, shown: 0, silentMs: 9999 }), /first figures/);
  assert.equal(sayFigures({ ...figures, live: 7 }), "Live: 7 of 11 keys; the others are quiet.");
  assert.equal(
    sayFigures({ ...figures, live: 11, more: 2 }),
    "Live: 11 keys. Not shown: 2 more keys.",
  );
});

test("what looks like JSON and is none is remarked on, and sent as text", () => {
  assert.equal(remarkOn('{"broken":'), "Sent as text: it is no JSON.");
  assert.equal(parseBody('{"broken":'), '{"broken":');
  for (const text of ['{"a": 1}', "Good morning", "", "12", ' ["x"]', '"text"', "<b>"]) {
    assert.equal(remarkOn(text), "");
  }
});

class Store {
  constructor(item = null) {
    this.item = item;
  }
  getItem() {
    return this.item;
  }
  setItem(name, item) {
    this.item = item;
  }
}

test("a tab remembers its steps and workers, and nothing that is not its own", () => {
  const store = new Store();
  const memory = new Memory(store);
  assert.match(memory.tab, /^tab-[a-z0-9]{3}$/);
  assert.equal(memory.setDone(3), true);
  assert.equal(memory.setDone(3), false);
  memory.workers = 2;
  const again = new Memory(store);
  assert.deepEqual([memory.isNew, again.isNew], [true, false]);
  assert.deepEqual([again.tab, again.workers, again.isDone(3)], [memory.tab, 2, true]);
  for (const item of ["{", "null", '{"tab":"<b>","workers":99,"done":["x"]}', "[]"]) {
    const fresh = new Memory(new Store(item));
    assert.match(fresh.tab, /^tab-[a-z0-9]{3}$/);
    assert.ok(fresh.workers <= 4);
    assert.equal(fresh.doneCount, 0);
    assert.equal(fresh.isNew, true);
  }
  assert.equal(new Memory(null).workers, 1);
});
