/** The connection: at the top always, and step 7, where the WebSocket is taken away. */

import { byId, make, setAttribute, setText } from "../shared/dom.js";
import { formatClock } from "../shared/format.js";

const NAMES = { websocket: "WebSocket", "long-poll": "Long-poll" };
const GONE = {
  what: "The broker does not answer.",
  remedy: "Look whether it still runs; make run starts it. This page comes back by itself.",
};

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
    this.first = null;
    this.hasPolled = false;
    this.isReachable = true;
    this.rows = [];
    byId("websocket").addEventListener("change", (event) => {
      model.setWebSocket(event.target.checked);
    });
    byId("trouble-again").addEventListener("click", () => this.probe());
  }

  /** Whether anything answers; call it now and then while there is no connection. */
  async probe() {
    try {
      const answer = await fetch("/healthz", {
        cache: "no-store",
        signal: AbortSignal.timeout(3000),
      });
      this.isReachable = answer.ok;
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
      setAttribute(byId("connection"), "data-state", state);
      this.say(state === "gone" ? `${GONE.what} ${GONE.remedy}` : `Connection: ${text}.`);
    }
    this.#drawTrouble(state);
    this.#drawSession(state);
  }

  #text(state) {
    const names = { ...NAMES, connecting: "Connecting", gone: "No broker" };
    return names[state] ?? "Reconnecting";
  }

  #drawTrouble(state) {
    const place = byId("trouble");
    place.hidden = state !== "gone";
    place.classList.toggle("bad", state === "gone");
    if (state === "gone") {
      setText(byId("trouble-what"), GONE.what);
      setText(byId("trouble-remedy"), GONE.remedy);
    }
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
