// @ts-check
/**
 * Elements of the console, on top of the shared ones. Everything that is shown goes in as text:
 * nothing here, or in the console, reads a text as markup.
 */

import { make, setAttribute, setText } from "../shared/dom.js";
import { age, exactTime } from "./format.js";

export { drawing, foreign, make, resolveColor, setAttribute, setText } from "../shared/dom.js";

/** Writes only what changes. @param {HTMLElement} element @param {Record<string, unknown>} data */
export function setData(element, data) {
  for (const [name, value] of Object.entries(data)) {
    const text = String(value ?? "");
    if (element.dataset[name] !== text) element.dataset[name] = text;
  }
}

/**
 * A figure in its form; what it is exactly stands in `data-value`.
 * @param {HTMLElement} element
 * @param {unknown} value
 * @param {(value: any) => string} form
 */
export function setFigure(element, value, form) {
  setText(element, form(value));
  setData(element, { value });
}

/** Show or hide. @param {HTMLElement} element @param {boolean} isShown */
export function setShown(element, isShown) {
  if (element.hidden === isShown) element.hidden = !isShown;
}

/** An age whose exact time is there on hover and focus.
 * @param {Record<string, any>} [attributes] */
export function timeElement(attributes = {}) {
  return make("time", { class: "time", ...attributes });
}

/**
 * @param {HTMLElement} element one of timeElement()
 * @param {unknown} unixMs
 * @param {number} nowMs the broker's clock
 * @param {(unixMs: unknown, nowMs: number) => string} [form]
 */
export function setTime(element, unixMs, nowMs, form = age) {
  setText(element, form(unixMs, nowMs));
  const exact = exactTime(unixMs);
  setAttribute(element, "title", exact);
  setData(element, { exact, unixMs });
}

/**
 * A state: a word, and a colour by its kind.
 * @param {HTMLElement} element
 * @param {string} word
 * @param {"good" | "warn" | "bad" | "accent" | ""} [kind]
 */
export function setBadge(element, word, kind = "") {
  setText(element, word);
  setAttribute(element, "class", kind ? `badge ${kind}` : "badge");
}

/**
 * @param {string} text
 * @param {string} testid
 * @param {(event: any) => void} pressed
 * @param {Record<string, any>} [attributes]
 * @returns {any}
 */
export function button(text, testid, pressed, attributes = {}) {
  const data = { testid, ...attributes.data };
  const own = { type: "button", class: "button small", ...attributes, text, data };
  return make("button", { ...own, on: { click: pressed } });
}

/** A control with its label. @param {string} label @param {HTMLElement} control */
export function field(label, control) {
  const name = make("span", { class: "label", text: label });
  return make("label", { class: "field" }, name, control);
}

/**
 * The children of `parent` become these, in this order; those that stay are not touched.
 * @param {Element} parent
 * @param {Element[]} children
 */
export function setChildren(parent, children) {
  const wanted = new Set(children);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  children.forEach((child, index) => {
    const there = parent.children[index] ?? null;
    if (there !== child) parent.insertBefore(child, there);
  });
}

/** A state: a word that setBadge() gives it. @param {Record<string, any>} [attributes] */
export function badge(attributes = {}) {
  return make("span", { class: "badge", ...attributes });
}
