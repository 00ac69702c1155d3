/** A broker and a clock for tests of what waits. */

const WELCOME = JSON.stringify({ type: "welcome", session: "s", heartbeat_s: 20, linger_s: 30 });

/**
 * A broker that answers hello, and pings as long as it is not `silent`, over long poll where it is
 * `pollable`; to nobody while it is `gone`, and no attempt to connect while it is `mute`. Timers
 * are `lateMs` late.
 */
export function world(lateMs = 0) {
  const made = {
    now: 0, timers: new Map(), sockets: [], polls: 0, silent: false, gone: false, pollable: false,
    mute: false,
  };
  made.advance = async (untilMs) => {
    for (;;) {
      for (let turn = 0; turn < 50; turn += 1) await null;
      const [id, timer] = [...made.timers].sort((one, other) => one[1].at - other[1].at)[0] ?? [];
      if (id === undefined || timer.at > untilMs) break;
      made.timers.delete(id);
      made.now = Math.max(made.now, timer.at);
      timer.callback();
    }
    made.now = untilMs;
  };
  made.fetch = async (url, method, signal) => {
    if (made.pollable && method === "POST" && url.endsWith("/v1/sessions")) {
      made.polls += 1;
      const batch = { session: `p${made.polls}`, batch: 1, frames: [JSON.parse(WELCOME)] };
      return new Response(JSON.stringify(batch), { status: 201 });
    }
    if (made.pollable && method === "POST" && !made.silent) {
      return new Response("{}", { status: 202 });
    }
    return new Promise((_, reject) => {
      signal.addEventListener("abort", () => reject(signal.reason));
    });
  };
  made.environment = {
    WebSocket: socketOf(made),
    fetch: (url, { method, signal }) => made.fetch(String(url), method, signal),
    setTimeout: (callback, delayMs) => {
      const id = {};
      made.timers.set(id, { at: made.now + delayMs + lateMs, callback });
      return id;
    },
    clearTimeout: (id) => made.timers.delete(id),
    now: () => made.now,
    random: () => 0.5,
  };
  return made;
}

/** The WebSocket of this world. */
function socketOf(made) {
  return class FakeSocket extends EventTarget {
    readyState = 1;
    bufferedAmount = 0;
    said = [];
    closed = null;

    constructor() {
      super();
      made.sockets.push(this);
      queueMicrotask(() => {
        if (made.gone) this.lose();
        else if (!made.mute) this.dispatchEvent(new Event("open"));
      });
    }

    say(frame) {
      this.dispatchEvent(new MessageEvent("message", { data: JSON.stringify(frame) }));
    }

    /** As when the network breaks. */
    lose() {
      this.readyState = 3;
      this.dispatchEvent(Object.assign(new Event("close"), { code: 1006, reason: "" }));
    }

    send(text) {
      this.said.push(text);
      const { type } = JSON.parse(text);
      const answer = { hello: WELCOME, ping: '{"type":"pong"}' }[type];
      if (made.silent || answer === undefined) return;
      queueMicrotask(() => this.dispatchEvent(new MessageEvent("message", { data: answer })));
    }

    close(code) {
      this.closed = code;
    }
  };
}
