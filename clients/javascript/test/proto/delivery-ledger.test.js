/** A consumer's ledger: what is handed out, what is credited, what is sent again. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { UNCONFIRMED_ROWS } from "../../src/proto/ack-ledger.js";
import { AHEAD, DeliveryLedger } from "../../src/proto/delivery-ledger.js";
import { DeliveryState, Message } from "../../src/proto/message.js";
import { StaleDelivery } from "../../src/proto/errors.js";
import { decode } from "../../src/proto/wire.js";

const LEASE_MS = 30_000;

function counter() {
  let last = 0;
  return () => (last += 1);
}

function ledger({ credit = 4, ...more } = {}) {
  const settler = { atWork: new Set(), onGone: (message) => settler.atWork.has(message) };
  const made = new DeliveryLedger(settler, { subscription: 1, credit, leaseMs: LEASE_MS, ...more });
  return Object.assign(made, { settler });
}

function push(fields) {
  return decode(JSON.stringify({ type: "push", subscription: 1, partition: 0, ...fields }))[0];
}

function pushed(offset, keys, more = {}) {
  const messages = keys.map((key, index) => ({ key, body: offset + index }));
  return push({ epoch: 1, push: offset + 1, offset, messages, ...more });
}

test("of a key one message is handed out at a time (R17)", () => {
  const held = ledger();
  held.receive(pushed(0, ["a", "a", "b", null]), 0);
  const first = held.next(0);
  assert.deepEqual([first.offset, held.next(0).offset, held.next(0).offset], [0, 2, 3]);
  assert.equal(held.next(0), null);
  held.ack(first, 0);
  assert.equal(held.next(0).offset, 1);
});

test("a nack takes what follows of its key, and closes it until it is answered (R17)", () => {
  const held = ledger();
  const nextRef = counter();
  held.receive(pushed(0, ["a", "a"]), 0);
  held.nack(held.next(0), 0, {});
  const [nack] = held.takeFrames(nextRef, 0).filter((frame) => frame.type === "nack");
  assert.deepEqual(nack.deliveries, [[0, 1, 1, 0, 0]]);
  held.receive(pushed(2, ["a", "b"]), 0);
  assert.equal(held.next(0).key, "b");
  assert.equal(held.next(0), null, "what was under way is discarded");
  held.onNackAnswer(nack.ref);
  held.receive(pushed(0, ["a", "a"], { push: 9, attempt: 2 }), 0);
  assert.deepEqual([held.next(0).offset, held.next(0)], [0, null]);
});

test("what is gone while a handler works on it holds its key until that has ended", () => {
  const held = ledger();
  held.receive(pushed(0, ["a"]), 0);
  const message = held.next(0);
  held.settler.atWork.add(message);
  held.revoke([[0, 1, 1, 0, 0]]);
  assert.equal(message.state, DeliveryState.GONE);
  held.receive(pushed(0, ["a"], { push: 2, attempt: 2 }), 0);
  assert.equal(held.next(0), null);
  held.onHandlerEnd(message);
  assert.equal(held.next(0).attempt, 2);
});

test("a lease ends here before it ends at the broker, at the millisecond", () => {
  const held = ledger();
  held.receive(pushed(0, ["a", "b"]), 0);
  const message = held.next(27_999);
  assert.equal(message.leaseUntil, 28_000);
  held.checkHeld(message, 27_999);
  assert.throws(() => held.ack(message, 28_000), StaleDelivery);
  assert.equal(held.next(28_000), null, "nor is what was waiting handed out");
});

test("time is asked for at half of a lease, and again where that failed", () => {
  const held = ledger({ autoExtend: true });
  const nextRef = counter();
  held.receive(pushed(0, ["a"]), 0);
  held.next(0);
  held.takeFrames(nextRef, 0);
  assert.equal(held.nextDeadline(), 14_000);
  held.expire(13_999);
  assert.deepEqual(held.takeFrames(nextRef, 13_999), []);
  held.expire(14_000);
  const [extend] = held.takeFrames(nextRef, 14_000);
  assert.deepEqual([extend.type, extend.deliveries], ["extend", [[0, 1, 1, 0, 0]]]);
  held.onExtendFailure(extend.ref);
  assert.equal(held.nextDeadline(), 21_000);
  held.expire(21_000);
  const [again] = held.takeFrames(nextRef, 21_000);
  held.onExtendAnswer(again.ref, []);
  assert.equal(held.nextDeadline(), 49_000 - 14_000);
});

test("what was prolonged holds up the end of no other lease", () => {
  const held = ledger({ autoExtend: true });
  const nextRef = counter();
  held.receive(pushed(0, ["a"]), 0);
  held.receive(pushed(1, ["b", "c"]), 1000);
  held.extend(held.next(1000), 90_000);
  assert.equal(held.nextDeadline(), 15_000);
  held.expire(15_000);
  const asked = held.takeFrames(nextRef, 15_000).filter((frame) => frame.ref !== undefined);
  assert.deepEqual(asked.map((frame) => frame.deliveries), [[[0, 1, 2, 1, 2]]]);
  assert.equal(held.nextDeadline(), 29_000);
  assert.equal(held.next(29_000), null, "nor is it looked for without end");
  assert.equal(held.nextDeadline(), 76_000);
});

test("behind a message that is in hand for long a handful is prolonged (P8)", () => {
  const held = ledger({ credit: 200, autoExtend: true });
  const nextRef = counter();
  const keys = [...Array(100).fill("a"), "b"];
  held.receive(pushed(0, keys), 0);
  const hung = held.next(0);
  const prolonged = (now) => {
    held.expire(now);
    const asked = held.takeFrames(nextRef, now).filter(({ type, ref }) => type === "extend" && ref);
    for (const { ref } of asked) held.onExtendAnswer(ref, []);
    return asked.flatMap(({ deliveries }) => deliveries.map((row) => row.slice(3)));
  };
  assert.deepEqual(prolonged(15_000), [[0, 100]], "it may be slow, no more");
  assert.deepEqual(prolonged(29_000), [[0, AHEAD, 100, 100]]);
  assert.deepEqual(prolonged(43_000), [[0, AHEAD, 100, 100]]);
  assert.equal(held.granted, 200 + 100 - 1 - AHEAD, "R25: there is room for others");
  held.ack(hung, 44_000);
  assert.deepEqual([held.next(44_000).key, held.next(44_000).offset], ["b", 1]);
});

test("credit is one more for each that was released, said by the quarter (R25)", () => {
  const held = ledger({ credit: 8 });
  const nextRef = counter();
  const isCredit = (frame) => frame.type === "credit";
  const credit = () => held.takeFrames(nextRef, 0).find(isCredit)?.granted;
  held.receive(pushed(0, ["a", "b", "c", "d"]), 0);
  assert.equal(credit(), undefined);
  held.receive(pushed(0, ["a"]), 0);
  assert.equal(credit(), undefined, "an eighth");
  held.receive(pushed(0, ["a"]), 0);
  assert.equal(credit(), 10, "old pushes make room, too (R16)");
  held.ack(held.next(0), 0);
  assert.equal(credit(), 11, "beside an ack it is said at once");
});

test("an ack is said again after coming back until the broker is known to have heard it", () => {
  const held = ledger();
  const nextRef = counter();
  held.receive(pushed(0, ["a", "b"]), 0);
  const message = held.next(0);
  held.ack(message, 0);
  held.takeFrames(nextRef, 0);
  held.pause();
  assert.equal(held.next(0), null);
  assert.deepEqual(held.report(), [[0, 1, 1, 1, 1], [0, 1, 1, 0, 0]]);
  held.onResume([]);
  const acks = held.takeFrames(nextRef, 0).filter((frame) => frame.type === "ack");
  assert.deepEqual(acks.map((frame) => frame.deliveries), [[[0, 1, 1, 0, 0]]]);
});

test("acks that are durable are forgotten, and are asked for behind so many", () => {
  const held = ledger({ credit: 10 * UNCONFIRMED_ROWS });
  const nextRef = counter();
  const questions = [];
  for (let number = 0; number < UNCONFIRMED_ROWS; number += 1) {
    held.receive({ ...pushed(number, ["a"]), push: number + 1 }, 0);
    held.ack(held.next(0), 0);
    questions.push(...held.takeFrames(nextRef, 0).filter(({ type, ref }) => type === "ack" && ref));
  }
  assert.deepEqual(questions.map(({ deliveries }) => deliveries), [[]]);
  assert.equal(held.report().length, UNCONFIRMED_ROWS);
  held.onAckAnswer(questions[0].ref, []);
  assert.deepEqual(held.report(), []);
});

test("a key that closes while the broker takes note of what is held stays closed", () => {
  const held = ledger({ leaseMs: 10 });
  held.receive(pushed(0, ["a"]), 0);
  held.pause();
  assert.deepEqual(held.report(), [[0, 1, 1, 0, 0]]);
  held.expire(9.5);
  held.onResume([]);
  held.receive(pushed(7, ["a"]), 10);
  assert.equal(held.next(10), null, "the broker takes the first one for held");
  held.report();
  held.onResume([]);
  held.receive(pushed(8, ["a"]), 10);
  assert.equal(held.next(10).offset, 8, "now it knows");
});

test("of an ack that was asked before a refusal says nothing", () => {
  const held = ledger();
  held.receive(pushed(0, ["a", "b", "c"]), 0);
  for (const ticket of ["a", "b"]) held.ack(held.next(0), 0, ticket);
  held.takeFrames(counter(), 0);
  held.pause();
  held.onResume([]);
  held.ack(held.next(0), 0, "c");
  const { ref } = held.takeFrames(counter(), 0).find(({ type }) => type === "ack");
  const { settled, stale, perhaps } = held.onAckAnswer(ref, [[0, 1, 1, 1, 2]]);
  assert.deepEqual([settled, stale, perhaps], [["a"], ["c"], ["b"]]);
});

test("of a nack that was asked before a refusal says nothing", () => {
  const held = ledger();
  held.receive(pushed(0, ["a", "b", "c"]), 0);
  for (const ticket of ["a", "b"]) held.nack(held.next(0), 0, {}, ticket);
  held.takeFrames(counter(), 0);
  held.pause();
  held.onResume([]);
  held.nack(held.next(0), 0, {}, "c");
  const { ref } = held.takeFrames(counter(), 0).find(({ type }) => type === "nack");
  const { settled, stale, perhaps } = held.onNackAnswer(ref, [[0, 1, 1, 1, 2]]);
  assert.deepEqual([settled, stale, perhaps], [["a"], ["c"], ["b"]]);
});

test("a lost session names the nacks that were to be confirmed", () => {
  const held = ledger();
  held.receive(pushed(0, ["a", "b", "c"]), 0);
  held.nack(held.next(0), 0, {}, "a");
  held.nack(held.next(0), 0, {});
  held.takeFrames(counter(), 0);
  held.nack(held.next(0), 0, { reject: true }, "c");
  assert.deepEqual(held.onSessionLoss().sort(), ["a", "c"]);
  assert.deepEqual(held.onSessionLoss(), []);
});

test("a page that was loaded again holds what it had acked, and nothing else", () => {
  const held = ledger();
  held.restore({ received: 7, acked: [[0, 1, 1, 0, 3]] });
  assert.deepEqual(held.report(), [[0, 1, 1, 0, 3]]);
  assert.deepEqual([held.receivedCount, held.granted], [7, 11]);
  held.receive(pushed(4, ["a"]), 0);
  assert.equal(held.next(0), null, "nothing is handed out before the broker has said what is ours");
  held.onResume([]);
  assert.equal(held.next(0).offset, 4);
});

test("a message shows what it says and not what holds it", () => {
  const held = ledger();
  held.receive(pushed(3, ["<b>"]), 0);
  const message = held.next(0);
  assert.ok(message instanceof Message);
  assert.deepEqual(Object.keys(message), ["offset", "key"]);
});
