/**
 * What the page knows and does: its clients, its workers, what came and what became of it. It draws
 * nothing; the views look at it, at most ten times a second.
 */

import { connect } from "/assets/tocsin/index.js";
import { formatBody, formatCount, titled, utf8Bytes } from "../shared/format.js";
import { skipsBacklog } from "./beginning.js";
import { readFigure } from "./figures.js";
import { Lanes } from "./lanes.js";
import { ClockOffset, Latencies } from "./latency.js";
import { Names } from "./names.js";
import { Owners } from "./owners.js";
import { Releases } from "./releasing.js";
import { Ring } from "./ring.js";
import {
  ATTEMPTS_MAX, GROUP, GROUP_SETTINGS, KEY_BYTES_MAX, LINGER_S, QUEUE, QUEUE_SETTINGS,
} from "./settings.js";
import { makeSwitch } from "./switch.js";
import { parseBody } from "./typed.js";
import { Ways } from "./ways.js";
import { Worker } from "./worker.js";

const CHANGES_MAX = 6;
const LOOKS_MAX = 64;
const TEXT_LENGTH_MAX = 120;
const WATCH_EVERY_MS = 100;
const HELD_SHOWN_MAX = 200;
export const LATER_S = 10;
const LOCAL_HOSTS = new Set(["localhost", "127.0.0.1", "[::1]"]);

/** The page's side of the story. */
export class Model {
  /**
   * @param {object} outside
   * @param {(isUrgent?: boolean) => void} outside.changed
   * @param {import("./memory.js").Memory} outside.memory
   */
  constructor({ changed, memory }) {
    this.changed = changed;
    this.memory = memory;
    this.webSocket = makeSwitch(WebSocket);
    this.client = null;
    /** @type {Worker[]} */
    this.workers = [];
    this.lanes = new Lanes({ attemptsMax: ATTEMPTS_MAX });
    this.ways = new Ways();
    this.latencies = new Latencies();
    this.clock = new ClockOffset({ isSameMachine: LOCAL_HOSTS.has(location.hostname) });
    this.owners = new Owners();
    this.names = new Names();
    this.partitionCount = QUEUE_SETTINGS.partitions;
    /** @type {Map<string, {messages: number, attempts: number}>} key → what the broker says */
    this.parked = new Map();
    /** @type {Map<string, number>} key → how many messages wait of those that were nacked */
    this.waiting = new Map();
    this.releases = new Releases();
    this.isQueuePaused = false;
    /** How many messages of before this visit were skipped at its beginning. */
    this.skipped = 0;
    this.readTimes = new Ring(2048);
    this.lags = new Ring(LOOKS_MAX);
    this.lagTimes = new Ring(LOOKS_MAX);
    /** @type {{unixMs: number, text: string}[]} */
    this.changes = [];
    this.trouble = null;
    this.hasLook = false;
    this.watchedMs = -Infinity;
    this.onHandled = null;
  }

  // --- Beginning ------------------------------------------------------------------------------

  /** Connects, joins the group, reads. Rejects with what is in the way. */
  async start() {
    this.client = await this.#connect("demo", "worker-1");
    this.client.addEventListener("connection", (event) => this.#connectionChanged(event.detail));
    this.#connectionChanged({ transport: this.client.transport, isConnected: true });
    await this.#makeQueue();
    await this.#makeGroup();
    await this.#join(this.client, "worker 1");
    const reader = this.client.read(
      QUEUE,
      { start: "latest", concurrency: 64, onGap: () => {}, onUnknown: "latest" },
      (message) => this.#read(message),
    );
    reader.ended.then((error) => error && this.failed(error));
    await reader.opened;
    for (let more = this.memory.workers; more > 1; more -= 1) {
      await this.addWorker();
    }
  }

  #connect(resume, place) {
    return connect(undefined, {
      name: `${this.memory.tab}/${place}`,
      lingerS: LINGER_S,
      resume,
      environment: { WebSocket: this.webSocket.WebSocket },
    });
  }

  async #makeQueue() {
    // Asked for by its name, one that is not there would be an error in the browser's log.
    const isThere = (await this.client.queues()).some(({ name }) => name === QUEUE);
    const queue = isThere
      ? await this.client.queue(QUEUE)
      : await this.client.createQueue(QUEUE, QUEUE_SETTINGS);
    this.partitionCount = queue.partitions?.length ?? this.partitionCount;
  }

  /** What a visitor of before has left is not for a new one, unless somebody is to decide of it. */
  async #makeGroup() {
    const group = await this.client.createGroup(QUEUE, GROUP, GROUP_SETTINGS);
    if (skipsBacklog(group, this.memory.isNew)) {
      await this.client.seekGroup(QUEUE, GROUP, "latest");
      this.skipped = group.lag;
    }
  }

  async #join(client, name) {
    const worker = new Worker({ client, name, model: this });
    this.workers.push(worker);
    try {
      await worker.join(QUEUE, GROUP, GROUP_SETTINGS);
    } catch (error) {
      this.workers.splice(this.workers.indexOf(worker), 1);
      throw error;
    }
    this.changed(true);
    return worker;
  }

  // --- What the visitor does --------------------------------------------------------------------

  /**
   * Publishes a message of the visitor's. Rejects with a TocsinError when it was refused.
   * @param {string} key empty: none
   * @param {string} text JSON, or else text
   * @param {{isLater?: boolean}} [how] `isLater`: it is due in LATER_S seconds
   */
  async publish(key, text, { isLater = false } = {}) {
    const keyBytes = utf8Bytes(key);
    if (keyBytes > KEY_BYTES_MAX) {
      throw Object.assign(new Error("key too long"), {
        code: "key_too_long",
        detail: `the key has ${formatCount(keyBytes)} bytes, and may have 1,024: shorten it`,
      });
    }
    const body = parseBody(text);
    const id = crypto.randomUUID();
    const nowMs = performance.now();
    const calledUnixMs = Date.now();
    const shown = formatBody({ body }, TEXT_LENGTH_MAX);
    const way = this.ways.begin({ id, key: key || null, text: shown, nowMs, isOwn: true });
    way.calledUnixMs = calledUnixMs;
    this.changed(true);
    try {
      const options = { key: key || undefined, id, delayS: isLater ? LATER_S : undefined };
      const receipt = await this.client.publish(QUEUE, body, options);
      if (isLater) {
        this.ways.scheduled(id, performance.now(), receipt);
        return way;
      }
      way.answeredUnixMs = Date.now();
      this.ways.durable(id, performance.now(), receipt);
      this.#learnClock(way);
      return way;
    } catch (error) {
      this.ways.trouble(id, "not stored");
      throw error;
    } finally {
      this.changed(true);
    }
  }

  /** Takes a scheduled message of this page back. Rejects with a TocsinError: it was due. */
  async takeBack(way) {
    await this.client.cancelScheduled(QUEUE, way.id, { key: way.key ?? undefined });
    this.ways.takenBack(way.id);
    this.changed(true);
  }

  /** For how long a scheduled message is not due yet, in milliseconds, by the broker's clock. */
  dueInMs(way) {
    return way.dueUnixMs - this.clock.offsetMs - Date.now();
  }

  /** Another worker in this page, with a session of its own. */
  async addWorker() {
    const taken = new Set(this.workers.map((worker) => worker.name));
    let number = 2;
    while (taken.has(`worker ${number}`)) {
      number += 1;
    }
    const client = await this.#connect(`demo-${number}`, `worker-${number}`);
    const worker = await this.#join(client, `worker ${number}`);
    this.memory.workers = this.workers.length;
    return worker;
  }

  /** @param {Worker} worker not the first one: that is the page's own session */
  async removeWorker(worker) {
    this.workers.splice(this.workers.indexOf(worker), 1);
    this.memory.workers = this.workers.length;
    await worker.leave();
    await worker.client.close();
    this.changed(true);
  }

  /** What is to become of the next message of this key: `nack`, `park`, or nothing (null). */
  wish(lane, wish) {
    this.lanes.wish(lane.key, wish, performance.now());
    this.changed(true);
  }

  /** An operator's decision about a parked key: `retry`, `skip` or `release`. */
  async decide(lane, decision) {
    const which = lane.key === null ? { all: true } : { key: lane.key };
    const name = lane.key ?? "";
    if (decision === "release") {
      this.releases.begin(lane, this.parked.get(name), performance.now());
    }
    await this.client.decide(QUEUE, GROUP, decision, which);
    this.parked.delete(name);
    this.lanes.freed(lane.key);
    this.changed(true);
  }

  /** What became of what was released, where that is over. Rejects when nobody answers. */
  released() {
    return this.releases.over(this.client, performance.now());
  }

  /** @param {boolean} isOn */
  setWebSocket(isOn) {
    this.#note(isOn ? "WebSocket switched on: it is tried at once" : "WebSocket switched off");
    this.webSocket.set(isOn);
    if (isOn) {
      this.hurry();
    }
    this.changed(true);
  }

  // --- What comes -------------------------------------------------------------------------------

  #read(message) {
    const nowMs = performance.now();
    this.readTimes.push(nowMs);
    this.lanes.read(message, nowMs);
    const way = this.#see(message, nowMs);
    if (way) {
      this.ways.read(message.id, nowMs, message);
      this.#elsewhere(way);
    }
    if (way?.isOwn && way.answeredUnixMs !== undefined) {
      way.takenUnixMs = message.publishedUnixMs;
      this.#learnClock(way);
    }
    this.changed();
  }

  /** What a worker of another tab is given counts as pushed when it is read here. */
  #elsewhere(way) {
    const owner = this.owners.of(way.partition);
    if (owner && !owner.isHere && !this.isQueuePaused) {
      this.ways.elsewhere(way.id, owner.name);
    }
  }

  /** A worker's handler has begun. */
  arrived(message, worker) {
    const nowMs = performance.now();
    this.latencies.add(nowMs, this.clock.sinceMs(Date.now(), message.publishedUnixMs));
    this.lanes.started(message, worker.name, nowMs);
    const way = this.#see(message, nowMs);
    if (way) {
      this.ways.pushed(message.id, nowMs, { ...placeOf(message), handler: worker.name });
      this.ways.trouble(message.id, worker.isPaused ? "waits: its worker is paused" : "");
    }
    this.changed();
  }

  /** The way of a message that has come; the host's figures have none. */
  #see(message, nowMs) {
    const { id, key } = message;
    let way = this.ways.find(id);
    if (way && way.dueUnixMs !== null) {
      this.ways.due(id, nowMs + Math.min(0, this.dueInMs(way)));
    }
    if (!way) {
      if (readFigure(message).isKnown) {
        return null;
      }
      const text = formatBody(message, TEXT_LENGTH_MAX);
      const publishedMs = nowMs - this.clock.sinceMs(Date.now(), message.publishedUnixMs);
      way = this.ways.begin({ id, key: key ?? null, text, nowMs: publishedMs, isOwn: false });
    }
    return way;
  }

  wishFor(message) {
    return this.lanes.wishFor(message.key, performance.now());
  }

  /** Whether its ack is to be confirmed: those of this page, and of others a few a second. */
  isWatched(message) {
    const way = this.ways.find(message.id);
    const nowMs = performance.now();
    if (!way || (!way.isOwn && nowMs - this.watchedMs < WATCH_EVERY_MS)) {
      return false;
    }
    this.watchedMs = nowMs;
    return true;
  }

  nacked(message, delayMs) {
    const comesAgain = this.lanes.nacked(message, performance.now(), delayMs);
    const lane = this.lanes.find(message.key);
    if (lane.wish === "nack" || !comesAgain) {
      lane.wish = null;
    }
    this.ways.trouble(
      message.id,
      comesAgain ? "nacked: it comes again" : "its last attempt failed",
    );
    this.changed(true);
  }

  acked(message) {
    this.ways.acked(message.id, performance.now());
    this.ways.trouble(message.id, "");
  }

  handled(message, worker) {
    const hue = this.owners.find(worker.session)?.hue;
    this.lanes.handled(message, performance.now(), hue);
    this.releases.handled(message, performance.now());
    this.onHandled?.(message, worker);
    this.changed();
  }

  /** A subscription has ended by an error. */
  failed(error) {
    this.trouble = error;
    this.changed(true);
  }

  // --- Looking at the group, once a second ------------------------------------------------------

  /** Asks the broker who owns what, and what is held. Rejects when it does not answer. */
  async look() {
    const [described, { paused }] = await Promise.all([
      this.client.group(QUEUE, GROUP),
      this.client.queue(QUEUE),
    ]);
    const here = new Map(this.workers.map((worker) => [worker.session, worker.name]));
    const elsewhere = await this.names.ask(this.client, described.members ?? [], here);
    this.owners.look(described, { here, elsewhere }, this.partitionCount);
    this.isQueuePaused = paused === true;
    this.ways.list.forEach((way) => this.#elsewhere(way));
    this.lags.push(this.owners.lag);
    this.lagTimes.push(performance.now());
    await this.#lookAtHeld();
    this.hasLook = true;
    this.changed();
  }

  /** Asked for only while something is held. */
  async #lookAtHeld() {
    const before = this.parked;
    this.parked = new Map();
    this.waiting = new Map();
    if (this.owners.keysParked || this.lanes.list().some(({ held }) => held)) {
      for (const row of await this.client.heldKeys(QUEUE, GROUP, { limit: HELD_SHOWN_MAX })) {
        const place = row.reason === "parked" ? this.parked : this.waiting;
        place.set(row.key ?? "", place === this.parked ? row : row.messages);
      }
    }
    for (const key of before.keys()) {
      if (!this.parked.has(key)) {
        this.lanes.freed(key === "" ? null : key);
      }
    }
  }

  /** Whether all keys that are read here are handled in other tabs. */
  ownsNoKey() {
    const read = this.lanes.list().filter(({ message }) => message);
    return this.owners.areElsewhere(read.map(({ partition }) => partition));
  }

  #learnClock(way) {
    if (way.takenUnixMs !== undefined && way.answeredUnixMs !== undefined) {
      this.clock.learn(way.calledUnixMs, way.takenUnixMs, way.answeredUnixMs);
    }
  }

  /** There may be a way: clients that wait for their next attempt make it now. */
  hurry() {
    this.client?.hurry();
    for (const { client } of this.workers) {
      client.hurry();
    }
  }

  #connectionChanged({ transport, isConnected, reason }) {
    const name = { websocket: "WebSocket", "long-poll": "Long-poll" }[transport];
    const lost = reason ? titled(reason) : "The connection was lost";
    this.#note(isConnected && name ? `${name}: connected` : lost);
    this.changed(true);
  }

  #note(text) {
    this.changes.unshift({ unixMs: Date.now(), text });
    this.changes.length = Math.min(this.changes.length, CHANGES_MAX);
  }
}

function placeOf({ partition, offset, attempt }) {
  return { partition, offset, attempt };
}
