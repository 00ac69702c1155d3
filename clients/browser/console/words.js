// @ts-check
/** The broker's codes as words that a reader understands at once. Pure. */

import { plural } from "../shared/format.js";

/** @typedef {"good" | "warn" | "bad" | "accent" | ""} Kind */
/** @typedef {{word: string, kind: Kind, means: string}} Word */

/** @type {Record<string, [string, Kind, string]>} */
const WAITS = {
  "": ["nothing waits", "good", "Everything there is has been given out."],
  nothing: ["nothing waits", "good", "No message of this key is unsettled."],
  ready: ["ready", "good", "It is given out next."],
  paused: ["paused", "warn", "The queue is paused: nothing is given out until it is resumed."],
  draining: ["draining", "warn", "Its owner hands the partition over, and gives nothing more out."],
  no_consumer: ["no consumer", "bad", "Nobody consumes in this group. Start a consumer."],
  absent: ["consumer away", "warn", "Its consumer lost its connection and is waited for."],
  moving: ["moving", "accent", "It goes to another consumer when what is in flight is settled."],
  elsewhere: ["at another gateway", "", "A consumer that is connected to another gateway has it."],
  credit: ["credit", "accent", "Its consumer is at work on as many messages as it asked for."],
  socket: ["connection slow or gone", "warn",
    "Its consumer's connection takes no more bytes, because it reads too slowly, or is gone."],
  full: ["too much in flight", "warn", "Its consumer holds as many unsettled messages as it may."],
  backoff: ["retry later", "warn", "It failed, and is tried again when its backoff is over."],
  parked: ["parked", "bad", "It failed too often: somebody has to retry, skip or release it."],
  gate: ["key held", "warn", "Earlier messages of its keys come first, or too many keys wait."],
  behind: ["behind another", "warn", "An earlier message of its key has to be settled first."],
  in_flight: ["in flight", "accent", "A consumer is at work on it."],
  commit: ["commit", "", "It goes on when what was decided is on disk: within milliseconds."],
  dead_letter: ["dying", "bad", "It is on its way to the dead letters."],
  dying: ["dying", "bad", "It is on its way to the dead letters."],
  waiting: ["waiting", "warn", "It waits for its retry, or behind an earlier message of its key."],
  read: ["being read", "", "It is being read from disk."],
  backlog: ["backlog", "accent", "Other messages of its partition come first."],
  unknown: ["unknown", "", "The broker could not say within its bounds."],
};

/** @type {Record<string, string>} */
const DEATHS = {
  exhausted: "failed its last attempt",
  rejected: "its consumer said that no attempt can help",
  expired: "its time to live was over",
  overflow: "the queue was full",
  skipped: "an operator skipped it",
  queue_deleted: "its queue was deleted",
};

/**
 * What a partition or a key waits for. A code that is not known (of a newer broker) stands for
 * itself.
 * @param {unknown} code
 * @returns {Word}
 */
export function waitsFor(code) {
  const found = Object.hasOwn(WAITS, String(code)) ? WAITS[String(code)] : null;
  if (!found) return { word: String(code).replaceAll("_", " "), kind: "", means: "" };
  const [word, kind, means] = found;
  return { word, kind, means };
}

/**
 * How a storage cluster is: what a manager found, and whether it answers this gateway.
 * @param {any} cluster @returns {Word}
 */
export function clusterStateOf({ state, answers, since_unix_ms: since }) {
  if (!answers) return { word: "not answering", kind: "bad", means: "It does not answer here." };
  if (state === "away") return { word: "away", kind: "bad", means: "It does not answer." };
  if (since === null) {
    return { word: "not looked at", kind: "", means: "No manager has looked at it yet." };
  }
  if (state === "hot") {
    return { word: "hot", kind: "warn", means: "It is given no partition of a new queue." };
  }
  return { word: "well", kind: "good", means: "Partitions of new queues are placed there." };
}

/** Why a message is dead: "exhausted: failed its last attempt". @param {unknown} reason */
export function deathOf(reason) {
  const known = Object.hasOwn(DEATHS, String(reason)) ? DEATHS[String(reason)] : "";
  return known ? `${reason}: ${known}` : String(reason ?? "");
}

/**
 * Where a dead letter was a message: its queue, its group if one's rights show it, its place.
 * @param {any} origin
 */
export function originOf(origin) {
  const group = origin.group ? `, group ${origin.group}` : "";
  return `${origin.queue}${group}, partition ${origin.partition}, offset ${origin.offset}`;
}

/** How a session or an owner is connected. @param {unknown} transport @returns {Word} */
export function transportOf(transport) {
  if (transport === "websocket") return { word: "WebSocket", kind: "", means: "" };
  if (transport === "long-poll") return { word: "long poll", kind: "", means: "" };
  if (transport === "pull") return { word: "pull (HTTP)", kind: "", means: "" };
  if (transport === null || transport === undefined) {
    return { word: "lingering", kind: "warn", means: "It has no connection, and is waited for." };
  }
  return { word: String(transport), kind: "", means: "" };
}

/**
 * What one sees of a queue at a glance: the worst first.
 * @param {any} queue as the broker describes it
 * @returns {{word: string, kind: Kind}}
 */
export function stateOfQueue(queue) {
  if (queue.paused) return { word: "paused", kind: "warn" };
  if (!Array.isArray(queue.groups)) return { word: "not shown", kind: "" }; // by one's rights
  const groups = queue.groups.filter((group) => !isOwnGroup(group));
  const parked = groups.reduce((sum, group) => sum + (group.keys_parked || 0), 0);
  if (parked) return { word: `${plural(parked, "key")} parked`, kind: "bad" };
  const isLeft = groups.some((group) => group.lag > 0 && group.consumers === 0 && !group.in_flight);
  if (isLeft) return { word: "no consumer", kind: "bad" };
  if (!groups.length) return { word: "no group", kind: "" };
  return { word: "running", kind: "good" };
}

/** Groups whose names begin so are the broker's own. */
export function isOwnGroup(/** @type {any} */ group) {
  return String(group?.name ?? "").startsWith("tocsin.");
}
