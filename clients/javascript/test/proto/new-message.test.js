/** Messages that are published: what is refused, and how the others are encoded. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { changeOf, encodeMessage, fromBase64, toBase64 } from "../../src/proto/new-message.js";

test("what has no JSON form is refused before anything is sent", () => {
  const cycle = {};
  cycle.itself = cycle;
  for (const body of [undefined, 10n, cycle, () => 1, Symbol("a"), "\ud800", ["\udc00 b"]]) {
    const refused = { name: "InvalidRequest", code: "invalid_message" };
    assert.throws(() => encodeMessage({ body }), refused);
  }
  assert.equal(encodeMessage({ body: "\\ud800 😀" }), '{"body":"\\\\ud800 😀"}');
  assert.equal(encodeMessage({ body: null, key: "a" }), '{"key":"a","body":null}');
});

test("what JSON would show as something else is refused, with its place (P2)", () => {
  class Order {
    total = NaN;
  }
  // eslint-disable-next-line no-sparse-arrays
  const sparse = [1, , 2];
  for (const [body, what] of [
    [NaN, "body: NaN"], [{ a: [1, { b: -Infinity }] }, "body.a[1].b: -Infinity"],
    [new Order(), "body.total: NaN"], [Object(NaN), "body: NaN"],
    [new Map([["a", 1]]), "body: a Map"], [{ tags: new Set([1]) }, "body.tags: a Set"],
    [[Promise.resolve(1)], "body[0]: a Promise"], [{ why: new Error("no") }, "body.why: a Error"],
    [[/a/], "body[0]: a RegExp"], [new Map().entries(), "body: a Map Iterator"],
    [{ raw: new Uint8Array(2) }, "body.raw: bytes"],
    [[new ArrayBuffer(2)], "body[0]: a ArrayBuffer"],
    [[new Date(NaN)], "body[0]: an invalid Date"], [{ toJSON: () => NaN }, "body: NaN"],
    [[undefined], "body[0]: undefined"], [sparse, "body[1]: undefined"],
    [{ run() {} }, "body.run: a function"], [[Symbol("a")], "body[0]: a symbol"],
  ]) {
    const refused = { name: "InvalidRequest", code: "invalid_message" };
    assert.throws(() => encodeMessage({ body }), refused, what);
    assert.throws(() => encodeMessage({ body }), (error) => error.message.includes(what), what);
  }
  const headers = new Map([["a", "b"]]);
  assert.throws(() => encodeMessage({ body: 1, headers }), { code: "invalid_message" });
});

test("a field named by a symbol is not left out without a word", () => {
  for (const body of [{ [Symbol("x")]: 1 }, [{ a: { [Symbol("x")]: 1 } }]]) {
    assert.throws(() => encodeMessage({ body }), /symbol/);
  }
});

test("what JSON can say goes as ever", () => {
  class Point {
    x = 1;
    y = undefined;
  }
  const at = new Date(0);
  const own = Object.assign(Object.create(null), { a: [null, true, "\u2028"] });
  const boxed = [Object(1), Object("a")];
  for (const body of [new Point(), { at }, own, boxed, { toJSON: () => 7 }, -0]) {
    assert.equal(encodeMessage({ body }), `{"body":${JSON.stringify(body)}}`);
  }
});

test("a field of a message that is wrong or unknown is refused by itself", () => {
  for (const wrong of [
    { key: "" }, { key: 7 }, { key: "\ud800" }, { id: 7 }, { ttlS: 0 }, { ttlS: "5" },
    { headers: { a: 1 } }, { headers: ["a"] }, { sentUnixMs: 1.5 }, { contentType: 1 },
    { keey: "a" },
  ]) {
    assert.throws(() => encodeMessage({ body: 1, ...wrong }), { code: "invalid_message" });
  }
  assert.throws(() => encodeMessage(null), { code: "invalid_message" });
});

test("a message is scheduled for a time or after a delay", () => {
  const deliverAt = new Date(1_767_225_600_001);
  const at = JSON.parse(encodeMessage({ body: 1, deliverAt }));
  assert.deepEqual(at, { body: 1, deliver_at_unix_ms: 1_767_225_600_001 });
  assert.deepEqual(JSON.parse(encodeMessage({ body: 1, delayS: 0 })), { body: 1, delay_s: 0 });
  for (const times of [
    { deliverAt: new Date(NaN) }, { deliverAt: 1 }, { deliverAt: "2026-01-01" },
    { delayS: -1 }, { delayS: NaN }, { delayS: "1" }, { deliverAt, delayS: 1 },
  ]) {
    const refused = { name: "InvalidRequest", code: "invalid_message" };
    assert.throws(() => encodeMessage({ body: 1, ...times }), refused, JSON.stringify(times));
  }
});

test("a change of a scheduled message has a body only if it is given one", () => {
  const shown = (change) => JSON.parse(JSON.stringify(changeOf(change)));
  assert.deepEqual(shown({ delayS: 5 }), { delay_s: 5 });
  assert.deepEqual(shown({ body: null, ttlS: 9 }), { body: null, ttl_s: 9 });
  assert.deepEqual(shown({ body: new Uint8Array([1]) }), { body_base64: "AQ==" });
  assert.throws(() => changeOf({ body: NaN }), { name: "InvalidRequest" });
  assert.throws(() => changeOf({ id: "x", delayS: 5 }), /no field id/);
});

test("bytes go through base64 as they are", () => {
  const bytes = Uint8Array.from({ length: 70_000 }, (_, index) => index % 256);
  assert.deepEqual(fromBase64(toBase64(bytes)), bytes);
  const view = new DataView(bytes.buffer, 1, 2);
  assert.equal(encodeMessage({ body: view }), '{"body_base64":"AQI="}');
});
