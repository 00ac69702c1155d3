/** Bad input: of the user, and of whatever answers. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Calls } from "../src/api/calls.js";
import { Http } from "../src/io/http.js";
import { connect } from "../src/index.js";
import { encodeMessage, fromBase64, toBase64 } from "../src/proto/message.js";
import { checkedUrl } from "../src/io/http.js";
import { decode, encode, joinFrames, MESSAGE_CHARS_AIM, NotTheProtocol } from "../src/proto/wire.js";
import { Socket } from "../src/io/websocket.js";

const URL = "http://broker.test";

/** A page that answers everything with this. */
function answering(status, text) {
  return {
    WebSocket: class {
      constructor() {
        throw new Error("blocked");
      }
    },
    fetch: async () => new Response(text, { status }),
  };
}

test("what has no JSON form is refused before anything is sent", () => {
  const cycle = {};
  cycle.itself = cycle;
  for (const body of [undefined, 10n, cycle, () => 1, Symbol("a"), "\ud800", ["\udc00 b"]]) {
    const refused = { name: "InvalidRequest", code: "invalid_message" };
    assert.throws(() => encodeMessage({ body }), refused);
  }
  assert.equal(encodeMessage({ body: "\\ud800 😀" }), '{"body":"\\\\ud800 😀"}');
  assert.equal(encodeMessage({ body: null, key: "a" }), '{"key":"a","body":null}');
});

test("what JSON would show as something else is refused, with its place (P2)", () => {
  class Order {
    total = NaN;
  }
  // eslint-disable-next-line no-sparse-arrays
  const sparse = [1, , 2];
  for (const [body, what] of [
    [NaN, "body: NaN"], [{ a: [1, { b: -Infinity }] }, "body.a[1].b: -Infinity"],
    [new Order(), "body.total: NaN"], [Object(NaN), "body: NaN"],
    [new Map([["a", 1]]), "body: a Map"], [{ tags: new Set([1]) }, "body.tags: a Set"],
    [[Promise.resolve(1)], "body[0]: a Promise"], [{ why: new Error("no") }, "body.why: a Error"],
    [[/a/], "body[0]: a RegExp"], [new Map().entries(), "body: a Map Iterator"],
    [{ raw: new Uint8Array(2) }, "body.raw: bytes"],
    [[new ArrayBuffer(2)], "body[0]: a ArrayBuffer"],
    [[new Date(NaN)], "body[0]: an invalid Date"], [{ toJSON: () => NaN }, "body: NaN"],
    [[undefined], "body[0]: undefined"], [sparse, "body[1]: undefined"],
    [{ run() {} }, "body.run: a function"], [[Symbol("a")], "body[0]: a symbol"],
  ]) {
    const refused = { name: "InvalidRequest", code: "invalid_message" };
    assert.throws(() => encodeMessage({ body }), refused, what);
    assert.throws(() => encodeMessage({ body }), (error) => error.message.includes(what), what);
  }
  const headers = new Map([["a", "b"]]);
  assert.throws(() => encodeMessage({ body: 1, headers }), { code: "invalid_message" });
});

test("a field named by a symbol is not left out without a word", () => {
  for (const body of [{ [Symbol("x")]: 1 }, [{ a: { [Symbol("x")]: 1 } }]]) {
    assert.throws(() => encodeMessage({ body }), /symbol/);
  }
});

test("a pull with an option that there is not is refused", async () => {
  const wrong = { name: "InvalidRequest", message: /wait_s/ };
  await assert.rejects(new Calls().pull("q", "g", { wait_s: 1 }), wrong);
});

test("what JSON can say goes as ever", () => {
  class Point {
    x = 1;
    y = undefined;
  }
  const at = new Date(0);
  const own = Object.assign(Object.create(null), { a: [null, true, "\u2028"] });
  const boxed = [Object(1), Object("a")];
  for (const body of [new Point(), { at }, own, boxed, { toJSON: () => 7 }, -0]) {
    assert.equal(encodeMessage({ body }), `{"body":${JSON.stringify(body)}}`);
  }
});

test("a setting that is no number is not sent as null", async () => {
  const http = new Http(URL, undefined, answering(200, "{}"));
  const refused = { name: "InvalidRequest" };
  await assert.rejects(http.request("PUT", "/v1/queues/q", { lease_s: NaN }), refused);
});

test("a field of a message that is wrong or unknown is refused by itself", () => {
  for (const wrong of [
    { key: "" }, { key: 7 }, { key: "\ud800" }, { id: 7 }, { ttlS: 0 }, { ttlS: "5" },
    { headers: { a: 1 } }, { headers: ["a"] }, { sentUnixMs: 1.5 }, { contentType: 1 },
    { keey: "a" },
  ]) {
    assert.throws(() => encodeMessage({ body: 1, ...wrong }), { code: "invalid_message" });
  }
  assert.throws(() => encodeMessage(null), { code: "invalid_message" });
});

test("bytes go through base64 as they are", () => {
  const bytes = Uint8Array.from({ length: 70_000 }, (_, index) => index % 256);
  assert.deepEqual(fromBase64(toBase64(bytes)), bytes);
  const view = new DataView(bytes.buffer, 1, 2);
  assert.equal(encodeMessage({ body: view }), '{"body_base64":"AQI="}');
});

test("half a surrogate pair does not spoil what travels beside it", () => {
  assert.equal(encode({ reason: "a\ud800" }), '{"reason":"a\ufffd"}');
  assert.equal(encode({ reason: "\\ud800" }), '{"reason":"\\\\ud800"}');
});

test("what is no frame, or has a field of a wrong type, is not the protocol", () => {
  for (const text of [
    "<html>", "5", "null", "[[]]", "{}", '{"type":7}', '{"type":"push"}', '{"type":"ok","ref":"1"}',
    '{"type":"push","subscription":1,"messages":[5]}',
    '{"type":"push","subscription":1,"messages":[{"key":5}]}',
    '{"type":"revoked","subscription":1,"deliveries":[[1,2]]}',
    '{"type":"welcome","heartbeat_s":"20"}',
  ]) {
    assert.throws(() => decode(text), NotTheProtocol, text);
  }
  assert.deepEqual(decode('{"type":"news","ref":"a"}'), []);
  assert.equal(decode('{"type":"pong","colour":"blue"}')[0].ref, null);
});

test("messages hold what the broker takes", () => {
  assert.deepEqual(joinFrames(["{}"]), ["{}"]);
  assert.equal(joinFrames(Array(257).fill("{}")).length, 2);
  assert.equal(joinFrames(["a".repeat(MESSAGE_CHARS_AIM - 1), "b", "c"]).length, 2);
});

test("a URL is one of a broker", () => {
  assert.equal(checkedUrl("https://a.test/tocsin//"), "https://a.test/tocsin");
  for (const wrong of ["ftp://a", "a.test", "http://", "http://a/?token=b", "http://u:p@a"]) {
    assert.throws(() => checkedUrl(wrong), TypeError);
  }
});

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
    new Socket(url, { environment: { WebSocket, now: () => 0 }, trace: () => {} }).start();
    assert.deepEqual(opened, [[reached, ["tocsin.v1"]]]);
  }
});

test("what is wrong with an option is said at once", async () => {
  for (const wrong of [
    { tokn: "a" }, { token: "a b" }, { token: 5 }, { transport: "udp" }, { lingerS: 301 },
    { connectTimeoutS: 0 }, { trace: true }, { resume: "" }, { resume: "here is no page" },
  ]) {
    await assert.rejects(connect(URL, wrong), TypeError, JSON.stringify(wrong));
  }
});

test("a page, an error and half an answer are no broker, and what to do is said", async () => {
  const answers = [[200, "<html>"], [404, "no"], [200, "{}"], [201, '{"session":1}']];
  for (const [status, text] of answers) {
    const environment = answering(status, text);
    await assert.rejects(connect(URL, { environment }), { name: "NotABroker" }, text);
  }
  const environment = answering(502, "<html>");
  await assert.rejects(connect(URL, { environment }), (error) => {
    assert.equal(error.code, "cannot_connect");
    assert.match(error.message, /502.*TOCSIN_ORIGINS/);
    return true;
  });
});

test("who is not let in learns it, and a token function that fails, too", async () => {
  const environment = answering(401, "");
  await assert.rejects(connect(URL, { environment, token: "a" }), { name: "Unauthorized" });
  const token = async () => {
    throw new Error("the login is over");
  };
  await assert.rejects(connect(URL, { environment, token }), (error) => {
    assert.equal(error.name, "NoToken");
    assert.match(error.message, /the login is over/);
    return true;
  });
});
