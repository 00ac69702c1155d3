/** What is pure of the demo: measures, ways, lanes, owners, names, memory. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { readFigure } from "../demo/figures.js";
import { Lanes, standing } from "../demo/lanes.js";
import { ClockOffset, Latencies, percentile } from "../demo/latency.js";
import { Memory } from "../demo/memory.js";
import { Names, namesIn } from "../demo/names.js";
import { Owners, sessionOf } from "../demo/owners.js";
import { Ring } from "../demo/ring.js";
import { segments, Ways } from "../demo/ways.js";

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
  ways.pushed("a", 104, { partition: 1, offset: 7, handler: "", attempt: 1 });
  ways.durable("a", 105, { partition: 1, offset: 7 });
  ways.pushed("a", 109, { partition: 1, offset: 7, handler: "worker 1", attempt: 1 });
  assert.deepEqual(way.atMs, { durable: 5, pushed: 4, acked: null });
  assert.equal(way.handler, "worker 1");
  assert.deepEqual(
    segments(way).map(({ to }) => to),
    [1, 0.8, null],
  );
  ways.acked("a", 110);
  assert.deepEqual(
    segments(way).map(({ from, to }) => [from, to]),
    [
      [0, 0.5],
      [0.4, 0.4],
      [0.5, 1],
    ],
  );
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

const message = (over) => ({ key: "cpu0", partition: 3, offset: 1, attempt: 1, ...over });

test("a nacked key is held until its message comes again", () => {
  const lanes = new Lanes({ attemptsMax: 3 });
  lanes.started(message(), "worker 1", 0);
  assert.equal(lanes.nacked(message(), 0, 4000), true);
  const lane = lanes.find("cpu0");
  const at = (nowMs) => standing(lane, { nowMs, attemptsMax: 3, parked: null, isPaused: false });
  assert.deepEqual(at(0), { state: "held", text: "held: comes again in 4 s, attempt 2 of 3" });
  assert.match(at(3001).text, /in 1 s/);
  assert.match(at(4000).text, /comes again now/);
  lanes.started(message({ attempt: 2 }), "worker 1", 4001);
  assert.deepEqual(at(4001), { state: "quiet", text: "handled elsewhere" });
  lanes.handled(message({ attempt: 2 }), 4002);
  assert.deepEqual(at(4003), { state: "flowing", text: "flowing, 0.2 a second" });
  assert.deepEqual(at(9003), { state: "quiet", text: "quiet" });
});

test("the last attempt parks", () => {
  const lanes = new Lanes({ attemptsMax: 3 });
  assert.equal(lanes.nacked(message({ attempt: 3 }), 0, 1000), false);
  const lane = lanes.find("cpu0");
  const now = { nowMs: 1, attemptsMax: 3, parked: null, isPaused: true };
  assert.equal(standing(lane, now).text, "attempt 3 of 3 failed: being parked");
  const parked = { messages: 12, attempts: 3 };
  assert.equal(
    standing(lane, { ...now, parked }).text,
    "parked after 3 attempts: 12 messages wait",
  );
  lanes.freed("cpu0");
  assert.equal(standing(lane, now).state, "paused");
});

test("an inversion is seen, a redelivery is none", () => {
  const lanes = new Lanes();
  lanes.handled(message({ offset: 5 }), 1);
  lanes.handled(message({ offset: 6 }), 2);
  lanes.handled(message({ offset: 4, attempt: 2 }), 3);
  assert.equal(lanes.inversions, 0);
  lanes.handled(message({ offset: 6 }), 4);
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

const described = {
  lag: 7,
  keys_parked: 1,
  members: ["s-one.1", "s-two.1"],
  absent: ["s-two.1"],
  partitions: [
    { partition: 0, owner: { consumer: "s-one.1" }, in_flight: 2, lag: 5 },
    { partition: 1, owner: { consumer: "s-two.1" }, in_flight: 1 },
    { partition: 2, owner: null, in_flight: 0 },
  ],
};

test("who owns what, by letters that stay", () => {
  const owners = new Owners();
  const names = { here: new Map([["s-two", "worker 1"]]), elsewhere: new Map() };
  owners.look(described, names, 4);
  assert.deepEqual(
    owners.workers.map(({ letter, name, isHere, isAbsent }) => [letter, name, isHere, isAbsent]),
    [
      ["A", "worker 1", true, true],
      ["B", "a worker elsewhere", false, false],
    ],
  );
  assert.deepEqual(
    owners.partitions.map((owner) => owner?.letter ?? ""),
    ["B", "A", "", ""],
  );
  assert.deepEqual([owners.lag, owners.inFlight, owners.keysParked], [7, 3, 1]);
  assert.deepEqual(
    owners.workers.map(({ waiting }) => waiting),
    [0, 5],
  );
  assert.equal(owners.of(null), null);
  assert.equal(owners.of(99), null);

  const left = { members: ["s-one.1", "s-three.1"], partitions: [] };
  owners.look(left, names, 4);
  assert.deepEqual(
    owners.workers.map(({ letter, session }) => letter + session),
    ["As-three", "Bs-one"],
  );
});

test("a description that is none is an empty group", () => {
  for (const garbage of [null, "x", { members: "x", partitions: 4 }, { members: [1] }]) {
    const owners = new Owners();
    owners.look(garbage, { here: new Map(), elsewhere: new Map() }, 2);
    assert.deepEqual([owners.workers, owners.partitions, owners.lag], [[], [null, null], 0]);
  }
  assert.equal(sessionOf("M8mPIrAWs2tU.12"), "M8mPIrAWs2tU");
  assert.equal(sessionOf(undefined), "");
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
  assert.deepEqual([again.tab, again.workers, again.isDone(3)], [memory.tab, 2, true]);
  for (const item of ["{", "null", '{"tab":"<b>","workers":99,"done":["x"]}', "[]"]) {
    const fresh = new Memory(new Store(item));
    assert.match(fresh.tab, /^tab-[a-z0-9]{3}$/);
    assert.ok(fresh.workers <= 4);
    assert.equal(fresh.doneCount, 0);
  }
  assert.equal(new Memory(null).workers, 1);
});
