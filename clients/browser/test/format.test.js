/** Values, text of others, and errors, as the pages show them. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { explain, explainLine } from "../shared/errors.js";
import {
  formatBinary,
  formatBody,
  formatBytes,
  formatFigure,
  formatKey,
  formatMs,
  formatSeconds,
  plural,
  utf8Bytes,
  visibleText,
} from "../shared/format.js";

test("durations have the unit that fits", () => {
  assert.equal(formatMs(0.42), "0.4 ms");
  assert.equal(formatMs(9.94), "9.9 ms");
  assert.equal(formatMs(9.96), "10 ms");
  assert.equal(formatMs(999.4), "999 ms");
  assert.equal(formatMs(999.6), "1.0 s");
  assert.equal(formatMs(59_940), "59.9 s");
  assert.equal(formatMs(60_000), "1 min");
  assert.equal(formatMs(125_000), "2 min 5 s");
  assert.equal(formatMs(null), "–");
  assert.equal(formatMs(NaN), "–");
  assert.equal(formatSeconds(3.6), "4 s");
  assert.equal(formatSeconds(-1), "0 s");
  assert.equal(formatSeconds(11_520), "3 h 12 min");
});

test("bytes and counts", () => {
  assert.equal(formatBytes(1), "1 byte");
  assert.equal(formatBytes(1023), "1,023 bytes");
  assert.equal(formatBytes(1024), "1.0 KiB");
  assert.equal(formatBytes(150 * 1024), "150 KiB");
  assert.equal(plural(1, "message"), "1 message");
  assert.equal(plural(1200, "message"), "1,200 messages");
  assert.equal(formatFigure(2.345), "2.35");
  assert.equal(utf8Bytes("ä😀"), 6);
});

test("text of others is fit for a line, whatever it is", () => {
  assert.equal(visibleText("<img src=x onerror=alert(1)>"), "<img src=x onerror=alert(1)>");
  assert.equal(visibleText("a\nb\tc"), "a b c");
  assert.equal(visibleText("a\u0000b"), "a\u2400b");
  assert.equal(visibleText("a\u202eb"), "a\u00b7b");
  assert.equal(visibleText("\ud800"), "\ufffd");
  assert.equal(visibleText("x".repeat(10_000), 5), "xxxxx\u2026 (10,000 characters)");
  assert.equal(visibleText("😀😀", 3), "😀\u2026 (4 characters)");
  assert.equal(visibleText("abc", 3), "abc");
  assert.equal(formatKey(null), "no key");
  assert.equal(formatKey("שלום"), "שלום");
});

test("a body is shown, whatever it is", () => {
  assert.equal(formatBody({ body: { a: 1 } }), '{"a":1}');
  assert.equal(formatBody({ body: "plain" }), "plain");
  assert.equal(formatBody({ body: "" }), "empty text");
  assert.equal(formatBody({ body: null }), "null");
  assert.equal(formatBody({ body: 12 }), "12");
  assert.equal(formatBody({ body: new Uint8Array([0, 255]) }), "binary, 2 bytes: 00 ff");
  assert.equal(formatBody({ bytes: new Uint8Array([1]) }), "binary, 1 byte: 01");
  const unreadable = {
    get body() {
      throw new Error("not JSON");
    },
    bytes: new Uint8Array([7]),
  };
  assert.equal(formatBody(unreadable), "binary, 1 byte: 07");
  assert.match(formatBinary(new Uint8Array(25)), /^binary, 25 bytes: (00 ){24}…$/);
  assert.doesNotMatch(formatBinary(new Uint8Array(24)), /…/);
});

test("an error says what happened and what to do", () => {
  const full = { code: "queue_full", detail: "the queue holds as much as its settings allow" };
  assert.equal(explain(full).what, "The queue holds as much as its settings allow.");
  assert.match(explain(full).remedy, /^Wait until consumers/);
  assert.match(explain(new TypeError("Failed to fetch")).remedy, /make run/);
  assert.equal(explain("odd").what, "Odd.");
  assert.equal(explain(undefined).what, "Undefined.");
  assert.equal(explain({ detail: "slow", retry: true }).remedy, "Wait a moment and try again.");
  assert.equal(explainLine({ detail: "no" }), "No.");
});
