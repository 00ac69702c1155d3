/**
 * Messages as the user receives them, and the state of each at its consumer. Pure.
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
  /** Revoked, its lease over, or the session lost. */
  GONE: 5,
});

const WHY = {
  [DeliveryState.QUEUED]: "has not been handed out",
  [DeliveryState.READY]: "has not been handed out",
  [DeliveryState.ACKED]: "has been acked",
  [DeliveryState.NACKED]: "has been nacked",
  [DeliveryState.GONE]: "has expired, or was revoked: it is no longer this consumer's",
};

/** Return the error of a message that cannot be settled any more. @param {Message} message */
export function staleError(message) {
  const why = WHY[message.state] ?? WHY[DeliveryState.GONE];
  return new StaleDelivery(`message ${message.id} ${why}`);
}

/** The content of a message, whatever its source. */
export class MessageContent {
  #push;
  #fields;
  #bytes = null;

  /** @param {any} push @param {number} offset @param {any} fields */
  constructor(push, offset, fields) {
    this.#push = push;
    this.#fields = fields;
    /** The offset of the message in its partition. */
    this.offset = offset;
    /** The routing and ordering key. Null means that the message has no promised order. */
    this.key = fields.key;
  }

  /** The JSON value, or the bytes of a binary message. */
  get body() {
    return this.isBinary ? this.bytes : this.#fields.body;
  }

  /** The bytes of a binary message (a Uint8Array); null if the body is JSON. */
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

  /** The publisher's headers; empty if it gave none. */
  get headers() {
    return this.#fields.headers ?? {};
  }

  /** The publisher's id. Without one, a name made of the message's place, or its ticket. */
  get id() {
    return this.#fields.id ?? `${this.#push.id_prefix}${this.offset}`;
  }

  /** The number of the message's partition. */
  get partition() {
    return this.#push.partition;
  }

  /**
   * The name of the history that the offset counts in: "<queue's id>-<generation>-<partition>". A
   * log and an offset never name two messages. Empty if the message was peeked or pulled.
   */
  get log() {
    return this.#push.id_prefix.slice(0, -1);
  }

  /** The time at which the broker accepted the message, in Unix milliseconds. */
  get publishedUnixMs() {
    return this.#push.published_unix_ms;
  }

  /** The time of sending that the publisher gave, in Unix milliseconds; or null. */
  get sentUnixMs() {
    return this.#fields.sent_unix_ms;
  }

  /** The time at which the message was due, in Unix milliseconds; null if it was not scheduled. */
  get deliverAtUnixMs() {
    return this.#fields.deliver_at_unix_ms;
  }
}

/** A message of a reader. It cannot be settled. */
export class ReadMessage extends MessageContent {}

/** A push with held deliveries, and their common part. */
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
    /** The time at which its lease has to be extended; Infinity for never. */
    this.extendAt = extendAt;
    this.place = [push.partition, push.epoch, push.push];
    this.left = push.messages.length;
    /** @type {Message[]} by offset, ascending */
    this.deliveries = [];
    /** @type {number[]} acked, and not yet on their way */
    this.acked = [];
    /**
     * Whether its messages may have been in the hands of a consumer that died. If so, each is
     * marked as started before its handler runs, so that one that kills its process is counted
     * (R19).
     */
    this.mayBeRedelivery = false;
  }

  /** The time at which its lease has to be extended, or ends. */
  get due() {
    return Math.min(this.deadline, this.extendAt);
  }

  /** Return the messages of the push that are held. */
  heldMessages() {
    return this.deliveries.filter((message) => message.state <= DeliveryState.HANDED);
  }
}

/** A message that this consumer received, until it is settled. */
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
   * The time until which the message is this consumer's, by the client's own count, in milliseconds
   * of the environment's clock (`performance.now()`). It moves on when the lease is extended.
   */
  get leaseUntil() {
    return this.deadline;
  }

  /** Whether the message is still this consumer's, and not settled. */
  get isHeld() {
    return this.state === DeliveryState.HANDED;
  }

  /**
   * A signal that is aborted when the message is no longer this consumer's: revoked, or its lease
   * is over.
   */
  get signal() {
    if (this.#controller === null) {
      this.#controller = new AbortController();
      if (this.state === DeliveryState.GONE) this.abort();
    }
    return this.#controller.signal;
  }

  /** Abort `signal`, because the message is lost and its handler should stop. */
  abort() {
    this.#controller?.abort(staleError(this));
  }

  /**
   * Ack the message, because it is done. Resolves when the ack is queued, or with `confirm` when it
   * is durable (P5).
   *
   * @param {{confirm?: boolean}} [how]
   * @returns {Promise<void>} rejects with StaleDelivery if the message is no longer this
   *     consumer's; it is or will be delivered again. Rejects with OutcomeUnknown (only with
   *     `confirm`) if the connection was lost before the answer, and the broker can no longer tell
   *     whether the ack counted.
   */
  ack({ confirm = false } = {}) {
    const { settler } = this.held;
    return quietly(confirm ? settler.ackConfirmed(this) : settler.ack(this));
  }

  /**
   * Return the message to the group. Later messages of its key wait for it.
   *
   * It is delivered again after `delayS` seconds, or after the group's backoff. `reason` goes with
   * it if it is dead-lettered. Resolves when the nack is queued: count, delay and reason may still
   * be lost with the connection or the broker. With `confirm` it resolves when they are durable.
   *
   * @param {{delayS?: number, reason?: string, confirm?: boolean}} [how]
   * @returns {Promise<void>} rejects with StaleDelivery if the message is no longer this
   *     consumer's. Rejects with InvalidRequest if the broker would refuse it; then nothing has
   *     happened. Rejects with OutcomeUnknown (only with `confirm`) if the connection was lost
   *     before the answer, and the broker can no longer tell whether the nack counted.
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
   * Return the message for good, because no further attempt can help.
   *
   * It moves to the dead letters at once, or its key is parked if the queue's settings say so, as
   * after its last attempt. Resolves when the rejection is queued; if that is lost with the
   * connection or the broker, the message comes again. With `confirm` it resolves when the
   * rejection is durable.
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
   * Extend the lease to `leaseS` seconds from now, or by default to the group's lease. Resolves
   * when the broker has agreed.
   *
   * @param {{leaseS?: number}} [how]
   * @returns {Promise<void>} rejects with StaleDelivery if the message is no longer this
   *     consumer's, or its lease may not be extended. Rejects with InvalidRequest if `leaseS` is
   *     out of range.
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

/**
 * Return the error of a nack that cannot be sent, or null. A wrong frame would spoil everything in
 * its WebSocket message.
 */
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

/** Mark a promise as handled. If nothing waits for it, the message comes again anyway. */
function quietly(promise) {
  promise.catch(() => {});
  return promise;
}
