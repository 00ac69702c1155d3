// @ts-check
/** Whether what is on screen is true now: when the last answer came, and what is the matter. */

import { formatClock, formatSeconds } from "../shared/format.js";
import { tell } from "./dialog.js";
import { formatRoute } from "./route.js";
import { button, make, setBadge, setShown, setText } from "./elements.js";

export class LinkState {
  /** @param {() => void} retry asked for by hand */
  constructor(retry) {
    /** @type {number | null} */
    this.answeredMs = null;
    this.badge = make("span", { class: "badge", data: { testid: "link-state" }, role: "status" });
    setBadge(this.badge, "connecting");
    this.last = make("span", { class: "small soft", data: { testid: "last-answer" } });
    this.element = make("div", { class: "link-state" }, this.last, this.badge);
    this.what = make("p", {}, make("strong", { data: { testid: "error-what" } }));
    this.advice = make("p", { data: { testid: "error-advice" } });
    this.age = make("p", { class: "small", data: { testid: "error-age" } });
    const again = button("Try now", "retry-now", retry);
    const data = { testid: "error-home" };
    const home = make("a", { href: formatRoute("overview"), text: "All queues", data });
    this.home = make("p", { hidden: true }, home);
    const said = make("div", {}, this.what, this.advice, this.age, this.home);
    const attributes = { class: "note bad banner", role: "alert", data: { testid: "error" } };
    this.banner = make("div", { ...attributes, hidden: true }, said, again);
  }

  /** An answer came. @param {boolean} isLive it is asked for again and again */
  answered(isLive) {
    this.answeredMs = Date.now();
    setBadge(this.badge, isLive ? "live" : "loaded", isLive ? "good" : "");
    setText(this.last, `Last answer ${formatClock(this.answeredMs)}`);
    setShown(this.banner, false);
  }

  /** A view is new: nothing of it has been answered. */
  asking() {
    this.answeredMs = null;
    setBadge(this.badge, "connecting");
    setShown(this.banner, false);
  }

  /** Nothing is asked while the page is hidden. */
  hidden() {
    setBadge(this.badge, "resting");
  }

  /** @param {any} error @param {number | null} retryInMs */
  failed(error, retryInMs) {
    const { what, remedy } = tell(error);
    const isOld = this.answeredMs !== null;
    const none = error?.code === "forbidden" ? "not allowed" : "no answer";
    setBadge(this.badge, isOld ? "old figures" : none, "bad");
    setText(/** @type {Element} */ (this.what.firstElementChild), what);
    setText(this.advice, remedy);
    setShown(this.home, retryInMs === null); // it will not come right by itself
    const from = isOld ? `The figures are those of ${formatClock(this.answeredMs ?? 0)}. ` : "";
    const again = retryInMs === null ? "" : `Next try in ${formatSeconds(retryInMs / 1000)}.`;
    setText(this.age, `${from}${again}`);
    this.banner.classList.toggle("is-over", isOld); // where there are figures, they stay in place
    setShown(this.banner, true);
  }
}
