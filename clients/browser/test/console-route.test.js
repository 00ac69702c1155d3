/** The address behind # and back. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { formatRoute, parseRoute } from "../console/route.js";

const PLACES = [
  ["overview", {}],
  ["sessions", {}],
  ["clusters", {}],
  ["explain", { query: { queue: "orders", key: "a/b?c#d&e=f %", group: "billing" } }],
  ["queue", { queue: "orders" }],
  ["messages", { queue: "a.b-c_d", query: { key: "<b>😀\u202e", offset: "12" } }],
  ["scheduled", { queue: "orders", query: { key: "user-7" } }],
  ["deadLetters", { queue: "orders", query: { reason: "exhausted" } }],
  ["group", { queue: "orders", group: "billing" }],
  ["parked", { queue: "groups", group: "parked" }],
];

test("an address leads back to its view", () => {
  for (const [view, place] of PLACES) {
    const { query = {}, ...rest } = place;
    assert.deepEqual(parseRoute(formatRoute(view, place)), { view, ...rest, query });
  }
});

test("nothing behind the # is the overview", () => {
  for (const hash of ["", "#", "#/", "#/queues", "#/queues/"]) {
    assert.equal(parseRoute(hash).view, "overview");
  }
});

test("an address that means nothing is told, and never thrown", () => {
  const wrong = ["#/foo", "#/queues/orders/foo", "#/queues/-x", "#/queues/%", "#/queues/a%2Fb",
    "#/queues/orders/groups", "#/queues/orders/groups/b/foo", "#/queues/orders/groups/b/parked/x",
    "#/queues/orders/messages/x", "#/queues/orders/scheduled/x", "#/sessions/x",
    `#/queues/${"x".repeat(129)}`, "#main",
    "#/queues/<script>", "#/clusters/x"];
  for (const hash of wrong) assert.equal(parseRoute(hash).view, "unknown", hash);
  assert.equal(parseRoute(`#/queues/${"x".repeat(128)}`).view, "queue");
});

test("empty filters are left out of the address", () => {
  const query = { key: "", reason: undefined, group: "b" };
  assert.equal(formatRoute("messages", { queue: "o", query }), "#/queues/o/messages?group=b");
});
