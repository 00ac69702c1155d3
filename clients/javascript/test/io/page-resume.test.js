/** A page that is left and comes back, what it finds, and arguments that are none. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { connect } from "../../src/index.js";
import { chance, World } from "../world.js";

const KEY = "tocsin.resume.page";
const URL = "http://broker.test";

/** What sessionStorage keeps. */
function storage() {
  const kept = new Map();
  return {
    kept,
    isFull: false,
    getItem: (key) => kept.get(key) ?? null,
    setItem(key, text) {
      if (this.isFull) throw new DOMException("full", "QuotaExceededError");
      kept.set(key, text);
    },
    removeItem: (key) => kept.delete(key),
  };
}

function tab(seed = 1) {
  const world = new World(chance(seed));
  const page = new EventTarget();
  Object.assign(world.environment, { page, storage: storage() });
  const tell = (type) => page.dispatchEvent(Object.assign(new Event(type), { persisted: true }));
  return Object.assign(world, { storage: world.environment.storage, tell });
}

async function opened(world, options = {}) {
  const { environment } = world;
  const settings = { transport: "websocket", resume: "page", ...options, environment };
  const connecting = connect(URL, settings);
  await world.carry();
  return connecting;
}

/** A snapshot that is good but for what is given. */
function snapshot(changes = {}, place = {}) {
  const consumer = {
    number: 1, queue: "q", group: "g", leaseMs: 30_000, received: 0, acked: [], ...place,
  };
  return {
    version: 2, url: URL, session: "s1", producer: "p", sequences: { q: 4 }, numberMax: 2,
    refMax: 9,
    consumers: [consumer], readers: [], ...changes,
  };
}

const reader = (position) => ({ readers: [{ queue: "q", keys: null, position }] });
const twice = snapshot().consumers[0];
const DAMAGED = [
  "{", "null", "[]", "7",
  ...[
    snapshot({ version: 1 }), snapshot({ url: "http://other.test" }), snapshot({ session: 5 }),
    snapshot({ sequences: { q: -1 } }), snapshot({ numberMax: -3 }), snapshot({}, { number: 3 }),
    snapshot({}, { number: 0 }), snapshot({}, { leaseMs: 0 }), snapshot({}, { leaseMs: "9" }),
    snapshot({}, { received: -1 }), snapshot({}, { acked: [[1]] }),
    snapshot({ consumers: [twice, twice] }), snapshot({ consumers: [null] }),
    snapshot(reader({})), snapshot(reader({ queue_id: 5, partitions: {} })),
    snapshot(reader({ queue_id: "q", partitions: { 0: [1] } })),
  ].map((said) => JSON.stringify(said)),
];

test("a snapshot that is damaged, or of another version, is as none", async () => {
  for (const text of [...DAMAGED, JSON.stringify(snapshot())]) {
    const world = tab();
    world.storage.kept.set(KEY, text);
    const client = await opened(world);
    assert.equal(client.producer === "p", !DAMAGED.includes(text), text);
    client.read("q");
    const messages = client.subscribe("q", "g");
    await world.carry();
    await messages.opened;
    assert.equal(world.storage.kept.size, 0);
  }
});

test("a page that was loaded again begins behind the refs of before", async () => {
  const world = tab();
  world.storage.kept.set(KEY, JSON.stringify(snapshot()));
  const refs = [];
  const hear = world.broker.hear.bind(world.broker);
  world.broker.hear = (frame) => {
    if (frame.ref !== undefined) refs.push(frame.ref);
    hear(frame);
  };
  const client = await opened(world);
  client.read("q");
  await world.carry();
  // An answer to what was asked before would be taken for that to another question.
  assert.ok(refs.length > 0 && refs.every((ref) => ref > 9), `${refs}`);
});

const WALL_MS = 1_763_726_400_000.5;

/** Open a client at WALL_MS, publish to `q` and to `other`, and find each first sequence. */
async function firstSequences(world, options) {
  world.environment.wall = () => WALL_MS;
  const found = {};
  const hear = world.broker.hear.bind(world.broker);
  world.broker.hear = (frame) => {
    if (frame.type === "publish") found[frame.queue] = [frame.sequence, frame.resolved];
    else hear(frame);
  };
  const client = await opened(world, options);
  for (const queue of ["q", "other"]) client.publish(queue, 1).catch(() => {});
  await world.carry();
  await client.close();
  return found;
}

test("under a name that earlier pages may have had, numbers begin at the clock", async () => {
  const clock = [1000 * WALL_MS, 1000 * WALL_MS];
  const start = [0, 0];
  const begun = { q: clock, other: clock };
  assert.deepEqual(await firstSequences(tab(), {}), { q: start, other: start });
  assert.deepEqual(await firstSequences(tab(), { producer: "p" }), begun);
  assert.deepEqual(await firstSequences(tab(), { producer: "p", resume: undefined }), begun);
  for (const producer of [undefined, "p"]) {
    const world = tab();
    world.storage.kept.set(KEY, JSON.stringify(snapshot()));
    const found = await firstSequences(world, { producer });
    assert.deepEqual(found, { q: [4, 4], other: clock }, "the snapshot's go on");
  }
});

test("a page that may keep nothing begins anew, and works", async () => {
  const world = tab();
  world.storage.isFull = true;
  const client = await opened(world);
  world.tell("pagehide");
  assert.ok(!client.isConnected, "its places are others' while it is kept");
  world.tell("pageshow");
  await world.pass(1000);
  await world.carry();
  assert.ok(client.isConnected);
});

for (const [goes, comes] of [["pagehide", "pageshow"], ["freeze", "resume"]]) {
  test(`between ${goes} and ${comes} others have its places, and it begins anew`, async () => {
    const world = tab();
    const client = await opened(world, { resume: undefined });
    const { producer, sessionId } = client;
    const messages = client.subscribe("q", "g");
    world.broker.publish("a");
    await world.carry();
    const message = messages.nextNowait();
    assert.ok(message.isHeld);
    world.tell(goes);
    world.tell(goes === "freeze" ? "pagehide" : "freeze"); // the other one may follow
    assert.ok(!client.isConnected);
    await world.pass(60_000);
    assert.equal(world.links, 1, "nothing is tried meanwhile");
    world.tell(comes);
    await world.pass(1000);
    await world.carry();
    assert.ok(client.isConnected);
    assert.ok(!message.isHeld, "its session has ended, and what it was given is others'");
    assert.notEqual(client.sessionId, sessionId);
    assert.equal(client.producer, producer, "what was published goes on under its numbers");
    assert.equal(world.links, 2);
  });
}

test("a page that is frozen while it connects for the first time goes on connecting", async () => {
  const world = tab();
  const { environment } = world;
  const connecting = connect(URL, { transport: "websocket", environment });
  world.tell("freeze");
  world.tell("resume");
  await world.carry();
  assert.ok((await connecting).isConnected);
});

test("of two clients of one name the last one that wrote goes on, and the other anew", async () => {
  const world = tab();
  const first = await opened(world);
  const producer = first.producer;
  world.tell("pagehide");
  world.storage.kept.set(KEY, "of the other client");
  world.tell("pageshow");
  assert.equal(world.storage.kept.get(KEY), "of the other client");
  assert.notEqual(first.producer, producer);
  await world.pass(1000);
  await world.carry();
  assert.ok(first.isConnected);
});

test("a token that comes late is of no attempt from before the page was left", async () => {
  const world = tab();
  const givers = [];
  const asked = () => new Promise((resolve) => givers.push(resolve));
  let isLate = false;
  const client = await opened(world, { token: () => (isLate ? asked() : "token") });
  isLate = true;
  world.cut();
  await world.pass(200);
  assert.equal(givers.length, 1);
  world.tell("pagehide");
  world.tell("pageshow");
  await world.pass(200);
  assert.equal(givers.length, 2);
  for (const give of givers) give("token");
  await world.carry();
  assert.ok(client.isConnected);
  await world.pass(20_000);
  await world.carry();
  assert.equal(world.links, 2, "the first one, and one more");
});

test("delays, leases and timeouts that are none are refused, and nothing is said", async () => {
  const world = tab();
  const client = await opened(world);
  const messages = client.subscribe("q", "g");
  world.broker.publish("a");
  await world.carry();
  const message = messages.nextNowait();
  const refused = { code: "invalid_request" };
  for (const delayS of ["5", -1, NaN, Infinity, 86_401]) {
    await assert.rejects(message.nack({ delayS }), refused);
  }
  for (const reason of [5, {}, "a".repeat(1025)]) {
    await assert.rejects(message.nack({ reason }), refused);
  }
  for (const leaseS of ["5", 0, -1, NaN, 43_201]) {
    await assert.rejects(message.extend({ leaseS }), refused);
  }
  for (const timeoutS of ["5", NaN, -1]) {
    await assert.rejects(client.publish("q", 1, { timeoutS }), TypeError);
    await assert.rejects(client.publishMany("q", [{ body: 1 }], { timeoutS }), TypeError);
  }
  assert.equal(client.unanswered, 0);
  assert.ok(message.isHeld);
  const extending = message.extend({ leaseS: 43_200 });
  await world.carry();
  await extending;
  await message.nack({ delayS: 86_400, reason: "a".repeat(1024) });
  for (const concurrency of [0, 1.5, "2"]) {
    assert.throws(() => client.subscribe("q", "h", { concurrency, credit: 4 }), TypeError);
  }
});
