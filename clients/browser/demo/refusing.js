/** Step 6: a lane for each key; nack, park, and what becomes of what is parked. */

import { byId, foreign, make, resolveColor, setAttribute, setText } from "../shared/dom.js";
import { explainLine } from "../shared/errors.js";
import { formatKey, titled } from "../shared/format.js";
import { standing } from "./lanes.js";
import { drawLane } from "./lines.js";
import { NO_KEY_HERE } from "./owners.js";
import { ATTEMPTS_MAX } from "./settings.js";
import { drawChip } from "./watching.js";

const LANES_SHOWN_MAX = 24;
/** In these states of a lane, what was decided of it before is over. */
const NEWS = new Set(["parked", "held", "wished"]);
const DECISIONS = [
  ["retry", "Retry"],
  ["skip", "Skip"],
  ["release", "Release"],
];

/** The lanes; rows are made once and used again. */
export class Refusing {
  constructor(model, steps) {
    this.model = model;
    this.steps = steps;
    this.rows = [];
    this.wasHeld = new Set();
    /** @type {{key: string|null, hasGone: boolean}|null} whose decision is told; null: none */
    this.told = null;
    this.recolor = () => {
      const place = byId("lanes");
      this.ticks = [0, 1, 2, 3, 4, 5].map((hue) => resolveColor(place, `--hue-${hue}`));
      this.none = resolveColor(place, "--hue-none");
      this.held = resolveColor(place, "--warn");
      this.parked = resolveColor(place, "--bad");
      this.ground = resolveColor(place, "--line");
    };
    this.recolor();
    document.documentElement.addEventListener("themechange", this.recolor);
  }

  /** After each look at the group. Rejects when nobody answers. */
  async looked() {
    for (const { key, text } of await this.model.released()) {
      this.#tell(key || null, text);
    }
    const said = byId("lanes-said");
    if (this.model.ownsNoKey()) {
      setText(said, said.textContent || NO_KEY_HERE);
    } else if (said.textContent === NO_KEY_HERE) {
      setText(said, "");
    }
  }

  /** Says what became of a key, until that is over. */
  #tell(key, text) {
    this.told = { key, hasGone: false };
    setText(byId("lanes-said"), `${formatKey(key, 40)}: ${text}`);
  }

  /** A note is over when its key is refused anew. */
  #forget(lane, state) {
    if (this.told?.key !== lane.key) {
      return;
    }
    if (!NEWS.has(state)) {
      this.told.hasGone = true;
    } else if (this.told.hasGone) {
      this.told = null;
      setText(byId("lanes-said"), "");
    }
  }

  draw(nowMs) {
    this.model.lanes.lapse(nowMs);
    const all = this.model.lanes.list();
    const shown = [
      ...all.filter((lane) => this.#isStuck(lane)),
      ...all.filter((lane) => !this.#isStuck(lane)),
    ].slice(0, LANES_SHOWN_MAX);
    const order = all.filter((lane) => shown.includes(lane));
    while (this.rows.length < order.length) {
      this.#addRow();
    }
    this.rows.forEach((row, i) => {
      row.item.hidden = i >= order.length;
      if (i < order.length) {
        this.#drawRow(row, order[i], nowMs);
      }
    });
  }

  #isStuck(lane) {
    return lane.held !== null || lane.wish !== null || this.model.parked.has(lane.key ?? "");
  }

  #addRow() {
    const row = { lane: null };
    row.key = foreign("");
    row.chip = make("span", { class: "chip" });
    row.canvas = make("canvas", { "aria-hidden": "true" });
    row.state = make("div", { class: "state", data: { testid: "lane-state" } });
    row.refuse = ["nack", "park"].map((wish) =>
      this.#button(row, wish, () => this.#wish(row, wish)),
    );
    row.decide = DECISIONS.map(([decision]) =>
      this.#button(row, decision, () => this.#decide(row, decision)),
    );
    row.item = make(
      "li",
      { class: "lane", data: { testid: "lane" } },
      make("div", { class: "name" }, row.chip, row.key),
      make("div", { class: "track" }, row.canvas, row.state),
      make("div", { class: "buttons" }, ...row.refuse, ...row.decide),
    );
    byId("lanes").append(row.item);
    this.rows.push(row);
  }

  #button(row, name, onClick) {
    const text = titled(name);
    const button = make("button", { class: "button small", type: "button", text });
    button.dataset.testid = name;
    button.addEventListener("click", onClick);
    return button;
  }

  #wish(row, wish) {
    if (row.refuse[0].getAttribute("aria-disabled") === "true") {
      return;
    }
    this.model.wish(row.lane, row.lane.wish === wish ? null : wish);
    this.told = null;
    setText(byId("lanes-said"), "");
  }

  async #decide(row, decision) {
    const { lane } = row;
    try {
      await this.model.decide(lane, decision);
      this.#tell(lane.key, SAID[decision]);
      this.steps.done(6);
    } catch (error) {
      setText(byId("lanes-said"), explainLine(error));
    }
  }

  #drawRow(row, lane, nowMs) {
    const { owners, workers, parked } = this.model;
    row.lane = lane;
    const owner = owners.of(lane.partition);
    const worker = owner ? workers.find(({ session }) => session === owner.session) : null;
    const waits = parked.get(lane.key ?? "") ?? null;
    const { state, text } = standing(lane, {
      nowMs,
      attemptsMax: ATTEMPTS_MAX,
      parked: waits,
      waiting: this.model.waiting.get(lane.key ?? "") ?? 0,
      isPaused: worker?.isPaused ?? false,
      isQueuePaused: this.model.isQueuePaused,
      owner,
    });
    const name = formatKey(lane.key, 40);
    setText(row.key, name);
    drawChip(row.chip, owner);
    setText(row.state, text);
    setAttribute(row.item, "data-state", state);
    setAttribute(row.item, "data-key", lane.key ?? "");
    this.#drawButtons(row, { lane, worker, isParked: waits !== null, name });
    this.#tick(lane, state, nowMs);
    this.#forget(lane, state);
    const heldSinceMs =
      lane.held?.sinceMs ?? (waits ? nowMs - (Date.now() - waits.since_unix_ms) : null);
    drawLane(
      row.canvas,
      {
        handledMs: lane.handledMs,
        handledHues: lane.handledHues,
        heldSinceMs,
        nowMs: performance.now(),
      },
      {
        ticks: this.ticks,
        none: this.none,
        held: waits ? this.parked : this.held,
        ground: this.ground,
      },
    );
  }

  /** A button that is of no use now can still have the focus; one that goes hands it on. */
  #drawButtons(row, { lane, worker, isParked, name }) {
    const [comes, goes] = isParked ? [row.decide, row.refuse] : [row.refuse, row.decide];
    const hadFocus = goes.includes(document.activeElement);
    for (const button of row.refuse) {
      button.hidden = isParked;
      setAttribute(button, "aria-disabled", String(!worker || lane.held !== null));
      setAttribute(button, "aria-pressed", String(lane.wish === button.dataset.testid));
      setAttribute(button, "aria-label", `${button.textContent} the next message of ${name}`);
    }
    for (const button of row.decide) {
      button.hidden = !isParked;
      setAttribute(button, "aria-label", `${button.textContent} ${name}`);
    }
    if (hadFocus) {
      comes[0].focus();
    }
  }

  /** A key that was held and flows again is what this step is about. */
  #tick(lane, state, nowMs) {
    if (state === "held") {
      this.wasHeld.add(lane.key);
    } else if (
      state === "flowing" &&
      this.wasHeld.delete(lane.key) &&
      nowMs - lane.heardMs < 2000
    ) {
      this.steps.done(6);
    }
  }
}

const SAID = {
  retry: "its head is tried once more; if that succeeds, the rest follows in order.",
  skip: "its head went to the dead letters; the rest follows in order.",
  release: "all that waited is given out again, in order, with all attempts.",
};
