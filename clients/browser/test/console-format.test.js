/** Rates, ages and times as people read them. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { age, exactTime, localTime, rate, until } from "../console/format.js";

const NOW = Date.UTC(2026, 10, 21, 21, 2, 20, 123);

test("a rate has as many digits as it needs, and never shows 0 for what is not", () => {
  assert.equal(rate(0), "0");
  assert.equal(rate(0.001), "0.01");
  assert.equal(rate(0.25), "0.25");
  assert.equal(rate(0.994), "0.99");
  assert.equal(rate(0.995), "1.0");
  assert.equal(rate(3.14), "3.1");
  assert.equal(rate(99.94), "99.9");
  assert.equal(rate(99.95), "100");
  assert.equal(rate(1234.4), "1,234");
});

test("an age is whole seconds, and never negative", () => {
  assert.equal(age(NOW - 999, NOW), "0 s");
  assert.equal(age(NOW - 1000, NOW), "1 s");
  assert.equal(age(NOW - 59_999, NOW), "59 s");
  assert.equal(age(NOW - 60_000, NOW), "1 min");
  assert.equal(age(NOW + 5000, NOW), "0 s");
});

test("what is yet to come says in how long, until it is now", () => {
  assert.equal(until(NOW + 1, NOW), "in 1 s");
  assert.equal(until(NOW + 41_000, NOW), "in 41 s");
  assert.equal(until(NOW, NOW), "now");
  assert.equal(until(NOW - 1, NOW), "now");
});

test("the exact time has its milliseconds and its zone", () => {
  assert.match(exactTime(NOW), /^2026-11-2[12] \d\d:02:20\.123 [+-]\d\d:\d\d$/);
  assert.equal(new Date(exactTime(NOW).replace(" ", "T").replace(" ", "")).getTime(), NOW);
});

test("the local time to the second is what a field for times takes, and back", () => {
  assert.match(localTime(NOW), /^2026-11-2[12] \d\d:02:20$/);
  assert.equal(new Date(localTime(NOW).replace(" ", "T")).getTime(), NOW - 123);
  assert.equal(localTime(null), "–");
});

test("what is no figure is a dash", () => {
  for (const none of [null, undefined, NaN, Infinity, "12", {}]) {
    assert.equal(rate(none), "–");
    assert.equal(age(none, NOW), "–");
    assert.equal(until(none, NOW), "–");
    assert.equal(exactTime(none), "–");
  }
  assert.equal(age(0, NOW), "–");
  assert.equal(exactTime(1e20), "–");
});
