/** Bad input of the user, and of whatever answers. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { DeadLetter, HttpCalls } from "../../src/api/calls.js";
import { connect } from "../../src/index.js";

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

test("a pull with an option that there is not is refused", async () => {
  const wrong = { name: "InvalidRequest", message: /wait_s/ };
  await assert.rejects(new HttpCalls().pull("q", "g", { wait_s: 1 }), wrong);
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

test("a letter whose group one's rights do not show has none", () => {
  const place = { queue: "orders", partition: 4, offset: 121 };
  assert.equal(new DeadLetter({ id: "7d9f", origin: place }).origin.group, null);
  const shown = { ...place, group: "billing" };
  assert.deepEqual(new DeadLetter({ id: "7d9f", origin: shown }).origin, shown);
});
