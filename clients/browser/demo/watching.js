/** Steps 2 and 3: the figures of each key, and how long messages take. */

import { byId, foreign, make, resolveColor, setAttribute, setText } from "../shared/dom.js";
import { formatCount, formatFigure, formatKey, formatMs } from "../shared/format.js";
import { LivePlot } from "../shared/plots.js";
import { readFigure, sayFigures } from "./figures.js";
import { drawLine } from "./lines.js";
import { NO_KEY_HERE } from "./owners.js";

const SAMPLE_EVERY_MS = 250;
const SEEN_ENOUGH = 20;
const RATE_WINDOW_MS = 2000;
const ROWS_MAX = 24;
const LIVE_MS = 2000;

/** Step 2: a row for each key. */
export class Figures {
  constructor(model, steps) {
    this.model = model;
    this.steps = steps;
    this.rows = [];
    this.sampledMs = 0;
    this.openedMs = performance.now();
    this.recolor = () => {
      this.color = resolveColor(byId("figures"), "--accent");
    };
    this.recolor();
    document.documentElement.addEventListener("themechange", this.recolor);
  }

  /** Takes a value of each key for its line; also while the step is off the screen. */
  sample(nowMs) {
    if (nowMs - this.sampledMs < SAMPLE_EVERY_MS) {
      return;
    }
    const beforeMs = this.sampledMs;
    this.sampledMs = nowMs;
    for (const lane of this.model.lanes.list()) {
      const value =
        lane.message && lane.heardMs > beforeMs ? readFigure(lane.message).value : null;
      if (value !== null) {
        lane.values.push(value);
      }
    }
  }

  draw(nowMs) {
    const { lanes } = this.model;
    const shown = lanes
      .list()
      .filter((lane) => lane.message)
      .slice(0, ROWS_MAX);
    while (this.rows.length < shown.length) {
      this.#addRow();
    }
    this.rows.forEach((row, i) => {
      row.item.hidden = i >= shown.length;
      if (i < shown.length) {
        this.#drawRow(row, shown[i]);
      }
    });
    const live = shown.filter((lane) => nowMs - lane.heardMs < LIVE_MS);
    const isMoving = live.some((lane) => lane.seen >= SEEN_ENOUGH);
    if (isMoving && this.steps.isSeen(2)) {
      this.steps.done(2);
    }
    const heardMs = Math.max(this.openedMs, ...shown.map((lane) => lane.heardMs));
    const said = sayFigures({
      shown: shown.length,
      live: live.length,
      more: lanes.list().length - shown.length,
      silentMs: nowMs - heardMs,
    });
    setText(byId("figures-said"), said);
  }

  #addRow() {
    const key = foreign("");
    const where = make("span", { class: "where" });
    const chip = make("span", { class: "chip" });
    const value = foreign("", { class: "value" });
    const canvas = make("canvas", { "aria-hidden": "true" });
    const item = make(
      "li",
      { class: "figure-row", data: { testid: "figure" } },
      make("div", { class: "name" }, key, chip, where),
      value,
      canvas,
    );
    byId("figures").append(item);
    this.rows.push({ item, key, where, chip, value, canvas });
  }

  #drawRow({ item, key, where, chip, value, canvas }, lane) {
    setAttribute(item, "data-key", lane.key ?? "");
    setText(key, formatKey(lane.key, 40));
    setText(value, readFigure(lane.message).text);
    setText(where, `partition ${lane.partition}`);
    drawChip(chip, this.model.owners.of(lane.partition));
    drawLine(canvas, lane.values, this.color);
  }
}

/** The letter of a worker in its colour. */
export function drawChip(chip, worker) {
  setText(chip, worker ? worker.letter : "\u2013");
  setAttribute(chip, "data-hue", worker ? String(worker.hue) : null);
  setAttribute(chip, "title", worker ? worker.name : "nobody yet");
}

/** Step 3, and the figures at the top. */
export class Latency {
  constructor(model, steps) {
    this.model = model;
    this.steps = steps;
    this.data = [[], [], []];
    this.plot = new LivePlot(byId("latency-plot"), {
      series: [
        { label: "p50", color: "--accent" },
        { label: "p99", color: "--ink-faint" },
      ],
      format: (ms) => (ms < 1000 ? `${formatFigure(ms)} ms` : `${formatFigure(ms / 1000)} s`),
      heightPx: 240,
      isLog: true,
      floor: 1,
      ceiling: 100,
    });
  }

  /** Once a second. @param {number} nowMs */
  tick(nowMs) {
    const { latencies, readTimes, clock } = this.model;
    if (!latencies.tick(nowMs)) {
      return;
    }
    const { p50Ms, p99Ms, count } = latencies.summary(nowMs);
    setText(byId("p50"), formatMs(p50Ms));
    setText(byId("p99"), formatMs(p99Ms));
    setText(byId("hero-p50"), formatMs(p50Ms));
    const label = `half within ${formatMs(p50Ms)}, 99 of 100 within ${formatMs(p99Ms)}`;
    const plot = byId("latency-plot");
    setAttribute(plot, "aria-label", `Latency over the last 60 seconds: ${label}`);
    let recent = 0;
    while (
      recent < readTimes.length &&
      readTimes.at(readTimes.length - 1 - recent) > nowMs - RATE_WINDOW_MS
    ) {
      recent += 1;
    }
    setText(byId("rate"), formatCount(Math.round((recent * 1000) / RATE_WINDOW_MS)));
    const caution = clock.isKnown
      ? ""
      : " By two clocks: publish a message, and they are compared.";
    const none = this.model.ownsNoKey() ? NO_KEY_HERE : "No message yet.";
    const said = count ? `${formatCount(count)} messages in the last 60 seconds.` : none;
    setText(byId("latency-said"), said + caution);
    if (count && this.steps.isSeen(3)) {
      this.steps.done(3);
    }
  }

  draw() {
    const { latencies } = this.model;
    latencies.fill(this.data);
    for (const line of this.data.slice(1)) {
      for (let i = 0; i < line.length; i += 1) {
        line[i] = line[i] === null ? null : Math.max(1, line[i]);
      }
    }
    this.plot.show(this.data);
  }
}
