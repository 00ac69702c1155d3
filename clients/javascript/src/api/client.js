/**
 * The client of a program.
 *
 * @module
 */

import { MODES } from "../proto/connect-policy.js";
import { ClientClosed, InvalidRequest } from "../proto/errors.js";
import { checkedUrl, Http } from "../io/http.js";
import { ResumeStore } from "../io/page-resume.js";
import { environmentOf, freshName, report, Timer } from "../io/platform.js";
import { Session } from "../io/session.js";
import { checkedToken, TokenRenewal } from "../io/token.js";
import { HttpCalls } from "./calls.js";
import { Publisher } from "./publisher.js";
import { Reader, ReaderPart } from "./reader.js";
import { ConsumerPart, Subscription } from "./subscription.js";

const PUBLISH_TIMEOUT_S = 60;
const CONNECT_TIMEOUT_S = 10;
const LINGER_S = 30;
const LINGER_S_MAX = 300;
const CONCURRENCY = 16;
/** The number of messages held for each handler, unless `credit` is given. */
const CREDIT_PER_HANDLER = 4;
const READ_CREDIT = 1000;
/** The time after which unclaimed places from before a reload are given up. */
const CLAIM_MS = 10_000;
const HELLO = '{"type":"hello",';
const AUTH = /("type":"auth","ref":\d+,"token":")(?:[^"\\]|\\.)*/g;
const OPTIONS = new Set([
  "token", "name", "producer", "transport", "lingerS", "connectTimeoutS", "resume", "trace",
  "environment",
]);
const PUBLISH_OPTIONS = new Set([
  "key", "id", "headers", "ttlS", "contentType", "sentUnixMs", "deliverAt", "delayS", "timeoutS",
]);

/**
 * Connect a client. A connection that is lost later is opened again until the client is closed.
 *
 * @param {string | URL} [url] http or https. By default the page's origin, and outside of a page
 *     http://127.0.0.1:8080
 * @param {import("../../index.d.ts").ConnectOptions} [options]
 * @returns {Promise<Client>} rejects with CannotConnect (nothing answers, or something other than a
 *     broker), the broker's refusal (Unauthorized, …), or a TypeError if an option is wrong
 */
export async function connect(url, options = {}) {
  const client = new Client(url, options);
  await client.open();
  return client;
}

/** A client of the broker, which emits "connection" events; `index.d.ts` describes it. */
export class Client extends HttpCalls {
  #environment;
  #session;
  #publisher;
  #http;
  /** @type {ResumeStore | null} */
  #snapshot = null;
  #claims;
  #number = 0;
  #hasStood = false;
  #isSuspended = false;
  /** Whether the page is frozen, or kept as it is, and has given up its places. */
  #isPaused = false;
  /** @type {Set<ConsumerPart | ReaderPart>} */
  #parts = new Set();
  #listeners;

  /** Make a client. Call `connect` instead. */
  constructor(url, options) {
    super();
    const checked = checkedOptions(options);
    const { trace } = checked;
    this.url = checkedUrl(url);
    this.#environment = environmentOf(checked.environment);
    const token = checkedToken(checked.token);
    const environment = this.#environment;
    const before = this.#loadSnapshot(checked.resume);
    const named = checked.producer ?? null;
    this.#session = new Session(this.url, {
      token,
      environment,
      producer: before?.producer ?? named ?? freshName(environment),
      name: checked.name ?? "tocsin-javascript",
      mode: checked.transport,
      lingerS: checked.lingerS,
      connectTimeoutMs: 1000 * checked.connectTimeoutS,
      trace: trace === undefined ? () => {} : guardedTrace(trace),
      onChange: (reason) => this.#emitChange(reason),
    });
    if (before !== null) this.#session.restore(before.session, before.numbers, before.refMax);
    this.#number = before?.numberMax ?? 0;
    if (typeof token === "function") {
      this.#session.add(new TokenRenewal(this.#session, token, environment));
    }
    // Earlier messages may have been numbered under a name that is not fresh.
    const isFresh = before === null && named === null;
    this.#publisher = new Publisher(this.#session, environment, {
      sequences: before?.sequences,
      firstSequence: isFresh ? 0 : Math.floor(1000 * environment.wall()),
    });
    this.#http = new Http(this.url, token, environment);
    this.#claims = new Timer(environment);
    this.#listeners = [
      ["pagehide", (event) => this.#onLeave(event)],
      ["pageshow", (event) => this.#onReturn(event.persisted)],
      ["freeze", () => this.#onLeave({ persisted: true })],
      ["resume", () => this.#onReturn(true)],
      ["online", () => this.hurry()],
      ["visibilitychange", () => this.#onVisibilityChange()],
    ];
  }

  /** Connect once. A part of `connect`. */
  async open() {
    for (const [name, listener] of this.#listeners) {
      this.#environment.page?.addEventListener(name, listener, true); // some do not bubble
    }
    try {
      await this.#session.open();
    } catch (error) {
      await this.close();
      this.#snapshot?.putBack();
      throw error;
    }
    this.#hasStood = true;
    this.#snapshot?.onUse();
    if (this.#snapshot !== null) this.#claims.set(CLAIM_MS, () => this.#giveUpPlaces());
  }

  #giveUpPlaces() {
    this.#snapshot.dropRest();
    this.#session.releaseReserved();
  }

  /**
   * Send what is queued, then close. Publishes without an answer end with ClientClosed. Deliveries
   * that subscriptions have not settled return to their groups.
   */
  async close() {
    for (const [name, listener] of this.#listeners) {
      this.#environment.page?.removeEventListener(name, listener, true);
    }
    this.#claims.cancel();
    this.#http.close(new ClientClosed());
    await this.#session.close();
  }

  /** Whether a session is open now. If not, the client is opening one, or is closed. */
  get isConnected() {
    return this.#session.isOpen;
  }

  /** The transport that carries the session now, or null. */
  get transport() {
    return this.#session.transport;
  }

  /** The time of the next attempt to connect, by `performance.now()`; null if none waits. */
  get retryAt() {
    return this.#session.retryAt;
  }

  /** Connect at once, or from long poll try a WebSocket at once. See `index.d.ts`. */
  hurry() {
    this.#session.hurry();
  }

  /** The broker's id of the session, as its logs print it. */
  get sessionId() {
    return this.#session.sessionId;
  }

  /** The name under which this client numbers its messages. */
  get producer() {
    return this.#session.producer;
  }

  /** The number of published messages without a final answer. */
  get unanswered() {
    return this.#publisher.unanswered;
  }

  // --- publishing --------------------------------------------------------------------------------

  /** Publish a message; it is durable when this resolves. See `index.d.ts`. */
  async publish(queue, body, options = {}) {
    const unknown = Object.keys(options).find((name) => !PUBLISH_OPTIONS.has(name));
    if (unknown !== undefined) {
      throw new InvalidRequest("invalid_message", `publish has no option ${unknown}`);
    }
    const { timeoutS = PUBLISH_TIMEOUT_S, ...fields } = options;
    return this.#publisher.publish(checkedName(queue), { ...fields, body }, timeoutS);
  }

  /** Publish messages; resolves with their receipts, in order. See `index.d.ts`. */
  async publishMany(queue, messages, { timeoutS = PUBLISH_TIMEOUT_S } = {}) {
    return this.#publisher.publishMany(checkedName(queue), messages, timeoutS);
  }

  // --- consuming ---------------------------------------------------------------------------------

  /** Take a place in a group; a handler is called with each message. See `index.d.ts`. */
  subscribe(queue, group, options = {}, handler = null) {
    if (typeof options === "function") return this.subscribe(queue, group, {}, options);
    const {
      concurrency = CONCURRENCY, start, deletesMax = 0, autoExtend = true, ...others
    } = options;
    const handlers = atLeastOne("concurrency", concurrency);
    const { credit = CREDIT_PER_HANDLER * handlers } = others;
    const { credit: _, ...settings } = others;
    const place = this.#snapshot?.takeConsumer(queue, group) ?? null;
    const part = new ConsumerPart(this.#session, this.#environment, {
      number: place?.number ?? this.#nextNumber(),
      queue: checkedName(queue),
      group: checkedName(group),
      credit: atLeastOne("credit", credit),
      start,
      deletesMax,
      autoExtend,
    });
    if (place !== null) {
      this.#session.claim(place.number);
      part.restore(place);
    }
    const isPlain = Object.keys(settings).length === 0;
    const create = () => this.createGroup(queue, group, { start, ...settings }, { deletesMax });
    const prepare = isPlain ? null : create;
    const subscription = new Subscription(part, checkedHandler(handler), handlers);
    this.#add(part, prepare);
    return subscription;
  }

  /** Read all messages of a queue, or of some keys, without a group. See `index.d.ts`. */
  read(queue, options = {}, handler = null) {
    if (typeof options === "function") return this.read(queue, {}, options);
    const {
      keys = null, start = "latest", concurrency = 1, credit = READ_CREDIT, onGap = "raise",
      onUnknown = "raise", ...others
    } = options;
    const unknown = Object.keys(others)[0];
    if (unknown !== undefined) throw new TypeError(`read has no option ${unknown}`);
    if (keys !== null && !(Array.isArray(keys) && keys.every((key) => typeof key === "string"))) {
      throw new TypeError("keys must be an array of texts");
    }
    const part = new ReaderPart(this.#session, this.#environment, {
      number: this.#nextNumber(),
      queue: checkedName(queue),
      keys,
      start,
      credit: atLeastOne("credit", credit),
      onGap: checkedChoice("onGap", onGap, ["raise"]),
      onUnknown: checkedChoice("onUnknown", onUnknown, ["raise", "earliest", "latest"]),
    });
    const place = this.#snapshot?.takeReader(queue, keys) ?? null;
    if (place !== null) part.restore(place);
    const handlers = atLeastOne("concurrency", concurrency);
    const reader = new Reader(part, checkedHandler(handler), handlers);
    this.#add(part, null);
    return reader;
  }

  // --- over HTTP ---------------------------------------------------------------------------------

  /** Make any call with this client's credentials; resolves with the answer's parsed JSON. */
  async request(method, path, body, settings) {
    if (this.#session.failure instanceof ClientClosed) throw this.#session.failure;
    return this.#http.request(method, path, body, settings);
  }

  // --- inside ------------------------------------------------------------------------------------

  #nextNumber() {
    this.#number += 1;
    return this.#number;
  }

  #add(part, prepare) {
    this.#parts.add(part);
    part.over.promise.then(() => this.#parts.delete(part));
    part.begin(prepare);
  }

  #emitChange(reason) {
    const { isConnected, transport } = this;
    const detail = { isConnected, transport, reason };
    this.dispatchEvent(new CustomEvent("connection", { detail }));
  }

  // --- the page ----------------------------------------------------------------------------------

  #loadSnapshot(resume) {
    const { storage, page } = this.#environment;
    if (resume === undefined) return null;
    if (page === null) throw new TypeError("resume needs a page to reload; there is none here");
    if (storage === null) return null; // the browser forbids to keep anything
    this.#snapshot = new ResumeStore(this.#environment, resume, this.url);
    return this.#snapshot.load();
  }

  /**
   * Keep, end or pause the session, because the page is left, for a reload, another page, or good.
   *
   * The page cannot know which. If it is `persisted`, nothing of it runs for a while, or ever
   * again, while its socket would stay open.
   */
  #onLeave(event) {
    if (this.#session.failure !== null || this.#isSuspended || this.#isPaused) return;
    this.#snapshot?.putBack(); // if no session has opened yet
    this.#session.flush();
    const isKept = this.#snapshot !== null && this.#hasStood && this.#snapshot.write({
      session: this.sessionId,
      producer: this.producer,
      sequences: this.#publisher.sequences(),
      numberMax: this.#number,
      refMax: this.#session.nextRef(),
      consumers: this.#snapshots(ConsumerPart),
      readers: this.#snapshots(ReaderPart),
    });
    if (isKept) {
      this.#isSuspended = true;
      this.#session.suspend();
    } else if (!event.persisted) {
      this.#session.endOnUnload();
    } else if (this.#hasStood) {
      this.#isPaused = true;
      this.#session.pause();
    }
  }

  #snapshots(kind) {
    const parts = [...this.#parts].filter((part) => part instanceof kind);
    return parts.map((part) => part.snapshot()).filter((snapshot) => snapshot !== null);
  }

  /** Hurry when the page becomes visible. */
  #onVisibilityChange() {
    if (globalThis.document?.visibilityState !== "hidden") this.hurry();
  }

  /** Continue, because the page is back. `persisted` means that it is back without a reload. */
  #onReturn(persisted) {
    if (this.#isPaused) {
      this.#isPaused = false;
      this.#session.wake();
    } else if (persisted && this.#isSuspended && this.#snapshot !== null) {
      this.#isSuspended = false;
      if (!this.#snapshot.takeBack()) {
        this.#session.forget(freshName(this.#environment));
        this.#publisher.forget();
      }
      this.#session.wake();
    } else {
      this.#session.hurry();
    }
  }
}

if (Symbol.asyncDispose) {
  Client.prototype[Symbol.asyncDispose] = function dispose() {
    return this.close();
  };
}

function checkedOptions(options) {
  const unknown = Object.keys(options).find((name) => !OPTIONS.has(name));
  if (unknown !== undefined) throw new TypeError(`connect has no option ${unknown}`);
  const {
    transport = "auto", lingerS = LINGER_S, connectTimeoutS = CONNECT_TIMEOUT_S, trace, resume,
  } = options;
  if (!MODES.includes(transport)) {
    throw new TypeError(`transport must be one of ${MODES.join(", ")}, not ${String(transport)}`);
  }
  if (!(lingerS >= 0 && lingerS <= LINGER_S_MAX)) {
    throw new TypeError(`lingerS must be 0 to ${LINGER_S_MAX} seconds, not ${String(lingerS)}`);
  }
  if (!(connectTimeoutS > 0)) {
    throw new TypeError("connectTimeoutS must be a number of seconds above 0");
  }
  if (!["undefined", "function"].includes(typeof trace)) {
    throw new TypeError("trace must be a function");
  }
  if (resume !== undefined && (typeof resume !== "string" || resume === "")) {
    throw new TypeError("resume must be a name, a text");
  }
  return { ...options, transport, lingerS, connectTimeoutS, trace, resume };
}

function checkedName(name) {
  if (typeof name === "string" && name !== "") return name;
  throw new InvalidRequest("invalid_name", "the name of a queue or a group must be a text");
}

function checkedChoice(name, choice, words) {
  if (typeof choice === "function" || words.includes(choice)) return choice;
  throw new TypeError(`${name} must be a function, or one of ${words.join(", ")}`);
}

function checkedHandler(handler) {
  if (handler === null || typeof handler === "function") return handler;
  throw new TypeError("a handler must be a function");
}

/** Wrap the user's trace. Its failures are reported, and tokens are hidden from it. */
function guardedTrace(trace) {
  return (direction, transport, message) => {
    try {
      const text = typeof message === "string" ? message : JSON.stringify(message);
      const shown = text.startsWith(HELLO) ? withoutToken(text) : text.replace(AUTH, "$1…");
      trace(direction, transport, shown);
    } catch (error) {
      report("the trace has failed", error);
    }
  };
}

function withoutToken(hello) {
  const { token, ...shown } = JSON.parse(hello);
  return JSON.stringify(token === undefined ? shown : { ...shown, token: "…" });
}

/** Return a whole number that is at least 1. Throws TypeError for any other value. */
export function atLeastOne(name, value) {
  if (Number.isSafeInteger(value) && value >= 1) return value;
  throw new TypeError(`${name} must be a whole number above 0, not ${String(value)}`);
}
