/** When the next attempt to connect begins, and who does not wait for it. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { connect } from "../src/index.js";
import { world } from "./broker.js";

const URL = "http://broker.test";

/** A client whose broker has been gone for a minute. */
async function waiting() {
  const made = world();
  const { environment, sockets } = made;
  const client = await connect(URL, { transport: "websocket", environment });
  assert.equal(client.retryAt, null, "a session stands");
  made.gone = true;
  sockets[0].lose();
  await made.advance(60_000);
  assert.ok(!client.isConnected);
  return { made, client };
}

test("while no session stands, retryAt says when the next attempt begins", async () => {
  const { made, client } = await waiting();
  const { retryAt } = client;
  assert.ok(retryAt > made.now && retryAt <= made.now + 15_000, `${retryAt} at ${made.now}`);
  const before = made.sockets.length;
  await made.advance(retryAt - 1);
  assert.equal(made.sockets.length, before);
  made.gone = false;
  await made.advance(retryAt);
  assert.equal(made.sockets.length, before + 1);
  assert.ok(client.isConnected);
  assert.equal(client.retryAt, null);
});

test("who is in a hurry does not wait, once for each call", async () => {
  const { made, client } = await waiting();
  const before = made.sockets.length;
  client.hurry();
  client.hurry();
  await made.advance(made.now);
  assert.equal(made.sockets.length, before + 1, "one attempt, not two");
  assert.ok(client.retryAt > made.now, "it failed, and another one is waited for");
  made.gone = false;
  client.hurry();
  await made.advance(made.now);
  assert.ok(client.isConnected);
  client.hurry();
  await made.advance(made.now);
  assert.equal(made.sockets.length, before + 2, "nothing is waited for: nothing happens");
});

test("a client that is closed waits for nothing", async () => {
  const { made, client } = await waiting();
  const before = made.sockets.length;
  const closing = client.close();
  assert.equal(client.retryAt, null);
  client.hurry();
  await made.advance(made.now + 60_000);
  await closing;
  assert.equal(made.sockets.length, before);
});

test("over long poll, who is in a hurry tries a WebSocket at once", async () => {
  const made = world();
  Object.assign(made, { gone: true, pollable: true });
  const client = await connect(URL, { environment: made.environment });
  assert.equal(client.transport, "long-poll");
  assert.equal(client.retryAt, null, "a session stands");
  client.hurry();
  await made.advance(made.now);
  assert.deepEqual([made.sockets.length, client.transport], [2, "long-poll"]);
  made.gone = false;
  client.hurry();
  await made.advance(made.now);
  assert.deepEqual([made.sockets.length, client.transport], [3, "websocket"]);
  const closing = client.close();
  made.sockets[2].lose();
  await closing;
});

test("a WebSocket takes over from long poll behind the post that is under way", async () => {
  const made = world();
  Object.assign(made, { gone: true, pollable: true });
  const { fetch } = made;
  const posts = [];
  made.fetch = (url, method, signal) => {
    if (method !== "POST" || !url.includes("/frames")) return fetch(url, method, signal);
    return new Promise((resolve) => {
      posts.push(() => resolve(new Response("{}", { status: 202 })));
    });
  };
  const client = await connect(URL, { environment: made.environment });
  const publishing = client.publish("orders", 1).catch(() => {});
  await made.advance(100);
  assert.equal(posts.length, 1);
  made.gone = false;
  client.hurry();
  await made.advance(200);
  assert.deepEqual(made.sockets[1].said, [], "its hello waits");
  const later = client.publish("orders", 2).catch(() => {});
  await made.advance(300);
  posts[0]();
  for (let turn = 0; client.transport === "long-poll" && turn < 99; turn += 1) {
    await new Promise(setImmediate); // a Response's text takes its own time
    await made.advance(300);
  }
  assert.equal(client.transport, "websocket");
  assert.equal(posts.length, 1, "nothing more went by long poll");
  const closing = client.close();
  made.sockets[1].lose();
  await Promise.all([closing, publishing, later]);
});
