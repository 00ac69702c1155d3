// The replayer itself: what it takes for the same, and that it sees what goes wrong.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";

import { Captures, Deviation } from "./matching.js";
import { controlled, replayed } from "./run.js";
import { BUGS, toy } from "./toy.js";
import { parse } from "./transcript.js";

const HEAD = { title: "t", rules: [], about: "a" };
const HELLO = { type: "hello", client: "$client", producer: "producer-1", linger_s: 30 };
const PUSH = { type: "push", subscription: "#s", partition: 0, epoch: "#e", push: "#p", offset: 0 };
const ACKED = [[0, "#e", "#p", 0, 0]];
const LINES = [
  { who: "user", do: "connect", as: "connected" },
  { who: "carrier", do: "open" },
  { who: "client", frame: HELLO },
  { who: "broker", frame: { type: "welcome", session: "$session" } },
  { who: "user", told: "connected" },
  { who: "user", do: "subscribe", as: "billing", with: { group: "billing", credit: 4 } },
  { who: "client", frame: { type: "subscribe", ref: "#r", subscription: "#s", credit: 4 } },
  { who: "broker", frame: { type: "ok", ref: "#r" } },
  { who: "user", told: "billing" },
  { who: "user", do: "next", of: "billing", gets: null },
  { who: "world", do: "publish", with: { messages: [{ key: "a", body: 7 }] } },
  { at: 1, who: "broker", frame: { ...PUSH, messages: [{ key: "a", body: 7 }] } },
  { who: "client", frame: { type: "credit", subscription: "#s", granted: 5 } },
  { who: "user", do: "next", of: "billing", gets: { body: 7, offset: 0 }, as: "m" },
  { who: "user", do: "ack", of: "m" },
  { who: "client", frame: { type: "ack", subscription: "#s", deliveries: ACKED } },
  { at: 3, who: "user", do: "transport", gets: "websocket", only: "broker" },
  { who: "user", do: "next", of: "billing", gets: null },
  { at: 5, who: "user", do: "close", as: "closed" },
  { who: "client", close: 1000 },
  { who: "user", told: "closed" },
];

function text(lines, head = {}) {
  return [{ ...HEAD, ...head }, ...lines].map((line) => JSON.stringify(line)).join("\n");
}

async function why(lines, client = toy(), head = {}) {
  return (await replayed("toy", text(lines, head), client)).map((result) => result.why);
}

// --- the format ---------------------------------------------------------------------------------

for (const [what, lines] of Object.entries({
  "an unknown party": [HEAD, { who: "nobody" }],
  "an unknown field": [HEAD, { who: "client", told: "x" }],
  "no about": [{ title: "t", rules: [] }],
  "an unknown field in the head": [{ ...HEAD, colour: "blue" }],
  "time that goes back": [HEAD, { at: 2, who: "user", do: "close" }, { at: 1, who: "user" }],
})) {
  test(`the format does not know ${what}`, () => {
    assert.throws(() => parse("wrong", lines.map((line) => JSON.stringify(line)).join("\n")));
  });
}

for (const [shown, value, fits] of [
  [{ a: 5 }, { a: 5.0, b: 1 }, true],
  [{ a: 5 }, { b: 5 }, false],
  [{ a: 1 }, { a: true }, false],
  [{ a: null }, { a: null }, true],
  [{ a: null }, {}, false],
  [{ a: [1, 2] }, { a: [1, 2, 3] }, false],
  [{ stale: [[0, 1, 2, 3, 5]] }, { stale: [[0, 1, 2, 4, 5], [0, 1, 2, 3, 3]] }, true],
  [{ deliveries: [[0, 1, 2, 3, 5]] }, { deliveries: [[0, 1, 2, 3, 4]] }, false],
  [{ revoked: [] }, {}, true],
  [{ revoked: [] }, { revoked: [[0, 1, 2, 3, 3]] }, false],
  [{ ref: "#old" }, { ref: 7 }, true],
  [{ ref: "#old" }, { ref: 8 }, false],
  [{ ref: "#old+2" }, { ref: 9 }, true],
  [{ ref: "#new", again: "#new" }, { ref: 1, again: 2 }, false],
  [{ ref: "#new" }, { ref: "7" }, false],
  [{ ref: "#new" }, { ref: 7.5 }, false],
  [{ id: "$id" }, { id: 7 }, false],
]) {
  test(`${JSON.stringify(shown)} ${fits ? "is" : "is not"} ${JSON.stringify(value)}`, () => {
    const captures = new Captures();
    assert.equal(captures.match("#old", 7), null);
    assert.equal(captures.match(shown, value) === null, fits);
  });
}

test("a replayer chooses ever higher numbers", () => {
  const captures = new Captures();
  assert.ok(captures.fill({ push: "#first" }).push < captures.fill(["#second"])[0]);
  assert.equal(captures.fill("#first+1"), captures.fill("#first") + 1);
  assert.throws(() => captures.match({ stale: [[0, "#never", 1, 1, 1]] }, {}), Deviation);
});

// --- replays ------------------------------------------------------------------------------------

test("a client that says what is shown passes, over either transport", async () => {
  assert.deepEqual(await why(LINES), [null, null]);
});

test("what a file for brokers alone shows is not replayed", async () => {
  assert.deepEqual(await why(LINES, toy("never acks"), { sides: ["broker"] }), []);
});

test("each wrong line is noticed", async () => {
  const results = await controlled("toy", text(LINES), toy());
  assert.equal(results.length, 8);
  assert.deepEqual(results.filter((result) => !result.isNoticed), []);
});

for (const bug of BUGS) {
  test(`a client is caught that ${bug}`, async () => {
    const found = await why(LINES, toy(bug), { client: { token: "good" } });
    if (bug === "brings no token") {
      const lines = LINES.map((line) => (line.do === "open" ? { ...line, token: "good" } : line));
      assert.deepEqual(await why(lines, toy(), { client: { token: "good" } }), [null, null]);
      found.splice(0, 2, ...(await why(lines, toy(bug), { client: { token: "good" } })));
    }
    assert.equal(found.length, 2);
    for (const reason of found) assert.match(String(reason), /^toy\.jsonl:\d+: /);
  });
}

test("what comes too late or too early is noticed", async () => {
  const isAck = (line) => line.frame?.type === "ack";
  const early = LINES.map((line) => (isAck(line) ? { ...line, at: 2, by: 3 } : line));
  for (const reason of await why(early)) assert.match(reason, /toy\.jsonl:17: .*it came at 1\.0/s);
});

test("a connection that is refused or silent is so for the client", async () => {
  const told = { who: "user", told: "connected", error: "cannot_connect" };
  for (const how of ["unreachable", "blocked", "unauthorized"]) {
    const lines = [LINES[0], { who: "carrier", do: "refuse", how }, told];
    assert.deepEqual(await why(lines), [null, null]);
  }
  const silent = LINES.toSpliced(7, 0, { who: "carrier", do: "silence", how: "broker" });
  for (const reason of await why(silent)) assert.match(reason, /billing does not return by/);
});

test("a connection that is cut is closed, or nobody knows it", async () => {
  const cut = [...LINES.slice(0, 9), { who: "carrier", do: "cut" }];
  assert.deepEqual(await why(cut), [null, null]);
});

test("a browser says no other close code than 1000 and those from 3000 on", async () => {
  const lines = [...LINES.slice(0, 5), { who: "user", do: "close", as: "closed" }];
  const shown = [...lines, { who: "client", close: 1002 }, { who: "user", told: "closed" }];
  assert.match((await why(shown, closing(1002)))[0], /InvalidAccessError/);
  assert.equal((await why(shown, closing(3000)))[0], null); // what it says instead
  assert.match((await why(shown, closing(1000)))[0], /1000 is not 1002/);
});

test("an error that nobody looks at is caught", () => {
  const script = `
    import { replayed } from ${JSON.stringify(import.meta.resolve("./run.js"))};
    import { LOUD_BUG, toy } from ${JSON.stringify(import.meta.resolve("./toy.js"))};
    console.log(JSON.stringify(await replayed("toy", process.argv[1], toy(LOUD_BUG))));
  `;
  const options = ["--input-type=module", "--eval", script, text(LINES)];
  const printed = execFileSync(process.execPath, options, { encoding: "utf8" });
  for (const { why: reason } of JSON.parse(printed)) assert.match(reason, /unexpected: .*nobody/s);
});

/** A toy that closes its WebSocket with this code. */
function closing(code) {
  const connect = async (url, options) => {
    const client = await toy().connect(url, options);
    client.close = () => client.carrier.close(code);
    return client;
  };
  return { ...toy(), connect };
}
