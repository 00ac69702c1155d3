/**
 * Errors of the client, and the choice of one for a code of the broker's. Pure.
 *
 *     TocsinError                  base of all: `code`, `detail`, `retry`
 *     ├── CannotConnect            no broker answers
 *     │   ├── NotABroker           something that is no broker answers
 *     │   └── NoToken              the function that returns a token has failed
 *     ├── SessionEnded             the broker ended the session for good (close codes 4500-4999)
 *     ├── ClientClosed             the client, or the subscription, has been closed
 *     ├── BrokerError              the broker answered with an error; `code` says which
 *     │   ├── InvalidRequest       a name, a field, a message or a receipt breaks a rule
 *     │   │   └── TooLarge         a message or a request is over its limit
 *     │   ├── Unauthorized         no valid token, or one without the right
 *     │   ├── NotFound             the named object does not exist
 *     │   │   ├── QueueNotFound
 *     │   │   └── GroupNotFound
 *     │   ├── Conflict             it contradicts the present state, or a bound is reached
 *     │   │   ├── SettingsDiffer   the object exists with other settings
 *     │   │   ├── WouldDelete      it would delete messages, and was not carried out
 *     │   │   └── PositionUnknown  the position belongs to another queue or another history
 *     │   ├── Busy                 refused now; the same request may succeed later
 *     │   └── OutcomeUnknown       it may have been carried out; repeat it under the same id
 *     ├── PublishTimeout           no final answer within `timeoutS`; may have been stored
 *     ├── PublishManyFailed        some messages of a publishMany were not stored
 *     ├── StaleDelivery            the delivery has expired or was revoked; the message comes again
 *     └── Gap                      messages that a reader wanted are no longer retained
 *
 * @module
 */

/** Base of all errors of the client. */
export class TocsinError extends Error {
  /**
   * @param {string} message
   * @param {{code?: string, detail?: string, retry?: boolean, cause?: unknown}} [more]
   */
  constructor(message, { code = "internal", detail = message, retry = false, cause } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    /** A stable code for programs. */
    this.code = code;
    /** A sentence for people. */
    this.detail = detail;
    /** Whether the same request may succeed later, unchanged. */
    this.retry = retry;
  }
}

/** No broker answers at the URL. */
export class CannotConnect extends TocsinError {
  /** @param {string} message @param {{cause?: unknown, code?: string, retry?: boolean}} [more] */
  constructor(message, more = {}) {
    super(message, { code: "cannot_connect", retry: true, ...more });
  }
}

/**
 * The server that answers at the URL is no Tocsin broker. Check the URL, and the proxies on the
 * way.
 */
export class NotABroker extends CannotConnect {
  /** @param {string} message @param {{cause?: unknown}} [more] */
  constructor(message, more = {}) {
    super(message, { code: "not_a_broker", retry: false, ...more });
  }
}

/**
 * The function given as `token` has thrown, or has returned no valid token. A client that was
 * connected before tries again later, as it does when no broker answers.
 */
export class NoToken extends CannotConnect {
  /** @param {string} message @param {{cause?: unknown}} [more] */
  constructor(message, more = {}) {
    super(message, { code: "no_token", ...more });
  }
}

/** The broker ended the session for good. `closeCode` is 4401 or 4500 to 4999. */
export class SessionEnded extends TocsinError {
  /** @param {number} closeCode @param {string} reason */
  constructor(closeCode, reason) {
    super(`the broker ended the session: ${reason} (${closeCode})`, {
      code: "session_ended",
      detail: reason,
    });
    this.closeCode = closeCode;
    this.reason = reason;
  }
}

/** The client, or the subscription, has been closed. */
export class ClientClosed extends TocsinError {
  constructor(message = "the client has been closed") {
    super(message, { code: "closed" });
  }
}

/**
 * The broker answered with an error. `code` is one of docs/protocol.md.
 * `retryAfterS` is the broker's
 * advice, in seconds, or null.
 */
export class BrokerError extends TocsinError {
  /**
   * @param {string} code
   * @param {string} [detail]
   * @param {{retry?: boolean, retryAfterS?: number | null, cause?: unknown}} [more]
   */
  constructor(code, detail = "", { retry = false, retryAfterS = null, cause } = {}) {
    super(detail ? `${detail} (${code})` : code, { code, detail, retry, cause });
    this.retryAfterS = retryAfterS;
  }
}

/** A name, a field, a message or a receipt breaks a rule; `detail` names it. */
export class InvalidRequest extends BrokerError {}

/** A message or a request is over its limit. */
export class TooLarge extends InvalidRequest {}

/** The token is missing, invalid, or without the right to do this. */
export class Unauthorized extends BrokerError {}

/** The named object does not exist. */
export class NotFound extends BrokerError {}

/** The queue does not exist. */
export class QueueNotFound extends NotFound {}

/** The queue has no group of this name. */
export class GroupNotFound extends NotFound {}

/** The request contradicts the present state, or a bound is reached. */
export class Conflict extends BrokerError {}

/**
 * A queue or group exists with other settings than those of the call, and was not changed.
 *
 * `differences` has the `name` of each setting, its `current` value and its `requested` value. A
 * group without a value of its own has that of its queue. `updateQueue` and `updateGroup` change
 * settings.
 */
export class SettingsDiffer extends Conflict {
  /** @param {string} code @param {string} [detail] @param {{differences?: object[]}} [more] */
  constructor(code, detail = "", { differences = [], ...more } = {}) {
    super(code, detail, more);
    this.differences = differences;
  }
}

/**
 * A call would delete messages, and was not carried out.
 *
 * Such calls are a change of settings, a seek, the deletion of a group, and the creation of the
 * first group of a queue if that group starts after existing messages. `deleted` is the number of
 * messages to delete, `deadLettered` the number to move to the dead letters. With a `deletesMax` of
 * their sum, `messages`, the call is carried out.
 */
export class WouldDelete extends Conflict {
  /**
   * @param {string} code
   * @param {string} [detail]
   * @param {{deleted?: number, deadLettered?: number}} [more]
   */
  constructor(code, detail = "", { deleted = 0, deadLettered = 0, ...more } = {}) {
    super(code, detail, more);
    this.deleted = deleted;
    this.deadLettered = deadLettered;
    this.messages = deleted + deadLettered;
  }
}

/** The broker refuses the request now. The same request may succeed later. */
export class Busy extends BrokerError {}

/** The request may have been carried out. Repeating it under the same id is safe. */
export class OutcomeUnknown extends BrokerError {}

/**
 * A reader's position belongs to another queue, or to another history of its log.
 *
 * Nobody can say what the reader missed. `verdicts` names the partitions concerned; it is empty if
 * the whole queue is another one. Begin again with a `start`, or set `onUnknown` to continue.
 */
export class PositionUnknown extends Conflict {
  /** @param {string} code @param {string} [detail] @param {{verdicts?: object[]}} [more] */
  constructor(code, detail = "", { verdicts = [], ...more } = {}) {
    super(code, detail, more);
    this.verdicts = verdicts;
  }
}

/**
 * No final answer came within `timeoutS`. The message may have been stored.
 *
 * Publish it again under the same `id`, and it is stored once. `last` is the broker's last refusal,
 * or null.
 */
export class PublishTimeout extends TocsinError {
  /** @param {BrokerError | null} [last] */
  constructor(last = null) {
    const why = last ? `; the broker's last answer: ${last.message}` : "";
    super(`the message was not confirmed in time${why}`, { code: "timeout", retry: true });
    this.last = last;
  }
}

/**
 * Some messages of a publishMany were not stored. `outcomes` has one entry a message, in order: its
 * receipt, or its error.
 */
export class PublishManyFailed extends TocsinError {
  /** @param {Array<object>} outcomes */
  constructor(outcomes) {
    const failed = outcomes.filter((outcome) => outcome instanceof TocsinError);
    const first = /** @type {TocsinError} */ (failed[0]);
    super(`${failed.length} of ${outcomes.length} messages failed, first: ${first.message}`, {
      code: "publish_many_failed",
    });
    this.outcomes = outcomes;
  }
}

/**
 * The delivery is no longer this consumer's, and cannot be settled.
 *
 * Its lease has expired, it was revoked or settled, or the connection was lost meanwhile. A message
 * that was not settled will be delivered again.
 */
export class StaleDelivery extends TocsinError {
  /** @param {string} message */
  constructor(message) {
    super(message, { code: "stale" });
  }
}

/**
 * Messages `first` to `last` of `partition` are no longer retained. Continue the iteration to read
 * after them.
 */
export class Gap extends TocsinError {
  /** @param {number} partition @param {number} first @param {number} last */
  constructor(partition, first, last) {
    super(`offsets ${first} to ${last} of partition ${partition} are gone`, { code: "gap" });
    this.partition = partition;
    this.first = first;
    this.last = last;
  }
}

const CLASSES = new Map([
  ["invalid_json", InvalidRequest],
  ["invalid_request", InvalidRequest],
  ["invalid_message", InvalidRequest],
  ["invalid_name", InvalidRequest],
  ["invalid_receipt", InvalidRequest],
  ["unsupported_encoding", InvalidRequest],
  ["message_too_large", TooLarge],
  ["request_too_large", TooLarge],
  ["unauthorized", Unauthorized],
  ["forbidden", Unauthorized],
  ["origin_refused", Unauthorized],
  ["queue_not_found", QueueNotFound],
  ["group_not_found", GroupNotFound],
  ["session_not_found", NotFound],
  ["not_found", NotFound],
  ["id_unknown", NotFound],
  ["setting_fixed", Conflict],
  ["settings_differ", SettingsDiffer],
  ["would_delete", WouldDelete],
  ["sequence_too_old", Conflict],
  ["already_subscribed", Conflict],
  ["not_subscribed", Conflict],
  ["not_delivered", Conflict],
  ["not_parked", Conflict],
  ["already_due", Conflict],
  ["cancelled", Conflict],
  ["ambiguous", Conflict],
  ["limit_reached", Conflict],
  ["position_unknown", PositionUnknown],
  ["unknown", OutcomeUnknown],
]);

/**
 * Return the error for a code. A code that this version does not know becomes Busy if trying again
 * may help, otherwise BrokerError.
 *
 * @param {string} code
 * @param {string} [detail]
 * @param {{retry?: boolean, retryAfterS?: number | null, differences?: object[], deleted?: number,
 *     deadLettered?: number}} [more]
 * @returns {BrokerError}
 */
export function brokerError(code, detail = "", more = {}) {
  const kind = CLASSES.get(code) ?? (more.retry ? Busy : BrokerError);
  return new kind(code, detail, more);
}

/** Return any thrown value, in a few words for people. @param {unknown} error @returns {string} */
export function wordsOf(error) {
  try {
    if (error instanceof Error) return String(error.message || error.name);
    return String(error);
  } catch {
    return "an error that has no text";
  }
}
