// @ts-check
/** Who is here: each session with its transport, its credit and what it has in flight. */

import { formatBytes, formatCount, plural } from "../../shared/format.js";
import { rowsOf } from "../api.js";
import { badge, make, setBadge, setFigure, setText } from "../elements.js";
import { until } from "../format.js";
import { Table } from "../table.js";
import { Figures } from "../figures.js";
import { formatRoute } from "../route.js";
import { transportOf } from "../words.js";
import { countColumn, idColumn, textColumn, timeColumn } from "./columns.js";
import { glossary, headOf, link, listOf } from "./common.js";

const PER_CALL = 1000;
const SESSIONS_MAX = 20_000;
const NOBODY = "Nobody is here.";

export class SessionsView {
  /** @param {import("./common.js").Context} context */
  constructor(context) {
    this.context = context;
    this.title = "Sessions";
    this.periodMs = 1000;
    this.figures = new Figures("sessions", [
      total("count", "Sessions", (all) => all.length),
      total("websocket", "WebSocket", (all) => count(all, (s) => s.transport === "websocket")),
      total("long-poll", "Long poll", (all) => count(all, (s) => s.transport === "long-poll")),
      total("lingering", "Lingering", (all) => count(all, (s) => s.transport === null)),
      total("in-flight", "In flight", (all) => all.reduce((sum, s) => sum + sumOf(s).inFlight, 0)),
    ]);
    this.table = new Table({
      id: "session",
      caption: "Sessions",
      empty: NOBODY,
      keyOf: (session) => session.session,
      dataOf: (session) => ({ session: session.session }),
      filter: { label: "Filter by client, id, queue or group", textOf },
      sort: { id: "client" },
      columns: this.#columns(),
    });
    const text = context.route.query.filter ?? "";
    if (text) this.table.search(text);
    const head = headOf({ name: "Sessions" });
    const words = glossary(["Lingering", ...this.#columns().map(({ title }) => title)]);
    const parts = [head, this.figures.element, this.table.element, words];
    this.element = make("div", { class: "view" }, ...parts);
  }

  /** @param {AbortSignal} signal */
  async load(signal) {
    const sessions = [];
    let after;
    do {
      const query = { limit: PER_CALL, after };
      const page = await this.context.api.get("/v1/sessions", { query, signal });
      sessions.push(...rowsOf(page, "sessions"));
      after = page.next;
    } while (after && sessions.length < SESSIONS_MAX);
    return sessions;
  }

  /** @param {any[]} sessions */
  show(sessions) {
    this.figures.update(sessions);
    const isOne = this.context.api.gateways.length <= 1;
    this.table.settings.empty = isOne ? NOBODY : "Nobody is at this gateway.";
    this.table.update(sessions);
  }

  /** @returns {import("../table.js").Column[]} */
  #columns() {
    const now = () => this.context.now();
    return [
      textColumn("client", "Client", (session) => session.client || "unnamed"),
      idColumn("id", "Id", (session) => session.session),
      {
        id: "transport",
        title: "Transport",
        value: (session) => transportOf(session.transport).word,
        make: () => badge(),
        draw: (element, session) => this.#drawTransport(element, session),
      },
      timeColumn("opened", "Since", (session) => session.opened_unix_ms, now),
      timeColumn("heard", "Heard", (session) => session.heard_unix_ms, now),
      countColumn("granted", "Granted", (session) => sumOf(session).granted),
      countColumn("open", "Credit open", (session) => sumOf(session).open),
      countColumn("in-flight", "In flight", (session) => sumOf(session).inFlight),
      countColumn("unsent", "Unsent", "unsent_bytes", formatBytes),
      {
        id: "subscriptions",
        title: "Subscriptions",
        make: () => make("ul", { class: "subscriptions" }),
        draw: drawSubscriptions,
      },
    ];
  }

  /** @param {HTMLElement} element @param {any} session */
  #drawTransport(element, session) {
    const { word, kind, means } = transportOf(session.transport);
    const isLeft = session.transport === null && session.linger_until_unix_ms;
    const ends = isLeft ? `, ends ${until(session.linger_until_unix_ms, this.context.now())}` : "";
    const draining = session.draining ? ", draining" : "";
    setBadge(element, `${word}${ends}${draining}`, session.draining ? "warn" : kind);
    element.title = means;
  }
}

/** @param {string} id @param {string} label @param {(all: any[]) => number} of
 * @returns {import("../figures.js").Figure} */
function total(id, label, of) {
  return { id, label, draw: (e, sessions) => setFigure(e, of(sessions), formatCount) };
}

/** @param {any[]} all @param {(session: any) => boolean} isMeant */
function count(all, isMeant) {
  return all.filter(isMeant).length;
}

/** @param {any} session */
function sumOf(session) {
  const sums = { granted: 0, open: 0, inFlight: 0 };
  for (const { credit, in_flight: inFlight } of listOf(session.subscriptions)) {
    sums.granted += credit?.granted || 0;
    sums.open += credit?.open || 0;
    sums.inFlight += inFlight || 0;
  }
  return sums;
}

/** @param {any} session */
function textOf(session) {
  const places = listOf(session.subscriptions).map(
    (one) => `${one.queue} ${one.group ?? "reader"}`,
  );
  const { word } = transportOf(session.transport);
  return [session.client, session.session, session.principal, word, ...places].join(" ");
}

/** @param {HTMLElement} list @param {any} session */
function drawSubscriptions(list, session) {
  const lines = listOf(session.subscriptions).map((one) => ({ ...one, said: saidOf(one) }));
  const text = JSON.stringify(lines.map(({ queue, group, said }) => [queue, group, said]));
  if (list.dataset.drawn === text) return;
  list.dataset.drawn = text;
  list.replaceChildren(...lines.map(({ queue, group, said, subscription }) => {
    const view = group ? "group" : "queue";
    const name = group ? `${queue} / ${group}` : queue;
    const href = formatRoute(view, { queue, group: group ?? undefined });
    const data = { session: session.session, subscription };
    const words = make("span", { class: "soft", data: { testid: "subscription-said", ...data } });
    setText(words, said);
    return make("li", {}, link(name, href, "subscription", data), " ", words);
  }));
}

/** What is said of a subscription beside its queue and group. @param {any} one */
function saidOf(one) {
  const { granted, open } = one.credit ?? {};
  const credit = `credit ${formatCount(open)} of ${formatCount(granted)}`;
  if (one.group) {
    const owned = plural(listOf(one.partitions).length, "partition");
    return `${owned}, ${formatCount(one.in_flight)} in flight, ${credit}`;
  }
  const keys = typeof one.keys === "number" ? plural(one.keys, "key") : "all keys";
  const behind = listOf(one.behind).length;
  const place = behind ? `behind in ${plural(behind, "partition")}` : "at the end";
  return `reads ${keys}, ${place}, ${credit}`;
}
