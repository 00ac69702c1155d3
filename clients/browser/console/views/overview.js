// @ts-check
/** All queues: how much stands in each, how fast it moves, what is wrong. */

import { formatBytes, formatCount, plural, titled } from "../../shared/format.js";
import { rowsOf } from "../api.js";
import { badge, make, setBadge, setFigure, setShown, setText } from "../elements.js";
import { Figures } from "../figures.js";
import { rate } from "../format.js";
import { Plot } from "../plot.js";
import { Histories, RATE_WINDOW_MS } from "../rates.js";
import { formatRoute } from "../route.js";
import { Table } from "../table.js";
import { countersOf } from "../totals.js";
import { stateOfQueue } from "../words.js";
import { countColumn, timeColumn } from "./columns.js";
import { glossary, headOf, link, listOf } from "./common.js";

const QUEUES_MAX = 100_000;
const RATES = ["published", "given", "settled"];
const WORDS = [
  "Depth", "Retained", "Scheduled", "Lag", "Published", "Given", "Settled", "Parked keys",
];
const ALL = "\u0000all queues";

export class Overview {
  /** @param {import("./common.js").Context} context */
  constructor(context) {
    this.context = context;
    this.title = "Queues";
    this.periodMs = 1000;
    this.recent = new Histories(QUEUES_MAX, RATE_WINDOW_MS * 2);
    this.history = context.histories.of(ALL);
    this.figures = new Figures("total", TOTALS);
    this.rates = new Plot("total-rates", "Messages per second", rate);
    this.depth = new Plot("total-depth", "Depth and lag", formatCount);
    this.table = this.#table();
    const plots = make("div", { class: "plots" }, this.rates.element, this.depth.element);
    const head = headOf({ name: "Queues" });
    const words = glossary(WORDS);
    this.missing = 0;
    this.away = make("p", {
      class: "note warn", data: { testid: "queues-unavailable" }, hidden: true,
    });
    const parts = [head, this.away, this.figures.element, plots, this.table.element, words];
    this.element = make("div", { class: "view" }, ...parts);
  }

  /** @param {AbortSignal} signal */
  async load(signal) {
    const queues = [];
    this.missing = 0;
    let after;
    do {
      const query = { after, brief: true };
      const page = await this.context.api.get("/v1/queues", { query, signal });
      queues.push(...rowsOf(page, "queues"));
      this.missing += listOf(page.unavailable).length;
      after = page.next;
    } while (after && queues.length < QUEUES_MAX);
    return queues;
  }

  /** @param {any[]} queues */
  show(queues) {
    const at = this.context.elapsed();
    const rows = queues.map((queue) => this.#row(queue, at));
    setShown(this.away, this.missing > 0);
    const many = plural(this.missing, "queue");
    setText(this.away, `${many} more: a storage cluster that has part of them does not answer.`);
    const sums = sumOf(rows);
    this.history.add(at, "", sums);
    this.figures.update(sums);
    this.rates.update(RATES, this.history.columns(RATES));
    this.depth.update(["depth", "lag"], this.history.columns(["depth", "lag"]));
    this.table.update(rows);
  }

  close() {
    this.rates.close();
    this.depth.close();
  }

  /** @param {any} queue @param {number} at */
  #row(queue, at) {
    const counted = countersOf(queue);
    const history = this.recent.of(queue.name);
    history.add(at, counted.era, counted.values);
    const rates = Object.fromEntries(RATES.map((name) => [name, history.rate(name)]));
    return { queue, counted, rates };
  }

  #table() {
    const rates = RATES.map((name) =>
      countColumn(`${name}-rate`, `${titled(name)}/s`, (row) => row.rates[name], rate));
    const now = () => this.context.now();
    return new Table({
      id: "queue",
      caption: "Queues",
      empty: "There is no queue. Create one: tocsin queue create NAME",
      keyOf: (row) => row.queue.name,
      dataOf: (row) => ({ queue: row.queue.name }),
      filter: { label: "Filter by name, holder or state", textOf },
      columns: [
        NAME,
        STATE,
        countColumn("depth", "Depth", (row) => row.queue.depth),
        countColumn("scheduled", "Scheduled", (row) => row.queue.scheduled?.messages),
        countColumn("lag", "Largest lag", (row) => row.counted.lagMost),
        ...rates,
        countColumn("bytes", "Size", (row) => row.queue.bytes, formatBytes),
        timeColumn("oldest", "Oldest", (row) => row.queue.oldest_unix_ms, now),
      ],
    });
  }
}


/** @param {any} row */
function textOf({ queue }) {
  return `${queue.name} ${queue.holder ?? ""} ${stateOfQueue(queue).word}`;
}

/** @param {any[]} rows */
function sumOf(rows) {
  /** @type {Record<string, number | null>} */
  const sums = { queues: rows.length };
  const add = (/** @type {string} */ name, /** @type {(row: any) => any} */ of) => {
    const known = rows.map(of).filter(Number.isFinite);
    const isKnown = known.length > 0 || rows.length === 0;
    sums[name] = isKnown ? known.reduce((sum, value) => sum + value, 0) : null;
  };
  add("depth", (row) => row.queue.depth);
  add("bytes", (row) => row.queue.bytes);
  add("lag", (row) => row.counted.lag);
  for (const name of RATES) add(name, (row) => row.rates[name]);
  return sums;
}

/** @type {import("../figures.js").Figure[]} */
const TOTALS = [
  ["queues", "queues", "Queues", formatCount],
  ["depth", "depth", "Depth", formatCount],
  ["lag", "lag", "Lag, all groups", formatCount],
  ["bytes", "bytes", "Size", formatBytes],
  ["published-rate", "published", "Published", rate, "/s"],
  ["given-rate", "given", "Given", rate, "/s"],
  ["settled-rate", "settled", "Settled", rate, "/s"],
].map(([id, name, label, form, unit]) => ({
  id, label, unit, draw: (e, sums) => setFigure(e, sums[name], form),
}));

/** @type {import("../table.js").Column} */
const NAME = {
  id: "name",
  title: "Queue",
  value: (row) => row.queue.name,
  make: ({ queue }) => link(queue.name, formatRoute("queue", { queue: queue.name }), "queue-name"),
  draw: () => {},
};

/** @type {import("../table.js").Column} */
const STATE = {
  id: "state",
  title: "State",
  value: (row) => stateOfQueue(row.queue).word,
  make: () => badge(),
  draw: (element, row) => {
    const { word, kind } = stateOfQueue(row.queue);
    setBadge(element, word, kind);
  },
};
