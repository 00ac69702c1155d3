/** Bodies of messages as text, whatever they are. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { readAnswer } from "../console/api.js";
import { hexDump, shorten, showBody, TEXT_SHOWN_MAX } from "../console/bodies.js";

const base64 = (bytes) => Buffer.from(bytes).toString("base64");

test("a JSON body is shown with its lines", () => {
  const shown = showBody({ body: { total: 12 } });
  assert.deepEqual(shown, { form: "json", text: '{\n  "total": 12\n}', bytes: null, cut: false });
  assert.equal(showBody({ body: null }).text, "null");
  assert.equal(showBody({ body: "<b>" }).text, '"<b>"');
  assert.equal(showBody({}).form, "none");
});

test("numbers that JavaScript cannot hold are shown as they were published", () => {
  const answer = '{"messages": [{"body": [12345678901234567890, 1e400, 1.5, 7]}]}';
  const [message] = readAnswer(200, answer, true).messages;
  assert.equal(showBody(message).text.replace(/\s/g, ""), "[12345678901234567890,1e400,1.5,7]");
  assert.equal(readAnswer(200, '{"offset": 9007199254740991}', true).offset, 2 ** 53 - 1);
});

test("a binary body is its size and hexadecimal lines", () => {
  const shown = showBody({ body_base64: base64([0, 1, 65, 255]), content_type: "image/png" });
  assert.equal(shown.form, "binary");
  assert.equal(shown.bytes, 4);
  assert.equal(shown.text, `000000  00 01 41 ff${" ".repeat(36)}  ··A·`);
});

test("a binary body that says it is text is shown as text, if it is", () => {
  const text = { body_base64: base64("grün"), content_type: "text/plain" };
  assert.deepEqual(showBody(text), { form: "text", text: "grün", bytes: 5, cut: false });
  const no = { body_base64: base64([0xff, 0xfe]), content_type: "text/plain" };
  assert.equal(showBody(no).form, "binary");
  assert.equal(showBody({ body_base64: "no base64!" }).text, "no base64!");
});

test("a large body is cut until one asks for all of it", () => {
  const body = "x".repeat(TEXT_SHOWN_MAX);
  assert.equal(showBody({ body }).cut, true); // the quotes are two more
  assert.equal(showBody({ body: body.slice(2) }).cut, false);
  assert.equal(showBody({ body }, true).text.length, TEXT_SHOWN_MAX + 2);
  const bytes = { body_base64: base64(new Uint8Array(300)) };
  assert.equal(showBody(bytes).cut, true);
  assert.equal(showBody(bytes, true).text.split("\n").length, 19);
  assert.equal(hexDump(new Uint8Array(0)), "");
});

test("a cut never splits a character in two", () => {
  const body = "😀".repeat(TEXT_SHOWN_MAX / 2);
  assert.doesNotMatch(showBody({ body }).text, /[\ud800-\udbff]$/);
  assert.equal(shorten("😀".repeat(10), 5), "😀😀…😀😀");
  assert.equal(shorten("abcde", 5), "abcde");
  assert.equal(shorten("x".repeat(10_000), 61).length, 61);
});
