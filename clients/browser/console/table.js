// @ts-check
/**
 * A table that lives: rows stay where they are while their figures change; filter, sorting and
 * pages keep a thousand rows usable. On a narrow screen each row is a card.
 */

import { formatCount } from "../shared/format.js";
import { filterRows, pageOf, sortRows } from "./listing.js";
import {
  button, field, make, setAttribute, setChildren, setData, setShown, setText,
} from "./elements.js";
import { meaningOf } from "./terms.js";

export const ROWS_PER_PAGE = 50;

/**
 * @typedef {{
 *   id: string,
 *   title: string,
 *   isNumeric?: boolean,
 *   value?: (row: any) => string | number | null | undefined,
 *   make?: (row: any) => HTMLElement,
 *   draw: (element: any, row: any) => void,
 * }} Column
 * `value` is what it is sorted by (without it, it is not); `make` makes the element that `draw`
 * draws a row's figure into, and is called once a row.
 *
 * @typedef {{
 *   id: string,
 *   caption: string,
 *   columns: Column[],
 *   keyOf: (row: any) => string,
 *   dataOf?: (row: any) => Record<string, unknown>,
 *   empty: string,
 *   filter?: { label: string, textOf: (row: any) => string },
 *   sort?: { id: string, isDescending?: boolean },
 *   perPage?: number,
 * }} TableSettings
 * `id` begins the test ids: `queue` gives `queue-depth` on the figure of column `depth`. `dataOf`
 * names the row on each of its figures.
 */

export class Table {
  /** @param {TableSettings} settings */
  constructor(settings) {
    this.settings = { perPage: ROWS_PER_PAGE, dataOf: () => ({}), ...settings };
    const first = settings.columns[0];
    this.sort = { id: first.id, isDescending: false, ...settings.sort };
    this.page = 0;
    this.text = "";
    /** @type {any[]} */
    this.rows = [];
    /** @type {string[]} */
    this.order = [];
    /** @type {Map<string, {element: HTMLElement, parts: HTMLElement[]}>} */
    this.shown = new Map();
    this.body = make("tbody", { role: "rowgroup" });
    this.heads = settings.columns.map((column) => this.#head(column));
    this.element = this.#build();
  }

  /** The rows as they are now. @param {any[]} rows */
  update(rows) {
    this.rows = rows;
    this.draw();
  }

  /** Filter by this text, as if it was typed. @param {string} text */
  search(text) {
    this.text = text;
    this.page = 0;
    if (this.box && this.box.value !== text) this.box.value = text;
    this.draw();
  }

  /** Show what is there, as it is filtered, sorted and paged. */
  draw() {
    const { perPage, keyOf, filter, empty } = this.settings;
    const found = filter ? filterRows(this.rows, this.text, filter.textOf) : this.rows;
    const page = pageOf(this.#sorted(found), this.page, perPage);
    this.page = page.page;
    const elements = page.rows.map((row) => this.#row(row));
    const keys = new Set(page.rows.map(keyOf));
    for (const key of this.shown.keys()) if (!keys.has(key)) this.shown.delete(key);
    setChildren(this.body, elements);
    this.#drawHeads();
    setShown(this.nothing, !page.rows.length);
    setText(this.nothing, this.rows.length ? "Nothing matches the filter." : empty);
    setShown(this.wrap, page.rows.length > 0);
    this.#drawPages(page, found.length);
  }

  /** Sorted; while one points at a row or has the focus in one, rows keep their places.
   * @param {any[]} rows */
  #sorted(rows) {
    const { columns, keyOf } = this.settings;
    const column = columns.find(({ id }) => id === this.sort.id) ?? columns[0];
    const sorted = sortRows(rows, column.value ?? keyOf, this.sort.isDescending);
    const isHeld = this.body.matches(":hover") || this.body.contains(document.activeElement);
    if (!isHeld || !this.order.length) {
      this.order = sorted.map(keyOf);
      return sorted;
    }
    const places = new Map(this.order.map((key, place) => [key, place]));
    return sortRows(sorted, (row) => places.get(keyOf(row)), false);
  }

  /** @param {any} row */
  #row(row) {
    const { columns, keyOf, id, dataOf } = this.settings;
    const key = keyOf(row);
    let known = this.shown.get(key);
    if (!known) {
      const parts = columns.map((column) => column.make?.(row) ?? make("span"));
      const cells = columns.map((column, index) => {
        setData(parts[index], { testid: `${id}-${column.id}`, ...dataOf(row) });
        const shape = column.isNumeric ? "number" : null;
        const props = { role: "cell", class: shape, data: { label: column.title } };
        return make("td", props, parts[index]);
      });
      const data = { testid: `${id}-row`, ...dataOf(row) };
      known = { element: make("tr", { role: "row", data }, ...cells), parts };
      this.shown.set(key, known);
    }
    columns.forEach((column, index) => column.draw(known.parts[index], row));
    return known.element;
  }

  /** @param {Column} column */
  #head(column) {
    const shape = column.isNumeric ? "number" : null;
    const title = meaningOf(column.title) || null;
    const props = { role: "columnheader", scope: "col", class: shape, title };
    if (!column.value) return make("th", { ...props, text: column.title });
    const testid = `${this.settings.id}-sort`;
    const pressed = () => this.#sortBy(column);
    const inside = button(column.title, testid, pressed, { data: { column: column.id } });
    return make("th", props, inside);
  }

  /** @param {Column} column */
  #sortBy(column) {
    const isSame = this.sort.id === column.id;
    const isDescending = isSame ? !this.sort.isDescending : Boolean(column.isNumeric);
    this.sort = { id: column.id, isDescending };
    this.order = [];
    this.draw();
  }

  #drawHeads() {
    this.settings.columns.forEach((column, index) => {
      const isSorted = column.value && column.id === this.sort.id;
      const way = this.sort.isDescending ? "descending" : "ascending";
      setAttribute(this.heads[index], "aria-sort", isSorted ? way : null);
    });
    if (this.chooser.value !== this.sort.id) this.chooser.value = this.sort.id;
  }

  /** @param {{page: number, pages: number, first: number, rows: any[]}} page
   * @param {number} found */
  #drawPages(page, found) {
    setShown(this.pager, page.pages > 1);
    const last = page.first + page.rows.length;
    const of = found === this.rows.length ? "" : ` (of ${formatCount(this.rows.length)})`;
    const shown = `${formatCount(page.first + 1)} to ${formatCount(last)}`;
    setText(this.where, `${shown} of ${formatCount(found)}${of}`);
    this.back.disabled = page.page === 0;
    this.next.disabled = page.page >= page.pages - 1;
  }

  /** @param {number} pages */
  #turn(pages) {
    this.page += pages;
    this.order = [];
    this.draw();
  }

  #build() {
    const { id, caption } = this.settings;
    const head = make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...this.heads));
    const title = make("caption", { class: "unseen", text: caption });
    const table = make("table", { role: "table", class: "table" }, title, head, this.body);
    this.wrap = make("div", { class: "table-wrap" }, table);
    this.nothing = make("p", { class: "empty", data: { testid: `${id}-empty` }, hidden: true });
    this.where = make("span", { class: "pager-where", data: { testid: `${id}-pager` } });
    this.back = button("Previous", `${id}-page-back`, () => this.#turn(-1));
    this.next = button("Next", `${id}-page-next`, () => this.#turn(1));
    const label = `Pages of ${caption}`;
    const inside = [this.back, this.where, this.next];
    this.pager = make("nav", { class: "pager", "aria-label": label, hidden: true }, ...inside);
    const section = { class: "table-section", data: { testid: `${id}-table` } };
    return make("div", section, this.#tools(), this.wrap, this.nothing, this.pager);
  }

  #tools() {
    const { id, columns, filter } = this.settings;
    const sortable = columns.filter((column) => column.value);
    const options = sortable.map(({ id: value, title }) => make("option", { value, text: title }));
    const chosen = () => {
      const column = sortable.find((one) => one.id === this.chooser.value);
      if (column && column.id !== this.sort.id) this.#sortBy(column);
    };
    const data = { testid: `${id}-sort-by` };
    this.chooser = make("select", { data, on: { change: chosen } }, ...options);
    const choosing = field("Sort by", this.chooser);
    choosing.classList.add("narrow-only");
    if (!filter) return make("div", { class: "tools narrow-only" }, choosing);
    const typed = (/** @type {any} */ event) => this.search(event.target.value);
    const kind = { type: "search", autocomplete: "off", spellcheck: "false", dir: "auto" };
    const attributes = { ...kind, data: { testid: `${id}-filter` }, on: { input: typed } };
    this.box = make("input", attributes);
    return make("div", { class: "tools" }, field(filter.label, this.box), choosing);
  }
}
