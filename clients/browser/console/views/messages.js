// @ts-check
/** Looking at a queue's messages, and at its dead letters, without taking them. */

import { formatClock, formatCount, plural } from "../../shared/format.js";
import { rowsOf } from "../api.js";
import { askAndDo } from "../dialog.js";
import { button, field, make, setChildren, setShown, setText } from "../elements.js";
import { formatRoute } from "../route.js";
import { headOf, queuePath, tabsOfQueue } from "./common.js";
import { messageElement } from "./message.js";

const LIMIT = 50;
const REDRIVE_STEP = 200;

/** What both lists share: a form, whose content stands in the address, and pages of answers. */
export class Looking {
  /**
   * @param {import("./common.js").Context} context
   * @param {{id: string, word: string, view: string, fields: Field[], what: string}} of
   */
  constructor(context, of) {
    this.context = context;
    this.of = of;
    this.queue = /** @type {string} */ (context.route.queue);
    this.periodMs = null;
    this.title = `${of.what} of ${this.queue}`;
    this.query = context.route.query;
    /** @type {string | undefined} */
    this.next = undefined;
    this.isMore = false;
    this.list = make("div", { class: "messages", data: { testid: `${of.id}-list` } });
    const counted = { testid: `${of.id}-count` };
    this.count = make("p", { class: "small soft", role: "status", data: counted });
    this.since = make("p", { class: "small soft", data: { testid: `${of.id}-since` } });
    this.loadedMs = 0;
    this.more = button("Show more", `${of.id}-more`, () => this.#showMore());
    this.again = button("Look again", `${of.id}-refresh`, () => context.refresh());
    this.more.hidden = true;
    this.element = this.#build();
  }

  /** @param {AbortSignal} signal */
  async load(signal) {
    const after = this.isMore ? this.next : undefined;
    const query = { ...this.wanted(), limit: LIMIT, after };
    const path = `${queuePath(this.queue)}/${this.of.word}`;
    const answer = await this.context.api.get(path, { query, signal, exact: true });
    return { answer, isMore: this.isMore };
  }

  /** @param {{answer: any, isMore: boolean}} loaded */
  show({ answer, isMore }) {
    const now = this.context.now();
    const messages = rowsOf(answer, "messages");
    const elements = messages.map((message) => this.elementOf(message, now));
    if (isMore) this.list.append(...elements);
    else setChildren(this.list, elements);
    this.isMore = false;
    this.next = answer.next;
    setShown(this.more, Boolean(answer.next));
    setText(this.count, this.countText(this.list.children.length, answer));
    if (!isMore) this.loadedMs = Date.now();
    const since = formatClock(this.loadedMs);
    setText(this.since, `As of ${since}: it stays as it is until you look again.`);
  }

  /** @param {any} message @param {number} nowMs */
  elementOf(message, nowMs) {
    return messageElement(message, nowMs, this.of.id);
  }

  /** @param {number} shown @param {any} answer */
  countText(shown, answer) {
    const more = answer.next ? " so far; there may be more" : "";
    return shown ? `${plural(shown, "message")}${more}.` : `No such message${more}.`;
  }

  /** What the form asks for. @returns {Record<string, string>} */
  wanted() {
    const given = this.of.fields.map(({ name }) => [name, this.query[name]]);
    return Object.fromEntries(given.filter(([, value]) => value));
  }

  /** @returns {Node[]} */
  actions() {
    return [];
  }

  /** @returns {Node[]} */
  notes() {
    return [];
  }

  #showMore() {
    this.isMore = true;
    this.context.refresh();
  }

  #build() {
    const { queue, of } = this;
    const head = headOf({
      way: [["Queues", formatRoute("overview")], [queue, formatRoute("queue", { queue })]],
      name: of.what,
      actions: [this.again, ...this.actions()],
    });
    const tabs = tabsOfQueue(queue, of.word);
    const under = make("div", { class: "buttons" }, this.more);
    const said = make("div", {}, this.count, this.since);
    const parts = [head, tabs, ...this.notes(), this.#form(), said, this.list, under];
    return make("div", { class: "view" }, ...parts);
  }

  #form() {
    const { queue, of } = this;
    const inputs = of.fields.map(({ name, label, ...attributes }) => {
      const value = this.query[name] ?? "";
      const usual = { autocomplete: "off", spellcheck: "false", dir: "auto", name, value };
      const data = { testid: `${of.id}-find-${name}` };
      return field(label, make("input", { ...usual, ...attributes, data }));
    });
    const submit = make("button", {
      type: "submit", class: "button", text: "Look", data: { testid: `${of.id}-look` },
    });
    const submitted = (/** @type {any} */ event) => {
      event.preventDefault();
      const query = Object.fromEntries(new FormData(event.target));
      const hash = formatRoute(of.view, { queue, query: /** @type {any} */ (query) });
      if (location.hash === hash) this.context.refresh();
      else location.hash = hash;
    };
    const named = { class: "tools", "aria-label": `Which ${of.what.toLowerCase()}` };
    return make("form", { ...named, on: { submit: submitted } }, ...inputs, submit);
  }
}

/** @typedef {{name: string, label: string, [attribute: string]: any}} Field */

const PLACE = { inputmode: "numeric", pattern: "[0-9]*", class: "short" };

export class MessagesView extends Looking {
  /** @param {import("./common.js").Context} context */
  constructor(context) {
    super(context, {
      id: "message",
      word: "messages",
      view: "messages",
      what: "Messages",
      fields: [
        { name: "group", label: "Unsettled by group" },
        { name: "key", label: "Key" },
        { name: "partition", label: "Partition", ...PLACE },
        { name: "offset", label: "From offset", ...PLACE },
      ],
    });
  }
}

export class DeadLettersView extends Looking {
  /** @param {import("./common.js").Context} context */
  constructor(context) {
    super(context, {
      id: "dead-letter",
      word: "dead-letters",
      view: "deadLetters",
      what: "Dead letters",
      fields: [
        { name: "key", label: "Key" },
        { name: "reason", label: "Reason", list: "death-reasons" },
      ],
    });
  }

  /** @param {number} shown @param {any} answer */
  countText(shown, answer) {
    this.redrive.disabled = !shown && !answer.next;
    const where = answer.queue ? ` They stand in ${answer.queue}.` : "";
    const more = answer.next ? " so far; there may be more" : "";
    return `${shown ? plural(shown, "dead letter") : "No dead letter"}${more}.${where}`;
  }

  actions() {
    const isSome = Object.keys(this.wanted()).length > 0;
    const text = isSome ? "Send these back …" : "Send all back …";
    this.redrive = button(text, "redrive", () => this.#redrive());
    this.redrive.disabled = true;
    return [this.redrive];
  }

  notes() {
    const reasons = ["exhausted", "rejected", "expired", "overflow", "skipped", "queue_deleted"];
    const options = reasons.map((value) => make("option", { value }));
    return [make("datalist", { id: "death-reasons" }, ...options)];
  }

  async #redrive() {
    const wanted = this.wanted();
    const said = Object.entries(wanted).map(([name, value]) => `${name} ${value}`);
    const done = await askAndDo({
      id: "redrive",
      title: said.length ? "Send these dead letters back?" : "Send all dead letters back?",
      about: said.length ? said.join(", ") : this.queue,
      lines: [
        `They become new messages of ${this.queue}, behind what was published meanwhile.`,
        "Their attempts begin anew.",
        "Every group and every reader gets them, also those that had handled them the first time.",
      ],
      confirm: "Send back",
      run: (say, isStopped) => this.#inSteps(wanted, say, isStopped),
    });
    if (done) this.context.notify(done, "good");
    this.context.refresh();
  }

  /**
   * @param {Record<string, string>} wanted
   * @param {(text: string) => void} say @param {() => boolean} isStopped
   */
  async #inSteps(wanted, say, isStopped) {
    const path = `${queuePath(this.queue)}/dead-letters/redrive`;
    let [sent, after] = [0, undefined];
    do {
      const asked = { ...wanted, limit: REDRIVE_STEP, ...(after ? { after } : {}) };
      const answer = await this.context.api.post(path, asked);
      sent += answer.messages;
      after = answer.next;
      say(`${formatCount(sent)} sent back …`);
    } while (after && !isStopped());
    const stopped = after ? ", then it was stopped; the others are still here" : "";
    return `${plural(sent, "dead letter")} went back to ${this.queue}${stopped}.`;
  }
}
