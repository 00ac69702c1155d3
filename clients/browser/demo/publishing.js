/** Step 1: publishing, and the ways of the newest messages. */

import { byId, foreign, make, setAttribute, setText } from "../shared/dom.js";
import { explainLine } from "../shared/errors.js";
import { formatKey, formatMs } from "../shared/format.js";
import { segments, STAGES } from "./ways.js";

/** The form and the list under it; rows are made once and used again. */
export class Publishing {
  constructor(model, steps) {
    this.model = model;
    this.steps = steps;
    this.rows = [];
    this.version = -1;
    this.latest = null;
    this.key = byId("publish-key");
    this.body = byId("publish-body");
    this.said = byId("publish-said");
    byId("publish-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.publish();
    });
    this.body.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        this.publish();
      }
    });
  }

  async publish() {
    this.key.removeAttribute("aria-invalid");
    try {
      this.latest = await this.model.publish(this.key.value, this.body.value);
    } catch (error) {
      this.latest = null;
      if (["key_too_long", "invalid_message"].includes(error?.code)) {
        this.key.setAttribute("aria-invalid", "true");
      }
      setText(this.said, explainLine(error));
    }
  }

  draw() {
    const { ways } = this.model;
    if (this.version === ways.version) {
      return;
    }
    this.version = ways.version;
    byId("ways-empty").hidden = ways.list.length > 0;
    while (this.rows.length < ways.list.length) {
      this.#addRow();
    }
    ways.list.forEach((way, i) => this.#drawRow(this.rows[i], way));
    this.#sayLatest();
  }

  #sayLatest() {
    const way = this.latest;
    if (!way) {
      return;
    }
    const { durable, pushed, acked } = way.atMs;
    const soFar = `Durable after ${formatMs(durable)}, here after ${formatMs(pushed)}`;
    const owner = this.model.owners.of(way.partition);
    if (acked !== null) {
      this.#finish(`${soFar}, acknowledged after ${formatMs(acked)}.`);
    } else if (durable !== null && pushed !== null && owner && !owner.isHere) {
      this.#finish(`${soFar}; its key is ${owner.name}'s, who acknowledges it.`);
    } else if (way.trouble) {
      setText(this.said, `Durable after ${formatMs(durable)}; ${way.trouble}.`);
    }
  }

  #finish(sentence) {
    setText(this.said, sentence);
    this.latest = null;
    this.steps.done(1);
  }

  #addRow() {
    const key = foreign("", { class: "way-key" });
    const text = foreign("", { class: "way-text" });
    const note = make("span", { class: "way-note" });
    const bars = STAGES.map((stage) => make("i", { class: `way-${stage}` })).reverse();
    const times = STAGES.map((stage) => make("span", { class: "way-ms", data: { stage } }));
    const row = make(
      "li",
      { class: "way", data: { testid: "way" } },
      make("div", { class: "way-what" }, key, text, note),
      make("div", { class: "way-bar", "aria-hidden": "true" }, ...bars),
      ...times,
    );
    byId("ways").append(row);
    this.rows.push({ row, key, text, note, bars: bars.reverse(), times });
  }

  #drawRow({ row, key, text, note, bars, times }, way) {
    setText(key, formatKey(way.key, 80));
    setText(text, way.text);
    setText(note, noteOn(way));
    note.classList.toggle("bad", way.trouble !== "");
    setAttribute(row, "data-id", way.id);
    segments(way).forEach(({ stage, ms, to }, i) => {
      bars[i].style.transform = `scaleX(${to ?? 0})`;
      const shown = formatMs(ms);
      setText(times[i], shown);
      setAttribute(times[i], "aria-label", `${stage} after ${shown}`);
      setAttribute(times[i], "role", "img");
    });
  }
}

function noteOn(way) {
  const parts = [
    way.trouble,
    way.isOwn ? "" : "published elsewhere",
    way.attempt > 1 ? `attempt ${way.attempt}` : "",
    way.partition === null ? "" : `partition ${way.partition}, offset ${way.offset}`,
    way.handler || "",
  ];
  return parts.filter(Boolean).join(" \u00b7 ");
}
