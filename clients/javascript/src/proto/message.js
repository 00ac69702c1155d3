/**
 * Messages as they are handed to the user, and where each stands at its consumer. Pure.
 *
 * @module
 */

import { InvalidRequest, StaleDelivery } from "./errors.js";
import { fromBase64 } from "./new-message.js";

/** Bounds of the broker for a nack and an extend. */
const DELAY_S_MAX = 86_400;
const LEASE_S_MAX = 43_200;
const REASON_CHARS_MAX = 1024;

/** The state of a delivery at this consumer; up to HANDED it is held. */
export const DeliveryState = Object.freeze({
  /** An earlier message of its key is held. */
  QUEUED: 0,
  READY: 1,
  HANDED: 2,
  ACKED: 3,
  NACKED: 4,
  /** Revoked, its lease over, or the connection lost. */
  GONE: 5,
});

const WHY = {
  [DeliveryState.QUEUED]: "has not been handed out",
  [DeliveryState.READY]: "has not been handed out",
  [DeliveryState.ACKED]: "has been acked",
  [DeliveryState.NACKED]: "has been nacked",
  [DeliveryState.GONE]: "has expired, or was revoked: it is no longer this consumer's",
};

/** The error of a message that cannot be settled any more. @param {Message} message */
export function staleError(message) {
  const why = WHY[message.state] ?? WHY[DeliveryState.GONE];
  return new StaleDelivery(`message ${message.id} ${why}`);
}

/** The content of a message, wherever it comes from. */
export class MessageContent {
  #push;
  #fields;
  #bytes = null;

  /** @param {any} push @param {number} offset @param {any} fields */
  constructor(push, offset, fields) {
    this.#push = push;
    this.#fields = fields;
    /** The message's place in its partition. */
    this.offset = offset;
    /** The routing and ordering key; null: the message is promised no order. */
    this.key = fields.key;
  }

  /** The JSON value, or for a binary message its bytes. */
  get body() {
    return this.isBinary ? this.bytes : this.#fields.body;
  }

  /** The bytes of a binary message (a Uint8Array); null: the body is JSON. */
  get bytes() {
    if (this.isBinary) this.#bytes ??= fromBase64(this.#fields.body_base64);
    return this.#bytes;
  }

  /** Whether the body was published as bytes and not as JSON. */
  get isBinary() {
    return this.#fields.body_base64 !== null;
  }

  /** The content type that the publisher gave, or null. */
  get contentType() {
    return this.#fields.content_type;
  }

  /** The publisher's headers; empty when there are none. */
  get headers() {
    return this.#fields.headers ?? {};
  }

  /** The publisher's id, or a name made of its place. */
  get id() {
    return this.#fields.id ?? `${this.#push.id_prefix}${this.offset}`;
  }

  /** The number of its partition. */
  get partition() {
    return this.#push.partition;
  }

  /**
   * Names the history that its offset counts in: "<queue's id>-<generation>-<partition>". A log and
   * an offset never name two messages. Empty where the message was looked at or pulled.
   */
  get log() {
    return this.#push.id_prefix.slice(0, -1);
  }

  /** The time when the broker accepted it, in milliseconds since 1970. */
  get publishedUnixMs() {
    return this.#push.published_unix_ms;
  }

  /** The time of sending that the publisher gave, in milliseconds since 1970; or null. */
  get sentUnixMs() {
    return this.#fields.sent_unix_ms;
  }
}

/** A message that a reader was given: nothing to settle. */
export class ReadMessage extends MessageContent {}

/** A push of which deliveries are held, and what these have in common. */
export class HeldPush {
  /**
   * @param {any} push
   * @param {any} settler carries out what the user says of a message
   * @param {{deadline: number, extendAt: number}} times
   */
  constructor(push, settler, { deadline, extendAt }) {
    this.push = push;
    this.settler = settler;
    /** The earliest deadline of its messages. */
    this.deadline = deadline;
    /** The time when its lease is to be prolonged; Infinity: never. */
    this.extendAt = extendAt;
    this.place = [push.partition, push.epoch, push.push];
    this.left = push.messages.length;
    /** @type {Message[]} by offset, ascending */
    this.deliveries = [];
    /** @type {number[]} acked, and not yet on their way */
    this.acked = [];
    /**
     * Whether its messages may have been in the hands of a consumer that died. Then each is marked
     * as started before its handler runs, so that one that kills its process is counted (R19).
     */
    this.mayBeRedelivery = false;
  }

  /** The time when its lease is to be prolonged, or ends. */
  get due() {
    return Math.min(this.deadline, this.extendAt);
  }

  /** The messages of it that are held. */
  heldMessages() {
    return this.deliveries.filter((message) => message.state <= DeliveryState.HANDED);
  }
}

/** A message that this consumer was given, until it is settled. */
export class Message extends MessageContent {
  #controller = null;

  /** @param {HeldPush} held @param {number} offset @param {any} fields */
  constructor(held, offset, fields) {
    super(held.push, offset, fields);
    this.held = held;
    this.state = DeliveryState.READY;
    this.deadline = held.deadline;
    for (const name of ["held", "state", "deadline"]) {
      Object.defineProperty(this, name, { enumerable: false });
    }
  }

  /** 1 for the first delivery to the group, then one more each time. */
  get attempt() {
    return this.held.push.attempt;
  }

  /**
   * The time until which it is this consumer's, by the client's own count, in milliseconds of the
   * environment's clock (`performance.now()`); it moves on when the lease is prolonged.
   */
  get leaseUntil() {
    return this.deadline;
  }

  /** Whether it is still this consumer's, and not settled. */
  get isHeld() {
    return this.state === DeliveryState.HANDED;
  }

  /** Aborted when the message is no longer this consumer's: revoked, or its lease is over. */
  get signal() {
    if (this.#controller === null) {
      this.#controller = new AbortController();
      if (this.state === DeliveryState.GONE) this.abort();
    }
    return this.#controller.signal;
  }

  /** Abort `signal`: the message is gone, and its handler should stop. */
  abort() {
    this.#controller?.abort(staleError(this));
  }

  /**
   * Ack it, because it is done. Resolves when the ack is queued; with `confirm` when it is durable
   * (P5).
   *
   * @param {{confirm?: boolean}} [how]
   * @returns {Promise<void>} rejects with StaleDelivery: it is no longer this consumer's; it is or
   *     will be delivered again. With OutcomeUnknown (`confirm`): the connection was lost before
   *     the answer, and the broker cannot say any more whether the ack counted.
   */
  ack({ confirm = false } = {}) {
    const { settler } = this.held;
    return quietly(confirm ? settler.ackConfirmed(this) : settler.ack(this));
  }

  /**
   * Return it: it comes again after `delayS` seconds, or the queue's backoff; later messages of its
   * key wait for it. `reason` goes with it if it is dead-lettered. Resolves when the nack is
   * queued: count, delay and reason may still be lost with the connection or the broker. With
   * `confirm` it resolves when they are durable.
   *
   * @param {{delayS?: number, reason?: string, confirm?: boolean}} [how]
   * @returns {Promise<void>} rejects with StaleDelivery: it is no longer this consumer's. With
   *     InvalidRequest: the broker would take none of it, and nothing has happened. With
   *     OutcomeUnknown (`confirm`): the connection was lost before the answer, and the broker
   *     cannot say any more whether the nack counted.
   */
  nack({ delayS, reason, confirm = false } = {}) {
    const wrong = wrongNack(delayS, reason);
    if (wrong !== null) return Promise.reject(wrong);
    return this.#return({ delayS, reason }, confirm);
  }

  #return(how, confirm) {
    const { settler } = this.held;
    return quietly(confirm ? settler.nackConfirmed(this, how) : settler.nack(this, how));
  }

  /**
   * Return it for good: no further attempt can help. It moves to the dead letters at once, or its
   * key is parked where the queue says so, as after its last attempt. Resolves when the rejection
   * is queued: where it is lost with the connection or the broker, the message comes again. With
   * `confirm` it resolves when it is durable.
   *
   * @param {string | null} [reason]
   * @param {{confirm?: boolean}} [how]
   * @returns {Promise<void>} rejects as `nack` does.
   */
  reject(reason, { confirm = false } = {}) {
    const wrong = wrongNack(null, reason);
    if (wrong !== null) return Promise.reject(wrong);
    return this.#return({ reason, reject: true }, confirm);
  }

  /**
   * Prolong the lease to `leaseS` seconds from now (the group's, if left out). Resolves when the
   * broker has agreed.
   *
   * @param {{leaseS?: number}} [how]
   * @returns {Promise<void>} rejects with StaleDelivery: it is no longer this consumer's, or its
   *     lease may not be prolonged. With InvalidRequest: `leaseS` is no such time.
   */
  extend({ leaseS } = {}) {
    if (!isAbsent(leaseS) && !(typeof leaseS === "number" && leaseS > 0 && leaseS <= LEASE_S_MAX)) {
      const detail = `leaseS is a number of seconds above 0, up to ${LEASE_S_MAX}`;
      return Promise.reject(new InvalidRequest("invalid_request", detail));
    }
    return quietly(this.held.settler.extend(this, leaseS));
  }
}

const isAbsent = (value) => value === undefined || value === null;

/** Why a nack cannot be sent, or null: a wrong frame would take others of its message with it. */
function wrongNack(delayS, reason) {
  const isDelay = typeof delayS === "number" && delayS >= 0 && delayS <= DELAY_S_MAX;
  if (!isAbsent(delayS) && !isDelay) {
    const detail = `delayS is a number of seconds from 0 to ${DELAY_S_MAX}`;
    return new InvalidRequest("invalid_request", detail);
  }
  if (isAbsent(reason) || (typeof reason === "string" && reason.length <= REASON_CHARS_MAX)) {
    return null;
  }
  const detail = `reason is a text of at most ${REASON_CHARS_MAX} characters`;
  return new InvalidRequest("invalid_request", detail);
}

/** Mark a promise as handled: where nobody waits for it, the message comes again anyway. */
function quietly(promise) {
  promise.catch(() => {});
  return promise;
}
