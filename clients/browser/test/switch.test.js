/** The WebSocket with a switch, in front of one that is not real. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { makeSwitch } from "../demo/switch.js";

class Real extends EventTarget {
  static opened = [];
  constructor(url, protocols) {
    super();
    Object.assign(this, { url, protocols, readyState: 0, sent: [], binaryType: "blob" });
    Real.opened.push(this);
  }
  open() {
    this.readyState = 1;
    this.dispatchEvent(new Event("open"));
  }
  send(data) {
    this.sent.push(data);
  }
  close(code) {
    this.readyState = 2;
    this.code = code;
  }
  say(data) {
    this.dispatchEvent(new MessageEvent("message", { data }));
  }
}

function heard(socket) {
  const events = [];
  socket.onopen = () => events.push("open");
  socket.onmessage = (event) => events.push(event.data);
  socket.onerror = () => events.push("error");
  socket.addEventListener("close", ({ code, wasClean }) =>
    events.push(`close ${code} ${wasClean}`),
  );
  return events;
}

test("on, everything passes", () => {
  const { WebSocket } = makeSwitch(Real);
  const socket = new WebSocket("ws://x/", "tocsin.v1");
  const real = Real.opened.at(-1);
  const events = heard(socket);
  real.open();
  socket.binaryType = "arraybuffer";
  socket.send("a");
  real.say("b");
  assert.deepEqual(
    [real.protocols, real.sent, real.binaryType],
    ["tocsin.v1", ["a"], "arraybuffer"],
  );
  assert.deepEqual([socket.readyState, socket.OPEN, WebSocket.CLOSED], [1, 1, 3]);
  socket.close(1000, "done");
  assert.equal(real.code, 1000);
  real.dispatchEvent(
    Object.assign(new Event("close"), { code: 1000, reason: "", wasClean: true }),
  );
  assert.deepEqual(events, ["open", "b", "close 1000 true"]);
});

test("switched off, an open one breaks off at once and says nothing more", () => {
  const network = makeSwitch(Real);
  const socket = new network.WebSocket("ws://x/");
  const real = Real.opened.at(-1);
  const events = heard(socket);
  real.open();
  network.set(false);
  assert.equal(network.isOn(), false);
  assert.deepEqual(events, ["open", "error", "close 1006 false"]);
  assert.equal(socket.readyState, 3);
  real.say("too late");
  real.dispatchEvent(
    Object.assign(new Event("close"), { code: 3999, reason: "", wasClean: true }),
  );
  socket.send("x");
  socket.close();
  assert.deepEqual(events.length, 3);
  assert.deepEqual(real.sent, []);
});

test("while it is off, a new one fails, later, and opens nothing", async () => {
  const network = makeSwitch(Real);
  network.set(false);
  const before = Real.opened.length;
  const socket = new network.WebSocket("ws://x/");
  assert.equal(socket.readyState, 0);
  const closed = new Promise((resolve) => socket.addEventListener("close", resolve));
  assert.equal((await closed).code, 1006);
  assert.equal(Real.opened.length, before);
  network.set(true);
  new network.WebSocket("ws://x/");
  assert.equal(Real.opened.length, before + 1);
});
