/** Publishing's rules, without a clock: what is sent again and when, and how much of it. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { brokerError } from "../../src/proto/errors.js";
import { FRAME_BYTES_AIM, PublishLane } from "../../src/proto/publish-lane.js";
import { decode } from "../../src/proto/wire.js";

const middle = () => 0.5;

function counter() {
  let last = 0;
  return () => (last += 1);
}

function lane(more = {}, firstSequence = undefined) {
  const bounds = { messagesPerPublishMax: 1000, inFlightMax: 10, ...more };
  const made = new PublishLane("orders", { random: middle, bounds, firstSequence });
  const outcomes = [];
  const add = (bytes = 10) => {
    const place = outcomes.push(null) - 1;
    made.add({ text: "{}", bytes, id: null }, (outcome) => (outcomes[place] = outcome), 60_000);
  };
  const nextRef = counter();
  const take = (now = 0) =>
    made.takeFrames(nextRef, now).map(([ref, text]) => ({ ref, ...JSON.parse(text) }));
  return { made, add, take, outcomes };
}

const said = ({ ref, sequence, messages }) => [ref, sequence, messages.length];
const refusedAs = (code) => ({ code, detail: "", retry: true });
const answer = (ref, receipts) => decode(JSON.stringify({ type: "ok", ref, receipts }))[0];

test("what is refused for the moment goes again before anything new, in order (R7)", () => {
  const { made, add, take, outcomes } = lane();
  add();
  add();
  assert.deepEqual(take().map(said), [[1, 0, 2]]);
  add();
  assert.deepEqual(take().map(said), [[2, 2, 1]]);
  made.onAnswer(answer(1, [[0, 5], refusedAs("overloaded")]), 0);
  add();
  assert.deepEqual(take(10_000), [], "something is still in flight");
  made.onAnswer(answer(2, [refusedAs("out_of_sequence")]), 0);
  assert.deepEqual(take(0), [], "it is waited for a while");
  assert.deepEqual(take(made.nextDeadline()).map(said), [[3, 1, 3]]);
  assert.equal(made.resolved, 1);
  assert.equal(outcomes[0].offset, 5);
  assert.deepEqual(outcomes.slice(1), [null, null, null]);
});

test("the receipt of a scheduled message has a ticket and a time, and no offset", () => {
  const { made, add, take, outcomes } = lane();
  for (let count = 0; count < 4; count += 1) add();
  take();
  const ticket = { partition: 4, ticket: "q-1-4-t7", due_unix_ms: 1_764_000_000_001 };
  const again = { partition: 4, ticket: "q-1-4-t2", duplicate: true };
  made.onAnswer(answer(1, [ticket, again, [4, 120], { partition: 4 }]), 0);
  const [first, second, third, unknown] = outcomes;
  assert.deepEqual([first.id, first.partition, first.offset], ["q-1-4-t7", 4, null]);
  assert.deepEqual([first.isScheduled, first.duplicate], [true, false]);
  assert.equal(first.due.toISOString(), "2025-11-24T16:00:00.001Z");
  assert.deepEqual([second.ticket, second.due, second.duplicate], ["q-1-4-t2", null, true]);
  assert.deepEqual([third.isScheduled, third.ticket, third.due], [false, null, null]);
  assert.ok(unknown !== null && unknown.code === "internal", "an object that means nothing");
});

test("after a lost connection everything unanswered goes again under its sequences (P4)", () => {
  const { made, add, take, outcomes } = lane();
  add();
  add();
  take();
  made.onDisconnect();
  assert.deepEqual(take().map(said), [[2, 0, 2]]);
  made.onAnswer(answer(1, [[0, 9], [0, 9]]), 0);
  assert.deepEqual(outcomes, [null, null], "an answer of before");
  made.onAnswer(answer(2, [[0, 7, true]]), 0);
  assert.equal(outcomes[0].duplicate, true);
  assert.equal(outcomes[1], null, "what is not answered is not known");
});

test("numbers and what is resolved begin at the first sequence (R6)", () => {
  const first = 1_763_726_400_000_000;
  const { made, add, take, outcomes } = lane({ inFlightMax: 3 }, first);
  assert.deepEqual([made.room(), made.resolved, made.nextSequence], [3, first, first]);
  add();
  add();
  const [sent] = take();
  assert.deepEqual([sent.sequence, sent.resolved, made.room()], [first, first, 1]);
  made.onAnswer(answer(sent.ref, [[0, 0], [0, 1]]), 0);
  assert.deepEqual(outcomes.map(({ offset }) => offset), [0, 1]);
  add();
  const [next] = take();
  assert.deepEqual([next.sequence, next.resolved, made.room()], [first + 2, first + 2, 2]);
});

test("a frame holds what the bounds allow, and consecutive sequences", () => {
  const { add, take } = lane({ messagesPerPublishMax: 2 });
  add();
  add();
  add();
  assert.deepEqual(take().map(said), [[1, 0, 2], [2, 2, 1]]);
  const other = lane();
  other.add(FRAME_BYTES_AIM);
  other.add(1);
  assert.deepEqual(other.take().map(said), [[1, 0, 1], [2, 1, 1]]);
});

test("no more is in flight than the broker bears", () => {
  const { made, add, take } = lane({ inFlightMax: 2 });
  add();
  assert.equal(made.room(), 1);
  add();
  assert.equal(made.room(), 0);
  take();
  made.onAnswer(answer(1, [[0, 0], refusedAs("unknown")]), 0);
  assert.equal(made.room(), 1);
});

test("what has no answer in time is given up, and never sent again", () => {
  const { made, add, take, outcomes } = lane();
  add();
  take();
  made.onDisconnect();
  made.expire(59_999);
  assert.equal(outcomes[0], null);
  made.expire(60_000);
  assert.equal(outcomes[0].code, "timeout");
  assert.deepEqual(take(60_000), []);
  assert.equal(made.resolved, 1);
});

const limited = (afterS) =>
  brokerError("rate_limited", "", { retry: true, retryAfterS: afterS });
const behind = () => brokerError("out_of_sequence", "", { retry: true });
const stored = (count) => new Array(count).fill([0, 0]);

test("what is over a limit in a frame comes again, in frames of what passes at once", () => {
  const { made, add, take } = lane({ messagesPerPublishMax: 8 });
  for (let n = 0; n < 8; n += 1) add();
  const [first] = take();
  const over = { code: "rate_limited", detail: "", retry: true, retry_after_s: 2 };
  made.onAnswer(answer(first.ref, [...stored(3), ...new Array(5).fill(over)]), 0);
  const due = made.nextDeadline();
  assert.ok(due >= 2000 && due <= 2200, `when the broker has said: ${due}`);
  const [again] = take(due);
  assert.deepEqual(said(again).slice(1), [3, 3]);
  assert.deepEqual(take(due), []);
  made.onAnswer(answer(again.ref, stored(3)), due);
  const [last] = take(due);
  assert.deepEqual(said(last).slice(1), [6, 2]);
});

test("over a limit one frame at a time goes, when the broker has said", () => {
  const { made, add, take } = lane({ messagesPerPublishMax: 2 });
  for (let n = 0; n < 6; n += 1) add();
  const [first, second, third] = take();
  made.onRefusal(first.ref, limited(2), 0);
  made.onRefusal(second.ref, behind(), 0);
  made.onRefusal(third.ref, behind(), 0);
  add();
  const due = made.nextDeadline();
  assert.ok(due >= 2000 && due <= 2200, `never sooner, and not all at once: ${due}`);
  assert.deepEqual(take(1999), []);
  const [again] = take(due);
  assert.deepEqual(said(again).slice(1), [0, 2]);
  assert.deepEqual(take(due), []);
  made.onAnswer(answer(again.ref, stored(2)), due);
  const [next] = take(due);
  assert.deepEqual(said(next).slice(1), [2, 2]);
  made.onRefusal(next.ref, limited(1), due);
  const later = made.nextDeadline();
  assert.ok(later - due >= 1000 && later - due <= 1100, "it had gone well in between");
  for (const [sequence, count] of [[2, 2], [4, 2], [6, 1]]) {
    const [frame] = take(later);
    assert.deepEqual(said(frame).slice(1), [sequence, count]);
    made.onAnswer(answer(frame.ref, stored(count)), later);
  }
  assert.equal(made.unanswered, 0);
  for (let n = 0; n < 4; n += 1) add();
  assert.equal(take(later).length, 2, "as ever");
});

test("who comes in time and is refused asks for less, and later", () => {
  const { made, add, take } = lane();
  for (let n = 0; n < 8; n += 1) add();
  let now = 0;
  const sizes = [];
  const pauses = [];
  for (let n = 0; n < 6; n += 1) {
    const [frame] = take(now);
    sizes.push(frame.messages.length);
    made.onRefusal(frame.ref, limited(1), now);
    pauses.push(made.nextDeadline() - now);
    now = made.nextDeadline();
  }
  assert.deepEqual(sizes, [8, 8, 4, 2, 1, 1]);
  assert.ok(pauses[0] <= 1100 && pauses[5] >= 1800 && pauses[5] <= 2400, String(pauses));
});
