/** Calls over HTTP: where they go, and what is not sent. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { checkedUrl, Http } from "../../src/io/http.js";

test("a setting that is no number is not sent as null", async () => {
  const http = new Http("http://broker.test", null, { now: () => 0 });
  const refused = { name: "InvalidRequest" };
  await assert.rejects(http.request("PUT", "/v1/queues/q", { lease_s: NaN }), refused);
});

test("a URL is one of a broker", () => {
  assert.equal(checkedUrl("https://a.test/tocsin//"), "https://a.test/tocsin");
  for (const wrong of ["ftp://a", "a.test", "http://", "http://a/?token=b", "http://u:p@a"]) {
    assert.throws(() => checkedUrl(wrong), TypeError);
  }
});
