/** What the console makes of answers, and of what is none. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Api, ApiError, readAnswer, rowsOf, withQuery } from "../console/api.js";

/** An Api whose broker answers by `answer(path, options)`; its timers are in `timers`. */
function apiOf(answer) {
  const timers = [];
  const environment = {
    fetch: async (path, options) => answer(path, options),
    setTimeout: (run, ms) => timers.push({ run, ms }),
    clearTimeout: () => {},
  };
  return { api: new Api(environment), timers };
}

function answered(status, text, headers = {}) {
  return { status, text: async () => text, headers: new Headers(headers) };
}

async function refusalOf(call) {
  try {
    await call;
  } catch (error) {
    assert.ok(error instanceof ApiError, String(error));
    return error;
  }
  throw new Error("it was not refused");
}

test("an answer is parsed, and counted", async () => {
  const { api } = apiOf((path) => answered(200, JSON.stringify({ path })));
  const path = "/v1/queues?key=a%26b";
  const options = { query: { key: "a&b", after: undefined, group: "" } };
  assert.deepEqual(await api.get("/v1/queues", options), { path });
  assert.equal(api.requests, 1);
  assert.equal(withQuery("/x", {}), "/x");
});

test("a problem is an error with what to do", async () => {
  const problem = { code: "queue_not_found", detail: "no queue named orders", retry: false };
  const { api } = apiOf(() => answered(404, JSON.stringify(problem)));
  const error = await refusalOf(api.get("/v1/queues/orders"));
  assert.equal(error.code, "queue_not_found");
  assert.equal(error.message, "No queue named orders.");
  assert.match(error.advice, /list of queues/);
});

test("garbage is told as that, with its beginning", async () => {
  const wrong = ["<html>sign in</html>", "", "[]", "null", "12", '"text"', '{"a":', "\u0000\ufffd"];
  for (const text of wrong) {
    for (const status of [200, 404, 502]) {
      assert.throws(() => readAnswer(status, text), { code: "garbage" });
    }
  }
  assert.throws(() => readAnswer(502, '{"no": "problem"}'), { code: "garbage" });
  assert.throws(() => readAnswer(200, "<html>"), { message: /begins: <html>/ });
  assert.equal(readAnswer(204, ""), null);
});

test("an answer without its list is told, and never an empty list", () => {
  assert.deepEqual(rowsOf({ queues: [{ name: "a" }] }, "queues"), [{ name: "a" }]);
  assert.deepEqual(rowsOf({ queues: [] }, "queues"), []);
  for (const answer of [{}, { queues: "x" }, { queues: [null] }, { queues: [3] }, null]) {
    assert.throws(() => rowsOf(answer, "queues"), { code: "garbage", message: /queues/ });
  }
});

test("an answer that never comes ends after its time, with what to do", async () => {
  const { api, timers } = apiOf((_path, { signal }) => new Promise((_, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason));
  }));
  const calling = refusalOf(api.get("/v1/queues"));
  timers[0].run();
  const error = await calling;
  assert.equal(error.code, "timeout");
  assert.equal(timers[0].ms, 10_000);
  assert.ok(error.isAway);
});

test("a broker that is not there is told", async () => {
  const { api } = apiOf(() => {
    throw new TypeError("fetch failed");
  });
  const error = await refusalOf(api.get("/v1/queues"));
  assert.equal(error.code, "unreachable");
  assert.ok(error.advice);
});

test("a view that is left ends its request, and that is no error of the broker's", async () => {
  const { api } = apiOf((_path, { signal }) => new Promise((_, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason));
  }));
  const leaving = new AbortController();
  const calling = api.get("/v1/queues", { signal: leaving.signal });
  leaving.abort(new Error("left"));
  await assert.rejects(calling, { message: "left" });
});

test("readiness is an answer also where it is 503", async () => {
  const { api } = apiOf(() => answered(503, '{"ready": false, "not_ready": ["x"]}'));
  const state = await api.call("GET", "/readyz", undefined, { isState: true });
  assert.deepEqual(state.not_ready, ["x"]);
  assert.equal((await refusalOf(api.call("GET", "/readyz"))).code, "garbage");
});

test("ages follow the broker's clock where this machine's is wrong", async () => {
  const hour = 3_600_000;
  let told = new Date(Date.now() + hour).toUTCString();
  const { api } = apiOf(() => answered(200, "{}", { date: told }));
  await api.get("/v1/queues");
  assert.ok(Math.abs(api.now() - Date.now() - hour) < 2000);
  told = new Date().toUTCString();
  await api.get("/v1/queues");
  assert.equal(api.skewMs, 0);
});
