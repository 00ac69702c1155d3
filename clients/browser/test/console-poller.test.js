/** Asking again and again: one request at a time, seldom where nobody answers. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { backoffMs, BACKOFF_MAX_MS, PAUSE_MAX_MS, pauseMs, Poller } from "../console/poller.js";

/** A poller whose requests are answered by hand, in a time of its own. */
function polled(settings = {}) {
  const asked = [];
  const seen = { shown: [], failed: [], timers: [], nowMs: 0 };
  const environment = {
    setTimeout: (run, ms) => seen.timers.push({ run, ms }) - 1,
    clearTimeout: (at) => { seen.timers[at] = null; },
    performance: { now: () => seen.nowMs },
  };
  const polling = {
    load: (signal) => new Promise((resolve, reject) => asked.push({ signal, resolve, reject })),
    show: (answer) => seen.shown.push(answer),
    fail: (error, retryInMs) => seen.failed.push([error, retryInMs]),
    ...settings,
  };
  const poller = new Poller(polling, environment);
  const pending = () => seen.timers.filter(Boolean);
  return { poller, asked, pending, ...seen, seen };
}

const turn = () => new Promise((resolve) => setImmediate(resolve));

test("one request at a time, the next a second after the last one was begun", async () => {
  const { poller, asked, shown, pending, seen } = polled();
  void poller.start();
  void poller.refresh();
  assert.equal(asked.length, 1);
  seen.nowMs = 40;
  asked[0].resolve("first");
  await turn();
  assert.deepEqual(shown, ["first"]);
  assert.equal(asked.length, 2); // what was wanted meanwhile comes behind it
  asked[1].resolve("second");
  await turn();
  assert.deepEqual(pending().map(({ ms }) => ms), [1000]);
  pending()[0].run();
  assert.equal(asked.length, 3);
});

test("what takes the broker long is asked seldom", () => {
  assert.equal(pauseMs(1000, 20), 980);
  assert.equal(pauseMs(1000, 50), 950);
  assert.equal(Math.round(pauseMs(1000, 500)), 9500);
  assert.equal(pauseMs(1000, 3000), PAUSE_MAX_MS); // on a machine that is slow for a moment, too
  assert.equal(pauseMs(60_000, 3000), 57_000);
  assert.equal(pauseMs(null, 500), null);
});

test("failures are told, and tried again more and more seldom", async () => {
  const { poller, asked, failed, pending } = polled();
  void poller.start();
  for (const waitMs of [1000, 2000, 4000]) {
    asked.at(-1).reject(new Error("away"));
    await turn();
    assert.equal(failed.at(-1)[1], waitMs);
    assert.deepEqual(pending().map(({ ms }) => ms), [waitMs]);
    pending()[0].run();
  }
  assert.equal(backoffMs(4), 8000);
  assert.equal(backoffMs(5), BACKOFF_MAX_MS);
  assert.equal(backoffMs(1000), BACKOFF_MAX_MS);
});

test("an answer ends the failures", async () => {
  const { poller, asked, pending } = polled();
  void poller.start();
  asked[0].reject(new Error("away"));
  await turn();
  pending()[0].run();
  asked[1].resolve("there");
  await turn();
  assert.equal(poller.failures, 0);
  assert.deepEqual(pending().map(({ ms }) => ms), [1000]);
});

test("after a final error nothing is asked until somebody asks", async () => {
  const { poller, asked, failed, pending } = polled({ isFinal: () => true });
  void poller.start();
  asked[0].reject(new Error("no such queue"));
  await turn();
  assert.deepEqual(failed[0][1], null);
  assert.deepEqual(pending(), []);
  void poller.refresh();
  assert.equal(asked.length, 2);
});

test("nothing is asked while the page is hidden, and at once when it is seen again", async () => {
  const { poller, asked, pending } = polled();
  void poller.start();
  poller.setHidden(true);
  asked[0].resolve("first");
  await turn();
  assert.deepEqual(pending(), []);
  void poller.refresh();
  assert.equal(asked.length, 1);
  poller.setHidden(false);
  assert.equal(asked.length, 2);
});

test("what cannot be shown is a failure that is told, and polling goes on", async () => {
  const { poller, asked, failed, pending } = polled({ show: () => { throw new Error("odd"); } });
  void poller.start();
  asked[0].resolve({});
  await turn();
  assert.equal(failed[0][0].message, "odd");
  assert.equal(pending().length, 1);
});

test("what was left is neither asked nor shown any more", async () => {
  const { poller, asked, shown, failed, pending } = polled();
  void poller.start();
  poller.stop();
  assert.ok(asked[0].signal.aborted);
  asked[0].resolve("late");
  await turn();
  assert.deepEqual([shown, failed, pending()], [[], [], []]);
  await poller.refresh();
  assert.equal(asked.length, 1);
});

test("without a period it is asked once, and again only by hand", async () => {
  const { poller, asked, pending } = polled({ periodMs: null });
  void poller.start();
  asked[0].resolve("all");
  await turn();
  assert.deepEqual(pending(), []);
  poller.setHidden(true);
  poller.setHidden(false);
  assert.equal(asked.length, 1);
});
