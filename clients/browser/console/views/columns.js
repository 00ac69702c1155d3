// @ts-check
/** Columns that several tables have. */

import { formatCount } from "../../shared/format.js";
import {
  badge, foreign, make, setAttribute, setBadge, setFigure, setText, setTime, timeElement,
} from "../elements.js";
import { age } from "../format.js";
import { formatRoute } from "../route.js";
import { waitsFor } from "../words.js";
import { setKey } from "./common.js";

/** @typedef {import("../table.js").Column} Column */

/**
 * A column of numbers.
 * @param {string} id @param {string} title
 * @param {string | ((row: any) => any)} of a field of a row, or what makes the figure of it
 * @param {(value: any) => string} [form]
 * @returns {Column}
 */
export function countColumn(id, title, of, form = formatCount) {
  const value = typeof of === "string" ? (/** @type {any} */ row) => row[of] : of;
  const draw = (/** @type {any} */ e, /** @type {any} */ row) =>
    setFigure(e, value(row), form);
  return { id, title, isNumeric: true, value, draw };
}

/** How many messages of a key wait, or at least do. @returns {Column} */
export function waitingColumn() {
  /** @param {any} element @param {any} row */
  function draw(element, row) {
    const least = row.is_exact === false ? "\u2265 " : "";
    setFigure(element, row.messages, (count) => `${least}${formatCount(count)}`);
  }
  return { id: "messages", title: "Waiting", isNumeric: true, value: (row) => row.messages, draw };
}

/**
 * A column of times, sorted by age.
 * @param {string} id @param {string} title
 * @param {(row: any) => any} of the time, in milliseconds since 1970
 * @param {() => number} now
 * @param {(unixMs: unknown, nowMs: number) => string} [form]
 * @returns {Column}
 */
export function timeColumn(id, title, of, now, form = age) {
  const sign = form === age ? -1 : 1;
  return {
    id,
    title,
    isNumeric: true,
    value: (row) => (of(row) ? sign * of(row) : null),
    make: () => timeElement(),
    draw: (element, row) => setTime(element, of(row), now(), form),
  };
}

/** A column of texts of others. @param {string} id @param {string} title
 * @param {(row: any) => string} of @returns {Column} */
export function textColumn(id, title, of) {
  const draw = (/** @type {any} */ e, /** @type {any} */ row) => setText(e, of(row));
  return { id, title, value: of, make: () => foreign(""), draw };
}

/** A column of ids. @param {string} id @param {string} title @param {(row: any) => string} of
 * @returns {Column} */
export function idColumn(id, title, of) {
  /** @param {any} element @param {any} row */
  function draw(element, row) {
    setText(element, of(row));
    setAttribute(element, "title", of(row)); // where there is no room for all of it
  }
  return { ...textColumn(id, title, of), make: () => make("code", { class: "id" }), draw };
}

/** @returns {Column} */
export function keyColumn() {
  return {
    id: "key",
    title: "Key",
    value: (row) => row.key ?? row.key_hash,
    make: () => foreign("", { class: "key" }),
    draw: (e, row) => setKey(e, row.key, row.key_hash),
  };
}

/**
 * What a row waits for, as a word.
 * @param {(row: any) => unknown} codeOf @param {string} id @param {string} title
 * @returns {Column}
 */
export function waitsColumn(codeOf, id, title) {
  return {
    id,
    title,
    value: (row) => waitsFor(codeOf(row)).word,
    make: () => badge(),
    draw: (e, row) => {
      const { word, kind, means } = waitsFor(codeOf(row));
      setBadge(e, word, kind);
      e.title = means;
    },
  };
}

/** The way to what became of a row's key. @param {string} queue @param {string} group
 * @returns {Column} */
export function explainColumn(queue, group) {
  return {
    id: "explain",
    title: "More",
    make: (row) => {
      if (typeof row.key !== "string") return make("span");
      const href = formatRoute("explain", { query: { queue, group, key: row.key } });
      return make("a", { href, text: "Explain" });
    },
    draw: () => {},
  };
}
