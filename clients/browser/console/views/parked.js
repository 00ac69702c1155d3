// @ts-check
/** The parked keys of a group: what waits, and what becomes of it. */

import { formatCount, plural, titled } from "../../shared/format.js";
import { rowsOf } from "../api.js";
import { linesOfAll, saidOfMany, saidOfOne } from "../deciding.js";
import { askAndDo, tell } from "../dialog.js";
import { button, make, setFigure, setShown, setText } from "../elements.js";
import { until } from "../format.js";
import { formatRoute } from "../route.js";
import { Table } from "../table.js";
import { countColumn, keyColumn, textColumn, timeColumn, waitingColumn } from "./columns.js";
import { glossary, groupPath, headOf, link, listOf, tabsOfGroup } from "./common.js";

const SHOWN_MAX = 1000;

export class ParkedView {
  /** @param {import("./common.js").Context} context */
  constructor(context) {
    this.context = context;
    this.queue = /** @type {string} */ (context.route.queue);
    this.name = /** @type {string} */ (context.route.group);
    this.title = `Parked keys of ${this.name}`;
    this.periodMs = 1000;
    this.data = { queue: this.queue, group: this.name };
    this.keysParked = 0;
    /** @type {any[]} */
    this.keys = [];
    this.table = new Table({
      id: "parked",
      caption: `Parked keys of ${this.name}`,
      empty: "No key is parked.",
      keyOf: (row) => `${row.partition}-${row.key_hash}`,
      dataOf: (row) => ({ ...this.data, partition: row.partition, keyHash: row.key_hash }),
      filter: { label: "Filter by key", textOf: (row) => `${row.key ?? ""} ${row.key_hash}` },
      columns: this.#columns(),
    });
    this.element = this.#build();
  }

  /** @param {AbortSignal} signal */
  load(signal) {
    const path = `${groupPath(this.queue, this.name)}/parked`;
    return this.context.api.get(path, { query: { limit: SHOWN_MAX }, signal });
  }

  /** @param {any} answer */
  show(answer) {
    this.keysParked = answer.keys_parked;
    const keys = rowsOf(answer, "keys");
    this.keys = keys;
    this.table.update(keys);
    setFigure(this.count, answer.keys_parked, formatCount);
    setText(this.more, answer.keys_parked > keys.length ? `These are the first ${SHOWN_MAX}.` : "");
    setShown(this.bulk, answer.keys_parked > 0);
  }

  #build() {
    const { queue, name: group } = this;
    const data = { testid: "parked-count", ...this.data };
    this.count = make("span", { class: "badge", text: "–", data });
    this.more = make("p", { class: "small soft" });
    const all = (/** @type {"retry" | "skip" | "release"} */ verb, /** @type {string} */ text) =>
      button(text, `parked-${verb}-all`, () => this.#decideAll(verb));
    this.bulk = make("div", { class: "buttons" },
      all("retry", "Retry all …"),
      all("release", "Release all …"),
      all("skip", "Skip all …"));
    this.bulk.hidden = true;
    const head = headOf({
      way: [
        ["Queues", formatRoute("overview")],
        [queue, formatRoute("queue", { queue })],
        [group, formatRoute("group", { queue, group })],
      ],
      name: "Parked keys",
      beside: [this.count],
      actions: [this.bulk],
    });
    const about = make("p", {
      class: "soft small",
      text:
        "A parked key failed its last attempt, or was rejected. Its first message and all "
        + "behind it wait, in order. "
        + "Retry tries the first once more; skip moves the first to the dead letters and goes on "
        + "with the rest; release begins anew with all attempts.",
    });
    const tabs = tabsOfGroup(queue, group, "parked");
    const words = glossary(this.#columns().map(({ title }) => title));
    const parts = [head, tabs, about, this.table.element, this.more, words];
    return make("div", { class: "view" }, ...parts);
  }

  /** @returns {import("../table.js").Column[]} */
  #columns() {
    const now = () => this.context.now();
    return [
      keyColumn(),
      waitingColumn(),
      countColumn("attempts", "Failed", "attempts"),
      timeColumn("since", "Parked for", (row) => row.since_unix_ms, now),
      timeColumn("expires", "Expires", (row) => row.expires_unix_ms, now, expiry),
      textColumn("reason", "Reason", (row) => String(row.reason ?? "")),
      textColumn("nack", "Last nack", (row) => String(row.nack ?? "")),
      countColumn("partition", "Partition", "partition"),
      countColumn("offset", "First offset", "offset"),
      {
        id: "actions",
        title: "Decide",
        make: (row) => this.#actions(row),
        draw: () => {},
      },
    ];
  }

  /** @param {any} row */
  #actions(row) {
    const { queue, name: group } = this;
    const data = { keyHash: row.key_hash, partition: row.partition };
    const one = (/** @type {"retry" | "release"} */ verb, /** @type {string} */ text) =>
      button(text, `parked-${verb}`, () => this.#decide(verb, row), { data });
    const query = { group, key: row.key, partition: row.key ? undefined : String(row.partition),
      offset: row.key ? undefined : String(row.offset) };
    return make("div", { class: "buttons" },
      link("Peek", formatRoute("messages", { queue, query }), "parked-peek", data),
      one("retry", "Retry"),
      one("release", "Release"),
      button("Skip …", "parked-skip", () => this.#skip(row), { data }));
  }

  /** @param {"retry" | "release" | "skip"} verb @param {any} what */
  #post(verb, what) {
    const path = `${groupPath(this.queue, this.name)}/parked`;
    return this.context.api.post(path, { decision: verb, ...what });
  }

  /** @param {"retry" | "release"} verb @param {any} row */
  async #decide(verb, row) {
    try {
      await this.#post(verb, { key_hash: row.key_hash });
      this.context.notify(saidOfOne(verb, row, this.context.now()), "good");
    } catch (error) {
      const { what, remedy } = tell(error);
      this.context.notify(`${what} ${remedy}`, "bad");
    }
    this.context.refresh();
  }

  /** @param {any} row */
  async #skip(row) {
    const others = formatCount(row.messages - 1);
    const place = `partition ${row.partition}, offset ${row.offset}`;
    this.#did(await askAndDo({
      id: "skip",
      title: "Give up this key's first message?",
      about: row.key ?? row.key_hash,
      lines: [
        `The message at ${place} goes to the dead letters, reason “skipped”.`,
        `This group never handles it. What waits behind it (${others}) goes on in order.`,
      ],
      isDangerous: true,
      confirm: "Skip it",
      run: async () => {
        await this.#post("skip", { key_hash: row.key_hash });
        return "The first message went to the dead letters; the rest goes on.";
      },
    }));
  }

  /** @param {import("../deciding.js").Verb} verb */
  async #decideAll(verb) {
    this.#did(await askAndDo({
      id: `${verb}-all`,
      title: `${titled(verb)} all parked keys of this group?`,
      about: this.name,
      lines: linesOfAll(verb, this.keysParked, this.keys, this.context.now()),
      isDangerous: verb === "skip",
      typed: verb === "skip" ? this.name : undefined,
      confirm: `${titled(verb)} all`,
      run: (say, isStopped) => this.#inSteps(verb, say, isStopped),
    }));
  }

  /**
   * As many calls as there were keys to decide about at the start: what is parked anew meanwhile
   * is not touched again and again.
   * @param {"retry" | "release" | "skip"} verb
   * @param {(text: string) => void} say @param {() => boolean} isStopped
   */
  async #inSteps(verb, say, isStopped) {
    const wanted = this.keysParked;
    let decided = 0;
    while (decided < wanted && !isStopped()) {
      const answer = await this.#post(verb, { all: true });
      const count = listOf(answer.keys).length;
      decided += count;
      say(`${formatCount(decided)} of ${plural(wanted, "key")} …`);
      if (!count || !answer.keys_parked) break;
    }
    return saidOfMany(verb, decided);
  }

  /** @param {string | null} done */
  #did(done) {
    if (done) this.context.notify(done, "good");
    this.context.refresh();
  }
}

/** @param {unknown} unixMs @param {number} nowMs */
function expiry(unixMs, nowMs) {
  return typeof unixMs === "number" && unixMs <= nowMs ? "expired" : until(unixMs, nowMs);
}
