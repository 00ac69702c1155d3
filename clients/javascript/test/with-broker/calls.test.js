/** Every call over HTTP, against the broker at TOCSIN_URL (tests/javascript/test_calls.py). */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import {
  Conflict, connect, GroupNotFound, InvalidRequest, NotFound, QueueNotFound, SettingsDiffer,
  WouldDelete,
} from "../../src/index.js";

const PARTITIONS = 2;
let client;
let count = 0;

before(async () => {
  client = await connect(process.env.TOCSIN_URL, { name: "a program" });
});
after(() => client.close());

/** A queue of its own with a group that has settled nothing yet. */
async function queueOf(keys, settings = {}) {
  count += 1;
  const name = `q${count}`;
  await client.createQueue(name, { partitions: PARTITIONS, backoffS: 0, ...settings });
  await client.createGroup(name, "g", { start: "earliest" });
  for (const [number, key] of keys.entries()) {
    await client.publish(name, number, { key, id: `${name}-${number}` });
  }
  return name;
}

/** So many messages: a pull gives what is there, and waits only where nothing is. */
async function pulled(queue, count) {
  const given = [];
  while (given.length < count) {
    const options = { messagesMax: count - given.length, waitS: 10 };
    given.push(...(await client.pull(queue, "g", options)));
  }
  return given;
}

function bodies(messages) {
  return messages.map(({ body }) => body);
}

test("queues are made, described, listed, paused and resumed", async () => {
  const name = await queueOf([null, null], { retentionS: 600 });
  assert.equal((await client.queue(name)).depth, 2);
  assert.equal((await client.queue(name)).settings.retention_s, 600);
  assert.ok((await client.queues()).some((queue) => queue.name === name));
  assert.equal((await client.pauseQueue(name)).paused, true);
  assert.deepEqual(await client.pull(name, "g"), []);
  assert.equal((await client.resumeQueue(name)).paused, false);
  assert.equal((await pulled(name, 2)).length, 2);
  await assert.rejects(client.queue("nowhere"), QueueNotFound);
});

test("an app's calls at its start change nothing, and say what differs", async () => {
  const made = await client.createQueue("start", { retentionS: 600, attemptsMax: 9 });
  assert.equal(made.created, true);
  await client.createGroup("start", "g", { leaseS: 99 });
  for (const settings of [{}, { attemptsMax: 9 }, { retentionS: 600, attemptsMax: 9 }]) {
    const again = await client.createQueue("start", settings);
    assert.deepEqual([again.created, again.settings], [false, made.settings]);
  }
  await assert.rejects(client.createQueue("start", { partitions: 3, attemptsMax: 9 }), (error) => {
    assert.ok(error instanceof SettingsDiffer && error instanceof Conflict);
    assert.deepEqual(error.differences, [
      { name: "partitions", current: 16, requested: 3, fixed: true },
    ]);
    return error.code === "settings_differ";
  });
  const same = client.subscribe("start", "g", { leaseS: 99, attemptsMax: 9 }); // the queue's
  await same.opened;
  await same.close();
  const other = client.subscribe("start", "g", { leaseS: 60 });
  await assert.rejects(other.opened, SettingsDiffer);
  assert.deepEqual((await client.queue("start")).settings, made.settings);
  assert.equal((await client.group("start", "g")).settings.lease_s, 99);
});

test("a change names what changes, and says how many messages it deletes", async () => {
  const late = { name: "late", when: "lag", above: 5, lastsS: 9, queue: "ops" };
  const queue = await queueOf(["a", "b", "c"], { retentionS: 600, alerts: [late] });
  for (const { receipt } of await pulled(queue, 3)) await client.ackReceipts(queue, "g", [receipt]);
  const changed = await client.updateQueue(queue, {
    messageTtlS: 60,
    alerts: { late: { above: 6 }, deep: { when: "depth", above: 1, webhook: "pager" } },
  });
  assert.deepEqual(changed.changes.map(({ name }) => name), ["message_ttl_s", "alerts"]);
  assert.deepEqual(changed.settings.alerts.map(({ name, above }) => [name, above]), [
    ["late", 6],
    ["deep", 1],
  ]);
  assert.equal(changed.settings.alerts[0].lasts_s, 9);
  await assert.rejects(client.updateQueue(queue, { retentionS: 0 }), (error) => {
    assert.ok(error instanceof WouldDelete);
    return error.messages === 3 && error.deleted === 3 && error.deadLettered === 0;
  });
  assert.equal((await client.queue(queue)).settings.retention_s, 600);
  const options = { deletesMax: 3 };
  assert.equal((await client.updateQueue(queue, { retentionS: 0 }, options)).deleted, 3);
  const any = { deletesMax: null };
  assert.equal((await client.updateQueue(queue, { retentionS: 5 }, any)).dead_lettered, 0);
  const group = await client.updateGroup(queue, "g", { leaseS: 60 });
  assert.deepEqual(group.changes, [{ name: "lease_s", before: null, after: 60 }]);
  assert.equal((await client.updateGroup(queue, "g", { leaseS: null })).settings.lease_s, null);
  await assert.rejects(client.updateGroup(queue, "nobody", {}), GroupNotFound);
  await assert.rejects(client.updateQueue("nowhere", {}), QueueNotFound);
});

test("what is pulled is acked, returned and prolonged by its receipt", async () => {
  const queue = await queueOf(["a", "b", "c"]);
  const given = await pulled(queue, 3);
  const [one, two, three] = given.map(({ receipt }) => receipt);
  assert.deepEqual(bodies(given).sort(), [0, 1, 2]);
  assert.deepEqual(given.map(({ attempt }) => attempt), [1, 1, 1]);
  assert.ok(given.every(({ leaseUntilUnixMs }) => leaseUntilUnixMs > Date.now()));
  const nothing = { stale: [], invalid: [] };
  assert.deepEqual(await client.ackReceipts(queue, "g", [one]), { settled: 1, ...nothing });
  const back = await client.nackReceipts(queue, "g", [two], { delayS: 0 });
  assert.deepEqual(back, { settled: 1, ...nothing });
  const longer = await client.extendReceipts(queue, "g", [three], { leaseS: 90 });
  assert.deepEqual(longer, { settled: 1, ...nothing });
  await assert.rejects(client.ackReceipts(queue, "g", ["what"]), InvalidRequest);
  const [again] = await pulled(queue, 1);
  assert.deepEqual([again.body, again.attempt], [given[1].body, 2]);
  assert.deepEqual((await client.ackReceipts(queue, "g", [two])).stale, [two]);
  const mixed = await client.ackReceipts(queue, "g", [again.receipt, "what"]);
  assert.deepEqual(mixed, { settled: 1, stale: [], invalid: ["what"] });
});

test("what is rejected by its receipt is dead-lettered at once, with the reason", async () => {
  const queue = await queueOf(["a", "b"]);
  const [{ receipt }, { receipt: other }] = await pulled(queue, 2);
  const done = await client.rejectReceipts(queue, "g", [receipt], { reason: "no such account" });
  assert.deepEqual(done, { settled: 1, stale: [], invalid: [] });
  let letters = [];
  while (letters.length === 0) letters = await client.deadLetters(queue);
  const [letter] = letters;
  assert.deepEqual([letter.reason, letter.nackReason], ["rejected", "no such account"]);
  assert.equal(letter.attempts, 1);
  await client.nackReceipts(queue, "g", [other], { delayS: 60, reason: "card declined" });
  const [held] = await client.heldKeys(queue, "g");
  assert.deepEqual([held.reason, held.nack], ["backoff", "card declined"]);
});

test("a key is explained, and what waits and what is in flight is listed", async () => {
  const queue = await queueOf(["user-7", "user-7", "user-8"]);
  const given = await pulled(queue, 3);
  const leases = await client.leases(queue, "g");
  assert.deepEqual(leases.map(({ key }) => key).sort(), ["user-7", "user-7", "user-8"]);
  assert.equal((await client.leases(queue, "g", { limit: 2 })).length, 2);
  const first = given.find(({ key }) => key === "user-7");
  await client.nackReceipts(queue, "g", [first.receipt], { delayS: 60 });
  const [held] = await client.heldKeys(queue, "g");
  assert.deepEqual([held.key, held.reason], ["user-7", "backoff"]);
  await client.createGroup(queue, "other");
  const all = await client.explain(queue, "user-7");
  assert.deepEqual(all.groups.map(({ group }) => group), ["g", "other"]);
  const { groups } = await client.explain(queue, "user-7", { group: "g" });
  assert.deepEqual(groups.map(({ waits_for: why }) => why), ["backoff"]);
  await assert.rejects(client.explain(queue, "k", { group: "nobody" }), GroupNotFound);
});

test("the explanation of many groups is put together from its pages", async () => {
  const queue = await queueOf(["k"]);
  const names = Array.from({ length: 120 }, (_, number) => `g${100 + number}`);
  for (const name of names) await client.createGroup(queue, name);
  const { groups } = await client.explain(queue, "k");
  assert.deepEqual(groups.map(({ group }) => group), ["g", ...names]);
});

test("sessions are listed by the names of their clients", async () => {
  const names = (await client.sessions()).map((session) => session.client);
  assert.deepEqual(names, ["a program"]);
  const other = await connect(process.env.TOCSIN_URL, { name: "another" });
  assert.equal((await client.sessions()).length, 2);
  assert.equal((await client.sessions({ limit: 1 })).length, 1);
  await other.close();
});

test("messages are looked at where they stand", async () => {
  const queue = await queueOf(["a", "b", "a"]);
  const found = await client.peek(queue, { group: "g" });
  assert.deepEqual(bodies(found).sort(), [0, 1, 2]);
  assert.ok(found.every(({ state, attempts }) => state === "ready" && attempts === 0));
  assert.equal((await client.peek(queue, { limit: 2 })).length, 2);
  assert.deepEqual(bodies(await client.peek(queue, { key: "a" })), [0, 2]);
  await assert.rejects(client.peek(queue, { partition: -1 }), InvalidRequest);
});

test("dead letters are listed and go back", async () => {
  const queue = await queueOf(["k", "l"], { attemptsMax: 1 });
  const given = await pulled(queue, 2);
  const receipts = given.map(({ receipt }) => receipt);
  await client.nackReceipts(queue, "g", receipts);
  let letters = [];
  while (letters.length < 2) letters = await client.deadLetters(queue);
  assert.deepEqual(bodies(letters).sort(), [0, 1]);
  assert.ok(letters.every(({ reason, attempts }) => reason === "exhausted" && attempts === 1));
  assert.deepEqual(bodies(await client.deadLetters(queue, { key: "l" })), [1]);
  assert.deepEqual(await client.deadLetters(queue, { reason: "expired" }), []);
  assert.equal(await client.redrive(queue, { key: "l" }), 1);
  assert.equal(await client.redrive(queue), 1);
  assert.deepEqual(bodies(await pulled(queue, 2)).sort(), [0, 1]);
});

test("a parked key is retried, skipped and released", async () => {
  const settings = { attemptsMax: 1, onExhausted: "park" };
  for (const [decision, next] of [["retry", 0], ["release", 0], ["skip", 1]]) {
    const queue = await queueOf(["k", "k"], settings);
    const [first] = await pulled(queue, 2);
    await client.nackReceipts(queue, "g", [first.receipt]);
    let parked = { keys: [] };
    while (parked.keys.length === 0) parked = await client.parked(queue, "g");
    assert.deepEqual([parked.keys[0].key, parked.keys_parked], ["k", 1]);
    await client.decide(queue, "g", decision, { key: "k" });
    assert.equal((await pulled(queue, 1))[0].body, next, decision);
  }
});

test("a group is sent elsewhere, and deleted", async () => {
  // Without a retention the broker may sweep what the last group is past at any time.
  const queue = await queueOf(["k", "k"], { retentionS: 600 });
  assert.equal((await client.group(queue, "g")).lag, 2);
  await client.seekGroup(queue, "g", "latest");
  assert.equal((await client.group(queue, "g")).lag, 0);
  await client.seekGroup(queue, "g", 0);
  assert.equal((await client.group(queue, "g")).lag, 2);
  assert.equal(await client.deleteGroup(queue, "g"), 0);
  await assert.rejects(client.group(queue, "g"), GroupNotFound);
});

test("what deletes messages of a group says how many before", async () => {
  const queue = await queueOf(["k", "k"]);
  const wouldDelete = (error) => error instanceof WouldDelete && error.deleted === 2;
  await assert.rejects(client.seekGroup(queue, "g", "latest"), wouldDelete);
  await client.createGroup(queue, "other", { start: "latest" });
  await assert.rejects(client.deleteGroup(queue, "g"), wouldDelete);
  assert.equal((await client.group(queue, "g")).lag, 2);
  const some = { deletesMax: 2 };
  assert.equal((await client.seekGroup(queue, "g", "latest", some)).deleted, 2);
  assert.equal(await client.deleteGroup(queue, "g", { deletesMax: null }), 0);
  const fresh = `${queue}-fresh`;
  await client.createQueue(fresh);
  await client.publish(fresh, 1);
  const start = { start: "latest" };
  const one = (error) => error instanceof WouldDelete && error.deleted === 1;
  await assert.rejects(client.createGroup(fresh, "g", start), one);
  for (const own of [start, { ...start, leaseS: 9 }]) {
    await assert.rejects(client.subscribe(fresh, "g", own).opened, one);
  }
  assert.ok((await client.createGroup(fresh, "g", start, { deletesMax: 1 })).created);
  const other = `${queue}-other`;
  await client.createQueue(other);
  await client.publish(other, 1);
  const place = client.subscribe(other, "g", { start: "latest", deletesMax: null });
  await place.opened;
  assert.equal((await client.group(other, "g")).lag, 0);
  await place.close();
});

test("a queue is purged, for a group and for all", async () => {
  const queue = await queueOf(["k", "k"], { retentionS: 600 });
  assert.equal(await client.purge(queue, { group: "g" }), 2);
  assert.equal((await client.queue(queue)).depth, 2);
  assert.equal(await client.purge(queue, { all: true }), 2);
  assert.equal((await client.queue(queue)).depth, 0);
});

test("a scheduled message comes when it is due, and says when that was", async () => {
  const queue = await queueOf([]);
  const deliverAt = new Date(Date.now() + 300);
  const receipt = await client.publish(queue, "later", { key: "k", deliverAt });
  assert.deepEqual([receipt.isScheduled, receipt.offset], [true, null]);
  assert.deepEqual([receipt.id, receipt.due], [receipt.ticket, deliverAt]);
  const now = await client.publish(queue, "now", { key: "k" });
  assert.deepEqual([now.isScheduled, now.ticket, now.due], [false, null, null]);
  const messages = client.subscribe(queue, "g");
  const got = [];
  for await (const message of messages) {
    got.push([message.body, message.deliverAtUnixMs]);
    await message.ack();
    if (got.length === 2) break;
  }
  assert.deepEqual(got, [["now", null], ["later", deliverAt.getTime()]]);
  assert.ok(Date.now() >= deliverAt.getTime());
  await messages.close();
});

test("scheduled messages are listed, shown, changed and cancelled", async () => {
  const queue = await queueOf([]);
  const messages = [0, 1, 2, 3].map((n) => (
    { body: n, key: `k${n % 2}`, id: `é? ${n}`, delayS: 3600 - n }
  ));
  const receipts = await client.publishMany(queue, messages);
  const again = await client.publish(queue, 0, { key: "k0", id: "é? 0", delayS: 9 });
  assert.deepEqual([again.duplicate, again.ticket], [true, receipts[0].ticket]);
  const first = await client.scheduled(queue, { limit: 3 });
  assert.deepEqual([bodies(first.messages), first.count], [[3, 2, 1], 4]);
  const rest = await client.scheduled(queue, { limit: Infinity, after: first.next });
  assert.deepEqual([bodies(rest.messages), rest.next], [[0], null]);
  assert.deepEqual(bodies((await client.scheduled(queue, { key: "k1" })).messages), [3, 1]);
  const deliverAt = new Date(Date.now() + 86_400_000);
  const key = "k0";
  const moved = await client.changeScheduled(queue, "é? 2", { key, deliverAt });
  assert.deepEqual([moved.due, moved.hasContent, moved.body], [deliverAt, false, null]);
  const headers = { a: "b" };
  await client.changeScheduled(queue, moved.ticket, { body: new Uint8Array([1]), headers });
  const shown = await client.scheduledMessage(queue, "é? 2", { key });
  assert.deepEqual([[...shown.body], shown.headers, shown.due], [[1], headers, deliverAt]);
  assert.equal((await client.cancelScheduled(queue, "é? 2", { key })).id, "é? 2");
  await assert.rejects(client.cancelScheduled(queue, "é? 2", { key }), Conflict);
  await assert.rejects(client.cancelScheduled(queue, "nobody"), NotFound);
  await assert.rejects(client.changeScheduled(queue, "é? 1", { key: "k1" }), InvalidRequest);
  await assert.rejects(client.changeScheduled(queue, "é? 1", { id: "x" }), InvalidRequest);
  await assert.rejects(client.cancelScheduled(queue, "a/b"), /name the message by its ticket/);
});
