/**
 * Calls over HTTP: queues, groups, pull, and the work of operators. A client has all of them.
 * Answers that describe queues, groups and parked keys are the broker's own, as in /openapi.json.
 *
 * @module
 */

import { MessageContent } from "../proto/message.js";
import { brokerError, CannotConnect, InvalidRequest } from "../proto/errors.js";
import { changeOf } from "../proto/new-message.js";
import { isObject, startAt } from "../proto/wire.js";
import { TIMEOUT_S } from "../io/http.js";

/** The largest number of messages in one answer of the broker. */
const PER_CALL_MAX = 1000;
/**
 * The time limit of a purge, in seconds. A queue of a thousand partitions and groups takes long.
 */
const PURGE_TIMEOUT_S = 300;
const PULL_OPTIONS = new Set(["messagesMax", "waitS"]);
const ABSENT = {
  key: null, body: undefined, body_base64: null, content_type: null, id: null, headers: null,
  sent_unix_ms: null, deliver_at_unix_ms: null,
};

/** A message in an answer. */
class HttpMessage extends MessageContent {
  constructor(fields) {
    const { partition, published_unix_ms } = fields;
    super({ partition, published_unix_ms, id_prefix: "" }, fields.offset, { ...ABSENT, ...fields });
  }
}

/** A message as it is stored in its queue. Peeking delivers it to no consumer. */
export class PeekedMessage extends HttpMessage {
  constructor(fields) {
    super(fields);
    /** The message's state for the group that was named; null without one. */
    this.state = fields.state ?? null;
    /** The number of failed attempts by that group that count. */
    this.attempts = fields.attempts ?? 0;
    /** The time at which the message expires; 0 if it never does. */
    this.expiresUnixMs = fields.expires_unix_ms ?? 0;
  }
}

/**
 * A message among the dead letters.
 *
 * `partition`, `offset` and `publishedUnixMs` belong to the letter. Key, id, body and headers are
 * those of the original message.
 */
export class DeadLetter extends HttpMessage {
  constructor(fields) {
    super(fields);
    /** The place of the message that failed. `group` is null if it may not be shown. */
    this.origin = { ...fields.origin, group: fields.origin.group ?? null };
    /** The reason: exhausted, rejected, expired, overflow, skipped or queue_deleted. */
    this.reason = fields.reason ?? "";
    this.attempts = fields.attempts ?? 0;
    /** The reason of its last nack, or null. */
    this.nackReason = fields.nack ?? null;
  }
}

/**
 * A message that waits until it is due. Its content is there only if the caller may read it, and in
 * the answers of `scheduled` and `scheduledMessage`.
 */
export class ScheduledMessage extends MessageContent {
  constructor(fields) {
    const { partition, published_unix_ms } = fields;
    const hasContent = fields.body !== undefined || typeof fields.body_base64 === "string";
    const body = fields.body ?? null;
    const deliver_at_unix_ms = fields.due_unix_ms;
    const all = { ...ABSENT, ...fields, body, deliver_at_unix_ms };
    super({ partition, published_unix_ms, id_prefix: "" }, null, all);
    /** Whether the answer has the content of the message. */
    this.hasContent = hasContent;
    /** The name that the broker gave to the message; its id, too, if the publisher gave none. */
    this.ticket = fields.ticket;
    /** The time at which it is due, in Unix milliseconds. */
    this.dueUnixMs = fields.due_unix_ms;
    /** The same as a Date. */
    this.due = new Date(fields.due_unix_ms);
    /** The size of the whole message as JSON, in bytes. */
    this.size = fields.bytes ?? 0;
    /** The time after which it is no longer delivered, in seconds; or null. */
    this.ttlS = fields.ttl_s ?? null;
  }
}

/** A message that was pulled. Settle it by its `receipt`, through any connection. */
export class PulledMessage extends HttpMessage {
  constructor(fields) {
    super(fields);
    this.receipt = fields.receipt;
    /** 1 for the first delivery to the group, then one more each time. */
    this.attempt = fields.attempt ?? 1;
    /** The end of the lease, by the broker's clock. Until then the receipt counts. */
    this.leaseUntilUnixMs = fields.lease_until_unix_ms ?? 0;
  }
}

/** The base of `Client`, with the calls over HTTP; `index.d.ts` describes them. */
export class HttpCalls extends EventTarget {
  /** Make a request over HTTP, and return the broker's answer. */
  async request(_method, _path, _body, _settings) {
    throw new Error("abstract");
  }

  // --- queues ------------------------------------------------------------------------------------

  /** Create a queue if it does not exist, with these settings and defaults for the others. */
  async createQueue(name, settings = {}) {
    return objectOf(await this.request("PUT", pathTo("queues", name), settingsOf(settings)));
  }

  /** Change the named settings of a queue, and no others. */
  async updateQueue(name, settings, { deletesMax = 0 } = {}) {
    const path = pathTo("queues", name) + deletesOf(deletesMax);
    return objectOf(await this.request("PATCH", path, settingsOf(settings)));
  }

  /** Describe a queue: settings, holder, partitions, depth, each group's lag. */
  async queue(name) {
    return objectOf(await this.request("GET", pathTo("queues", name)));
  }

  /** Describe all queues, by name. */
  async queues() {
    return this.#list("/v1/queues", "queues");
  }

  /** Pause a queue durably: nothing is delivered to groups until it is resumed. */
  async pauseQueue(name) {
    return objectOf(await this.request("POST", `${pathTo("queues", name)}/pause`));
  }

  /** End a pause; a queue that is not paused stays as it is. */
  async resumeQueue(name) {
    return objectOf(await this.request("POST", `${pathTo("queues", name)}/resume`));
  }

  /**
   * Drop the messages that a group has not settled, or (`{all: true}`) all; returns their number.
   */
  async purge(name, { group, all } = {}) {
    const settings = { timeoutS: PURGE_TIMEOUT_S };
    const path = `${pathTo("queues", name)}/purge`;
    return objectOf(await this.request("POST", path, { group, all }, settings)).messages;
  }

  /**
   * Explain a key of a queue: its partition, and its owner and the reason for its wait in each
   * group.
   */
  async explain(queue, key, { group } = {}) {
    const path = `${pathTo("queues", queue)}/explain`;
    const told = objectOf(await this.request("GET", path + queryOf({ key, group })));
    const { next, ...all } = told;
    const more = next ? await this.#list(path, "groups", { query: { key, group }, next }) : [];
    return { ...all, groups: [...listOf(told.groups), ...more] };
  }

  /** List the broker's sessions, by id, up to `limit`. */
  async sessions({ limit } = {}) {
    return this.#list("/v1/sessions", "sessions", { limit });
  }

  // --- groups ------------------------------------------------------------------------------------

  /** Create a group if it does not exist; settings that are left out are the queue's. */
  async createGroup(queue, group, { start, ...settings } = {}, { deletesMax = 0 } = {}) {
    const body = { ...settingsOf(settings), start: startAt(start) };
    const path = pathTo("queues", queue, "groups", group) + deletesOf(deletesMax);
    return objectOf(await this.request("PUT", path, body));
  }

  /** Change the named settings of a group, and no others; null restores the queue's value. */
  async updateGroup(queue, group, settings, { deletesMax = 0 } = {}) {
    const path = pathTo("queues", queue, "groups", group) + deletesOf(deletesMax);
    return objectOf(await this.request("PATCH", path, settingsOf(settings)));
  }

  /** Describe a group: settings, lag, owners. */
  async group(queue, group) {
    return objectOf(await this.request("GET", pathTo("queues", queue, "groups", group)));
  }

  /** Delete a group; resolves with the number of deleted messages, which only this group needed. */
  async deleteGroup(queue, group, { deletesMax = 0 } = {}) {
    const path = pathTo("queues", queue, "groups", group) + deletesOf(deletesMax);
    return objectOf(await this.request("DELETE", path)).deleted;
  }

  /** Move a group to its start, its end, a time, or an offset, the same in each partition. */
  async seekGroup(queue, group, to, { deletesMax = 0 } = {}) {
    const place = typeof to === "number" ? { offset: to } : startAt(to);
    const path = `${pathTo("queues", queue, "groups", group)}/seek${deletesOf(deletesMax)}`;
    return objectOf(await this.request("POST", path, { to: place }));
  }

  /** List the keys of a group whose messages wait, each with its `reason`, up to `limit`. */
  async heldKeys(queue, group, { limit } = {}) {
    return this.#list(`${pathTo("queues", queue, "groups", group)}/held`, "keys", { limit });
  }

  /** List the deliveries of a group in flight, by partition and offset, up to `limit`. */
  async leases(queue, group, { limit } = {}) {
    return this.#list(`${pathTo("queues", queue, "groups", group)}/leases`, "leases", { limit });
  }

  /** List the keys of a group that wait for an operator. */
  async parked(queue, group, { limit = 100 } = {}) {
    const path = `${pathTo("queues", queue, "groups", group)}/parked`;
    return objectOf(await this.request("GET", path + queryOf({ limit })));
  }

  /** Retry, skip or release a parked key, by its text or its hash, or all of them. */
  async decide(queue, group, decision, { key, keyHash, all } = {}) {
    const body = { decision, key, key_hash: keyHash, all };
    const path = `${pathTo("queues", queue, "groups", group)}/parked`;
    return objectOf(await this.request("POST", path, body));
  }

  // --- messages ----------------------------------------------------------------------------------

  /** List messages of a queue, by partition and offset, without delivering them. */
  async peek(queue, { group, partition, offset, key, limit = 10 } = {}) {
    const query = { group, partition, offset, key };
    const path = `${pathTo("queues", queue)}/messages`;
    const found = await this.#list(path, "messages", { query, limit });
    return found.map((message) => new PeekedMessage(message));
  }

  /** List the dead letters of a queue that were not sent back, oldest first, up to `limit`. */
  async deadLetters(queue, { key, reason, limit = 100 } = {}) {
    const path = `${pathTo("queues", queue)}/dead-letters`;
    const found = await this.#list(path, "messages", { query: { key, reason }, limit });
    return found.map((message) => new DeadLetter(message));
  }

  /** Send dead letters back, in the order of their keys; returns their number. */
  async redrive(queue, { key, reason, limit = Infinity } = {}) {
    const path = `${pathTo("queues", queue)}/dead-letters/redrive`;
    let done = 0;
    for (let after; done < limit; ) {
      const body = { key, reason, limit: Math.min(limit - done, PER_CALL_MAX), after };
      const answer = objectOf(await this.request("POST", path, body));
      done += answer.messages;
      if (!answer.next) break;
      after = answer.next;
    }
    return done;
  }

  // --- scheduled messages ------------------------------------------------------------------------

  /** List the scheduled messages that are due first, up to `limit`. */
  async scheduled(queue, { key, limit = 100, after } = {}) {
    const path = `${pathTo("queues", queue)}/scheduled`;
    const messages = [];
    for (let next = after; ; ) {
      const count = Math.max(1, Math.min(limit - messages.length, PER_CALL_MAX));
      const page = objectOf(
        await this.request("GET", path + queryOf({ key, limit: count, after: next })),
      );
      for (const fields of listOf(page.messages)) messages.push(new ScheduledMessage(fields));
      next = page.next ?? null;
      if (next === null || messages.length >= limit) {
        return { messages, count: page.count, next };
      }
    }
  }

  /** Return a scheduled message, by its id and its key, or by its ticket alone. */
  async scheduledMessage(queue, id, { key } = {}) {
    return this.#scheduled("GET", queue, id, key);
  }

  /** Cancel a scheduled message, for good; durable when this resolves. */
  async cancelScheduled(queue, id, { key } = {}) {
    return this.#scheduled("DELETE", queue, id, key);
  }

  /** Give a scheduled message another time, another content, or both. */
  async changeScheduled(queue, id, { key, ...change } = {}) {
    return this.#scheduled("POST", queue, id, key, changeOf(change));
  }

  async #scheduled(method, queue, id, key, body) {
    if (typeof id === "string" && (id.includes("/") || ["", ".", ".."].includes(id))) {
      const shown = JSON.stringify(id);
      const detail = `${shown} cannot be named in a path; name the message by its ticket`;
      throw new InvalidRequest("invalid_request", detail);
    }
    const path = pathTo("queues", queue, "scheduled", id) + queryOf({ key });
    return new ScheduledMessage(objectOf(await this.request(method, path, body)));
  }

  // --- pull --------------------------------------------------------------------------------------

  /** Take messages without a subscription; settle them by their receipts. */
  async pull(queue, group, options = {}) {
    const unknown = Object.keys(options).find((name) => !PULL_OPTIONS.has(name));
    if (unknown !== undefined) {
      throw new InvalidRequest("invalid_request", `pull has no option ${unknown}`);
    }
    const { messagesMax = 10, waitS = 0 } = options;
    const path = `${pathTo("queues", queue, "groups", group)}/pull`;
    const body = { messages_max: messagesMax, wait_s: waitS };
    const settings = { timeoutS: TIMEOUT_S + waitS };
    const answer = objectOf(await this.request("POST", path, body, settings));
    return listOf(answer.messages).map((fields) => new PulledMessage(fields));
  }

  /** Ack pulled messages; durable when this resolves. */
  async ackReceipts(queue, group, receipts) {
    return this.#settle(queue, group, "ack", { receipts });
  }

  /**
   * Return pulled messages to the group; durable when this resolves.
   *
   * They are delivered again after `delayS` seconds, or after the group's backoff. `reason` is
   * stored with the attempt.
   */
  async nackReceipts(queue, group, receipts, { delayS, reason } = {}) {
    return this.#settle(queue, group, "nack", { receipts, delay_s: delayS, reason });
  }

  /** Return pulled messages for good: each is dead-lettered, or its key is parked, at once. */
  async rejectReceipts(queue, group, receipts, { reason } = {}) {
    return this.#settle(queue, group, "nack", { receipts, reason, reject: true });
  }

  /** Extend the leases of pulled messages to `leaseS` seconds from now, or to the group's lease. */
  async extendReceipts(queue, group, receipts, { leaseS } = {}) {
    return this.#settle(queue, group, "extend", { receipts, lease_s: leaseS });
  }

  /** List the objects that `path` answers under `name`, page by page, up to `limit`. */
  async #list(path, name, { query = {}, limit = Infinity, next } = {}) {
    const found = [];
    for (let after = next; found.length < limit; ) {
      // explain has its own page size, and takes no limit
      const count = Number.isFinite(limit) ? Math.min(limit - found.length, PER_CALL_MAX) : null;
      const asked = queryOf({ ...query, limit: count, after });
      const page = objectOf(await this.request("GET", path + asked));
      for (const one of listOf(page[name])) found.push(one);
      if (!page.next) break;
      after = page.next;
    }
    return found;
  }

  async #settle(queue, group, verb, body) {
    const path = `${pathTo("queues", queue, "groups", group)}/${verb}`;
    const { settled, stale = [], invalid = [] } = objectOf(await this.request("POST", path, body));
    return { settled, stale, invalid };
  }
}

/** Return the query for `deletesMax`; null allows any number. */
function deletesOf(deletesMax) {
  return deletesMax === 0 ? "" : queryOf({ deletes_max: deletesMax ?? Number.MAX_SAFE_INTEGER });
}

function objectOf(value) {
  if (isObject(value)) return value;
  throw new CannotConnect("the server is not a Tocsin broker: its answer is no JSON object");
}

function listOf(value) {
  if (Array.isArray(value) && value.every(isObject)) return value;
  throw new CannotConnect("the server is not a Tocsin broker: its answer has no such list");
}

/**
 * Make the path of these names below /v1.
 *
 * @param {...string} names
 * @throws {InvalidRequest} if one of them is no name
 */
export function pathTo(...names) {
  for (const name of names) {
    const isName = typeof name === "string" && !["", ".", ".."].includes(name);
    if (!isName || !name.isWellFormed()) { // quoting cannot keep it from meaning another path
      throw brokerError("invalid_name", `${JSON.stringify(name) ?? typeof name} is not a name`);
    }
  }
  return `/v1/${names.map(encodeURIComponent).join("/")}`;
}

/** Encode the parameters that are given as a query. @param {Record<string, unknown>} parameters */
export function queryOf(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => (value ?? null) !== null);
  const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
  return given.length === 0 ? "" : `?${query}`;
}

/**
 * Name settings as the broker does: `leaseS` becomes `lease_s`, in alerts, too. Names in the
 * broker's form stay.
 *
 * @param {Record<string, unknown>} settings
 */
export function settingsOf(settings) {
  const given = Object.entries(settings).filter(([, value]) => value !== undefined);
  return Object.fromEntries(
    given.map(([name, value]) => [
      name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      name === "alerts" ? alertsOf(value) : value,
    ]),
  );
}

/** Name the settings of alerts: a list, or changes by name, in which null removes an alert. */
function alertsOf(alerts) {
  if (Array.isArray(alerts)) return alerts.map((alert) => settingsOf(alert));
  const changes = Object.entries(alerts ?? {});
  return Object.fromEntries(
    changes.map(([name, alert]) => [name, alert === null ? null : settingsOf(alert)]),
  );
}
