// @ts-check
/** Where a key goes, who has it, until when, how often it was tried, what it waits for. */

import { formatCount, visibleText } from "../../shared/format.js";
import { rowsOf } from "../api.js";
import { shorten } from "../bodies.js";
import {
  badge, field, foreign, make, setBadge, setFigure, setShown, setText, setTime, timeElement,
} from "../elements.js";
import {
  alsoOf, expiryOf, ownerOf, sentenceOf, triesOf, unsettledOf, whereItGoes,
} from "../explaining.js";
import { Figures } from "../figures.js";
import { until } from "../format.js";
import { formatRoute } from "../route.js";
import { waitsFor } from "../words.js";
import { glossary, headOf, link, queuePath } from "./common.js";

const NAMES_MAX = 1000;

export class ExplainView {
  /** @param {import("./common.js").Context} context */
  constructor(context) {
    this.context = context;
    this.title = "Explain a key";
    this.query = context.route.query;
    const isAsked = Boolean(this.query.queue && this.query.key);
    this.periodMs = isAsked ? 1000 : null;
    this.isAsked = isAsked;
    this.isNamed = false;
    /** @type {Map<string, {element: HTMLElement, draw: (group: any) => void}>} */
    this.groups = new Map();
    this.names = make("datalist", { id: "queue-names" });
    this.sentence = make("p", { class: "explain-where", data: { testid: "explain-where" } });
    this.answers = make("div", { class: "explain-groups" });
    this.nothing = make("p", { class: "empty", data: { testid: "explain-nothing" } });
    setText(this.nothing, "This queue has no group: nobody waits for this key but readers.");
    this.nothing.hidden = true;
    this.more = make("p", { class: "small soft" });
    this.scheduled = make("p", { class: "explain-said", data: { testid: "explain-scheduled" } });
    this.scheduled.hidden = true;
    const said = [this.sentence, this.scheduled, this.answers, this.nothing, this.more];
    this.result = make("section", { "aria-label": "Answer" }, ...said);
    this.result.hidden = true;
    const head = headOf({ name: "Explain a key" });
    const words = glossary([...FACTS.map(({ label }) => String(label)), "Waits for", "Lingering"]);
    const parts = [head, this.#form(), this.names, this.result, words];
    this.element = make("div", { class: "view" }, ...parts);
  }

  /** @param {AbortSignal} signal */
  async load(signal) {
    const { api } = this.context;
    const { queue, key, group } = this.query;
    const path = `${queuePath(queue ?? "")}/explain`;
    const answer = this.isAsked ? await api.get(path, { query: { key, group }, signal }) : null;
    return { answer, names: this.isNamed ? null : await this.#loadNames(signal) };
  }

  /** Of the queues, once. @param {AbortSignal} signal @returns {Promise<string[]>} */
  async #loadNames(signal) {
    const query = { limit: NAMES_MAX, brief: true };
    const answer = await this.context.api.get("/v1/queues", { query, signal });
    return rowsOf(answer, "queues").map((queue) => queue.name);
  }

  /** @param {{names: string[] | null, answer: any}} loaded */
  show({ names, answer }) {
    if (names) {
      this.isNamed = true;
      this.names.replaceChildren(...names.map((value) => make("option", { value })));
    }
    if (!answer) return;
    this.#drawSentence(answer);
    setText(this.scheduled, String(answer.scheduled?.text ?? ""));
    setShown(this.scheduled, Boolean(answer.scheduled));
    const groups = rowsOf(answer, "groups");
    const now = answer.now_unix_ms ?? this.context.now();
    for (const group of groups) {
      let known = this.groups.get(group.group);
      if (!known) {
        known = this.#group(group.group, answer.queue);
        this.groups.set(group.group, known);
        this.answers.append(known.element);
      }
      known.draw({ ...group, now });
    }
    for (const [name, { element }] of this.groups) {
      if (groups.some(({ group }) => group === name)) continue;
      element.remove();
      this.groups.delete(name);
    }
    setShown(this.nothing, !groups.length);
    setText(this.more, answer.next ? "There are more groups: name one to ask about it." : "");
    setShown(this.result, true);
  }

  /** @param {any} answer */
  #drawSentence(answer) {
    const text = whereItGoes(answer);
    if (this.shown === text) return;
    this.shown = text;
    const key = foreign(visibleText(shorten(String(answer.key), 120), 500), { class: "key" });
    this.sentence.replaceChildren("Key ", key, ` ${text}`);
    this.sentence.dataset.partition = String(answer.partition);
  }

  /** @param {string} name @param {string} queue */
  #group(name, queue) {
    const data = { queue, group: name };
    const state = badge({ data: { testid: "explain-waits", ...data } });
    const href = formatRoute("group", { queue, group: name });
    const way = link(name, href, "explain-group-link", data);
    const title = make("h2", {}, way);
    const named = { testid: "explain-sentence", ...data };
    const said = make("p", { class: "explain-said", data: named });
    const facts = new Figures("explain", FACTS, { shape: "facts", dataOf: () => data });
    const parked = link("Decide about it", formatRoute("parked", { queue, group: name }),
      "explain-parked", data);
    const heading = make("div", { class: "view-title" }, title, state);
    const element = make("article", { class: "part" }, heading, said, parked, facts.element);
    const draw = (/** @type {any} */ group) => {
      const { word, kind, means } = waitsFor(group.waits_for);
      setBadge(state, word, kind);
      state.title = means;
      setText(said, sentenceOf(group));
      setShown(parked, group.waits_for === "parked");
      facts.update(group);
    };
    return { element, draw };
  }

  #form() {
    const usual = { autocomplete: "off", spellcheck: "false", dir: "auto" };
    const input = (/** @type {string} */ name, /** @type {any} */ more) => {
      const value = this.query[name] ?? "";
      return make("input", { ...usual, name, value, ...more, data: { testid: `explain-${name}` } });
    };
    const submit = make("button", {
      type: "submit", class: "button primary", text: "Explain", data: { testid: "explain-ask" },
    });
    const submitted = (/** @type {any} */ event) => {
      event.preventDefault();
      const query = /** @type {any} */ (Object.fromEntries(new FormData(event.target)));
      const hash = formatRoute("explain", { query });
      if (location.hash === hash) this.context.refresh();
      else location.hash = hash;
    };
    const named = { class: "tools", "aria-label": "Which key" };
    return make("form", { ...named, on: { submit: submitted } },
      field("Queue", input("queue", { required: true, list: "queue-names" })),
      field("Key", input("key", { required: true })),
      field("Group (all, if empty)", input("group", {})),
      submit);
  }
}

/** A time of the answer, where there is one. @param {string} id @param {string} label
 * @param {(group: any) => any} of
 * @param {(unixMs: unknown, nowMs: number) => string} [form]
 * @returns {import("../figures.js").Figure} */
function timeFact(id, label, of, form) {
  return {
    id,
    label,
    make: () => timeElement({ tabindex: "0" }),
    draw: (e, g) => setTime(e, of(g), g.now, form),
    isThere: (g) => Boolean(of(g)),
  };
}

/** @param {string} id @param {string} label @param {(group: any) => any} of
 * @returns {import("../figures.js").Figure} */
function countFact(id, label, of) {
  const draw = (/** @type {any} */ e, /** @type {any} */ g) => setFigure(e, of(g), formatCount);
  return { id, label, draw, isThere: (g) => Number.isFinite(of(g)) };
}

/** What is not there is not shown. @type {import("../figures.js").Figure[]} */
const FACTS = [
  { id: "owner", label: "Who may have it", make: () => foreign(""),
    draw: (e, g) => setText(e, ownerOf(g.owner)) },
  { id: "consumer", label: "Consumer", make: () => make("code", { class: "id" }),
    draw: (e, g) => setText(e, g.owner?.consumer ?? "–"), isThere: (g) => Boolean(g.owner) },
  countFact("epoch", "Epoch", (g) => g.epoch),
  { id: "unsettled", label: "Unsettled", draw: (e, g) => setText(e, unsettledOf(g)) },
  timeFact("until", "Until", (g) => g.until_unix_ms, until),
  timeFact("since", "Since", (g) => g.since_unix_ms),
  countFact("offset", "First message's offset", (g) => g.head?.offset),
  { id: "id", label: "First message's id", make: () => foreign("", { class: "id" }),
    draw: (e, g) => setText(e, g.head?.id ? visibleText(shorten(g.head.id, 60)) : "–"),
    isThere: (g) => Boolean(g.head?.id) },
  timeFact("published", "Age", (g) => g.head?.published_unix_ms),
  { ...timeFact("expires", "Expires", (g) => g.head?.expires_unix_ms),
    draw: (e, g) => setTime(e, g.head?.expires_unix_ms, g.now, () => expiryOf(g, g.now)) },
  { id: "tries", label: "Tries", draw: (e, g) => setText(e, triesOf(g.head) || "–"),
    isThere: (g) => Boolean(g.head) },
  countFact("before", "Messages before it", (g) => g.before),
  { id: "also", label: "Also held up by", draw: (e, g) => setText(e, alsoOf(g) || "nothing else"),
    isThere: (g) => Boolean(g.head || alsoOf(g)) },
];
