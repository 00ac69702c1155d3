// @ts-check
/** One group: how far behind it is, who owns what, and which keys are held up, and why. */

import { formatCount, NOTHING } from "../../shared/format.js";
import { rowsOf } from "../api.js";
import { badge, make, setBadge, setFigure, setText, setTime, timeElement } from "../elements.js";
import { Figures, ratesOf } from "../figures.js";
import { rate, until } from "../format.js";
import { Plot } from "../plot.js";
import { formatRoute } from "../route.js";
import { Table } from "../table.js";
import { transportOf } from "../words.js";
import {
  countColumn, explainColumn, idColumn, keyColumn, textColumn, timeColumn, waitingColumn,
  waitsColumn,
} from "./columns.js";
import {
  glossary, groupPath, headOf, linkButton, queuePath, section, tabsOfGroup,
} from "./common.js";
import { stateOfGroup } from "./queue-tables.js";
import { GroupSettings, sinceOf } from "./settings.js";

const HELD_SHOWN_MAX = 200;
const LEASES_SHOWN_MAX = 200;
const RATES = ["given", "settled", "nacked"];
const QUEUE_PERIOD_MS = 10_000;
/** How often the queue's settings are asked for. */
const WORDS = ["Lag", "Given", "Settled", "Nacked", "Redelivered", "Dead-lettered"];

export class GroupView {
  /** @param {import("./common.js").Context} context */
  constructor(context) {
    this.context = context;
    this.queue = /** @type {string} */ (context.route.queue);
    this.name = /** @type {string} */ (context.route.group);
    this.title = `${this.name} of ${this.queue}`;
    this.periodMs = 1000;
    this.data = { queue: this.queue, group: this.name };
    /** @type {Map<string, any>} by consumer, who it is */
    this.consumers = new Map();
    this.history = context.histories.of(`group ${this.queue} ${this.name}`);
    this.figures = new Figures("group", this.#figures(), { dataOf: () => this.data });
    this.rates = new Plot("group-rates", "Messages per second", rate);
    this.lag = new Plot("group-lag", "Lag", formatCount);
    this.owners = this.#table("owner", "Partitions and their owners", this.#ownerColumns(), {
      keyOf: (row) => String(row.partition),
      dataOf: (row) => ({ partition: row.partition }),
      empty: "No partition is being delivered: nobody consumes here.",
    });
    this.held = this.#table("held", "Keys that are held up", this.#heldColumns(), {
      keyOf: (row) => `${row.partition}-${row.key_hash}`,
      dataOf: (row) => ({ partition: row.partition, keyHash: row.key_hash }),
      empty: "No key is held up.",
      sort: { id: "messages", isDescending: true },
    });
    this.leases = this.#table("lease", "Messages in flight", this.#leaseColumns(), {
      keyOf: (row) => `${row.partition}-${row.offset}`,
      dataOf: (row) => ({ partition: row.partition, offset: row.offset }),
      empty: "Nothing is in flight.",
    });
    this.settings = new GroupSettings(this.queue, this.name);
    this.queueMs = -Infinity;
    this.element = this.#build();
  }

  /** @param {AbortSignal} signal */
  async load(signal) {
    const { api } = this.context;
    const path = groupPath(this.queue, this.name);
    const group = await api.get(path, { signal });
    const held = await api.get(`${path}/held`, { query: { limit: HELD_SHOWN_MAX }, signal });
    const query = { limit: LEASES_SHOWN_MAX };
    const leases = await api.get(`${path}/leases`, { query, signal });
    const isDue = this.context.elapsed() - this.queueMs >= QUEUE_PERIOD_MS;
    const queue = isDue ? await api.get(queuePath(this.queue), { signal }) : null;
    if (isDue) this.queueMs = this.context.elapsed();
    return { group, held, leases, queue };
  }

  /** @param {{group: any, held: any, leases: any, queue: any}} answer */
  show({ group, held, leases, queue }) {
    const counters = group.counters ?? {};
    const values = { ...counters, lag: group.lag };
    this.history.add(this.context.elapsed(), `${group.group_id} ${counters.since_unix_ms}`, values);
    this.figures.update(group);
    this.settings.update(group, queue);
    setBadge(this.state, ...stateOfGroup(group));
    this.rates.update(RATES, this.history.columns(RATES, RATES));
    this.lag.update(["lag"], this.history.columns(["lag"]));
    const owners = rowsOf(group, "partitions").map(({ owner }) => owner).filter(Boolean);
    this.consumers = new Map(owners.map((owner) => [owner.consumer, owner]));
    this.owners.update(group.partitions);
    this.held.update(rowsOf(held, "keys"));
    this.leases.update(rowsOf(leases, "leases"));
    setText(this.heldMore, held.next ? `These are the first ${HELD_SHOWN_MAX}.` : "");
    setText(this.leasesMore, leases.next ? `These are the first ${LEASES_SHOWN_MAX}.` : "");
  }

  close() {
    this.rates.close();
    this.lag.close();
  }

  #build() {
    const { queue, name } = this;
    this.state = badge({ data: { testid: "group-state", ...this.data } });
    this.heldMore = make("p", { class: "small soft", data: { testid: "held-more" } });
    this.leasesMore = make("p", { class: "small soft", data: { testid: "lease-more" } });
    const head = headOf({
      way: [["Queues", formatRoute("overview")], [queue, formatRoute("queue", { queue })]],
      kind: "Group",
      name,
      beside: [this.state],
      actions: [
        linkButton("Explain a key", formatRoute("explain", { query: this.data }), "explain-link"),
        linkButton("Its messages", formatRoute("messages", { queue, query: { group: name } }),
          "messages-link"),
      ],
    });
    const plots = make("div", { class: "plots" }, this.rates.element, this.lag.element);
    const parts = [head, tabsOfGroup(queue, name, "group"), this.figures.element, plots];
    return make("div", { class: "view" }, ...parts,
      section("Held keys", this.held.element, this.heldMore),
      section("Owners", this.owners.element),
      section("In flight", this.leases.element, this.leasesMore),
      section("Settings", ...this.settings.elements),
      glossary([...WORDS, ...this.#labels()]));
  }

  #labels() {
    const tables = [this.#heldColumns(), this.#ownerColumns(), this.#leaseColumns()];
    const titles = tables.flat().map(({ title }) => title);
    return [...this.#figures().map(({ label }) => String(label)), ...titles, "Lingering"];
  }

  /** @returns {import("../figures.js").Figure[]} */
  #figures() {
    /** @param {string} id @param {string} label @param {(group: any) => any} of */
    function counted(id, label, of) {
      const draw = (/** @type {any} */ e, /** @type {any} */ g) => setFigure(e, of(g), formatCount);
      return { id, label, draw };
    }
    /** @param {string} id @param {string} label @param {(group: any) => any} of */
    function total(id, label, of) {
      const figure = counted(id, label, of);
      const draw = (/** @type {any} */ e, /** @type {any} */ g) => {
        figure.draw(e, g);
        sinceOf(e, g.counters);
      };
      return { ...figure, draw };
    }
    return [
      counted("lag", "Lag", (g) => g.lag),
      {
        id: "oldest",
        label: "Oldest unsettled",
        make: () => timeElement({ tabindex: "0" }),
        draw: (e, g) => setTime(e, g.oldest_unix_ms, this.context.now()),
      },
      counted("consumers", "Consumers", (g) => g.consumers),
      counted("in-flight", "In flight", (g) => g.in_flight),
      counted("aside", "Held aside", (g) => g.aside),
      counted("parked", "Parked keys", (g) => g.keys_parked),
      ...ratesOf(this.history, RATES),
      total("redelivered", "Redelivered since start", (g) => g.counters?.redelivered),
      total("dead-lettered", "Dead-lettered since start", (g) => g.counters?.dead_lettered),
    ];
  }

  /** @param {string} id @param {string} caption @param {import("../table.js").Column[]} columns
   * @param {any} more */
  #table(id, caption, columns, { dataOf, ...more }) {
    const named = (/** @type {any} */ row) => ({ ...this.data, ...dataOf(row) });
    return new Table({ id, caption, columns, dataOf: named, ...more });
  }

  /** @returns {import("../table.js").Column[]} */
  #ownerColumns() {
    return [
      countColumn("partition", "Partition", "partition"),
      textColumn("client", "Client", (row) => ownerName(row.owner, row.member)),
      idColumn("consumer", "Consumer", (row) => row.owner?.consumer ?? row.member ?? NOTHING),
      textColumn("transport", "Transport", ({ owner }) =>
        owner ? transportOf(owner.transport).word : NOTHING),
      waitsColumn((row) => (row.draining ? "moving" : row.waits_for), "waits", "Waits for"),
      countColumn("lag", "Lag", "lag"),
      countColumn("in-flight", "In flight", "in_flight"),
      countColumn("waiting", "Keys held", "keys_waiting"),
      countColumn("parked", "Parked", "keys_parked"),
      countColumn("next", "Next offset", "next_offset"),
      countColumn("epoch", "Epoch", "epoch"),
    ];
  }

  /** @returns {import("../table.js").Column[]} */
  #heldColumns() {
    const { queue, name: group } = this;
    const now = () => this.context.now();
    return [
      keyColumn(),
      countColumn("partition", "Partition", "partition"),
      waitsColumn((row) => row.reason, "reason", "Why"),
      timeColumn("until", "Until", (row) => row.until_unix_ms, now, until),
      timeColumn("since", "Since", (row) => row.since_unix_ms, now),
      countColumn("attempts", "Failed", "attempts"),
      textColumn("nack", "Last nack", (row) => String(row.nack ?? "")),
      waitingColumn(),
      countColumn("in-flight", "In flight", "in_flight"),
      countColumn("offset", "First offset", "offset"),
      explainColumn(queue, group),
    ];
  }

  /** @returns {import("../table.js").Column[]} */
  #leaseColumns() {
    const now = () => this.context.now();
    return [
      keyColumn(),
      countColumn("partition", "Partition", "partition"),
      countColumn("offset", "Offset", "offset"),
      countColumn("attempt", "Attempt", "attempt"),
      textColumn("client", "Client", ({ consumer }) =>
        this.consumers.has(consumer) ? ownerName(this.consumers.get(consumer)) : consumer),
      timeColumn("given", "Given", (row) => row.given_unix_ms, now),
      timeColumn("until", "Lease ends", (row) => row.lease_until_unix_ms, now, until),
      explainColumn(this.queue, this.name),
    ];
  }
}

/** @param {any} owner @param {string|null} [member] whose it is, or is to be, wherever */
function ownerName(owner, member) {
  if (owner === undefined) return "not shown"; // by one's rights
  if (!owner) return member ? "nobody here" : "nobody";
  return owner.client || (owner.transport === "pull" ? "whoever pulls" : "unnamed");
}
