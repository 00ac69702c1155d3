/** Who owns which partition: letters, names, several gateways. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Owners, sessionOf } from "../demo/owners.js";

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

test("of several gateways each says whose a partition is that another one serves", () => {
  const owners = new Owners();
  const names = { here: new Map([["s-two", "worker 1"]]), elsewhere: new Map() };
  const shared = {
    members: ["s-one.1~0a1b2c3d", "s-two.1~4c3c94ac"],
    partitions: [
      { partition: 0, owner: null, member: "s-two.1~4c3c94ac", lag: 3 },
      { partition: 1, owner: { consumer: "s-one.1~0a1b2c3d" }, member: "s-two.1~4c3c94ac" },
      { partition: 2, owner: null, member: null },
    ],
  };
  owners.look(shared, names, 3);
  assert.deepEqual(
    owners.partitions.map((owner) => owner?.letter ?? ""),
    ["A", "B", ""],
    "who is given it now counts before who is to have it",
  );
  assert.deepEqual(
    owners.workers.map(({ name, isHere, waiting }) => [name, isHere, waiting]),
    [["worker 1", true, 3], ["a worker elsewhere", false, 0]],
  );
});

test("a description that is none is an empty group", () => {
  for (const garbage of [null, "x", { members: "x", partitions: 4 }, { members: [1] }]) {
    const owners = new Owners();
    owners.look(garbage, { here: new Map(), elsewhere: new Map() }, 2);
    assert.deepEqual([owners.workers, owners.partitions, owners.lag], [[], [null, null], 0]);
  }
  assert.equal(sessionOf("M8mPIrAWs2tU.12"), "M8mPIrAWs2tU");
  assert.equal(sessionOf("M8mPIrAWs2tU.12~4c3c94ac"), "M8mPIrAWs2tU");
  assert.equal(sessionOf(undefined), "");
});

test("a page whose keys are all elsewhere knows it", () => {
  const owners = new Owners();
  const names = { here: new Map([["s-one", "worker 1"]]), elsewhere: new Map() };
  owners.look(described, names, 4);
  assert.equal(owners.areElsewhere([0, 1]), false);
  assert.equal(owners.areElsewhere([1]), true);
  assert.equal(owners.areElsewhere([1, 2]), false, "nobody's yet");
  assert.equal(owners.areElsewhere([]), false);
});
