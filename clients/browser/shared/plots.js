/**
 * Live lines over the last so many seconds, drawn by uPlot. The room is there from the start, so
 * nothing moves when the first point comes; arrays are bounded and used again.
 */

import uPlot from "../vendor/uplot/uPlot.esm.js";
import { resolveColor } from "./dom.js";

const ROOM_FOR_NUMBERS_PX = 58;
const LINES_EVERY_PX = 34;
const SECONDS_LABELS_EVERY_PX = 90;

/**
 * A plot of some series against the seconds before now (0 on the right).
 */
export class LivePlot {
  /**
   * @param {HTMLElement} place gets the plot; give it the class `plot`
   * @param {object} options
   * @param {{label: string, color: string, fill?: boolean, width?: number, dash?: number[]}[]}
   *   options.series `color` is a token's name
   * @param {(value: number) => string} options.format a value with its unit, for the axis
   * @param {number} [options.windowS] how far back
   * @param {number} [options.heightPx]
   * @param {boolean} [options.isLog] a logarithmic axis, for what spans decades; takes no zeros,
   *   and wants a `floor` above 0
   * @param {number} [options.floor] the axis reaches at least down to this
   * @param {number} [options.ceiling] and at least up to this
   * @param {number} [options.everyS] times on the axis are multiples of so much
   * @param {(seconds: number) => string} [options.formatAgo] a time before now, for the axis
   */
  constructor(place, options) {
    this.place = place;
    const usual = { windowS: 60, heightPx: 200, isLog: false, floor: 0, ceiling: 1, formatAgo };
    this.options = { ...usual, ...options };
    place.style.height = `${this.options.heightPx}px`;
    this.plot = null;
    this.data = [[], ...this.options.series.map(() => [])];
    this.sizes = new ResizeObserver(() => this.#resize());
    this.sizes.observe(place);
    this.retheme = () => this.#make();
    document.documentElement.addEventListener("themechange", this.retheme);
    this.#make();
  }

  /**
   * Shows these points: `data[0]` are seconds (the newest is 0, older ones negative, ascending),
   * one array of values for each series follows; null is a gap. The arrays stay the caller's.
   * @param {(number|null)[][]} data
   */
  show(data) {
    this.data = data;
    this.plot?.setData(data);
  }

  /** Takes the plot away and lets go of everything. */
  close() {
    this.sizes.disconnect();
    document.documentElement.removeEventListener("themechange", this.retheme);
    this.plot?.destroy();
    this.plot = null;
  }

  #resize() {
    const width = this.place.clientWidth;
    if (this.plot && width && width !== this.plot.width) {
      this.plot.setSize({ width, height: this.options.heightPx });
    }
  }

  #make() {
    this.plot?.destroy();
    this.plot = new uPlot(this.#uplotOptions(), this.data, this.place);
  }

  #uplotOptions() {
    const { series, heightPx } = this.options;
    return {
      width: this.place.clientWidth || 320,
      height: heightPx,
      padding: [8, 18, 0, 0],
      legend: { show: false },
      cursor: { show: false },
      select: { show: false },
      scales: { x: { time: false, range: [-this.options.windowS, 0] }, y: this.#scale() },
      axes: this.#axes(),
      series: [
        {},
        ...series.map(({ label, color, fill, width = 2, dash }) => {
          const stroke = resolveColor(this.place, color);
          return {
            label,
            stroke,
            width,
            dash,
            fill: fill ? stroke.replace(/^rgb\((.*)\)$/, "rgba($1, 0.12)") : undefined,
            points: { show: false },
            spanGaps: false,
          };
        }),
      ],
    };
  }

  #scale() {
    const { isLog, floor, ceiling } = this.options;
    return {
      distr: isLog ? 3 : 1,
      range: (plot, low, high) => {
        const top = Math.max(high ?? ceiling, ceiling);
        const bottom = Math.min(low ?? floor, floor);
        return isLog
          ? [10 ** Math.floor(Math.log10(bottom)), 10 ** Math.ceil(Math.log10(top))]
          : [bottom, bottom + (top - bottom) * 1.1];
      },
    };
  }

  #axes() {
    const { everyS } = this.options;
    const stroke = resolveColor(this.place, "--ink-soft");
    const lines = resolveColor(this.place, "--line");
    const font = `12px ${getComputedStyle(this.place).fontFamily}`;
    const decades = (plot, splits) =>
      splits.map((v) => (!this.options.isLog || isDecade(v) ? v : null)); // of a logarithmic axis
    const common = { stroke, font, ticks: { show: false }, grid: { stroke: lines, width: 1 } };
    return [
      {
        ...common,
        grid: { show: false },
        size: 26,
        gap: 6,
        space: SECONDS_LABELS_EVERY_PX,
        incrs: everyS ? [everyS, 2 * everyS, 5 * everyS] : undefined,
        values: (plot, splits) =>
          splits.map((s) => (s === 0 ? "now" : this.options.formatAgo(-s))),
      },
      {
        ...common,
        size: ROOM_FOR_NUMBERS_PX,
        gap: 8,
        space: LINES_EVERY_PX,
        filter: decades,
        grid: { ...common.grid, filter: decades },
        values: (plot, splits) => splits.map((v) => (v === null ? null : this.options.format(v))),
      },
    ];
  }
}

/** 1, 10, 0.1 … @param {number} value */
function isDecade(value) {
  return Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-6;
}

/** @param {number} seconds */
function formatAgo(seconds) {
  return `${seconds} s ago`;
}
