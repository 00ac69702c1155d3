/** When the next attempt to connect begins, and who does not wait for it. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { connect } from "../../src/index.js";
import { world } from "../broker.js";

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

/** A client in a page, and what happens to that page. */
async function inPage(options = {}) {
  const made = world();
  const page = new EventTarget();
  Object.assign(made, options);
  const settings = { environment: { ...made.environment, page } };
  if (!options.pollable) settings.transport = "websocket";
  const client = await connect(URL, settings);
  const tell = (type) => page.dispatchEvent(new Event(type));
  return { made, client, tell };
}

for (const event of ["online", "visibilitychange", "pageshow"]) {
  test(`a socket that has died in its sleep is noticed within 3 s of ${event}`, async () => {
    const { made, client, tell } = await inPage();
    await made.advance(500);
    const [socket] = made.sockets;
    const before = socket.said.length;
    made.silent = true;
    tell(event);
    tell(event);
    assert.equal(socket.said[before], '{"type":"ping"}', "it is asked at once");
    await made.advance(3499);
    assert.equal(socket.closed, null);
    made.silent = false;
    await made.advance(3500);
    assert.equal(socket.closed, 4001);
    await made.advance(3700);
    assert.ok(client.isConnected, "it has come back");
    assert.equal(made.sockets.length, 2);
  });

  test(`a socket that answers outlives ${event}`, async () => {
    const { made, client, tell } = await inPage();
    for (let turn = 1; turn < 20; turn += 1) {
      tell(event);
      await made.advance(2500 * turn);
    }
    assert.equal(made.sockets.length, 1);
    assert.ok(client.isConnected);
  });
}

test("who was asked for long does not have longer for that", async () => {
  const { made, tell } = await inPage();
  made.silent = true;
  await made.advance(18_000); // asked after 10 s, it has until 20
  tell("online");
  await made.advance(19_999);
  assert.equal(made.sockets[0].closed, null);
  await made.advance(20_000);
  assert.equal(made.sockets[0].closed, 4001);
});

test("over long poll, too, a sign of life is asked for, and no other one waited for", async () => {
  const { made, client, tell } = await inPage({ gone: true, pollable: true });
  assert.equal(client.transport, "long-poll");
  await made.advance(500);
  made.silent = true;
  const began = made.now;
  tell("online");
  await made.advance(began + 2999);
  assert.equal(made.polls, 1);
  made.silent = false;
  for (let turn = 0; made.polls === 1 && turn < 99; turn += 1) {
    await new Promise(setImmediate);
    await made.advance(began + 3500);
  }
  assert.equal(made.polls, 2, "another session by long poll");
});

test("an attempt to come back that hangs begins anew", async () => {
  const { made, client, tell } = await inPage();
  made.mute = true;
  made.sockets[0].lose();
  await made.advance(2000);
  assert.equal(made.sockets.length, 2);
  tell("online");
  await made.advance(2001);
  assert.equal(made.sockets.length, 2, "this one has its time yet");
  await made.advance(4000);
  made.mute = false;
  tell("online");
  await made.advance(4001);
  assert.equal(made.sockets.length, 3);
  assert.ok(client.isConnected);
});
