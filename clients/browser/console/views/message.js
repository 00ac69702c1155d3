// @ts-check
/** One message or dead letter, folded: its place, key and age; opened, all that is in it. */

import { formatBytes, formatCount, formatSeconds, visibleText } from "../../shared/format.js";
import { shorten, showBody } from "../bodies.js";
import { badge, button, foreign, make, setBadge, setTime, timeElement } from "../elements.js";
import { exactTime } from "../format.js";
import { deathOf, originOf, waitsFor } from "../words.js";
import { setKey } from "./common.js";

const FACT_SHOWN_MAX = 12_000;

/**
 * @param {any} message as the broker shows it
 * @param {number} nowMs
 * @param {string} testid `message` or `dead-letter`
 */
export function messageElement(message, nowMs, testid) {
  const data = { partition: message.partition, offset: message.offset };
  const details = make("details", { class: "message", data: { testid, ...data } });
  const part = (/** @type {string} */ name) => ({ testid: `${testid}-${name}`, ...data });
  const place = make("span", { class: "message-place", data: part("place") });
  place.textContent = `${message.partition}-${message.offset}`;
  const key = foreign("", { class: "key", data: part("key") });
  if (typeof message.key === "string") setKey(key, message.key, "");
  else key.textContent = "no key";
  const published = timeElement({ data: part("published") });
  setTime(published, message.published_unix_ms, nowMs);
  const words = [];
  if (message.state) words.push(word(waitsFor(message.state), part("state")));
  if (message.reason) words.push(word({ word: message.reason, kind: "bad" }, part("reason")));
  const preview = foreign(previewOf(message), { class: "message-preview" });
  details.append(make("summary", {}, place, key, ...words, preview, published));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(inside(message, part));
  });
  return details;
}

/** @param {{word: string, kind: any}} said @param {any} data */
function word(said, data) {
  const element = badge({ data });
  setBadge(element, said.word, said.kind);
  return element;
}

/** @param {any} message */
export function previewOf(message) {
  const { form, text, bytes } = showBody(message);
  if (form === "binary") return `binary, ${formatBytes(bytes ?? 0)}`;
  if (form === "none") return noBody(message);
  return visibleText(text.slice(0, 400).replace(/\s+/g, " "), 160);
}

/** Of a scheduled message, one's rights may not show the content. @param {any} message */
function noBody(message) {
  return message.ticket === undefined ? "no body" : "content not shown";
}

/** All that is in a message. @param {any} message @param {(name: string) => any} part */
export function inside(message, part) {
  const facts = make("dl", { class: "facts" }, ...factsOf(message, part));
  const shown = make("pre", {
    class: "body", dir: "auto", data: part("body"),
    tabindex: "0", role: "region", "aria-label": "Body",
  });
  const about = make("p", { class: "small soft", data: part("form") });
  const draw = (/** @type {boolean} */ whole) => {
    const { form, text, bytes, cut } = showBody(message, whole);
    shown.textContent = form === "none" ? `(${noBody(message)})` : text;
    const size = bytes === null ? "" : `, ${formatBytes(bytes)}`;
    const type = message.content_type ? `, ${visibleText(message.content_type)}` : "";
    about.textContent = `Body: ${form}${type}${size}${cut ? ", its beginning" : ""}`;
    return cut;
  };
  const parts = [facts, about, shown];
  if (draw(false)) {
    const data = part("whole");
    const shownWhole = () => {
      draw(true);
      all.remove();
    };
    const all = button("Show all of it", data.testid, shownWhole, { data });
    parts.push(all);
  }
  return make("div", { class: "message-inside" }, ...parts);
}

/** @param {any} message @param {(name: string) => any} part */
function factsOf(message, part) {
  const facts = [];
  /** @param {string} name @param {string} label @param {any} value */
  function add(name, label, value) {
    if (value === undefined || value === null || value === "") return;
    const shown = foreign(visibleText(String(value), FACT_SHOWN_MAX), { data: part(name) });
    facts.push(make("div", { class: "fact" }, make("dt", { text: label }), make("dd", {}, shown)));
  }
  add("id", "Id", message.id);
  add("ticket", "Ticket", message.ticket);
  add("full-key", "Key", message.key);
  add("due-exact", "Due", message.due_unix_ms ? exactTime(message.due_unix_ms) : null);
  add("published-exact", "Published", exactTime(message.published_unix_ms));
  add("expires", "Expires", message.expires_unix_ms ? exactTime(message.expires_unix_ms) : null);
  add("ttl", "Lives, once due", message.ttl_s ? formatSeconds(message.ttl_s) : null);
  add("attempts", "Failed attempts", message.attempts ? formatCount(message.attempts) : null);
  add("death", "Reason", message.reason ? deathOf(message.reason) : null);
  add("nack", "Last nack said", message.nack);
  add("origin", "Came from", message.origin ? originOf(message.origin) : null);
  add("state-means", "State", message.state ? waitsFor(message.state).means : null);
  add("content-type", "Content type", message.content_type);
  for (const [name, value] of Object.entries(message.headers ?? {})) {
    add("header", `Header ${shorten(visibleText(name), 60)}`, value);
  }
  return facts;
}
