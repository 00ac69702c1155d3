// @ts-check
/** A live plot with its title, its keys and the newest figures, around the shared one. */

import { LivePlot } from "../shared/plots.js";
import { make, setText } from "./elements.js";

/** How far back a plot shows: the first that holds all there is. */
const SPANS = [
  { windowS: 60, everyS: 15, said: "last minute" },
  { windowS: 120, everyS: 30, said: "last 2 minutes" },
  { windowS: 300, everyS: 60, said: "last 5 minutes" },
];
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
   * @param {string} title what is shown; how far back is said behind it
   * @param {(value: any) => string} form of a figure, with its unit
   */
  constructor(id, title, form) {
    this.id = id;
    this.form = form;
    /** @type {string[] | null} */
    this.names = null;
    this.title = title;
    this.span = SPANS[0];
    /** @type {LivePlot | null} */
    this.plot = null;
    this.keys = make("ul", { class: "plot-keys" });
    this.place = make("div", { class: "plot", "aria-hidden": "true" });
    this.place.style.height = `${HEIGHT_PX}px`;
    this.heading = make("figcaption", { class: "plot-title" });
    const data = { testid: `${id}-plot` };
    const head = make("div", { class: "plot-head" }, this.heading, this.keys);
    this.element = make("figure", { class: "plot-figure", data }, head, this.place);
  }

  /**
   * @param {string[]} names of the lines, at most LINES_MAX
   * @param {(number | null)[][]} columns seconds before now, then a column for each line
   */
  update(names, columns) {
    const span = spanOf(columns[0]);
    const isKnown = span === this.span && names.join("\n") === this.names?.join("\n");
    if (!isKnown) this.#begin(names, span);
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

  /** @param {string[]} names @param {typeof SPANS[0]} span */
  #begin(names, span) {
    this.close();
    this.names = names;
    this.span = span;
    setText(this.heading, `${this.title}, ${span.said}`);
    this.keys.replaceChildren(...names.map((name, index) => this.#key(name, index)));
    const series = names.map((label, index) => ({ label, width: 1.5, ...LINES[index] }));
    const axis = { windowS: span.windowS, everyS: span.everyS, formatAgo };
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

/** @param {(number | null)[]} times in seconds, negative, the oldest first */
function spanOf(times) {
  const oldestS = -(times[0] ?? 0);
  return SPANS.find(({ windowS }) => oldestS <= windowS) ?? SPANS[SPANS.length - 1];
}

/** @param {number} seconds before now */
function formatAgo(seconds) {
  if (seconds < 60) return `${seconds} s ago`;
  return `${Math.round(seconds / 6) / 10} min ago`;
}
