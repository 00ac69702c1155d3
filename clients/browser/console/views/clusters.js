// @ts-check
/** Where messages are: each storage cluster, how full it is, and what it holds. */

import { formatBytes, formatCount } from "../../shared/format.js";
import { rowsOf } from "../api.js";
import { badge, make, setBadge, setFigure } from "../elements.js";
import { Figures } from "../figures.js";
import { Table } from "../table.js";
import { clusterStateOf } from "../words.js";
import { countColumn, textColumn, timeColumn } from "./columns.js";
import { glossary, headOf } from "./common.js";

export class ClustersView {
  /** @param {import("./common.js").Context} context */
  constructor(context) {
    this.context = context;
    this.title = "Clusters";
    this.periodMs = 2000;
    this.figures = new Figures("clusters", [
      total("count", "Clusters", (all) => all.length),
      total("hot", "Hot", (all) => all.filter(({ state }) => state === "hot").length),
      total("away", "Away", (all) => all.filter(isAway).length),
      total("partitions", "Partitions", (all) => all.reduce((sum, c) => sum + c.partitions, 0)),
    ]);
    this.table = new Table({
      id: "cluster",
      caption: "Storage clusters",
      empty: "This broker keeps its messages in files of its own.",
      keyOf: (cluster) => cluster.name,
      dataOf: (cluster) => ({ cluster: cluster.name }),
      sort: { id: "name" },
      columns: this.#columns(),
    });
    const head = headOf({ name: "Clusters" });
    const words = glossary(["Hot", "Away", ...this.#columns().map(({ title }) => title)]);
    const parts = [head, this.figures.element, this.table.element, words];
    this.element = make("div", { class: "view" }, ...parts);
  }

  /** @param {AbortSignal} signal */
  async load(signal) {
    return rowsOf(await this.context.api.get("/v1/clusters", { signal }), "clusters");
  }

  /** @param {any[]} clusters */
  show(clusters) {
    this.figures.update(clusters);
    this.table.update(clusters);
  }

  /** @returns {import("../table.js").Column[]} */
  #columns() {
    return [
      textColumn("name", "Cluster", (cluster) => cluster.name),
      textColumn("zone", "Zone", (cluster) => cluster.zone),
      {
        id: "state",
        title: "State",
        value: (cluster) => clusterStateOf(cluster).word,
        make: () => badge(),
        draw: drawState,
      },
      timeColumn("since", "Since", (cluster) => cluster.since_unix_ms, () => this.context.now()),
      countColumn("share", "Memory taken", shareOf, (share) => percent(share)),
      countColumn("used", "Taken", "used_bytes", formatBytes),
      countColumn("bound", "Of", (c) => c.bound_bytes || null, formatBytes),
      countColumn("queues", "Queues", "queues"),
      countColumn("partitions", "Partitions", "partitions"),
      textColumn("catalog", "Catalog", (cluster) => (cluster.has_catalog ? "here" : "")),
    ];
  }
}

/** @param {HTMLElement} element @param {any} cluster */
function drawState(element, cluster) {
  const { word, kind, means } = clusterStateOf(cluster);
  setBadge(element, word, kind);
  element.title = cluster.why ? `${means} ${cluster.why}` : means;
}

/** @param {any} cluster */
function isAway({ state, answers }) {
  return state === "away" || !answers;
}

/** Of its memory; null: it is not known, or has no bound. @param {any} cluster */
function shareOf({ used_bytes: used, bound_bytes: bound }) {
  return bound ? Math.round((100 * used) / bound) : null;
}

/** @param {number | null} share */
function percent(share) {
  return share === null ? formatCount(NaN) : `${formatCount(share)} %`;
}

/** @param {string} id @param {string} label @param {(all: any[]) => number} of
 * @returns {import("../figures.js").Figure} */
function total(id, label, of) {
  return { id, label, draw: (e, clusters) => setFigure(e, of(clusters), formatCount) };
}
