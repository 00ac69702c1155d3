/** A WebSocket as a carrier. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { WebSocketCarrier } from "../../src/io/websocket.js";

test("an https URL is reached over wss, an http URL over ws", () => {
  for (const [url, reached] of [
    ["https://a.test/tocsin", "wss://a.test/tocsin/v1/ws"],
    ["http://a.test:81", "ws://a.test:81/v1/ws"],
  ]) {
    const opened = [];
    const WebSocket = class extends EventTarget {
      constructor(...arguments_) {
        super();
        opened.push(arguments_);
      }
    };
    const environment = { WebSocket, now: () => 0 };
    new WebSocketCarrier(url, { environment, trace: () => {} }).start();
    assert.deepEqual(opened, [[reached, ["tocsin.v1"]]]);
  }
});
