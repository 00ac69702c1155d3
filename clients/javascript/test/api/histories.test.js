/** Histories of chance: what handlers see is in order and complete, whatever happens. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { connect } from "../../src/index.js";
import { chance, World } from "../world.js";

const HISTORIES = Number(process.env.TOCSIN_HISTORIES ?? 300);
const STEPS = 40;
const CREDIT = 6;
const KEYS = ["a", "a", "b", "c", null];
const SETTLE_MS = 20 * 60_000;

/** Handlers that do what chance says, and what is known of them. */
class Handlers {
  running = new Map();
  acked = new Set();
  wrong = [];
  isCalm = false;

  constructor(world) {
    this.world = world;
  }

  /** A handler. What it does after its signal was aborted changes nothing. */
  handle = async (message) => {
    const { key, offset } = message;
    if (key !== null && this.running.has(key)) {
      this.wrong.push(`${offset} of ${key} begins while ${this.running.get(key)} runs`);
    }
    for (const one of this.world.broker.log.slice(0, offset)) {
      if (key !== null && one.key === key && !this.acked.has(one.offset)) {
        this.wrong.push(`${offset} of ${key} begins before ${one.offset} is done`);
      }
    }
    if (key !== null) this.running.set(key, offset);
    try {
      await this.#work(message);
      if (message.isHeld) this.acked.add(offset);
    } finally {
      if (this.running.get(key) === offset) this.running.delete(key);
    }
  };

  async #work(message) {
    const { random, environment } = this.world;
    const sleep = (ms) => new Promise((resolve) => environment.setTimeout(resolve, ms));
    const dice = this.isCalm ? 0 : random();
    if (dice > 0.35 && dice < 0.75) await sleep(40_000 * random() ** 3);
    if (dice > 0.5 && dice < 0.55) message.extend({ leaseS: 1 + 90 * random() }).catch(() => {});
    if (dice > 0.75 && dice < 0.85) throw new Error("a handler of chance");
    if (dice > 0.85 && dice < 0.92) await message.nack({ delayS: 3 * random() }).catch(() => {});
    if (dice > 0.92) {
      const isHeld = message.isHeld;
      const acking = message.ack({ confirm: true });
      if (isHeld && !message.isHeld) {
        this.acked.add(message.offset);
        this.running.delete(message.key); // what follows need not wait for the confirmation
      }
      await acking.catch(() => {});
    }
  }
}

async function step(world) {
  const { random, broker } = world;
  const dice = random();
  if (dice < 0.35) {
    for (let count = 0; count < 4 * random(); count += 1) {
      broker.publish(KEYS[Math.floor(random() * KEYS.length)]);
    }
  } else if (dice < 0.6) await world.pass(200 * random());
  else if (dice < 0.75) {
    await world.carry();
    await world.pass(20_000 * random());
  } else if (dice < 0.85) {
    const flying = broker.log.filter(({ given }) => given !== null);
    if (flying.length > 0) broker.takeBack(flying[Math.floor(random() * flying.length)]);
  } else if (dice < 0.95) world.cut();
  else if (dice < 0.975) await world.pass(600_000, { isFrozen: true });
  else {
    world.cut();
    await world.pass(0);
    world.now += 60_000; // nothing gets through for longer than the broker waits
  }
  if (random() < 0.8) await world.carry();
}

async function history(seed) {
  const random = chance(seed);
  const world = new World(random);
  const handlers = new Handlers(world);
  const { environment } = world;
  const connecting = connect("http://broker.test", { transport: "websocket", environment });
  await world.carry();
  const client = await connecting;
  const settings = { concurrency: 3, credit: CREDIT, autoExtend: random() < 0.7 };
  const messages = client.subscribe("q", "g", settings, handlers.handle);
  for (let count = 0; count < STEPS; count += 1) {
    await step(world);
    assert.ok(world.broker.open <= CREDIT || Number.isNaN(world.broker.open), "R25: too much");
    assert.deepEqual(handlers.wrong, [], `R17, seed ${seed}`);
  }
  handlers.isCalm = true;
  const { broker } = world;
  for (let ms = 0; ms < SETTLE_MS && broker.settled < broker.log.length; ms += 2000) {
    await world.pass(2000);
    await world.carry();
  }
  assert.deepEqual(handlers.wrong, [], `R17, seed ${seed}`);
  const left = broker.log.filter(({ isSettled }) => !isSettled);
  assert.deepEqual(left, [], `everything is settled in the end, seed ${seed}`);
  const closing = client.close();
  await world.carry();
  await closing;
  assert.equal(await messages.ended, null);
}

test("whatever is cut, late or returned, keys stay in order and nothing is lost", async (t) => {
  const lost = [];
  const note = (error) => lost.push(error);
  process.on("unhandledRejection", note);
  t.mock.method(console, "error", () => {}); // handlers that fail are reported
  try {
    const first = Number(process.env.TOCSIN_SEED ?? 1);
    for (let seed = first; seed < first + HISTORIES; seed += 1) await history(seed);
  } finally {
    process.off("unhandledRejection", note);
  }
  assert.deepEqual(lost, [], "no failure is lost");
});
