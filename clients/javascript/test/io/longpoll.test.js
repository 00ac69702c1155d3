/** When requests by long poll are given up. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { LongPollCarrier, PATIENCE_MS, REQUEST_TIMEOUT_MS } from "../../src/io/longpoll.js";
import { world } from "../broker.js";

const BUSY = JSON.stringify({
  code: "busy", detail: "later", retry: true, retry_after_s: (2 * PATIENCE_MS) / 1000,
});

/** A carrier whose posts of frames are answered by `post`, with the number of the attempt. */
function carrierOf(post) {
  const made = world();
  made.pollable = true;
  const { environment } = made;
  const fetch = environment.fetch;
  const state = { attempts: 0, closed: null };
  environment.fetch = async (url, options) => {
    if (options.method !== "POST" || !String(url).includes("/frames")) return fetch(url, options);
    state.attempts += 1;
    return post(state.attempts);
  };
  const carrier = new LongPollCarrier("http://broker.test", {
    environment, trace: () => {}, token: null,
  });
  carrier.listen({
    onOpen() {}, onFrames() {}, onWritable() {}, onClosed(code) { state.closed = code; },
  });
  carrier.start();
  carrier.send(["{}", "{}"]);
  return { made, carrier, state };
}

test("an answer ends the time of failed requests", async () => {
  const { made, carrier, state } = carrierOf((attempt) => {
    if (attempt === 2) return new Response(BUSY, { status: 429 });
    if (attempt > 3) return new Response("{}", { status: 202 });
    throw new TypeError("lost");
  });
  await made.advance(3 * PATIENCE_MS);
  assert.deepEqual(state, { attempts: 4, closed: null });
  carrier.abort();
});

test("requests that only fail end the carrier in time", async () => {
  const { made, state } = carrierOf(() => {
    throw new TypeError("lost");
  });
  await made.advance(REQUEST_TIMEOUT_MS + PATIENCE_MS - 1000);
  assert.equal(state.closed, null);
  await made.advance(REQUEST_TIMEOUT_MS + PATIENCE_MS + 1000);
  assert.equal(state.closed, 1006);
});
