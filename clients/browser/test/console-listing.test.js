/** Filter, order and pages of a table. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { filterRows, pageOf, sortRows } from "../console/listing.js";

const itself = (row) => row;

test("a filter wants every word, in any case and order", () => {
  const rows = ["orders paused", "Orders running", "mails running"];
  assert.deepEqual(filterRows(rows, "run ORD", itself), ["Orders running"]);
  assert.equal(filterRows(rows, "  ", itself), rows);
  assert.deepEqual(filterRows(rows, ".*", itself), []);
});

test("numbers sort as numbers, texts with the numbers in them, and what is missing last", () => {
  assert.deepEqual(sortRows([10, 9, null, 100], itself, false), [9, 10, 100, null]);
  assert.deepEqual(sortRows([10, NaN, 9, undefined, 100], itself, true).slice(0, 3), [100, 10, 9]);
  const names = ["q10", "q9", "Q1", "a"];
  assert.deepEqual(sortRows(names, itself, false), ["a", "Q1", "q9", "q10"]);
});

test("equal rows keep their order, and the rows that are given stay as they are", () => {
  const rows = [{ n: 1, id: "b" }, { n: 0, id: "c" }, { n: 1, id: "a" }];
  const sorted = sortRows(rows, (row) => row.n, true);
  assert.deepEqual(sorted.map((row) => row.id), ["b", "a", "c"]);
  assert.equal(rows[0].id, "b");
});

test("a page that is not there is the nearest one that is", () => {
  const rows = Array.from({ length: 101 }, (_, index) => index);
  assert.deepEqual(pageOf(rows, 2, 50), { rows: [100], page: 2, pages: 3, first: 100 });
  assert.equal(pageOf(rows, 9, 50).page, 2);
  assert.equal(pageOf(rows, -1, 50).page, 0);
  assert.equal(pageOf(rows, NaN, 50).page, 0);
  assert.deepEqual(pageOf([], 0, 50), { rows: [], page: 0, pages: 1, first: 0 });
  assert.equal(pageOf(rows.slice(0, 50), 0, 50).pages, 1);
});
