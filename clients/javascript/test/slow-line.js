/**
 * Large messages over the line at this URL, one of them or COUNT (tests/system/test_slow_lines.py):
 *
 *     node slow-line.js URL TRANSPORT up|down QUEUE GROUP CHARS [COUNT [SPEED]]
 *
 * SPEED: of its clock.
 */

import { connect } from "../src/index.js";

const LONG_POLL_SPEED = 4; // its own deadlines of 8 s are 2 s long then
const [url, transport, way, queue, group, chars, count = "1", given] = process.argv.slice(2);
const speed = Number(given ?? (transport === "long-poll" ? LONG_POLL_SPEED : 1));
const environment = {
  now: () => performance.now() * speed,
  setTimeout: (callback, delayMs) => setTimeout(callback, delayMs / speed),
  clearTimeout: (timer) => clearTimeout(timer),
};

const client = await connect(url, { transport, environment });
const losses = [];
client.addEventListener("connection", ({ detail }) => {
  if (detail.transport === null) losses.push(detail.reason);
});
const began = performance.now();
let attempt = 1; // the highest
const ids = new Set();
if (way === "up") {
  await client.publish(queue, "x".repeat(Number(chars)));
} else {
  const messages = client.subscribe(queue, group);
  for await (const message of messages) {
    attempt = Math.max(attempt, message.attempt);
    if (message.body.length !== Number(chars)) throw new Error("another message");
    await message.ack({ confirm: true });
    ids.add(message.id);
    if (ids.size === Number(count)) break;
  }
}
const tookMs = performance.now() - began;
const before = losses.length;
await client.close();
console.log(JSON.stringify({ tookMs, losses: losses.slice(0, before), attempt, ids: [...ids] }));
