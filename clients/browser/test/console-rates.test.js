/** Rates out of the broker's counters, over restarts and gaps. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Histories, History, RATE_WINDOW_MS } from "../console/rates.js";

test("a rate is the counter's difference through the time between, over the window", () => {
  const history = new History();
  for (let second = 0; second <= 10; second += 1) history.add(second * 1000, 1, { n: second ** 2 });
  assert.equal(history.rate("n"), (100 - 25) / 5); // from 5 s to 10 s
  assert.equal(history.rate("n", 1000), 100 - 81);
  assert.equal(history.latest("n"), 100);
});

test("one sample, or a counter that is not there, is no rate", () => {
  const history = new History();
  assert.equal(history.rate("n"), null);
  history.add(0, 1, { n: 5 });
  assert.equal(history.rate("n"), null);
  history.add(1000, 1, { n: 6, m: 1 });
  assert.equal(history.rate("n"), 1);
  assert.equal(history.rate("m"), null);
  assert.equal(history.rate("o"), null);
});

test("over a restart of the broker there is none, and behind it only of what came after", () => {
  const history = new History();
  history.add(0, "first", { n: 1000 });
  history.add(1000, "first", { n: 1010 });
  history.add(2000, "second", { n: 2000 }); // above the last one, and yet another counter
  assert.equal(history.rate("n"), null);
  history.add(3000, "second", { n: 2003 });
  assert.equal(history.rate("n"), 3);
});

test("a counter that went back, as where a group was deleted, begins anew", () => {
  const history = new History();
  history.add(0, 1, { n: 100 });
  history.add(1000, 1, { n: 50 });
  assert.equal(history.rate("n"), null);
  history.add(2000, 1, { n: 51 });
  assert.equal(history.rate("n"), 1);
});

test("a long silence is a gap, in the rate and in the plot", () => {
  const history = new History();
  history.add(0, 1, { n: 0 });
  history.add(1000, 1, { n: 1 });
  history.add(60_000, 1, { n: 1_000_000 });
  assert.equal(history.rate("n"), null);
  assert.deepEqual(history.columns(["n"]), [
    [-60, -59, -58.999, 0],
    [0, 1, null, 1_000_000],
  ]);
});

test("columns: gauges as they are, counters as rates", () => {
  const history = new History();
  history.add(0, 1, { depth: 3, n: 0 });
  history.add(1000, 1, { depth: 5, n: 10 });
  history.add(2000, 1, { depth: null, n: 30 });
  assert.deepEqual(history.columns(["depth", "n"], ["n"]), [
    [-2, -1, 0],
    [3, 5, null],
    [null, 10, 15],
  ]);
});

test("what is older than what is kept is forgotten; a clock that stands still adds nothing", () => {
  const history = new History(RATE_WINDOW_MS);
  for (let second = 0; second <= 100; second += 1) history.add(second * 1000, 1, { n: second });
  assert.equal(history.samples.length, 6);
  history.add(100_000, 1, { n: 999 });
  assert.equal(history.latest("n"), 100);
});

test("values that are no finite numbers are left out", () => {
  const history = new History();
  history.add(0, 1, { a: NaN, b: "7", c: null, d: 4 });
  assert.deepEqual(history.samples[0].values, { d: 4 });
});

test("of many histories the longest unused are forgotten", () => {
  const histories = new Histories(2);
  const first = histories.of("first");
  histories.of("second");
  assert.equal(histories.of("first"), first);
  histories.of("third");
  assert.deepEqual([...histories.byName.keys()], ["first", "third"]);
  assert.equal(histories.of("first"), first);
});
