/**
 * A small world for histories: one partition of one queue at a broker that keeps to
 * docs/protocol.md,
 * virtual time, and a network that somebody else lets carry, or cuts.
 */

export const LEASE_MS = 30_000;
const BACKOFF_MS = 1000;
const LINGER_MS = 30_000;
const PER_PUSH_MAX = 3;

/** A number of chance from 0 on below 1, the same for the same seed. */
export function chance(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Clock, timers and sockets; give `environment` to `connect`. */
export class World {
  now = 0;
  /** @type {Link | null} the connection that stands */
  link = null;
  /** How many there were. */
  links = 0;
  #timers = new Map();

  constructor(random) {
    this.random = random;
    this.broker = new Broker(this);
    const world = this;
    this.environment = {
      WebSocket: class extends EventTarget {
        constructor() {
          super();
          return new Link(world);
        }
      },
      fetch: async () => new Promise(() => {}),
      setTimeout: (callback, delayMs) => {
        const id = {};
        this.#timers.set(id, { at: this.now + delayMs, callback });
        return id;
      },
      clearTimeout: (id) => this.#timers.delete(id),
      now: () => this.now,
      random,
    };
  }

  /** What is under way arrives, and what is said to it, until nothing is. */
  async carry() {
    do {
      await turn();
      this.link?.carryUp();
      await turn();
      this.link?.carryDown();
      await turn();
    } while (this.link?.isBusy);
  }

  /** Time passes; timers come when they are due, or `isFrozen` all at its end. */
  async pass(ms, { isFrozen = false } = {}) {
    const until = this.now + ms;
    if (isFrozen) this.now = until;
    for (;;) {
      await turn();
      const [id, timer] = [...this.#timers].sort((one, other) => one[1].at - other[1].at)[0] ?? [];
      if (id === undefined || timer.at > until) break;
      this.#timers.delete(id);
      this.now = Math.max(this.now, timer.at);
      this.broker.expire();
      timer.callback();
      await turn();
    }
    this.now = until;
    this.broker.expire();
    await turn();
  }

  /** The connection ends without a word, and what is under way is lost. */
  cut() {
    this.link?.end(1006);
  }
}

const turn = () => new Promise((resolve) => setImmediate(resolve));

/** Both ends of a WebSocket. */
class Link extends EventTarget {
  readyState = 0;
  bufferedAmount = 0;
  #up = [];
  #down = [];

  constructor(world) {
    super();
    this.world = world;
    world.cut();
    world.link = this;
    world.links += 1;
    queueMicrotask(() => {
      if (this.readyState !== 0) return;
      this.readyState = 1;
      this.dispatchEvent(new Event("open"));
    });
  }

  get isBusy() {
    return this.#up.length + this.#down.length > 0;
  }

  send(text) {
    this.#up.push(...[JSON.parse(text)].flat());
  }

  say(frame) {
    this.#down.push(JSON.stringify(frame));
  }

  carryUp() {
    for (const frame of this.#up.splice(0)) this.world.broker.hear(frame);
    this.world.broker.give();
  }

  carryDown() {
    for (const data of this.#down.splice(0)) {
      if (this.readyState === 1) this.dispatchEvent(new MessageEvent("message", { data }));
    }
  }

  close(code) {
    if (this.readyState === 3) return;
    if (code === 1000) this.carryUp();
    this.end(code);
  }

  end(code) {
    this.readyState = 3;
    if (this.world.link === this) {
      this.world.link = null;
      this.world.broker.lost(code === 1000);
    }
    queueMicrotask(() => this.dispatchEvent(Object.assign(new Event("close"), { code })));
  }
}

/** It gives the messages of its `log` to one consumer. */
class Broker {
  /** Of each message its key, `given` (while in flight), `last` push, `due`, `isSettled`. */
  log = [];
  settled = 0;
  #session = { id: "", number: null, granted: 0, used: 0, isReady: false, lostAt: Infinity };
  #sessions = 0;
  #epoch = 1;
  #push = 0;
  #listed = new Set();

  constructor(world) {
    this.world = world;
  }

  publish(key) {
    const one = { key, offset: this.log.length, given: null, last: "", due: 0, attempt: 1 };
    this.log.push({ ...one, isSettled: false });
  }

  #say(frame) {
    this.world.link?.say(frame);
  }

  lost(isForGood) {
    this.#session.isReady = false;
    this.#session.lostAt = isForGood ? -Infinity : this.world.now;
  }

  // --- what the client says ---------------------------------------------------------------------

  hear(frame) {
    const { type, ref } = frame;
    const session = this.#session;
    if (type === "hello") this.#welcome(frame);
    else if (type === "subscribe") {
      Object.assign(session, { number: frame.subscription, granted: frame.credit, used: 0 });
      session.isReady = true;
      this.#say({ type: "ok", ref, queue_id: "q", lease_s: LEASE_MS / 1000 });
    } else if (type === "credit") session.granted = Math.max(session.granted, frame.granted);
    else if (type === "held") this.#hold(frame);
    else if (type === "ping") this.#say({ type: "pong", ref });
    else if (["ack", "nack", "extend"].includes(type)) this.#settle(frame);
    else this.#say({ type: "ok", ref });
  }

  #welcome({ session: name }) {
    const { world } = this;
    const before = this.#session;
    const isKept = name === before.id && name !== "" && world.now - before.lostAt <= LINGER_MS;
    if (!isKept) {
      this.#sessions += 1;
      this.#epoch += 1;
      this.#push = 0;
      this.#session = { id: `s${this.#sessions}`, number: null, isReady: false, lostAt: Infinity };
      for (const one of this.log) one.given = null;
    }
    this.#session.lostAt = Infinity;
    const { id, number } = this.#session;
    const resumed = isKept ? [number].filter((one) => one !== null) : null;
    this.#say({ type: "welcome", session: id, heartbeat_s: 20, linger_s: 30, resumed });
  }

  #named({ deliveries = [] }) {
    return deliveries.flatMap(([, epoch, push, ...pairs]) =>
      this.log
        .filter(({ offset }) => pairs.some((first, at) => at % 2 === 0 && first <= offset
          && offset <= pairs[at + 1]))
        .map((one) => ({ one, name: `${epoch}.${push}` })),
    );
  }

  #settle(frame) {
    const stale = [];
    for (const { one, name } of this.#named(frame)) {
      const isHis = one.given === null ? this.#maySettleLate(one, name) : one.last === name;
      if (frame.type === "ack" && (one.isSettled || isHis)) this.#ack(one);
      else if (one.isSettled || one.given === null || !isHis) stale.push(row(one, name));
      else if (frame.type === "nack") this.#nack(one, frame.delay_s);
      else one.given = this.world.now + 1000 * (frame.lease_s ?? LEASE_MS / 1000);
    }
    if (frame.ref !== undefined) this.#say({ type: "ok", ref: frame.ref, stale });
  }

  #ack(one) {
    if (!one.isSettled) this.settled += 1;
    one.isSettled = true;
    one.given = null;
  }

  /** R21: not given again since, and no earlier message of its key awaits its retry. */
  #maySettleLate(one, name) {
    return one.last === name && !this.#earlier(one).some((other) => other.given === null);
  }

  #earlier({ key, offset }) {
    if (key === null) return [];
    return this.log.slice(0, offset).filter((one) => one.key === key && !one.isSettled);
  }

  #nack(one, delayS) {
    one.given = null;
    one.due = this.world.now + (delayS === undefined ? BACKOFF_MS : 1000 * delayS);
    one.attempt += 1;
    this.#revoke(this.#behind(one));
  }

  #behind({ key, offset }) {
    return this.log.filter(
      (one) => key !== null && one.key === key && one.offset > offset && one.given !== null,
    );
  }

  #revoke(taken) {
    if (taken.length === 0) return;
    const deliveries = taken.map((one) => row(one, one.last));
    for (const one of taken) one.given = null;
    const { number } = this.#session;
    if (this.#session.isReady) this.#say({ type: "revoked", subscription: number, deliveries });
  }

  #hold(frame) {
    for (const { one, name } of this.#named(frame)) this.#listed.add(`${name} ${one.offset}`);
    if (frame.more) return;
    const listed = this.#listed;
    this.#listed = new Set();
    for (const one of this.log) {
      if (one.given !== null && !listed.has(`${one.last} ${one.offset}`)) {
        one.given = null;
        for (const other of this.#behind(one)) other.given = null;
      }
    }
    const revoked = [...listed].flatMap((text) => {
      const [name, offset] = text.split(" ");
      const one = this.log[offset];
      const isHis = one.isSettled || (one.given !== null && one.last === name);
      return isHis ? [] : [row(one, name)];
    });
    Object.assign(this.#session, { used: frame.received, isReady: true });
    this.#say({ type: "ok", ref: frame.ref, revoked });
  }

  // --- what it does by itself -------------------------------------------------------------------

  /** Leases end. */
  expire() {
    for (const one of this.log) {
      if (one.given !== null && one.given <= this.world.now) this.takeBack(one);
    }
  }

  /** This message is no longer its consumer's, nor what is behind it of its key. */
  takeBack(one) {
    if (one.given === null) return;
    one.due = this.world.now + BACKOFF_MS;
    one.attempt += 1;
    this.#revoke([one, ...this.#behind(one)]);
  }

  /** Push what may be given, as far as there is credit. */
  give() {
    const session = this.#session;
    const free = this.log.filter((one) => this.#isFree(one));
    while (session.isReady && free.length > 0 && session.used < session.granted) {
      const run = [free.shift()];
      const count = Math.min(PER_PUSH_MAX, session.granted - session.used);
      while (run.length < count && free[0]?.offset === run.at(-1).offset + 1
        && free[0].attempt === run[0].attempt) run.push(free.shift());
      this.#push += 1;
      session.used += run.length;
      for (const one of run) {
        one.given = this.world.now + LEASE_MS;
        one.last = `${this.#epoch}.${this.#push}`;
      }
      const { offset, attempt } = run[0];
      const messages = run.map(({ key, offset: body }) => ({ key: key ?? undefined, body }));
      const place = { partition: 0, epoch: this.#epoch, push: this.#push, offset, attempt };
      const to = { subscription: session.number, id_prefix: "q-1-0-", published_unix_ms: 0 };
      this.#say({ type: "push", ...to, ...place, messages });
    }
  }

  /** Not given, and nothing before it waits: what is before it in this list is given first. */
  #isFree(one) {
    const { now } = this.world;
    const isDue = ({ isSettled, given, due }) => !isSettled && given === null && due <= now;
    return isDue(one) && this.#earlier(one).every((other) => other.given !== null || isDue(other));
  }

  /** What may be given and spent. */
  get open() {
    return this.#session.granted - this.#session.used;
  }
}

function row({ offset }, name) {
  return [0, ...name.split(".").map(Number), offset, offset];
}
