// @ts-check
/** The settings of a queue, and those that hold for a group: its own beside the queue's. */

import { plural } from "../../shared/format.js";
import {
  make, setAttribute, setData, setFigure, setText, setTime, timeElement,
} from "../elements.js";
import { exactTime } from "../format.js";
import { formatRoute } from "../route.js";
import { effectiveOf, settingLabel, settingText } from "../settings.js";
import { link } from "./common.js";

/** Says of a total since when it counts. @param {HTMLElement} element @param {any} counters */
export function sinceOf(element, counters) {
  const since = exactTime(counters?.since_unix_ms);
  setAttribute(element, "title", `Counted since the broker's start, ${since}`);
}

/** @param {string} name @param {HTMLElement} value @param {HTMLElement | null} [more] */
function fact(name, value, more = null) {
  const dt = make("dt", { text: settingLabel(name) });
  return make("div", { class: "fact" }, dt, make("dd", {}, value, more ? " " : null, more));
}

/** Those of a queue, drawn anew when one is another. */
export class QueueSettings {
  /** @param {string} queue @param {() => number} now */
  constructor(queue, now) {
    this.queue = queue;
    this.now = now;
    this.created = timeElement({ tabindex: "0", data: { testid: "queue-created", queue } });
    this.list = make("dl", { class: "facts", data: { testid: "queue-settings" } });
    const text = "Groups may have settings of their own, which hold instead of these: each group "
      + "shows what holds for it.";
    this.elements = [make("p", { class: "soft small", text }), this.list];
    this.drawn = "";
  }

  /** @param {any} queue */
  update(queue) {
    setTime(this.created, queue.created_unix_ms, this.now());
    const own = queue.holder === undefined ? {} : { holder: queue.holder };
    const facts = { ...own, ...queue.settings };
    const text = JSON.stringify([facts, queue.dead_letters]);
    if (text === this.drawn) return;
    this.drawn = text;
    const items = Object.entries(facts).map(([name, value]) => {
      const data = { testid: `queue-${name}`, queue: this.queue };
      const part = make("bdi", { dir: "auto", data });
      setFigure(part, value, (of) => settingText(name, of));
      if (Array.isArray(value)) setData(part, { value: JSON.stringify(value) });
      if (name === "dead_letter_queue") drawLetters(part, queue.dead_letters);
      return fact(name, part);
    });
    this.list.replaceChildren(fact("created", this.created), ...items);
  }
}

/**
 * @param {HTMLElement} part
 * @param {{queue: string, messages: number | null} | undefined} letters undefined: one may not see
 */
function drawLetters(part, letters) {
  if (!letters) return;
  const { queue, messages } = letters;
  if (messages === null) {
    setText(part, `none yet: ${queue} is made for the first dead letter, or does not answer`);
    return;
  }
  const way = link(queue, formatRoute("queue", { queue }), "dead-letters-link");
  part.replaceChildren(way, ` (${plural(messages, "message")})`);
}

/** Those that hold for a group. */
export class GroupSettings {
  /** @param {string} queue @param {string} group */
  constructor(queue, group) {
    this.data = { queue, group };
    this.list = make("dl", { class: "facts", data: { testid: "group-settings" } });
    const text = "What holds for this group. What it has not set is the queue's.";
    this.elements = [make("p", { class: "soft small", text }), this.list];
    this.drawn = "";
    this.ofQueue = /** @type {Record<string, unknown> | null} */ (null);
  }

  /** @param {any} group @param {any} queue as the broker describes it; null: as before */
  update(group, queue) {
    this.ofQueue = queue?.settings ?? this.ofQueue;
    const settings = effectiveOf(group.settings ?? {}, this.ofQueue);
    const text = JSON.stringify(settings);
    if (text === this.drawn) return;
    this.drawn = text;
    const items = settings.map(({ name, value, isOwn, ofQueue }) => {
      const part = make("bdi", { dir: "auto", data: { testid: `group-${name}`, ...this.data } });
      setFigure(part, value, (of) => settingText(name, of));
      const other = `not the queue's ${settingText(name, ofQueue)}`;
      const data = { testid: "group-own", setting: name, ...this.data };
      const mark = make("span", { class: "badge accent", text: other, data });
      return fact(name, part, isOwn ? mark : null);
    });
    this.list.replaceChildren(...items);
  }
}
