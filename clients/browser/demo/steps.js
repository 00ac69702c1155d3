/** The guided list: which steps are done, which one is next, and which are on the screen. */

import { setAttribute } from "../shared/dom.js";

const STEPS = 7;
const FILLING_MS = 4000;
const KEEP_EVERY_MS = 200;
/** A reload that has put the visitor further from the step than this was not for the step. */
const NEAR_PX = 400;

/** Ticks steps off. */
export class Steps {
  /**
   * @param {import("./memory.js").Memory} memory
   * @param {(sentence: string) => void} say
   */
  constructor(memory, say) {
    this.memory = memory;
    this.say = say;
    this.seen = new Set();
    this.numbers = Array.from({ length: STEPS }, (_, i) => i + 1);
    const watcher = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        const number = Number(target.id.slice("step-".length));
        this.seen[isIntersecting ? "add" : "delete"](number);
      }
    });
    for (const number of this.numbers) {
      watcher.observe(this.#section(number));
    }
    this.#show();
  }

  /** Whether any of it is on the screen. @param {number} number */
  isSeen(number) {
    return this.seen.has(number);
  }

  /** The visitor has seen it happen. @param {number} number */
  done(number) {
    if (!this.memory.setDone(number)) {
      return;
    }
    this.#show();
    const count = this.memory.doneCount;
    this.say(count === STEPS ? "All seven steps are done." : `Step ${number} is done.`);
  }

  #section(number) {
    return document.getElementById(`step-${number}`);
  }

  #show() {
    const next = this.numbers.find((number) => !this.memory.isDone(number));
    for (const number of this.numbers) {
      const isDone = this.memory.isDone(number);
      const link = document.querySelector(`[data-testid="progress-${number}"]`);
      for (const element of [this.#section(number), link]) {
        element.classList.toggle("done", isDone);
        element.classList.toggle("next", number === next);
      }
      setAttribute(link, "aria-current", number === next ? "step" : null);
      const name = link.getAttribute("aria-label").replace(/, done$/, "");
      setAttribute(link, "aria-label", isDone ? `${name}, done` : name);
    }
  }
}

/** Keeps the step of the address in its place while the page above it fills in. */
export function keepPlace() {
  const step = /^#step-[1-7]$/.test(location.hash) && document.querySelector(location.hash);
  const [{ type: how } = {}] = performance.getEntriesByType("navigation");
  if (!step || (how !== "navigate" && Math.abs(step.getBoundingClientRect().top) > NEAR_PX)) {
    return;
  }
  const keeping = setInterval(() => step.scrollIntoView({ behavior: "instant" }), KEEP_EVERY_MS);
  const stop = () => clearInterval(keeping);
  setTimeout(stop, FILLING_MS);
  for (const type of ["wheel", "touchstart", "pointerdown", "keydown"]) {
    addEventListener(type, stop, { once: true, passive: true });
  }
}
