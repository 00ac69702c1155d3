// @ts-check
/** What is to come of a queue, by time: scheduled messages; move and cancel them. */

import { formatBytes, formatCount, plural, visibleText } from "../../shared/format.js";
import { shorten } from "../bodies.js";
import { askAndDo } from "../dialog.js";
import {
  button, foreign, make, setFigure, setShown, setText, setTime, timeElement,
} from "../elements.js";
import { localTime, until } from "../format.js";
import { queuePath, setKey } from "./common.js";
import { inside, previewOf } from "./message.js";
import { Looking } from "./messages.js";

export class ScheduledView extends Looking {
  /** @param {import("./common.js").Context} context */
  constructor(context) {
    super(context, {
      id: "scheduled",
      word: "scheduled",
      view: "scheduled",
      what: "Scheduled messages",
      fields: [{ name: "key", label: "Key" }],
    });
  }

  /** @param {AbortSignal} signal */
  async load(signal) {
    const loaded = await super.load(signal);
    const options = { signal, isState: true };
    const ready = await this.context.api.call("GET", "/readyz", undefined, options);
    return { ...loaded, ready };
  }

  /** @param {{answer: any, isMore: boolean, ready: any}} loaded */
  show(loaded) {
    const items = /** @type {HTMLDetailsElement[]} */ ([...this.list.children]);
    this.opened = items.filter(({ open }) => open).map(({ dataset }) => dataset.ticket);
    super.show(loaded);
    const notes = Array.isArray(loaded.ready?.notes) ? loaded.ready.notes.map(String) : [];
    setText(this.why, `This gateway says: ${notes.join("; ")}.`);
    setShown(this.stopped, notes.length > 0);
  }

  /** @param {any} message @param {number} nowMs */
  elementOf(message, nowMs) {
    const data = { ticket: message.ticket };
    const part = (/** @type {string} */ name) => ({ testid: `scheduled-${name}`, ...data });
    const at = make("span", { class: "message-place", data: part("at") });
    setText(at, localTime(message.due_unix_ms));
    const due = timeElement({ data: part("due") });
    setTime(due, message.due_unix_ms, nowMs, until);
    const key = foreign("", { class: "key", data: part("key") });
    if (typeof message.key === "string") setKey(key, message.key, "");
    else key.textContent = "no key";
    const shownId = visibleText(shorten(String(message.id), 40), 300);
    const id = foreign(shownId, { class: "key scheduled-id", data: part("short-id") });
    const size = make("span", { class: "scheduled-size", data: part("bytes") });
    setFigure(size, message.bytes, formatBytes);
    const preview = foreign(previewOf(message), { class: "message-preview" });
    const named = { class: "message scheduled", data: { testid: "scheduled", ...data } };
    const summary = make("summary", {}, at, due, key, id, size, preview);
    const details = /** @type {HTMLDetailsElement} */ (make("details", named, summary));
    details.addEventListener("toggle", () => {
      if (!details.open || details.children.length > 1) return;
      const content = inside(message, part);
      content.append(make("div", { class: "buttons" },
        button("Move …", "scheduled-move", () => this.#move(message), { data }),
        button("Cancel …", "scheduled-cancel", () => this.#cancel(message), { data })));
      details.append(content);
    });
    details.open = Boolean(this.opened?.includes(message.ticket)); // it stays as one left it
    return details;
  }

  /** @param {number} shown @param {any} answer */
  countText(shown, answer) {
    if (!this.query.key) {
      const all = plural(answer.count, "message");
      return shown ? `${formatCount(shown)} of ${all}, by time.` : "Nothing is scheduled.";
    }
    const more = answer.next ? " so far; there may be more" : "";
    return `${shown ? plural(shown, "message") : "No message"} of this key${more}.`;
  }

  notes() {
    this.why = make("span");
    const believe = button("Move them now …", "scheduled-believe", () => this.#believe());
    const named = { class: "note warn", data: { testid: "scheduled-stopped" }, hidden: true };
    this.stopped = make("div", named, this.why, " ", believe);
    return [this.stopped];
  }

  /** @param {any} message */
  #path(message) {
    return `${queuePath(this.queue)}/scheduled/${encodeURIComponent(message.ticket)}`;
  }

  /** @param {any} message */
  async #cancel(message) {
    this.#did(await askAndDo({
      id: "cancel",
      title: "Cancel this message?",
      about: String(message.id),
      lines: [
        `It is due at ${localTime(message.due_unix_ms)}, and will never come.`,
        "It cannot be taken back. Published again under its id, it is refused.",
      ],
      isDangerous: true,
      confirm: "Cancel the message",
      run: async () => {
        await this.context.api.delete(this.#path(message));
        return "One message is cancelled.";
      },
    }));
  }

  /** @param {any} message */
  async #move(message) {
    this.#did(await askAndDo({
      id: "move",
      title: "Move this message to another time?",
      about: String(message.id),
      lines: ["With a time that has passed, it comes at once."],
      time: {
        label: "Due, by the clock of this computer",
        value: localTime(message.due_unix_ms).replace(" ", "T"),
      },
      confirm: "Move",
      run: async (_say, _isStopped, chosen) => {
        const change = { deliver_at_unix_ms: new Date(chosen).getTime() };
        const { due_unix_ms: due } = await this.context.api.post(this.#path(message), change);
        return `One message is due at ${localTime(due)}.`;
      },
    }));
  }

  async #believe() {
    this.#did(await askAndDo({
      id: "believe",
      title: "Is the clock of this gateway right?",
      about: this.context.api.gateway,
      lines: [
        "It was set ahead or back by more than a minute, so nothing that is scheduled is moved.",
        "If you go on, everything that is due by this clock is delivered at once, in all queues.",
        "Other gateways have clocks of their own.",
      ],
      isDangerous: true,
      confirm: "The clock is right",
      run: async () => {
        await this.context.api.post("/v1/scheduled/believe-clock");
        return "Scheduled messages are delivered.";
      },
    }));
  }

  /** @param {string | null} done */
  #did(done) {
    if (done) this.context.notify(done, "good");
    this.context.refresh();
  }
}
