/** Steps 4 and 5: who owns what, and what waits for a worker that is paused. */

import { byId, foreign, make, setAttribute, setText } from "../shared/dom.js";
import { explainLine } from "../shared/errors.js";
import { formatCount, formatKey, formatMs, plural } from "../shared/format.js";
import { LivePlot } from "../shared/plots.js";
import { Division } from "./division.js";
import { WORKERS_MAX } from "./settings.js";
import { drawChip } from "./watching.js";

const KEYS_SHOWN_MAX = 12;
const FEW = 8;

/** Step 4. */
export class Sharing {
  constructor(model, steps) {
    this.model = model;
    this.steps = steps;
    this.cells = [];
    this.rows = [];
    this.isAdding = false;
    this.division = new Division();
    this.add = byId("worker-add");
    this.add.addEventListener("click", () => this.#add());
  }

  async #add() {
    if (this.add.getAttribute("aria-disabled") === "true") {
      return;
    }
    this.isAdding = true;
    this.model.changed(true);
    try {
      const worker = await this.model.addWorker();
      this.division.acted();
      setText(byId("workers-said"), `${worker.name} has joined; partitions move to it.`);
    } catch (error) {
      setText(byId("workers-said"), explainLine(error));
    }
    this.isAdding = false;
    this.model.changed(true);
  }

  async #remove(worker) {
    try {
      await this.model.removeWorker(worker);
      this.division.acted();
      setText(byId("workers-said"), `${worker.name} has left; its partitions go to the others.`);
    } catch (error) {
      setText(byId("workers-said"), explainLine(error));
    }
    this.add.focus();
  }

  draw() {
    const { owners, workers, partitionCount } = this.model;
    const isOver = workers.length >= WORKERS_MAX;
    const isIdle = this.model.hasLook && !this.isAdding && !isOver; // it keeps the focus
    setAttribute(this.add, "aria-disabled", String(!isIdle));
    setText(this.add, isOver ? "Four workers are enough" : "Add a worker");
    while (this.cells.length < partitionCount) {
      this.#addCell();
    }
    this.cells.forEach((cell, partition) => this.#drawCell(cell, partition));
    while (this.rows.length < owners.workers.length) {
      this.#addRow();
    }
    this.rows.forEach((row, i) => {
      row.item.hidden = i >= owners.workers.length;
      if (i < owners.workers.length) {
        this.#drawRow(row, owners.workers[i]);
      }
    });
  }

  /** After each look at the group. */
  looked() {
    if (this.division.look(this.model.owners.partitions)) {
      this.steps.done(4);
    }
  }

  #addCell() {
    const letter = make("span", { class: "letter", "aria-hidden": "true" });
    const number = make("span", { class: "number", "aria-hidden": "true" });
    const said = make("span", { class: "unseen" });
    const item = make("li", { data: { testid: "partition" } }, letter, number, said);
    byId("partitions").append(item);
    this.cells.push({ item, letter, number, said });
  }

  #drawCell({ item, letter, number, said }, partition) {
    const owner = this.model.owners.of(partition);
    setText(letter, owner ? owner.letter : "\u2013");
    setText(number, String(partition));
    setText(
      said,
      `partition ${partition}: ${owner ? `${owner.letter}, ${owner.name}` : "nobody yet"}`,
    );
    setAttribute(item, "data-hue", owner ? String(owner.hue) : null);
    setAttribute(item, "data-owner", owner ? owner.letter : "");
  }

  #addRow() {
    const chip = make("span", { class: "chip" });
    const name = make("span", { class: "name" });
    const facts = make("span", { class: "facts small soft" });
    const keys = foreign("", { class: "keys" });
    const remove = make("button", { class: "button small", type: "button", text: "Remove" });
    remove.dataset.testid = "worker-remove";
    const item = make(
      "li",
      { class: "worker", data: { testid: "worker" } },
      chip,
      make("div", {}, make("div", {}, name, " ", facts), keys),
      remove,
    );
    const row = { item, chip, name, facts, keys, remove, session: "" };
    remove.addEventListener("click", () => {
      const worker = this.model.workers.find(({ session }) => session === row.session);
      if (worker) {
        this.#remove(worker);
      }
    });
    byId("workers").append(item);
    this.rows.push(row);
  }

  #drawRow(row, worker) {
    const mine = this.model.workers.findIndex(({ session }) => session === worker.session);
    row.session = worker.session;
    drawChip(row.chip, worker);
    setText(row.name, `${worker.name}${worker.isHere ? " in this tab" : ""}`);
    setText(row.facts, factsOf(worker));
    const keys = this.model.lanes
      .list()
      .filter((lane) => lane.key !== null && worker.partitions.includes(lane.partition))
      .map((lane) => formatKey(lane.key, 24));
    const more = keys.length > KEYS_SHOWN_MAX ? ` and ${keys.length - KEYS_SHOWN_MAX} more` : "";
    setText(
      row.keys,
      keys.length ? keys.slice(0, KEYS_SHOWN_MAX).join(", ") + more : "no key yet",
    );
    row.remove.hidden = mine < 1;
    setAttribute(row.remove, "aria-label", `Remove ${worker.name}`);
    setAttribute(row.item, "data-letter", worker.letter);
  }
}

function factsOf({ partitions, waiting, isAbsent }) {
  const share = plural(partitions.length, "partition");
  const waits = waiting > FEW ? `, ${formatCount(waiting)} waiting` : "";
  return `${share}${waits}${isAbsent ? ", connection lost: kept for it" : ""}`;
}

/** Step 5. */
export class Pausing {
  constructor(model, steps) {
    this.model = model;
    this.steps = steps;
    this.buttons = [];
    this.draining = null;
    this.handled = 0;
    this.hadBacklog = false;
    this.data = [[], []];
    model.onHandled = () => {
      this.handled += 1;
    };
    this.plot = new LivePlot(byId("lag-plot"), {
      series: [{ label: "messages that wait", color: "--warn", fill: true }],
      format: formatCount,
      heightPx: 190,
      ceiling: 40,
    });
  }

  #toggle(worker) {
    const { owners } = this.model;
    const letter = owners.find(worker.session)?.letter ?? worker.name;
    if (worker.isPaused) {
      this.draining = {
        letter,
        sinceMs: performance.now(),
        handledBefore: worker.handled,
        inversionsBefore: this.model.lanes.inversions,
        worker,
      };
      worker.resume();
      const waiting = owners.find(worker.session)?.waiting ?? 0;
      setText(byId("pause-said"), `${letter} goes on with ${plural(waiting, "message")}.`);
    } else {
      this.draining = null;
      worker.pause();
      setText(byId("pause-said"), `${letter} is paused. Watch its messages wait.`);
    }
    this.model.changed(true);
  }

  /** After each look at the group. */
  looked() {
    const { lags, lagTimes, owners, lanes } = this.model;
    const [xs, ys] = this.data;
    xs.length = ys.length = lags.length;
    for (let i = 0; i < lags.length; i += 1) {
      xs[i] = (lagTimes.at(i) - lagTimes.last) / 1000;
      ys[i] = lags.at(i);
    }
    const waitingFor = ({ session }) => owners.find(session)?.waiting ?? 0;
    this.hadBacklog ||= this.model.workers.some((one) => one.isPaused && waitingFor(one) > FEW);
    if (this.draining && waitingFor(this.draining.worker) <= FEW) {
      const { worker, letter, sinceMs, handledBefore, inversionsBefore } = this.draining;
      const took = formatMs(performance.now() - sinceMs);
      const order =
        lanes.inversions === inversionsBefore ? "each key in its order" : "not all in order";
      const count = plural(worker.handled - handledBefore, "message");
      setText(byId("pause-said"), `${letter} has caught up: ${count} in ${took}, ${order}.`);
      this.draining = null;
      if (this.hadBacklog) {
        this.steps.done(5);
      }
    }
  }

  draw() {
    const { owners, workers, lanes } = this.model;
    while (this.buttons.length < workers.length) {
      this.#addButton();
    }
    this.buttons.forEach((button, i) => {
      const worker = workers[i];
      button.hidden = !worker;
      if (worker) {
        const letter = owners.find(worker.session)?.letter ?? worker.name;
        setText(button, worker.isPaused ? `Resume ${letter}` : `Pause ${letter}`);
        button.classList.toggle("primary", worker.isPaused);
        setAttribute(button, "data-paused", String(worker.isPaused));
      }
    });
    const label = `Messages that wait, over the last 60 seconds; now ${formatCount(owners.lag)}`;
    setAttribute(byId("lag-plot"), "aria-label", label);
    setText(byId("lag"), this.model.hasLook ? formatCount(owners.lag) : "\u2013");
    setText(byId("handled"), formatCount(this.handled));
    setText(byId("inversions"), formatCount(lanes.inversions));
    this.plot.show(this.data);
  }

  #addButton() {
    const index = this.buttons.length;
    const button = make("button", { class: "button", type: "button", data: { testid: "pause" } });
    button.addEventListener("click", () => this.#toggle(this.model.workers[index]));
    byId("pauses").append(button);
    this.buttons.push(button);
  }
}
