/** The demo page: gets in, starts the model, draws what it knows, ten times a second at most. */

import { getIn, whoAmI } from "../shared/access.js";
import { announce, byId, drawing, make, setText } from "../shared/dom.js";
import { explain } from "../shared/errors.js";
import { formatCount } from "../shared/format.js";
import { skippedSentence } from "./beginning.js";
import { Connection } from "./connection.js";
import { Memory } from "./memory.js";
import { Model } from "./model.js";
import { Publishing } from "./publishing.js";
import { Refusing } from "./refusing.js";
import { Pausing, Sharing } from "./sharing.js";
import { keepPlace, Steps } from "./steps.js";
import { Figures, Latency } from "./watching.js";

const DRAW_EVERY_MS = 100;
const DRAW_CALMLY_EVERY_MS = 1000;
const TICK_EVERY_MS = 250;
const RETRY_EVERY_MS = 3000;
const LOOK_EVERY_MS = 1000;
const OFF_SCREEN_EVERY_MS = 1000;
/** View → when it was drawn last. */
const drawnMs = new Map();
let hasFailed = false;

function storage() {
  try {
    return sessionStorage;
  } catch {
    return null;
  }
}

function begin() {
  const say = (sentence) => announce(byId("said"), sentence);
  const memory = new Memory(storage());
  const steps = new Steps(memory, say);
  let soon = () => {};
  let now = () => {};
  const model = new Model({ memory, changed: (isUrgent) => (isUrgent ? now() : soon()) });
  const views = {
    connection: new Connection(model, steps, say),
    publishing: new Publishing(model, steps),
    figures: new Figures(model, steps),
    latency: new Latency(model, steps),
    sharing: new Sharing(model, steps),
    pausing: new Pausing(model, steps),
    refusing: new Refusing(model, steps),
  };
  const draw = (nowMs) => hasFailed || drawAll(views, model, steps, nowMs);
  const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  soon = drawing(draw, isCalm ? DRAW_CALMLY_EVERY_MS : DRAW_EVERY_MS);
  now = drawing(draw);
  setText(byId("broker"), location.host);
  document.title = `Tocsin: the demo, ${memory.tab.replace("-", " ")}`;
  setInterval(() => {
    if (!document.hidden) {
      views.latency.tick(performance.now());
      views.figures.sample(performance.now());
      soon();
    }
  }, TICK_EVERY_MS);
  now();
  keepPlace();
  return { model, views, say };
}

/** What is off the screen is drawn once a second. */
function drawAll(views, model, steps, nowMs) {
  views.connection.draw();
  setText(byId("hero-lag"), model.hasLook ? formatCount(model.owners.lag) : "\u2013");
  setText(
    byId("hero-workers"),
    model.hasLook ? formatCount(model.owners.workers.length) : "\u2013",
  );
  const parts = [
    [1, views.publishing],
    [2, views.figures],
    [3, views.latency],
    [4, views.sharing],
    [5, views.pausing],
    [6, views.refusing],
  ];
  for (const [number, view] of parts) {
    if (steps.isSeen(number) || !(nowMs - drawnMs.get(view) < OFF_SCREEN_EVERY_MS)) {
      drawnMs.set(view, nowMs);
      view.draw(nowMs);
    }
  }
}

/** Once a second, one at a time; while the page is hidden only for a connection that is lost. */
async function keepLooking({ model, views }) {
  for (;;) {
    try {
      if (!document.hidden) {
        await model.look();
        views.pausing.looked();
        views.sharing.looked();
        await views.refusing.looked();
      }
    } catch {
      // No answer: the connection says so, and the next look comes.
    }
    if (!model.client.isConnected) {
      await views.connection.probe();
    }
    await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
  }
}

/** In place of the page's content, when it cannot begin at all. When it could, it begins anew. */
function showFailure(error) {
  const { what, remedy, code } = explain(error);
  const mayNot = code === "forbidden"; // the broker is there: waiting for it changes nothing
  const again = make("button", { class: "button primary", type: "button", text: "Try again" });
  again.dataset.testid = "failure-again";
  again.addEventListener("click", () => location.reload());
  const place = byId("gate");
  place.classList.add("gate");
  place.replaceChildren(
    make("h1", {
      text: mayNot ? "You may not take part here" : "This page found no broker to talk to",
    }),
    make("p", { class: "note bad", data: { testid: "failure" } }, what, " ", remedy),
    make("div", { class: "buttons" }, again),
  );
  hasFailed = true; // what comes late must not draw over it
  place.hidden = false;
  byId("content").hidden = true;
  setText(byId("connection-text"), mayNot ? "Not allowed" : "No broker");
  byId("connection").dataset.state = "gone";
  if (mayNot) {
    return;
  }
  setInterval(async () => {
    const isThere = await whoAmI().then(
      () => true,
      () => false,
    );
    if (isThere) {
      location.reload();
    }
  }, RETRY_EVERY_MS);
}

async function main() {
  try {
    await getIn({ place: byId("gate"), content: byId("content") });
    const page = begin();
    await page.model.start();
    setText(byId("skipped"), skippedSentence(page.model.skipped));
    keepLooking(page);
  } catch (error) {
    showFailure(error);
  }
}

main();
