// @ts-check
/** The console: shows the view that the address names, and keeps it true. */

import { getIn } from "../shared/access.js";
import { byId, make, setText } from "../shared/dom.js";
import { plural } from "../shared/format.js";
import { Api, ApiError, notUnderstood } from "./api.js";
import { setAttribute, setBadge, setShown } from "./elements.js";
import { tell } from "./dialog.js";
import { LinkState } from "./link-state.js";
import { Poller } from "./poller.js";
import { Histories } from "./rates.js";
import { formatRoute, parseRoute } from "./route.js";
import { headOf } from "./views/common.js";
import { ClustersView } from "./views/clusters.js";
import { ExplainView } from "./views/explain.js";
import { GroupView } from "./views/group.js";
import { DeadLettersView, MessagesView } from "./views/messages.js";
import { Overview } from "./views/overview.js";
import { ParkedView } from "./views/parked.js";
import { QueueView } from "./views/queue.js";
import { ScheduledView } from "./views/scheduled.js";
import { SessionsView } from "./views/sessions.js";

const READY_PERIOD_MS = 5000;
const NOTICE_MS = 8000;
const HISTORIES_KEPT = 50;
/** @type {Record<string, new (context: any) => import("./views/common.js").View>} */
const VIEWS = {
  overview: Overview,
  queue: QueueView,
  group: GroupView,
  parked: ParkedView,
  messages: MessagesView,
  deadLetters: DeadLettersView,
  scheduled: ScheduledView,
  sessions: SessionsView,
  clusters: ClustersView,
  explain: ExplainView,
};
const SECTIONS = { sessions: "sessions", clusters: "clusters", explain: "explain" };
const GONE = ["queue_not_found", "group_not_found", "invalid_name"];
const FINAL = ["unauthorized", "forbidden", "origin_refused", "invalid_request", "not_found",
  ...GONE];

class Console {
  constructor() {
    this.api = new Api();
    this.histories = new Histories(HISTORIES_KEPT);
    this.main = byId("main");
    this.notice = byId("notice");
    this.link = new LinkState(() => this.refresh());
    byId("link").append(this.link.element);
    byId("errors").append(this.link.banner);
    /** @type {Poller | null} */
    this.poller = null;
    /** @type {import("./views/common.js").View | null} */
    this.view = null;
    this.ready = new Poller({
      load: (signal) => this.#loadReady(signal),
      show: (state) => showReady(state),
      fail: () => showReady(null),
      periodMs: READY_PERIOD_MS,
    });
  }

  begin() {
    byId("skip").addEventListener("click", (event) => {
      event.preventDefault(); // the address behind # is where one is
      this.main.focus();
    });
    addEventListener("hashchange", () => this.#open(true));
    document.addEventListener("visibilitychange", () => this.#hide(document.hidden));
    this.#open(false);
    void this.ready.start();
    this.#hide(document.hidden);
  }

  /** Ask again at once for what is on screen. */
  refresh() {
    void this.poller?.refresh();
  }

  /** @param {boolean} isMove one came here from another view: the focus goes to its head */
  #open(isMove) {
    this.poller?.stop();
    this.view?.close?.();
    const route = parseRoute(location.hash);
    const View = VIEWS[route.view];
    this.link.asking();
    this.main.classList.remove("is-old");
    markSection(/** @type {any} */ (SECTIONS)[route.view] ?? (View ? "queues" : ""));
    this.view = View ? new View(this.#context(route)) : null;
    const element = this.view ? this.view.element : nowhere();
    document.title = `${this.view ? this.view.title : "Not found"} – Tocsin console`;
    this.main.replaceChildren(element);
    if (isMove) {
      element.querySelector("h1")?.focus({ preventScroll: true });
      scrollTo(0, 0);
    }
    this.poller = null;
    if (this.view) this.#poll(this.view);
  }

  /** @param {import("./views/common.js").View} view */
  #poll(view) {
    this.main.setAttribute("aria-busy", "true");
    view.element.classList.add("is-new");
    this.poller = new Poller({
      periodMs: view.periodMs,
      load: (signal) => view.load(signal),
      isFinal: (error) => error instanceof ApiError && FINAL.includes(error.code),
      show: (answer) => {
        // All of it at once: nothing moves afterwards.
        view.element.classList.remove("is-new", "is-gone");
        show(view, answer);
        showGateways(this.api);
        this.link.answered(view.periodMs !== null);
        this.#settle(false);
      },
      fail: (error, retryInMs) => {
        // Without figures there is nothing to show but what is the matter.
        const isEmpty = this.link.answeredMs === null;
        view.element.classList.toggle("is-new", isEmpty);
        view.element.classList.toggle("is-gone", isEmpty && GONE.includes(error?.code));
        this.link.failed(error, retryInMs);
        this.#settle(true);
        if (error?.code === "unauthorized") void this.#signInAgain();
      },
    });
    this.poller.setHidden(document.hidden);
    void this.poller.start();
  }

  /** @param {boolean} isOld */
  #settle(isOld) {
    this.main.removeAttribute("aria-busy");
    this.main.classList.toggle("is-old", isOld);
  }

  async #signInAgain() {
    this.poller?.stop();
    this.ready.setHidden(true);
    await enter();
    this.ready.setHidden(false);
    this.#open(false);
  }

  /** @param {import("./route.js").Route} route */
  #context(route) {
    return {
      api: this.api,
      route,
      histories: this.histories,
      now: () => this.api.now(),
      elapsed: () => performance.now(),
      refresh: () => this.refresh(),
      notify: (/** @type {string} */ text, kind = "") => this.#notify(text, kind),
    };
  }

  /** @param {AbortSignal} signal */
  async #loadReady(signal) {
    return await this.api.call("GET", "/readyz", undefined, { signal, isState: true });
  }

  /** @param {boolean} isHidden */
  #hide(isHidden) {
    this.poller?.setHidden(isHidden);
    this.ready.setHidden(isHidden);
    if (isHidden) this.link.hidden();
  }

  /** @param {string} text @param {string} kind */
  #notify(text, kind) {
    setText(this.notice, text);
    this.notice.className = `note notice ${kind}`;
    setShown(this.notice, true);
    clearTimeout(this.noticeTimer);
    this.noticeTimer = setTimeout(() => setShown(this.notice, false), NOTICE_MS);
  }
}

/** Shows an answer, or says that it is none. @param {import("./views/common.js").View} view
 * @param {any} answer */
function show(view, answer) {
  try {
    view.show(answer);
  } catch (error) {
    throw error instanceof ApiError ? error : notUnderstood(String(error));
  }
}

/** Whose figures these are, where there are several gateways. @param {Api} api */
function showGateways({ gateway, gateways }) {
  const element = byId("gateways");
  const others = gateways.filter((one) => one !== gateway);
  setShown(element, gateways.length > 0);
  const alone = "No other one is there.";
  const more = `${plural(others.length, "other gateway")} (${others.join(", ")}) ` +
    `${others.length === 1 ? "has its" : "have their"} own, which are not shown here.`;
  setText(
    element,
    `Sessions, rates, leases and counters are those of the gateway ${gateway}. ` +
      `${others.length ? more : alone} Depth, lag and messages are everybody's.`,
  );
}

/** @param {any} state of `/readyz`; null: it was not answered */
function showReady(state) {
  const element = byId("ready");
  const reasons = [state?.not_ready, state?.notes].filter(Array.isArray).flat().map(String);
  const isDraining = reasons.some((reason) => reason.includes("going down"));
  if (!state) setBadge(element, "broker: not answering", "bad");
  else if (state.ready === true) setBadge(element, "broker: ready", "good");
  else setBadge(element, isDraining ? "broker: draining" : "broker: not ready", "bad");
  setAttribute(element, "title", reasons.length ? reasons.join("; ") : null);
}

/** @param {string} name */
function markSection(name) {
  for (const link of document.querySelectorAll("[data-section]")) {
    const isHere = /** @type {HTMLElement} */ (link).dataset.section === name;
    setAttribute(link, "aria-current", isHere ? "page" : null);
  }
}

function nowhere() {
  const text = "This address names nothing in the console. ";
  const back = make("a", { href: formatRoute("overview"), text: "Go to all queues" });
  const said = make("p", { class: "note", data: { testid: "nowhere" } }, text, back, ".");
  return make("div", { class: "view" }, headOf({ name: "Not found" }), said);
}

/** Until one is in; what keeps one out is said, and tried again when asked. */
async function enter() {
  const [place, content] = [byId("gate"), byId("content")];
  for (;;) {
    try {
      await getIn({ place, content });
      setShown(content, true);
      return;
    } catch (error) {
      await toldOutside(place, content, error);
    }
  }
}

/** @param {HTMLElement} place @param {HTMLElement} content @param {unknown} error */
function toldOutside(place, content, error) {
  const { what, remedy } = tell(error);
  const said = make("p", { class: "note bad", role: "alert", data: { testid: "error" } });
  said.append(make("strong", { text: what, data: { testid: "error-what" } }), ` ${remedy}`);
  const title = make("h1", { text: "No console without a broker" });
  return new Promise((resolve) => {
    const timer = setTimeout(done, READY_PERIOD_MS);
    const again = make("button", {
      type: "button", class: "button", text: "Try now", data: { testid: "retry-now" },
      on: { click: done },
    });
    place.classList.add("gate");
    place.replaceChildren(title, said, make("div", { class: "buttons" }, again));
    setShown(content, false);
    setShown(place, true);
    function done() {
      clearTimeout(timer);
      setShown(place, false);
      resolve(undefined);
    }
  });
}

await enter();
new Console().begin();
