// @ts-check
/** Figures with their names: tiles at the top of a view, and lists of facts. */

import { titled } from "../shared/format.js";
import { make, setAttribute, setData, setFigure, setShown, setText } from "./elements.js";
import { rate } from "./format.js";
import { meaningOf } from "./terms.js";

/**
 * @typedef {{
 *   id: string,
 *   label: string | ((of: any) => string),
 *   unit?: string,
 *   make?: () => HTMLElement,
 *   draw: (element: any, of: any) => void,
 *   isThere?: (of: any) => boolean,
 * }} Figure `draw` puts into the element what `of` has; where that is not there, none is shown
 */

/** A list of figures, each a term and its value, which draws itself anew. */
export class Figures {
  /**
   * @param {string} id begins the test ids: `queue` gives `queue-depth` for the figure `depth`
   * @param {Figure[]} figures
   * @param {{shape?: "tiles" | "facts", dataOf?: (of: any) => Record<string, unknown>}} [more]
   */
  constructor(id, figures, { shape = "tiles", dataOf = () => ({}) } = {}) {
    this.figures = figures;
    this.dataOf = dataOf;
    this.parts = figures.map((figure) => figure.make?.() ?? make("span"));
    this.names = figures.map(() => make("dt"));
    this.items = figures.map((figure, index) => {
      this.parts[index].dataset.testid = `${id}-${figure.id}`;
      const unit = figure.unit ? make("small", { text: ` ${figure.unit}` }) : null;
      const value = make("dd", {}, this.parts[index], unit);
      const shaped = { class: shape === "tiles" ? "figure" : "fact" };
      if (typeof figure.label === "string") this.#name(index, figure.label);
      return make("div", shaped, this.names[index], value);
    });
    this.element = make("dl", { class: shape === "tiles" ? "figures" : "facts" }, ...this.items);
  }

  /** @param {any} of what the figures are of */
  update(of) {
    const data = this.dataOf(of);
    this.figures.forEach((figure, index) => {
      setData(this.parts[index], data);
      figure.draw(this.parts[index], of);
      if (typeof figure.label !== "string") this.#name(index, figure.label(of));
      if (figure.isThere) setShown(this.items[index], figure.isThere(of));
    });
  }

  /** @param {number} index @param {string} label */
  #name(index, label) {
    setText(this.names[index], label);
    setAttribute(this.names[index], "title", meaningOf(label) || null);
  }
}

/**
 * One for each of these counters: how fast it grows.
 *
 * @param {{rate: (name: string) => number | null}} history
 * @param {string[]} names
 * @returns {Figure[]}
 */
export function ratesOf(history, names) {
  return names.map((name) => ({
    id: `${name}-rate`,
    label: titled(name),
    unit: "/s",
    draw: (element) => setFigure(element, history.rate(name), rate),
  }));
}
