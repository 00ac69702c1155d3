// @ts-check
/** Asking before something is done that cannot be taken back, and doing it with its progress. */

import { explain } from "../shared/errors.js";
import { ApiError } from "./api.js";
import { button, field, foreign, make, setShown, setText } from "./elements.js";

/**
 * @typedef {{
 *   id: string,
 *   title: string,
 *   about?: string,
 *   lines: string[],
 *   confirm: string,
 *   isDangerous?: boolean,
 *   typed?: string,
 *   choice?: { label: string, options: [string, string][] },
 *   time?: { label: string, value: string },
 *   run: (say: (text: string) => void, isStopped: () => boolean, chosen: string) =>
 *     Promise<string>,
 * }} Asking
 * `about` is a name or key that others chose; `typed` has to be typed in first. `time` asks for a
 * local time like 2026-11-21T21:02:20, which begins as `value`. `run` does it with the choice or
 * the time, and says how far it is; it returns what was done, in a sentence.
 */

/** @param {unknown} error @returns {{what: string, remedy: string}} */
export function tell(error) {
  if (error instanceof ApiError) return { what: error.message, remedy: error.advice };
  return explain(error);
}

/**
 * @param {Asking} asking
 * @returns {Promise<string | null>} what was done; null: nothing, or it failed and was seen to
 */
export function askAndDo(asking) {
  return new Promise((resolve) => {
    const dialog = new Dialog(asking, resolve);
    document.body.append(dialog.element);
    dialog.element.showModal();
    dialog.begin();
  });
}

class Dialog {
  /** @param {Asking} asking @param {(done: string | null) => void} ended */
  constructor(asking, ended) {
    this.asking = asking;
    this.isRunning = false;
    this.isStopped = false;
    /** @type {string | null} */
    this.done = null;
    const { id } = asking;
    this.confirm = button(asking.confirm, `${id}-confirm`, () => this.#run(), {
      class: asking.isDangerous ? "button danger" : "button primary",
      type: "submit",
    });
    this.cancel = button("Cancel", `${id}-cancel`, () => this.#leave(), { class: "button" });
    this.said = make("p", { class: "note", role: "status", data: { testid: `${id}-said` } });
    this.said.hidden = true;
    this.element = /** @type {HTMLDialogElement} */ (this.#build());
    this.element.addEventListener("cancel", (event) => {
      event.preventDefault();
      this.#leave();
    });
    this.element.addEventListener("close", () => {
      this.element.remove();
      ended(this.done);
    });
  }

  begin() {
    (this.typed ?? this.choice ?? this.time ?? this.cancel).focus();
    this.#check();
  }

  #build() {
    const { id, title, about, lines, typed, choice, time } = this.asking;
    const heading = make("h2", { id: `${id}-title`, text: title });
    const told = lines.filter(Boolean).map((text) => make("p", { text }));
    const parts = [heading, about ? foreign(about, { class: "dialog-about" }) : null, ...told];
    if (choice) {
      const options = choice.options.map(([value, text]) => make("option", { value, text }));
      this.choice = make("select", { data: { testid: `${id}-choice` } }, ...options);
      parts.push(field(choice.label, this.choice));
    }
    if (time) {
      const data = { testid: `${id}-time` };
      const attributes = { type: "datetime-local", step: "1", required: true, value: time.value };
      this.time = make("input", { ...attributes, data, on: { input: () => this.#check() } });
      parts.push(field(time.label, this.time));
    }
    if (typed) {
      const attributes = { autocomplete: "off", spellcheck: "false", autocapitalize: "none" };
      const data = { testid: `${id}-typed` };
      this.typed = make("input", { ...attributes, data, on: { input: () => this.#check() } });
      parts.push(field(`Type ${typed} to confirm`, this.typed));
    }
    const buttons = make("div", { class: "buttons dialog-buttons" }, this.cancel, this.confirm);
    const submitted = (/** @type {Event} */ event) => event.preventDefault();
    const form = make("form", { on: { submit: submitted } }, ...parts, this.said, buttons);
    const named = { "aria-labelledby": heading.id, data: { testid: `${id}-dialog` } };
    return make("dialog", { class: "dialog", ...named }, form);
  }

  #check() {
    const isTyped = !this.asking.typed || valueOf(this.typed) === this.asking.typed;
    const isGiven = !this.time || valueOf(this.time) !== "";
    this.confirm.disabled = this.isRunning || !isTyped || !isGiven;
  }

  async #run() {
    if (this.isRunning || this.confirm.disabled) return;
    this.isRunning = true;
    this.#check();
    setText(this.cancel, "Stop");
    const say = (/** @type {string} */ text) => this.#say(text, "");
    try {
      say("Asking the broker …");
      const chosen = valueOf(this.choice ?? this.time);
      this.done = await this.asking.run(say, () => this.isStopped, chosen);
      this.element.close();
    } catch (error) {
      const { what, remedy } = tell(error);
      this.#say(`${what} ${remedy}`, "bad");
      this.isRunning = false;
      this.isStopped = false;
      setText(this.cancel, "Close");
      setText(this.confirm, "Try again");
      this.#check();
    }
  }

  #leave() {
    if (this.isRunning) {
      this.isStopped = true;
      this.#say("It stops behind the step that is under way.", "");
    } else this.element.close();
  }

  /** @param {string} text @param {string} kind */
  #say(text, kind) {
    setShown(this.said, true);
    setText(this.said, text);
    this.said.className = `note ${kind}`;
  }
}

/** @param {any} control */
function valueOf(control) {
  return control ? control.value : "";
}
