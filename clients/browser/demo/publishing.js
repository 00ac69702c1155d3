/** Step 1: publishing, and the ways of the newest messages. */

import { byId, foreign, make, setAttribute, setText } from "../shared/dom.js";
import { explainLine } from "../shared/errors.js";
import { formatKey, formatMs } from "../shared/format.js";
import { remarkOn } from "./typed.js";
import { dueText, segments, STAGES, waitsFor } from "./ways.js";

/** The form and the list under it; rows are made once and used again. */
export class Publishing {
  constructor(model, steps) {
    this.model = model;
    this.steps = steps;
    this.rows = [];
    this.drawn = "";
    this.latest = null;
    this.isSending = false;
    this.key = byId("publish-key");
    this.body = byId("publish-body");
    this.said = byId("publish-said");
    byId("publish-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.publish();
    });
    byId("publish-later").addEventListener("click", () => this.publish({ isLater: true }));
    this.body.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        this.publish();
      }
    });
    const remark = () => setText(byId("publish-remark"), remarkOn(this.body.value));
    this.body.addEventListener("input", remark);
    remark();
  }

  async publish(how) {
    this.key.removeAttribute("aria-invalid");
    this.latest = null;
    this.isSending = true;
    this.#saySending();
    try {
      this.latest = await this.model.publish(this.key.value, this.body.value, how);
    } catch (error) {
      this.latest = null;
      if (["key_too_long", "invalid_message"].includes(error?.code)) {
        this.key.setAttribute("aria-invalid", "true");
      }
      setText(this.said, explainLine(error));
    }
    this.isSending = false;
  }

  #saySending() {
    const isConnected = this.model.client?.isConnected;
    setText(this.said, isConnected ? "On its way to the disk." : "It waits for the broker.");
  }

  draw() {
    const { ways, client, isQueuePaused } = this.model;
    const now = { isConnected: client?.isConnected ?? false, isQueuePaused };
    const second = ways.isAnyScheduled ? Math.floor(performance.now() / 250) : 0;
    const drawn = [ways.version, now.isConnected, isQueuePaused, second].join();
    if (this.drawn === drawn) {
      return;
    }
    this.drawn = drawn;
    if (this.isSending) {
      this.#saySending();
    }
    byId("ways-empty").hidden = ways.list.length > 0;
    while (this.rows.length < ways.list.length) {
      this.#addRow();
    }
    ways.list.forEach((way, i) => this.#drawRow(this.rows[i], way, waitsFor(way, now)));
    this.#sayLatest();
  }

  #sayLatest() {
    const way = this.latest;
    if (!way) {
      return;
    }
    const { durable, pushed, acked } = way.atMs;
    if (way.isTakenBack) {
      this.#finish("Taken back: nobody gets it.");
      return;
    }
    if (way.dueUnixMs !== null) {
      const when = dueText(this.model.dueInMs(way));
      setText(this.said, `Durable after ${formatMs(durable)}, and ${when}. Take it back, or wait.`);
      return;
    }
    const soFar = `Durable after ${formatMs(durable)}, here after ${formatMs(pushed)}`;
    const owner = this.model.owners.of(way.partition);
    if (acked !== null) {
      this.#finish(`${soFar}, acknowledged after ${formatMs(acked)}.`);
      this.steps.done(1);
    } else if (durable !== null && pushed !== null && owner && !owner.isHere) {
      this.#finish(`${soFar}; its key is ${owner.name}'s, who acknowledges it. ${this.#advise()}`);
    } else if (durable !== null && (way.trouble || this.model.isQueuePaused)) {
      const why = way.trouble || "the queue is paused";
      setText(this.said, `Durable after ${formatMs(durable)}; ${why}.`);
    }
  }

  /** How to see an acknowledgement here. */
  #advise() {
    const { lanes, owners } = this.model;
    const mine = lanes.list().find(({ key, partition }) => key && owners.of(partition)?.isHere);
    return mine ? `Of this tab is ${formatKey(mine.key, 24)}: try that key.` : "";
  }

  #finish(sentence) {
    setText(this.said, sentence);
    this.latest = null;
  }

  #addRow() {
    const key = foreign("", { class: "way-key" });
    const text = foreign("", { class: "way-text" });
    const note = make("span", { class: "way-note" });
    const bars = STAGES.map((stage) => make("i", { class: `way-${stage}` }));
    const times = STAGES.map((stage) => make("span", { class: "way-ms", data: { stage } }));
    const wait = make("span", { class: "way-wait", data: { testid: "way-wait" } });
    const due = make("span", { data: { testid: "way-due" } });
    const back = make("button", {
      class: "button small", type: "button", text: "Take it back", data: { testid: "take-back" },
    });
    const later = make("div", { class: "way-later" }, due, back);
    const row = make(
      "li",
      { class: "way", data: { testid: "way" } },
      make("div", { class: "way-what" }, key, text, note),
      make("div", { class: "way-bar", "aria-hidden": "true" }, ...bars),
      ...times,
      wait,
      later,
    );
    byId("ways").append(row);
    const drawn = { row, key, text, note, bars, times, wait, due, back, later, way: null };
    back.addEventListener("click", () => this.#takeBack(drawn));
    this.rows.push(drawn);
  }

  async #takeBack(drawn) {
    const { way, back } = drawn;
    back.disabled = true;
    try {
      await this.model.takeBack(way);
      this.latest = way;
    } catch (error) {
      setText(this.said, explainLine(error));
    }
    back.disabled = false;
  }

  #drawRow(drawn, way, waits) {
    const { row, key, text, note, bars, times, wait, due, later } = drawn;
    drawn.way = way;
    const isScheduled = way.dueUnixMs !== null;
    later.hidden = !isScheduled;
    if (isScheduled) {
      setText(due, dueText(this.model.dueInMs(way)));
    }
    const isUnsent = waits !== "" && way.atMs.durable === null && way.isOwn;
    setText(key, formatKey(way.key, 80));
    setText(text, way.text);
    setText(note, noteOn(way, isUnsent ? "" : waits));
    setText(wait, isUnsent ? waits : "");
    wait.hidden = !isUnsent;
    note.classList.toggle("bad", way.trouble !== "");
    setAttribute(row, "data-id", way.id);
    segments(way).forEach(({ stage, ms, from, to }, i) => {
      bars[i].style.transform = `translateX(${(from ?? 0) * 100}%) scaleX(${to - from})`;
      times[i].hidden = isUnsent || isScheduled;
      const shown = formatMs(ms);
      setText(times[i], shown);
      setAttribute(times[i], "aria-label", `${stage} after ${shown}`);
      setAttribute(times[i], "role", "img");
    });
  }
}

function noteOn(way, waits) {
  const parts = [
    way.trouble || waits,
    way.isOwn ? "" : "published elsewhere",
    way.attempt > 1 ? `attempt ${way.attempt}` : "",
    placeText(way),
    way.handler || "",
  ];
  return parts.filter(Boolean).join(" \u00b7 ");
}

function placeText({ partition, offset }) {
  if (partition === null) {
    return "";
  }
  return offset === null ? `partition ${partition}` : `partition ${partition}, offset ${offset}`;
}
