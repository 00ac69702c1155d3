// @ts-check
/** A live plot with its title, its keys and the newest figures, around the shared one. */

import { LivePlot } from "../shared/plots.js";
import { make, setText } from "./elements.js";
import { HISTORY_MS } from "./rates.js";

const HEIGHT_PX = 140;
/** By place: lines stay apart without their colours, too. */
const LINES = [
  { color: "--hue-0", mark: "solid", dash: [] },
  { color: "--hue-1", mark: "dashed", dash: [7, 4] },
  { color: "--hue-2", mark: "dotted", dash: [2, 3] },
  { color: "--hue-3", mark: "long", dash: [12, 4] },
];
export const LINES_MAX = LINES.length;

export class Plot {
  /**
   * @param {string} id begins its test ids
   * @param {string} title
   * @param {(value: any) => string} form of a figure, with its unit
   */
  constructor(id, title, form) {
    this.id = id;
    this.form = form;
    /** @type {string[] | null} */
    this.names = null;
    /** @type {LivePlot | null} */
    this.plot = null;
    this.keys = make("ul", { class: "plot-keys" });
    this.place = make("div", { class: "plot", "aria-hidden": "true" });
    this.place.style.height = `${HEIGHT_PX}px`;
    const heading = make("figcaption", { class: "plot-title", text: title });
    const data = { testid: `${id}-plot` };
    const head = make("div", { class: "plot-head" }, heading, this.keys);
    this.element = make("figure", { class: "plot-figure", data }, head, this.place);
  }

  /**
   * @param {string[]} names of the lines, at most LINES_MAX
   * @param {(number | null)[][]} columns seconds before now, then a column for each line
   */
  update(names, columns) {
    if (!this.names || names.join("\n") !== this.names.join("\n")) this.#begin(names);
    [...this.keys.children].forEach((key, index) => {
      const now = /** @type {Element} */ (key.lastElementChild);
      setText(now, this.form(columns[index + 1]?.at(-1) ?? null));
    });
    this.plot?.show(columns);
  }

  /** It goes off the screen. */
  close() {
    this.plot?.close();
    this.plot = null;
  }

  /** @param {string[]} names */
  #begin(names) {
    this.names = names;
    this.close();
    this.keys.replaceChildren(...names.map((name, index) => this.#key(name, index)));
    const series = names.map((label, index) => ({ label, width: 1.5, ...LINES[index] }));
    const windowS = HISTORY_MS / 1000;
    const axis = { windowS, formatAgo, everyS: 60 };
    const options = { series, format: this.form, heightPx: HEIGHT_PX, ...axis };
    this.plot = new LivePlot(this.place, options);
  }

  /** @param {string} name @param {number} index */
  #key(name, index) {
    const mark = make("i", { class: `mark ${LINES[index].mark}`, "aria-hidden": "true" });
    mark.style.color = `var(${LINES[index].color})`;
    const now = make("b", { data: { testid: `${this.id}-plot-now`, line: name } });
    return make("li", {}, mark, make("bdi", { dir: "auto", text: name }), now);
  }
}

/** @param {number} seconds before now */
function formatAgo(seconds) {
  return `${Math.round(seconds / 6) / 10} min ago`;
}
