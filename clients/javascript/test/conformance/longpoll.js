/**
 * `fetch`, whose other end is a transcript: the requests of the long poll (docs/protocol.md). See
 * websocket.js for what a `network` is.
 *
 * What the client says is told at once, and the request answered: something took it. That it will
 * not poll any more is seen when it has no request out for GONE_MS, or before it connects anew.
 */

import { ABNORMAL } from "./websocket.js";

const GONE_MS = 500;
const GOOD_BYE = 1000;
/** More requests without time passing are without end. */
const AT_ONCE_MAX = 1000;
const SESSIONS = "/v1/sessions";

/** A request that waits for its answer, which the signal may end before. */
class Waiting {
  isDone = false;

  constructor(signal, ended) {
    this.answer = new Promise((resolve, reject) => {
      this.resolve = (response) => this.#end(resolve, response, ended);
      this.reject = (error) => this.#end(reject, error, ended);
    });
    if (signal?.aborted) this.reject(signal.reason);
    signal?.addEventListener("abort", () => this.reject(signal.reason), { once: true });
  }

  #end(how, what, ended) {
    if (this.isDone) return;
    this.isDone = true;
    how(what);
    ended();
  }
}

/** The broker's end of a long poll. */
class PollLink {
  transport = "long-poll";
  isSilent = false;
  /** It is over, for whatever reason. */
  isOver = false;
  #network;
  #hello;
  #poll = null;
  #frames = [];
  #answered = "[]";
  #batch = 0;
  #posted = 0;
  #close = null;
  #isGone = false;
  #gone = 0;

  constructor(network, name, hello) {
    this.#network = network;
    this.name = name;
    this.id = `poll-${name}`;
    this.#hello = hello;
  }

  /** The broker says this; what cannot be read as JSON, too. */
  deliver(text) {
    if (this.isSilent || this.isOver) return;
    this.#frames.push(text.startsWith("[") ? text.slice(1, -1) : text);
    this.#answer();
  }

  /** The broker closes it; ABNORMAL: it is cut, and nobody knows it any more. */
  finish(code) {
    if (this.isOver) return;
    this.isOver = true;
    this.#network.clock.clearTimeout(this.#gone);
    if (code === ABNORMAL) {
      this.#isGone = true;
      for (const waiting of [this.#hello, this.#poll]) waiting?.resolve(notFound());
    } else {
      this.#close = { code, reason: "" };
      this.#answer();
    }
  }

  /** Whether the client has left it without a word, as far as can be seen. */
  get isLeft() {
    return !this.isOver && this.#hello.isDone && (this.#poll?.isDone ?? true);
  }

  /** The client has left it. */
  leave(kind, code) {
    if (this.isOver) return;
    this.isOver = true;
    this.#isGone = true;
    this.#network.clock.clearTimeout(this.#gone);
    this.#network.happened(kind, this.name, code);
  }

  /** A request has ended: the next one comes soon, or never. */
  idle() {
    this.#network.clock.clearTimeout(this.#gone);
    this.#gone = this.#network.clock.setTimeout(() => {
      if (this.isLeft) this.leave("cut", null);
    }, GONE_MS);
  }

  // --- requests ----------------------------------------------------------------------------

  /** POST …/frames */
  post(number, text) {
    if (this.#isGone) return notFound();
    if (number === this.#posted) return answer(202, { number });
    if (number !== this.#posted + 1) {
      this.#network.report(new Error(`message ${number} comes behind ${this.#posted}`));
      return problem(400, "invalid_request");
    }
    this.#posted = number;
    for (const frame of [JSON.parse(text)].flat()) {
      this.#network.happened("frame", this.name, frame);
    }
    return answer(202, { number });
  }

  /** GET …/frames */
  poll(after, waitS, signal) {
    if (this.#isGone) return notFound();
    if (after === this.#batch - 1) return this.#response(200);
    if (after !== this.#batch) {
      this.#network.report(new Error(`after ${after}, when the last batch is ${this.#batch}`));
      return problem(400, "invalid_request");
    }
    this.#answered = "[]";
    this.#poll?.resolve(this.#response(200)); // one waits at a time
    const poll = new Waiting(signal, () => this.idle());
    this.#poll = poll;
    const { clock } = this.#network;
    clock.setTimeout(() => {
      if (!this.isSilent && !this.#isGone) poll.resolve(this.#response(200));
    }, waitS * 1000);
    this.#answer();
    return poll.answer;
  }

  /** DELETE */
  remove() {
    if (this.#isGone) return notFound();
    this.leave("close", GOOD_BYE);
    return new Answer(204, "");
  }

  #answer() {
    const isFirst = !this.#hello.isDone;
    const waiting = isFirst ? this.#hello : this.#poll;
    if (!waiting || waiting.isDone || !(this.#frames.length || this.#close)) return;
    this.#answered = `[${this.#frames.join(",")}]`;
    this.#batch += this.#frames.length ? 1 : 0;
    this.#frames = [];
    waiting.resolve(this.#response(isFirst ? 201 : 200));
  }

  #response(status) {
    const close = this.#close ? `,"close":${JSON.stringify(this.#close)}` : "";
    const place = `"session":"${this.id}","batch":${this.#batch}`;
    return new Answer(status, `{${place},"frames":${this.#answered}${close}}`);
  }
}

/** As much of a Response as a client may use. */
class Answer {
  #text;
  bodyUsed = false;

  constructor(status, text, type = "application/json") {
    this.status = status;
    this.ok = status < 300;
    this.headers = new Headers({ "content-type": type });
    this.#text = text;
  }

  async text() {
    this.bodyUsed = true;
    return this.#text;
  }

  async json() {
    return JSON.parse(await this.text());
  }

  async arrayBuffer() {
    return new TextEncoder().encode(await this.text()).buffer;
  }

  get body() {
    const bytes = new TextEncoder().encode(this.#text);
    return new ReadableStream({
      start(controller) {
        if (bytes.length) controller.enqueue(bytes);
        controller.close();
      },
    });
  }
}

function answer(status, value) {
  return new Answer(status, JSON.stringify(value));
}

function problem(status, code) {
  return answer(status, { type: "about:blank", title: code, status, code, detail: code });
}

function notFound() {
  return problem(404, "session_not_found");
}

function textOf(body) {
  return typeof body === "string" ? body : new TextDecoder().decode(body);
}

/** Why an attempt fails: what is thrown, or what is answered. */
const REFUSALS = {
  unreachable: (waiting) => waiting.reject(new TypeError("Failed to fetch")),
  blocked: (waiting) => waiting.resolve(new Answer(503, "<html>503</html>", "text/html")),
  unauthorized: (waiting) => waiting.resolve(problem(401, "unauthorized")),
};

/** The `fetch` of one network, and what it has to say before a client connects anew. */
export class LongPolls {
  #links = new Map();
  #network;
  #atOnce = 0;
  #askedAt = 0;

  constructor(network) {
    this.#network = network;
  }

  /** As the global one. */
  fetch = async (url, options = {}) => {
    await this.#bound();
    const { pathname, searchParams } = new URL(url);
    const method = (options.method ?? "GET").toUpperCase();
    options.signal?.throwIfAborted();
    if (pathname === SESSIONS && method === "POST") return this.#open(options);
    const [, id, rest] = /^\/v1\/sessions\/([^/]+)(\/frames)?$/.exec(pathname) ?? [];
    if (id === undefined) {
      this.#network.happened("request", "", `${method} ${pathname}`);
      return problem(404, "not_found");
    }
    const link = this.#links.get(decodeURIComponent(id));
    if (link === undefined) return notFound();
    if (method === "DELETE" && !rest) return link.remove();
    if (method === "POST" && rest) {
      return link.post(Number(searchParams.get("number")), textOf(options.body));
    }
    if (method === "GET" && rest) {
      const waitS = Number(searchParams.get("wait_s") ?? 25);
      return link.poll(Number(searchParams.get("after")), waitS, options.signal);
    }
    this.#network.report(new Error(`${method} ${pathname}`));
    return problem(405, "method_not_allowed");
  };

  /** Say of those that have no request out that they were left. */
  look() {
    for (const link of this.#links.values()) {
      if (link.isLeft) link.leave("cut", null);
    }
  }

  /** A client that asks without end would leave no turn to anybody: it gets no answer. */
  async #bound() {
    const now = this.#network.clock.now();
    this.#atOnce = now === this.#askedAt ? this.#atOnce + 1 : 0;
    this.#askedAt = now;
    if (this.#atOnce <= AT_ONCE_MAX) return;
    this.#network.report(new Error("requests follow each other without end"));
    await new Promise(() => {});
  }

  #open(options) {
    const bearer = new Headers(options.headers).get("authorization");
    let link = null;
    const waiting = new Waiting(options.signal, () => link?.idle());
    this.#network.attempt({
      transport: "long-poll",
      token: bearer === null ? undefined : bearer.replace(/^Bearer /, ""),
      accept: (name) => {
        link = new PollLink(this.#network, name, waiting);
        this.#links.set(link.id, link);
        for (const frame of [JSON.parse(textOf(options.body))].flat()) {
          this.#network.happened("frame", name, frame);
        }
        return link;
      },
      refuse: (how) => REFUSALS[how](waiting),
    });
    return waiting.answer;
  }
}
