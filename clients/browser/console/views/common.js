// @ts-check
/** What views share: their heads, links, and the calls' paths. */

import { visibleText } from "../../shared/format.js";
import { shorten } from "../bodies.js";
import { foreign, make, setAttribute, setData, setText } from "../elements.js";
import { formatRoute } from "../route.js";
import { wordsOf } from "../terms.js";

/**
 * @typedef {{
 *   api: import("../api.js").Api,
 *   route: import("../route.js").Route,
 *   now: () => number,
 *   elapsed: () => number,
 *   histories: import("../rates.js").Histories,
 *   notify: (text: string, kind?: string) => void,
 *   refresh: () => void,
 * }} Context `now` is the broker's clock, `elapsed` a monotonic one, both in milliseconds
 *
 * @typedef {{
 *   title: string,
 *   element: HTMLElement,
 *   periodMs: number | null,
 *   load: (signal: AbortSignal) => Promise<any>,
 *   show: (answer: any) => void,
 *   close?: () => void,
 * }} View
 */

/** @param {string} queue */
export function queuePath(queue) {
  return `/v1/queues/${encodeURIComponent(queue)}`;
}

/** @param {string} queue @param {string} group */
export function groupPath(queue, group) {
  return `${queuePath(queue)}/groups/${encodeURIComponent(group)}`;
}

/**
 * A link to another place of the console.
 * @param {string} text @param {string} href @param {string} testid
 * @param {Record<string, any>} [data]
 */
export function link(text, href, testid, data = {}) {
  const inside = foreign(visibleText(text, 300));
  return make("a", { href, data: { testid, ...data } }, inside);
}

/** A link among buttons. @param {string} text @param {string} href @param {string} testid */
export function linkButton(text, href, testid) {
  return make("a", { href, class: "button small", text, data: { testid } });
}

/**
 * The head of a view: the way to it, its name, its state, what can be done.
 * @param {{way?: [string, string][], kind?: string, name: string, beside?: (Node | null)[],
 *   actions?: Node[]}} head
 */
export function headOf({ way = [], kind = "", name, beside = [], actions = [] }) {
  const steps = way.map(([text, href]) => make("li", {}, link(text, href, "crumb")));
  const crumbs = make("ol", { class: "crumbs" }, ...steps);
  const path = make("nav", { "aria-label": "Where you are" }, crumbs);
  const said = kind ? make("span", { class: "kind", text: `${kind} ` }) : null;
  const title = make("h1", { tabindex: "-1" }, said, foreign(shorten(name, 120)));
  const line = make("div", { class: "view-title" }, title, ...beside);
  const doing = actions.length ? make("div", { class: "buttons" }, ...actions) : null;
  const row = make("div", { class: "view-row" }, line, doing);
  return make("header", { class: "view-head" }, way.length ? path : null, row);
}

/**
 * The parts of a queue, or of a group, as tabs that are links.
 * @param {string} label @param {string} here
 * @param {[string, string, string][]} tabs id, text, href
 */
export function tabsOf(label, here, tabs) {
  const items = tabs.map(([id, text, href]) => {
    const current = id === here ? "page" : null;
    const data = { testid: `tab-${id}` };
    return make("li", {}, make("a", { href, "aria-current": current, data, text }));
  });
  return make("nav", { class: "tabs", "aria-label": label }, make("ul", {}, ...items));
}

/** @param {string} queue @param {string} here */
export function tabsOfQueue(queue, here) {
  return tabsOf(`Parts of ${queue}`, here, [
    ["queue", "Now", formatRoute("queue", { queue })],
    ["messages", "Messages", formatRoute("messages", { queue })],
    ["scheduled", "Scheduled", formatRoute("scheduled", { queue })],
    ["dead-letters", "Dead letters", formatRoute("deadLetters", { queue })],
  ]);
}

/** @param {string} queue @param {string} group @param {string} here */
export function tabsOfGroup(queue, group, here) {
  return tabsOf(`Parts of ${group}`, here, [
    ["group", "Now", formatRoute("group", { queue, group })],
    ["parked", "Parked keys", formatRoute("parked", { queue, group })],
  ]);
}

/** @param {string} title @param {...(Node | null)} content */
export function section(title, ...content) {
  return make("section", { class: "part" }, make("h2", { text: title }), ...content);
}

/** What the words of a view mean, folded, at its end. @param {string[]} labels */
export function glossary(labels) {
  const items = wordsOf(labels).map(([word, means]) =>
    make("div", { class: "fact" }, make("dt", { text: word }), make("dd", { text: means })));
  const summary = make("summary", { text: "What the words mean", data: { testid: "words" } });
  const list = make("dl", { class: "facts words" }, ...items);
  return make("details", { class: "part" }, summary, list);
}

/**
 * A key as it is shown: whole for machines (data-key), cut for eyes.
 * @param {HTMLElement} element a bdi
 * @param {unknown} key
 * @param {unknown} hash stands for it where the key is not known
 */
export function setKey(element, key, hash) {
  const isKnown = typeof key === "string";
  setText(element, isKnown ? visibleText(shorten(key, 60), 300) : `no key, or unknown (${hash})`);
  setAttribute(element, "title", isKnown && key.length > 60 ? key.slice(0, 1000) : null);
  setData(element, { key: isKnown ? key : "", keyHash: hash });
}

/** @param {unknown} value @returns {any[]} */
export function listOf(value) {
  return Array.isArray(value) ? value : [];
}
