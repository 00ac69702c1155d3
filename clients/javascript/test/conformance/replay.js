/**
 * Plays a transcript against a client: the transcript is the broker, the network and the user.
 * Time is virtual. See clients/conformance/README.md for what counts.
 */

import { VirtualClock } from "./clock.js";
import { LongPolls } from "./longpoll.js";
import { Captures, Deviation, isSame, isWithin, placesOf, show } from "./matching.js";
import { WITHIN_S } from "./transcript.js";
import { User } from "./user.js";
import { ABNORMAL, webSocketOf } from "./websocket.js";

const QUIET_S = 0.001;
/** So much virtual time lets everything happen that can happen at once. */
const EARLY_S = 0.01;
/** Rounding: so much earlier than its `at` counts as in time. */
const GOOD_BYES = [1000, 1001];

/** One replay. `play` runs it. */
export class Replay {
  captures = new Captures();
  /** The connection that was opened last. */
  over = "";
  #events = [];
  #attempts = [];
  #unexpected = [];
  #connections = 0;
  #links = new Map();
  #tokens = new Map();
  #rests = new Map();
  #credit = new Credit();

  /**
   * @param {import("./transcript.js").Transcript} transcript
   * @param {"websocket" | "long-poll"} transport where a line says any
   * @param {{connect: Function}} tocsin the client's module
   */
  constructor(transcript, transport, tocsin) {
    this.transcript = transcript;
    this.transport = transport;
    this.clock = new VirtualClock((error) => this.report(error));
    this.polls = new LongPolls(this);
    this.#beganMs = this.clock.now();
    this.user = new User(this, tocsin, {
      WebSocket: webSocketOf(this),
      fetch: this.polls.fetch,
      setTimeout: this.clock.setTimeout,
      clearTimeout: this.clock.clearTimeout,
      now: this.clock.now,
      random: sequence(),
    });
  }

  #beganMs;

  /** Seconds from the beginning of the replay. */
  get now() {
    return (this.clock.now() - this.#beganMs) / 1000;
  }

  // --- what the client does, as the network sees it -------------------------------------------

  /** The client did something: "frame", "close", "cut", "open" or "request". */
  happened(kind, over, what) {
    this.#events.push({ kind, over, what, at: this.now });
  }

  /** The client wants a connection. */
  attempt(attempt) {
    this.#attempts.push({ ...attempt, at: this.now });
  }

  /** Something that no transcript allows for. */
  report(error) {
    this.#unexpected.push(error instanceof Error ? error : new Error(String(error)));
  }

  // --- playing --------------------------------------------------------------------------------

  /** From the first line to the last. Throws a Deviation, which names the line. */
  async play() {
    let number = 1;
    try {
      for (const block of this.transcript.blocks()) {
        number = block[0].number;
        await this.#step(block);
        this.#checkUnexpected();
      }
      await this.#until(this.now + WITHIN_S);
      await this.#rest();
      this.#checkUnexpected();
      await this.user.finish();
      this.#checkUnexpected();
    } catch (error) {
      const why = error instanceof Deviation ? error.message : (error?.stack ?? String(error));
      throw new Deviation(`${this.transcript.name}.jsonl:${number}: ${why}`, { cause: error });
    } finally {
      this.user.abandon();
    }
  }

  #checkUnexpected() {
    const [first] = this.#unexpected;
    if (first) throw new Deviation(`unexpected: ${first.name}: ${first.stack}`);
  }

  async #step(block) {
    const shown = block.filter((line) => line.role === "shows");
    const done = block.filter((line) => line.role === "does");
    if (done.length) {
      await this.#until(done[0].at);
      if (shown.length) await this.pass(this.now + QUIET_S);
      else await this.#rest();
      for (const line of done) await this.#do(line);
    }
    if (shown.length && shown[0].who === "user") await this.user.see(shown[0]);
    else if (shown.length) await this.#await(shown);
  }

  /** Until every one of these has come. */
  async #await(wanted) {
    this.#dropKnown(wanted);
    while (wanted.length) {
      const by = Math.max(...wanted.map((line) => line.by));
      const event = await this.#next(by);
      if (event === null) {
        this.#checkUnexpected();
        const [{ by, fields }] = wanted;
        throw new Deviation(`does not come by ${by} s: ${show(fields)}`);
      }
      this.#judge(event, wanted);
    }
  }

  #judge(event, wanted) {
    const reasons = [];
    for (const line of wanted) {
      const why = this.#compare(line, event);
      if (why === null) {
        this.#matched(line, event);
        if (!this.#rests.get(line.number)?.size) wanted.splice(wanted.indexOf(line), 1);
        return;
      }
      reasons.push(why);
    }
    if (!this.#isFree(event)) {
      throw new Deviation(`${describe(event)}\n  ${reasons.join("; ")}`);
    }
    this.#dropKnown(wanted);
  }

  /** Null: the line shows this event. */
  #compare(line, event) {
    const why = this.#compareWhat(line, event);
    if (why === null && (event.at < line.at - EARLY_S || event.at > line.by)) {
      return `it came at ${event.at.toFixed(3)} s, and not from ${line.at} to ${line.by}`;
    }
    return why;
  }

  #compareWhat(line, event) {
    if (event.kind === "open" && line.who === "carrier") return this.#compareOpen(line, event.what);
    const over = line.get("over", this.over);
    if (event.kind !== "open" && event.over !== over) return `it is to come over ${over}`;
    if (event.kind === "frame" && line.has("frame")) {
      if (this.#isPart(line, event.what)) return null;
      const shown = line.fields.frame;
      const why = this.captures.match(shown, event.what);
      return why ?? (shown.type === "hello" ? this.#compareToken(event) : null);
    }
    const isGoodBye = GOOD_BYES.includes(event.what);
    if (event.kind === "close" && line.has("close") && isGoodBye) {
      return this.captures.match(line.fields.close, event.what);
    }
    if (event.kind === "close" || event.kind === "cut") {
      // Browsers and long polls say good-bye, or cannot say why: see Connections in the README.
      const isShown = line.has("cut") || !GOOD_BYES.includes(line.get("close", 1000));
      if (isShown && !isGoodBye) return null;
    }
    const { who, at, by, ...rest } = line.fields;
    return `${Object.keys(rest)} is wanted`;
  }

  #compareOpen(line, attempt) {
    const said = line.get("transport", "any");
    const transport = said === "any" ? this.transport : said;
    if (attempt.transport !== transport) {
      return `an attempt over ${attempt.transport}, and not over ${transport}`;
    }
    return null;
  }

  #compareToken(event) {
    const wanted = this.#tokens.get(event.over);
    if (wanted === undefined) return null;
    const token = event.what.token ?? this.#links.get(event.over)?.token;
    return token === wanted.token ? null : `the token ${token}, and not ${wanted.token}`;
  }

  /** Whether it is a part of an ack without answer: that may come in several. */
  #isPart(line, frame) {
    const shown = line.fields.frame;
    const areAcks = shown.type === "ack" && frame.type === "ack";
    if (!areAcks || "ref" in shown || "ref" in frame) return false;
    const whole = placesOf(this.captures.fill(shown.deliveries));
    const rest = this.#rests.get(line.number) ?? whole;
    const named = placesOf(frame.deliveries);
    const isOurs = frame.subscription === this.captures.fill(shown.subscription);
    if (!isWithin(named, rest) || !isOurs) return false;
    const isWhole = isSame(named, rest) && isSame(rest, whole);
    if ("started" in shown || isWhole) return false; // it is compared as it stands
    this.#rests.set(line.number, new Set([...rest].filter((place) => !named.has(place))));
    return true;
  }

  /** Credit that was shown already, in a frame that was free, need not come again. */
  #dropKnown(wanted) {
    for (const line of [...wanted]) {
      const frame = line.get("frame", {});
      if (frame.type === "credit" && this.#credit.stands(this.captures.fill(frame))) {
        wanted.splice(wanted.indexOf(line), 1);
      }
    }
  }

  #matched(line, event) {
    if (event.kind === "frame") this.#credit.said(event.what);
    if (event.kind !== "open") return;
    if (line.get("do") === "refuse") {
      event.what.refuse(line.fields.how);
      return;
    }
    this.#connections += 1;
    this.over = line.get("as", `c${this.#connections}`);
    if (line.has("token")) this.#tokens.set(this.over, { token: line.fields.token });
    const link = event.what.accept(this.over);
    link.token = event.what.token;
    this.#links.set(this.over, link);
  }

  /** What a client may do whenever it likes. It is taken note of. */
  #isFree(event) {
    if (event.kind === "cut" || event.kind === "close") return event.over !== this.over;
    if (event.kind !== "frame") return false;
    const frame = event.what;
    if (frame.type === "ack" && frame.deliveries.length === 0 && "ref" in frame) {
      const ok = { type: "ok", ref: frame.ref, settled: 0, stale: [] };
      this.#links.get(event.over).deliver(JSON.stringify(ok));
      return true;
    }
    if (frame.type === "ping") {
      const pong = { type: "pong", ...("ref" in frame ? { ref: frame.ref } : {}) };
      this.#links.get(event.over).deliver(JSON.stringify(pong));
      return true;
    }
    if (frame.type === "credit") {
      this.#credit.said(frame);
      return true;
    }
    return frame.type === "extend" && !frame.deliveries?.length && !("ref" in frame);
  }

  async #do(line) {
    if (line.who === "user") {
      await this.user.do(line);
      return;
    }
    const link = this.#links.get(line.get("over", this.over));
    if (link === undefined) throw new Deviation("there is no such connection");
    if (line.who === "carrier") {
      if (line.get("do") === "cut") link.finish(ABNORMAL);
      else link.isSilent = ["both", "broker"].includes(line.get("how", "both"));
    } else if (line.has("close")) {
      link.finish(line.fields.close);
    } else if (line.has("text")) {
      link.deliver(line.fields.text);
    } else {
      const said = line.frames.map((frame) => this.captures.fill(frame));
      for (const frame of said) this.#credit.came(frame);
      link.deliver(JSON.stringify(line.has("frames") ? said : said[0]));
    }
  }

  // --- time -----------------------------------------------------------------------------------

  /** Let time pass until then, in seconds, or until a condition holds; returns whether it does. */
  async pass(until, holds = () => false) {
    const isSo = await this.clock.pass(this.#beganMs + until * 1000, () => {
      this.#takeAttempts();
      return holds();
    });
    return isSo;
  }

  #takeAttempts() {
    if (!this.#attempts.length) return;
    this.polls.look();
    for (const attempt of this.#attempts.splice(0)) {
      this.#events.push({ kind: "open", over: "", what: attempt, at: attempt.at });
    }
  }

  /** The next thing that the client did, or null when there is none by then. */
  async #next(by) {
    await this.pass(by + EARLY_S, () => this.#events.length > 0);
    return this.#events.shift() ?? null;
  }

  /** Let time pass; what is free is looked at meanwhile. */
  async #until(when) {
    while (this.now < when - QUIET_S) {
      const event = await this.#next(when - EARLY_S);
      if (event === null) await this.pass(when);
      else this.#mustBeFree(event);
    }
  }

  /** Let everything happen that can at once; nothing that is not shown may have. */
  async #rest() {
    await this.pass(this.now + QUIET_S);
    while (this.#events.length) {
      this.#mustBeFree(this.#events.shift());
      await this.pass(this.now);
    }
  }

  #mustBeFree(event) {
    if (!this.#isFree(event)) {
      throw new Deviation(`nothing of the kind is shown: ${describe(event)}`);
    }
  }
}

/** R25: what is granted never exceeds the first window and one for each message that came. */
class Credit {
  #granted = new Map();
  #first = new Map();
  #windows = new Map();

  /** The client said this. */
  said({ type, subscription: number, credit, granted, held }) {
    if (type === "subscribe") {
      if (!this.#first.has(number)) this.#first.set(number, credit);
      // What is held over a restart of the broker has taken its room already.
      this.#windows.set(number, held ? this.#first.get(number) : credit);
      this.#granted.set(number, credit);
    } else if (type === "credit") {
      const room = this.#windows.get(number);
      if (!(granted <= room)) {
        throw new Deviation(`R25: ${granted} granted on ${number} when ${room} have room`);
      }
      this.#granted.set(number, Math.max(granted, this.#granted.get(number)));
    }
  }

  /** The broker says this. */
  came({ type, subscription: number, messages }) {
    if (type !== "push") return;
    this.#windows.set(number, (this.#windows.get(number) ?? 0) + messages.length);
  }

  /** Whether this credit frame says what stands: the greatest number that was said. */
  stands({ subscription, granted }) {
    return this.#granted.get(subscription) === granted;
  }
}

function describe({ kind, over, what, at }) {
  const shown = kind === "open" ? `attempt over ${what.transport}` : show(what);
  return `${kind} over ${over || "nothing"} at ${at.toFixed(3)} s: ${shown}`;
}

/** Numbers from 0 to 1, the same in every replay. */
function sequence() {
  let state = 1;
  return () => {
    state = (state * 48271) % 2147483647;
    return state / 2147483647;
  };
}
