/** The connection: at the top always, and step 7, where the WebSocket is taken away. */

import { byId, make, setAttribute, setText } from "../shared/dom.js";
import { explain } from "../shared/errors.js";
import { formatClock } from "../shared/format.js";

const NAMES = { websocket: "WebSocket", "long-poll": "Long-poll" };
const TROUBLES = {
  gone: {
    what: "The broker does not answer.",
    remedy: "Look whether it runs; make run starts it.",
  },
  reconnecting: {
    what: "The connection is lost.",
    remedy: "The broker answers; the session is being opened again.",
  },
};
/** A connection that is lost for less is told by the mark at the top alone. */
const PATIENCE_MS = 2500;

/** Says how things stand, and reacts to the switch. */
export class Connection {
  /**
   * @param {import("./model.js").Model} model
   * @param {import("./steps.js").Steps} steps
   * @param {(sentence: string) => void} say to screen readers
   */
  constructor(model, steps, say) {
    this.model = model;
    this.steps = steps;
    this.say = say;
    this.state = "";
    this.sinceMs = 0;
    this.first = null;
    this.hasPolled = false;
    this.wasPaused = false;
    this.isReachable = true;
    this.rows = [];
    byId("websocket").addEventListener("change", (event) => {
      model.setWebSocket(event.target.checked);
    });
    byId("trouble-again").addEventListener("click", () => {
      if (model.trouble) {
        location.reload();
      } else {
        this.probe();
      }
    });
  }

  /** Whether anything answers; call it now and then while there is no connection. */
  async probe() {
    try {
      const answer = await fetch("/healthz", {
        cache: "no-store",
        signal: AbortSignal.timeout(3000),
      });
      this.isReachable = answer.ok;
      if (answer.ok) {
        this.model.hurry();
      }
    } catch {
      this.isReachable = false;
    }
    this.model.changed(true);
  }

  /** What holds now: `connecting`, `websocket`, `long-poll`, `reconnecting`, `gone`. */
  current() {
    const { client } = this.model;
    if (!client) {
      return this.isReachable ? "connecting" : "gone";
    }
    if (client.isConnected && client.transport) {
      this.isReachable = true;
      return client.transport;
    }
    return this.isReachable ? "reconnecting" : "gone";
  }

  draw() {
    const state = this.current();
    const text = this.#text(state);
    setText(byId("connection-text"), text);
    if (state !== this.state) {
      this.state = state;
      this.sinceMs = performance.now();
      setAttribute(byId("connection"), "data-state", state);
      this.say(
        state === "gone"
          ? `${TROUBLES.gone.what} ${TROUBLES.gone.remedy}`
          : `Connection: ${text}.`,
      );
    }
    this.#drawTrouble(state);
    this.#drawSession(state);
  }

  #text(state) {
    const names = { ...NAMES, connecting: "Connecting" };
    const retryAt = this.model.client?.retryAt ?? null;
    const inS = retryAt === null ? 0 : Math.ceil((retryAt - performance.now()) / 1000);
    return names[state] ?? (inS > 0 ? `Reconnecting in ${inS} s` : "Reconnecting");
  }

  #drawTrouble(state) {
    const { trouble: ended } = this.model;
    const waited = performance.now() - this.sinceMs > PATIENCE_MS;
    const trouble = ended ? explain(ended) : (state === "gone" || waited) && TROUBLES[state];
    const place = byId("trouble");
    place.hidden = !trouble;
    if (trouble) {
      setText(byId("trouble-what"), trouble.what);
      setText(byId("trouble-remedy"), trouble.remedy);
      setText(byId("trouble-again"), ended ? "Reload the page" : "Try again now");
      place.classList.toggle("bad", ended !== null || state === "gone");
    }
    this.#drawPaused(Boolean(trouble));
  }

  /** The queue's pause is told where nothing worse is. */
  #drawPaused(hasTrouble) {
    const { isQueuePaused } = this.model;
    const place = byId("paused");
    if (isQueuePaused !== this.wasPaused) {
      this.wasPaused = isQueuePaused;
      this.say(isQueuePaused ? byId("paused-what").textContent : "The queue goes on.");
    }
    place.hidden = hasTrouble || !isQueuePaused;
    place.closest(".bar").classList.toggle("told", hasTrouble || isQueuePaused);
  }

  #drawSession(state) {
    const { client, changes, webSocket } = this.model;
    setText(byId("transport"), this.#text(state));
    byId("websocket").checked = webSocket.isOn();
    if (client?.sessionId) {
      this.first ??= client.sessionId;
      setText(byId("session"), client.sessionId);
      const isSame = this.first === client.sessionId;
      setText(byId("session-same"), isSame ? "the same since this page opened" : "a new one");
    }
    if (state === "long-poll" && !webSocket.isOn()) {
      this.hasPolled = true;
    } else if (state === "websocket" && this.hasPolled) {
      this.steps.done(7);
    }
    this.#drawChanges(changes);
  }

  #drawChanges(changes) {
    if (changes.length === 0) {
      return;
    }
    const list = byId("changes");
    if (this.rows.length === 0) {
      list.replaceChildren();
    }
    while (this.rows.length < changes.length) {
      const time = make("time");
      const text = make("span");
      list.append(make("li", { data: { testid: "change" } }, time, text));
      this.rows.push({ time, text });
    }
    changes.forEach((change, i) => {
      setText(this.rows[i].time, formatClock(change.unixMs));
      setText(this.rows[i].text, change.text);
    });
  }
}
