/** What the console says about settings, words, expiry and decisions. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { hasExpired, linesOfAll, saidOfMany, saidOfOne } from "../console/deciding.js";
import { expiryOf } from "../console/explaining.js";
import { effectiveOf, isRetaining, settingLabel, settingText } from "../console/settings.js";
import { meaningOf, wordsOf } from "../console/terms.js";

const NOW = 1_000_000;

test("one key goes on and two go on", () => {
  assert.deepEqual(linesOfAll("release", 1, [{}], NOW), ["1 key goes on, with all attempts anew."]);
  assert.deepEqual(linesOfAll("release", 2, [{}], NOW), ["2 keys go on, with all attempts anew."]);
  assert.match(linesOfAll("retry", 1, [{}], NOW)[0], /^The first message of 1 key is tried once/);
  assert.match(linesOfAll("retry", 2, [{}], NOW)[0], /^The first message of each of 2 keys is/);
  assert.equal(saidOfMany("release", 1), "1 key is released.");
  assert.equal(saidOfMany("skip", 2), "2 keys are skipped.");
});

test("what has expired goes to the dead letters, and one is told before", () => {
  const [old, fresh] = [{ expires_unix_ms: NOW }, { expires_unix_ms: NOW + 1 }];
  assert.deepEqual([old, fresh, {}].map((row) => hasExpired(row, NOW)), [true, false, false]);
  const [, said] = linesOfAll("release", 2, [old, fresh], NOW);
  assert.match(said, /^The first message of 1 of them has expired already\..*the dead letters\.$/);
  assert.match(linesOfAll("retry", 1, [old], NOW)[1], /^Its first message has expired already\./);
  assert.match(linesOfAll("release", 9, [old, fresh], NOW)[1], /of at least 1 of them/);
  assert.match(linesOfAll("release", 1, [fresh], NOW)[1], /^Messages whose time to live is over/);
  assert.equal(linesOfAll("skip", 2, [old], NOW).length, 1);
  assert.match(saidOfOne("release", old, NOW), /has expired: it goes to the dead letters\.$/);
  assert.equal(saidOfOne("release", fresh, NOW), "One key is released.");
});

test("an expiry that is over is told in words, by what becomes of it", () => {
  const head = (expires, more = {}) => ({ head: { expires_unix_ms: expires, ...more } });
  assert.equal(expiryOf(head(NOW + 5000), NOW), "in 5 s");
  assert.equal(expiryOf(head(0), NOW), "–");
  assert.equal(expiryOf({ head: null }, NOW), "–");
  const parked = { ...head(NOW), waits_for: "parked" };
  assert.match(expiryOf(parked, NOW), /^expired: .* retried, released or skipped$/);
  assert.match(expiryOf(head(NOW), NOW), /^expired: .* when its turn comes/);
  assert.match(expiryOf(head(NOW, { in_flight: {} }), NOW), /^expired: it counts if it is acked/);
});

test("a group's settings are its own, and the queue's where it has none", () => {
  const own = { start: "earliest", attempts_max: 3, lease_s: 30, backoff_s: null, expires_s: null };
  const queue = { attempts_max: 5, lease_s: 30, backoff_s: 1.5 };
  const found = effectiveOf(own, queue);
  assert.deepEqual(found.map(({ name, value, isOwn }) => [name, value, isOwn]), [
    ["start", "earliest", false],
    ["attempts_max", 3, true],
    ["lease_s", 30, false],
    ["backoff_s", 1.5, false],
    ["expires_s", null, false],
  ]);
  assert.equal(found[1].ofQueue, 5);
  assert.deepEqual(effectiveOf(own, null).map(({ isOwn }) => isOwn), Array(5).fill(false));
});

test("settings with their units", () => {
  assert.equal(settingText("lease_s", 30), "30 s");
  assert.equal(settingText("attempts_max", 0), "without end");
  assert.equal(settingText("messages_max", 0), "no bound");
  assert.equal(settingText("message_bytes_max", 1024), "1.0 KiB");
  assert.equal(settingText("dead_letter_queue", "my_dead"), "my_dead");
  assert.equal(settingText("expires_s", null), "none");
  assert.equal(settingText("publish_messages_per_s", 50), "50 per second"); // no duration
  assert.equal(settingText("publish_bytes_per_s", 2048), "2.0 KiB per second");
  assert.equal(settingLabel("publish_messages_per_s"), "publish messages");
  assert.equal(settingText("is_old", true), "yes");
  assert.equal(settingLabel("lease_total_s"), "lease total");
  assert.equal(settingText("alerts", []), "none");
  const late = { name: "late", when: "oldest_age_s", above: 90, lasts_s: 30, group: "billing" };
  const full = { name: "full", when: "depth", above: 1e4, lasts_s: 60, group: null };
  assert.equal(
    settingText("alerts", [{ ...late, queue: "alarms", webhook: "pager" }]),
    "late: oldest age of billing above 1 min 30 s for 30 s, "
      + "told to the queue alarms and the webhook pager",
  );
  assert.equal(
    settingText("alerts", [{ ...full, queue: "alarms", webhook: null }, { ...full, webhook: "w" }]),
    "full: depth above 10,000 for 1 min, told to the queue alarms; "
      + "full: depth above 10,000 for 1 min, told to the webhook w",
  );
});

test("a queue with a retention keeps what is settled", () => {
  assert.equal(isRetaining({ settings: { retention_s: 60 } }), true);
  assert.equal(isRetaining({ settings: { retention_s: 0 } }), false);
});

test("words are explained once each, and none that needs no explanation", () => {
  const words = wordsOf(["Largest lag", "Lag", "Queue", "Given/s", "constructor"]);
  assert.deepEqual(words.map(([word]) => word), ["Lag", "Given"]);
  assert.equal(meaningOf("toString"), "");
  const asked = ["Depth", "Lag", "Given", "Settled", "Held aside", "Lingering", "Epoch", "Granted",
    "Waits for"];
  for (const word of asked) assert.match(meaningOf(word), /\.$/, word);
});
