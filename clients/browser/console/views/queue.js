// @ts-check
/** One queue: what stands in it, who consumes it, its settings; pause, resume and purge. */

import { formatBytes, formatCount, plural } from "../../shared/format.js";
import { rowsOf } from "../api.js";
import { askAndDo } from "../dialog.js";
import {
  badge, button, make, setBadge, setFigure, setShown, setText, setTime, timeElement,
} from "../elements.js";
import { Figures, ratesOf } from "../figures.js";
import { rate, until } from "../format.js";
import { LINES_MAX, Plot } from "../plot.js";
import { formatRoute } from "../route.js";
import { Table } from "../table.js";
import { countersOf } from "../totals.js";
import { stateOfQueue } from "../words.js";
import { isRetaining } from "../settings.js";
import {
  glossary, headOf, linkButton, listOf, queuePath, section, tabsOfQueue,
} from "./common.js";
import { groupColumns, PARTITIONS } from "./queue-tables.js";
import { QueueSettings, sinceOf } from "./settings.js";

const RATES = ["published", "given", "settled"];
const WORDS = ["Depth", "Retained", "Scheduled", "Lag", "Published", "Given", "Settled"];

/**
 * The rows of a list; none where one's rights do not show it.
 * @param {any} queue
 * @param {string} name
 */
function shownRows(queue, name) {
  return queue[name] === undefined ? [] : rowsOf(queue, name);
}

export class QueueView {
  /** @param {import("./common.js").Context} context */
  constructor(context) {
    this.context = context;
    this.name = /** @type {string} */ (context.route.queue);
    this.title = this.name;
    this.periodMs = 1000;
    this.queue = /** @type {any} */ (null);
    this.history = context.histories.of(`queue ${this.name}`);
    this.figures = new Figures("queue", this.#figures(), { dataOf: () => ({ queue: this.name }) });
    this.rates = new Plot("queue-rates", "Messages per second", rate);
    this.depths = new Plot("queue-depths", "Depth and lag", formatCount);
    this.groups = this.#groupsTable();
    this.partitions = this.#partitionsTable();
    this.settings = new QueueSettings(this.name, () => this.context.now());
    this.element = this.#build();
  }

  /** @param {AbortSignal} signal */
  load(signal) {
    return this.context.api.get(queuePath(this.name), { signal });
  }

  /** @param {any} queue */
  show(queue) {
    this.queue = queue;
    const counted = countersOf(queue);
    const groups = shownRows(queue, "groups");
    const lags = Object.fromEntries(groups.map((group) => [`lag ${group.name}`, group.lag]));
    const values = { ...counted.values, depth: queue.depth, ...lags };
    this.history.add(this.context.elapsed(), counted.era, values);
    this.figures.update(queue);
    const { word, kind } = stateOfQueue(queue);
    setBadge(this.state, word, kind);
    this.#drawActions(queue);
    this.rates.update(RATES, this.history.columns(RATES, RATES));
    const shown = Object.keys(lags).slice(0, LINES_MAX - 1);
    this.depths.update(["depth", ...shown], this.history.columns(["depth", ...shown]));
    this.groups.update(groups);
    const partitions = shownRows(queue, "partitions");
    this.partitions.update(partitions);
    setText(this.partitionsTitle, plural(partitions.length, "partition"));
    this.settings.update(queue);
  }

  close() {
    this.rates.close();
    this.depths.close();
  }

  #build() {
    const data = { queue: this.name };
    this.state = badge({ data: { testid: "queue-state", ...data } });
    this.pause = button("Pause …", "queue-pause", () => this.#pause(true), { data });
    this.resume = button("Resume …", "queue-resume", () => this.#pause(false), { data });
    this.purge = button("Purge …", "queue-purge", () => this.#purge(), { data });
    for (const one of [this.pause, this.resume, this.purge]) one.disabled = true;
    this.resume.hidden = true;
    const head = headOf({
      way: [["Queues", formatRoute("overview")]],
      kind: "Queue",
      name: this.name,
      beside: [this.state],
      actions: [
        linkButton("Explain a key", formatRoute("explain", { query: data }), "explain-link"),
        this.pause, this.resume, this.purge,
      ],
    });
    this.paused = make("p", {
      class: "note warn",
      text: "Paused: nothing is given out to its groups. Publishing and readers go on.",
      data: { testid: "queue-paused-note" },
      hidden: true,
    });
    this.partitionsTitle = make("span", {});
    const summary = make("summary", { data: { testid: "queue-partitions" } }, this.partitionsTitle);
    const partitions = make("details", { class: "part" }, summary, this.partitions.element);
    const plots = make("div", { class: "plots" }, this.rates.element, this.depths.element);
    const parts = [head, tabsOfQueue(this.name, "queue"), this.paused, this.figures.element, plots];
    const more = [section("Groups", this.groups.element), partitions];
    const columns = [...groupColumns("", () => 0), ...PARTITIONS].map(({ title }) => title);
    const last = [section("Settings", ...this.settings.elements), glossary([...WORDS, ...columns])];
    return make("div", { class: "view" }, ...parts, ...more, ...last);
  }

  /** @param {any} queue */
  #drawActions(queue) {
    for (const one of [this.pause, this.resume, this.purge]) one.disabled = false;
    setShown(this.pause, !queue.paused);
    setShown(this.resume, Boolean(queue.paused));
    setShown(this.paused, Boolean(queue.paused));
  }

  #figures() {
    const now = () => this.context.now();
    return [
      {
        id: "depth",
        label: (q) => (isRetaining(q) ? "Retained messages" : "Depth"),
        draw: (e, q) => setFigure(e, q.depth, formatCount),
      },
      { id: "bytes", label: "Size", draw: (e, q) => setFigure(e, q.bytes, formatBytes) },
      {
        id: "scheduled",
        label: "Scheduled",
        draw: (e, q) => setFigure(e, q.scheduled?.messages, formatCount),
      },
      {
        id: "next-due",
        label: "Next one due",
        make: () => timeElement({ tabindex: "0" }),
        draw: (e, q) => setTime(e, q.scheduled?.next_unix_ms, now(), until),
      },
      ...ratesOf(this.history, RATES),
      {
        id: "oldest",
        label: "Oldest message",
        make: () => timeElement({ tabindex: "0" }),
        draw: (e, q) => setTime(e, q.oldest_unix_ms, now()),
      },
      {
        id: "published",
        label: "Published since start",
        draw: (e, q) => {
          setFigure(e, q.counters?.published, formatCount);
          sinceOf(e, q.counters);
        },
      },
    ];
  }

  #groupsTable() {
    return new Table({
      id: "group",
      caption: `Groups of ${this.name}`,
      empty: "No group yet: the first subscribe makes one. Readers need none.",
      keyOf: (group) => group.name,
      dataOf: (group) => ({ queue: this.name, group: group.name }),
      columns: groupColumns(this.name, () => this.context.now()),
    });
  }

  #partitionsTable() {
    return new Table({
      id: "partition",
      caption: `Partitions of ${this.name}`,
      empty: "It has no partitions.",
      keyOf: (partition) => String(partition.partition),
      dataOf: (partition) => ({ queue: this.name, partition: partition.partition }),
      columns: PARTITIONS,
    });
  }

  /** @param {boolean} isPausing */
  async #pause(isPausing) {
    const done = await askAndDo({
      id: isPausing ? "pause" : "resume",
      title: isPausing ? "Pause this queue?" : "Resume this queue?",
      about: this.name,
      lines: [
        isPausing
          ? "Nothing more is given out to any group until it is resumed."
          : "Its groups are given messages again, at once.",
        isPausing ? "What is in flight can be settled; publishing and readers go on." : "",
      ],
      confirm: isPausing ? "Pause" : "Resume",
      run: async () => {
        await this.context.api.post(`${queuePath(this.name)}/${isPausing ? "pause" : "resume"}`);
        return isPausing ? `${this.name} is paused.` : `${this.name} goes on.`;
      },
    });
    this.#did(done);
  }

  async #purge() {
    const count = this.queue?.scheduled?.messages;
    const waiting = count ? `${plural(count, "message")} scheduled for later` : "";
    const groups = listOf(this.queue?.groups).map(
      ({ name }) => /** @type {[string, string]} */ ([name, `for the group ${name} only`]),
    );
    const done = await askAndDo({
      id: "purge",
      title: "Purge this queue?",
      about: this.name,
      lines: [
        "Everything that stands in it at that moment is dropped, in flight or not.",
        waiting ? `For all groups, this also drops ${waiting}.` : "",
        "It cannot be taken back.",
      ],
      isDangerous: true,
      typed: this.name,
      choice: {
        label: "What",
        options: [
          ["", `everything, for all groups (${plural(this.queue?.depth, "message")} now)`],
          ...groups,
        ],
      },
      confirm: "Purge",
      run: async (_say, _isStopped, group) => {
        const what = group ? { group } : { all: true };
        const { messages } = await this.context.api.post(`${queuePath(this.name)}/purge`, what);
        return `${plural(messages, "message")} dropped from ${this.name}.`;
      },
    });
    this.#did(done);
  }

  /** @param {string | null} done */
  #did(done) {
    if (done) this.context.notify(done, "good");
    this.context.refresh();
  }
}
