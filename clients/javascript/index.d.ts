/**
 * Client of the Tocsin message broker: publish, and be pushed to, in order and without loss. See
 * README.md.
 *
 * Names of durations end in S (seconds), of times since 1970 in UnixMs. Every function that returns
 * a promise rejects with a TocsinError, or with a TypeError if an argument is of a wrong kind.
 */

export const VERSION: string;

export type Transport = "websocket" | "long-poll";

/** The platform's functions. Any of them may be replaced, for tests. */
export interface Environment {
  WebSocket: typeof WebSocket;
  fetch: typeof fetch;
  setTimeout: (callback: () => void, delayMs: number) => unknown;
  clearTimeout: (timer: any) => void;
  /** A monotonic clock, in milliseconds. */
  now: () => number;
  /** A random number from 0 up to and without 1. */
  random: () => number;
  /** The storage in which `resume` keeps the session; null keeps nothing. */
  storage: Pick<Storage, "getItem" | "setItem" | "removeItem"> | null;
  /**
   * The target of the events pagehide, pageshow, freeze, resume, online and visibilitychange; null
   * without a page.
   */
  page: Pick<EventTarget, "addEventListener" | "removeEventListener"> | null;
}

export interface ConnectOptions {
  /**
   * A bearer token, or a function that returns a fresh one. The function is called at each attempt
   * to connect, at each call over HTTP, and before the present token expires. Without this option
   * no token is sent; requests to the page's origin carry its cookies.
   */
  token?: string | (() => string | Promise<string>) | null;
  /** The name of this client in the broker's logs. Default: "tocsin-javascript". */
  name?: string;
  /**
   * The name under which messages are numbered; random by default. Several runs of a program may
   * use the same name one after the other, but never at the same time. Under a name of yours,
   * numbers begin at the clock of this machine, so it must not go back between two runs by more
   * than the pause between them. Otherwise the broker takes new messages for old ones and does not
   * store them.
   */
  producer?: string;
  /**
   * The transport. "auto" (the default) uses a WebSocket, falls back to long poll while no
   * WebSocket gets through, and returns to a WebSocket as soon as one does.
   */
  transport?: "auto" | Transport;
  /**
   * The time for which the broker keeps this client's deliveries after a lost connection, in
   * seconds: 0 to 300, default 30. After that time, or when the client is closed, they go to the
   * group's other consumers.
   */
  lingerS?: number;
  /** The time limit of one attempt to connect, in seconds. Default: 10. */
  connectTimeoutS?: number;
  /**
   * The name of a session that continues over a reload of the page: see README.md. Only one client
   * in a tab may use a name. If the browser forbids sessionStorage, a reload begins a new session.
   */
  resume?: string;
  /**
   * Called with each message of frames as it goes over the wire, as JSON text, for debugging.
   * Tokens are left out.
   */
  trace?: (direction: "sent" | "received", transport: Transport, text: string) => void;
  environment?: Partial<Environment>;
}

/**
 * Connect a client. A connection that is lost later is opened again until the client is closed.
 *
 * @param url http or https. By default the page's origin, and outside of a page
 *     http://127.0.0.1:8080
 * @throws CannotConnect: nothing answers. NotABroker: something other than a broker does. The
 *     broker's refusal: Unauthorized, … TypeError: an option is wrong.
 */
export function connect(
  url?: string | URL | null,
  options?: ConnectOptions,
): Promise<Client>;

/** The event "connection", emitted when a session opens, is lost, or changes its transport. */
export interface ConnectionEvent extends CustomEvent {
  readonly detail: {
    readonly isConnected: boolean;
    readonly transport: Transport | null;
    /** The reason why no session is open; empty if one is. */
    readonly reason: string;
  };
}

export interface NewMessage {
  /**
   * Any value with a JSON form, or bytes: an ArrayBuffer, a typed array, a DataView. Undefined
   * fields are left out, as JSON.stringify does. NaN, a Map or a Set, and bytes or functions inside
   * a value are refused (InvalidRequest).
   */
  body: unknown;
  /**
   * The ordering key. Messages of one key stay in order; messages without a key have no promised
   * order.
   */
  key?: string | null;
  /**
   * The id for repeating. Two messages of the same key and id within the queue's dedup window are
   * stored once.
   */
  id?: string | null;
  headers?: Record<string, string> | null;
  /** The time after which the message is no longer delivered, in seconds. */
  ttlS?: number | null;
  contentType?: string | null;
  /** A time of your own, which travels with the message unchanged. */
  sentUnixMs?: number | null;
  /**
   * The time before which the message is not delivered. One that has passed means at once. Not
   * together with `delayS`.
   */
  deliverAt?: Date | null;
  /**
   * The same in seconds, up to 400 days, from the moment at which the broker receives the message.
   * If the client sends the message again after a lost connection, it keeps its first ticket and
   * time, if the broker had stored it. Otherwise the delay counts from the resend.
   */
  delayS?: number | null;
}

export interface PublishOptions extends Omit<NewMessage, "body"> {
  /** The time to wait for the final answer, in seconds. Default: 60; null waits forever. */
  timeoutS?: number | null;
}

/** The place at which the broker has stored a message, and in `durability` how safely. */
export interface Receipt {
  /** The publisher's id, or the name that the broker made; null if the broker gave none. */
  readonly id: string | null;
  readonly partition: number;
  /** The offset in the partition; null if the message is scheduled, and only then. */
  readonly offset: number | null;
  /** Whether the message was stored before, by an earlier publish under the same id or sequence. */
  readonly duplicate: boolean;
  readonly durability: { readonly level: string; readonly copies: number };
  /** Whether the message waits until it is due. */
  readonly isScheduled: boolean;
  /**
   * The name of a scheduled message in `cancelScheduled` and `changeScheduled`; null for any other.
   */
  readonly ticket: string | null;
  /** The time at which a scheduled message is due; null for any other one, and for a duplicate. */
  readonly dueUnixMs: number | null;
  /** The same as a Date. */
  readonly due: Date | null;
}

export type Start = "earliest" | "latest" | Date;

/** A reader's position. Do not change it; it may be kept as JSON. */
export interface Position {
  queue_id: string;
  ring_epoch?: number;
  partitions: Record<string, [number, number]>;
}

/** The broker's verdict on a reader's position in one partition. */
export interface Verdict {
  readonly partition: number;
  /**
   * "resumed": nothing was missed. "gap": the offsets `gap`, first and last, are no longer
   * retained. "unknown": the position belongs to another history, for `reason`, and nobody can say
   * what was missed.
   */
  readonly kind: "resumed" | "gap" | "unknown";
  /** The offset at which reading continues. */
  readonly nextOffset: number;
  readonly gap: readonly [number, number] | null;
  readonly reason: string;
}

/**
 * Settings of a group, in camelCase or as the broker names them: leaseS or lease_s. Null means the
 * queue's value.
 */
export interface GroupSettings {
  /**
   * The moment of settling: "at_least_once" (default) when a message is acked, "at_most_once"
   * before it is delivered.
   */
  semantics?: "at_least_once" | "at_most_once";
  /** The time for which a delivery belongs to one consumer. */
  leaseS?: number | null;
  /** The same with all extends. */
  leaseTotalS?: number | null;
  /** The number of attempts after which a message is exhausted; 0 means no end. */
  attemptsMax?: number | null;
  /** The pause before the second attempt; doubles with each attempt, with jitter. */
  backoffS?: number | null;
  /** The longest pause between attempts. */
  backoffMaxS?: number | null;
  /**
   * The fate of an exhausted message: "dead_letter", or "park", which lets its key wait for an
   * operator.
   */
  onExhausted?: "dead_letter" | "park" | null;
  /** The time without a consumer after which the group is deleted; by default never. */
  expiresS?: number | null;
}

/** A threshold of a queue. The broker reports when it is exceeded. */
export interface Alert {
  /** The name of the alert, unique in its queue. */
  name: string;
  /** The observed value. `lag` and `oldest_age_s` concern messages that `group` has not settled. */
  when: "lag" | "oldest_age_s" | "depth" | "dead_letters" | "parked_keys";
  /** The threshold. The alert fires while the value is above it for `lastsS` seconds. */
  above: number;
  /** The time for which the value must exceed the threshold. Default: 60. */
  lastsS?: number;
  /** The observed group. Null observes the group that is furthest behind. */
  group?: string | null;
  /** The queue that receives a message when the alert fires, and when it is over. */
  queue?: string | null;
  /** The name of the webhook to call, as TOCSIN_ALERT_WEBHOOKS of the broker defines it. */
  webhook?: string | null;
}

/** Settings of a queue, in camelCase or as the broker names them: leaseS or lease_s. */
export interface QueueSettings {
  /**
   * The number of ordered logs, fixed at creation. Consumers of a group share them. Default: 16.
   */
  partitions?: number;
  /** The largest body of a message, in bytes. Default: 262,144; at most 1,048,576. */
  messageBytesMax?: number;
  /** The largest number of messages in the whole queue. Default: 0, no bound. */
  messagesMax?: number;
  /** The largest number of bytes in the whole queue. Default: 0, no bound. */
  bytesMax?: number;
  /**
   * The reaction beyond `messagesMax` and `bytesMax`. "reject" (default) counts all retained
   * messages and refuses publishes. "dead_letter" counts unsettled ones and moves the oldest to
   * the dead letters.
   */
  overflow?: "reject" | "dead_letter";
  /**
   * The time after its publication for which a message is kept though every group has settled it.
   * Default: 0.
   */
  retentionS?: number;
  /** The time after which a message is no longer delivered. Null (default): no limit. */
  messageTtlS?: number | null;
  /** The time for which a delivery belongs to one consumer. Default: 30. */
  leaseS?: number;
  /** The same with all extends. Default: 3,600. */
  leaseTotalS?: number;
  /** The number of attempts after which a message is exhausted. Default: 5; 0 means no end. */
  attemptsMax?: number;
  /** The pause before the second attempt; doubles with each attempt, with jitter. Default: 1. */
  backoffS?: number;
  /** The longest pause between attempts. Default: 60. */
  backoffMaxS?: number;
  /**
   * The fate of an exhausted message: "dead_letter" (default), or "park", which lets its key wait
   * for an operator.
   */
  onExhausted?: "dead_letter" | "park";
  /**
   * The queue that takes dead letters. Null (default): `<queue>.dead-letters`, created when
   * needed.
   */
  deadLetterQueue?: string | null;
  /** The time for which ids of messages are remembered. Default: 300. */
  dedupWindowS?: number;
  /** The durability of a message when its receipt comes. Default: "all". */
  durability?: "local" | "quorum" | "all";
  /**
   * The limit of all publishers together, in messages per second. Null (default): that of the
   * broker.
   */
  publishMessagesPerS?: number | null;
  /**
   * The limit of all publishers together, in bytes per second. Null (default): that of the broker.
   */
  publishBytesPerS?: number | null;
  /** The thresholds of the queue, up to 16. Default: none. */
  alerts?: Alert[];
  [setting: string]: unknown;
}

/**
 * Settings of a queue to change; a setting that is left out stays as it is.
 *
 * `alerts` is a list of all alerts, or a mapping by name of those that change; null removes an
 * alert.
 */
export interface QueueChange extends Omit<QueueSettings, "partitions" | "alerts"> {
  alerts?: Alert[] | Record<string, Partial<Omit<Alert, "name">> | null>;
}

export interface ChangeOptions {
  /**
   * The number of messages that the call may delete or move to the dead letters; null allows any
   * number. Default: 0. If it would be more, the call rejects with WouldDelete, and nothing is
   * changed.
   */
  deletesMax?: number | null;
}

export interface SubscribeOptions extends GroupSettings {
  /** The number of handlers that run at once, across keys. Default: 16. */
  concurrency?: number;
  /**
   * The largest number of messages that are held here at a time. Default: four for each handler.
   */
  credit?: number;
  /** The start of a group that does not exist yet. Default: "earliest". */
  start?: Start;
  /**
   * The number of messages that creating the group may delete; null allows any number. Default: 0.
   *
   * A queue without a retention keeps everything for its first group. If that group starts at
   * "latest" or at a time, earlier messages are deleted, or the subscription ends with WouldDelete.
   */
  deletesMax?: number | null;
  /**
   * Whether leases of held messages are extended until they are settled, up to the group's
   * `leaseTotalS`. Default: true.
   */
  autoExtend?: boolean;
}

export interface ReadOptions {
  /** The keys to read; null reads all. */
  keys?: string[] | null;
  /**
   * The start: "earliest", "latest" (the default), a time, or the `position` of an earlier reader.
   */
  start?: Start | Position;
  /** The number of handlers that run at once, across keys. Default: 1. */
  concurrency?: number;
  /** The largest number of messages that wait here at a time. Default: 1000. */
  credit?: number;
  /**
   * The reaction if messages are no longer retained. "raise" (the default) throws a Gap. A function
   * is called with the Gap, and reading continues.
   */
  onGap?: "raise" | ((gap: Gap) => void);
  /**
   * The reaction if the position has lost its meaning, because its queue was deleted and created
   * again, or the broker's data was restored.
   *
   * "raise" (the default) throws a PositionUnknown. "earliest" and "latest" continue there. A
   * function is called with the PositionUnknown, and returns one of these.
   */
  onUnknown?:
    | "raise"
    | "earliest"
    | "latest"
    | ((error: PositionUnknown) => "earliest" | "latest");
}

/** The part of a message that its publisher gave, and where it came from. */
declare class Published {
  /** The routing and ordering key. Null means that the message has no promised order. */
  readonly key: string | null;
  /**
   * The JSON value, or the bytes of a binary message. Numbers are those of JSON.parse: whole
   * numbers beyond 2^53 lose digits, and 1e400 is Infinity.
   */
  readonly body: any;
  /** The bytes of a binary message; null if the body is JSON. */
  readonly bytes: Uint8Array | null;
  /** Whether the body was published as bytes and not as JSON. */
  readonly isBinary: boolean;
  /** The type of the body that the publisher named; null if it named none. */
  readonly contentType: string | null;
  /** The publisher's headers; empty if it gave none. */
  readonly headers: Record<string, string>;
  /** The publisher's id. Without one, a name made of the message's place, or its ticket. */
  readonly id: string;
  readonly partition: number;
  /** The time at which the broker accepted the message. */
  readonly publishedUnixMs: number;
  /** The time at which the publisher says that it sent the message; null if it does not say. */
  readonly sentUnixMs: number | null;
  /**
   * The time at which the message was due; null if it was not scheduled. Null, too, if the message
   * was not pushed but pulled, peeked at, or listed as a dead letter.
   */
  readonly deliverAtUnixMs: number | null;
}

/** The content of a message that is in a log. */
declare class Content extends Published {
  /** The offset of the message in its partition. */
  readonly offset: number;
  /**
   * The name of the history that the offset counts in. A log and an offset never name two messages.
   */
  readonly log: string;
}

/** A message of a reader. It cannot be settled. */
export class ReadMessage extends Content {
  private constructor();
}

/** A message that this consumer received, until it is settled. */
export class Message extends Content {
  private constructor();
  /** 1 for the first delivery to the group, then one more each time. */
  readonly attempt: number;
  /**
   * The time until which the message is this consumer's by the client's own count, in milliseconds
   * of `performance.now()`. It moves on when the lease is extended.
   */
  readonly leaseUntil: number;
  /** Whether the message is still this consumer's, and not settled. */
  readonly isHeld: boolean;
  /**
   * A signal that is aborted, with a StaleDelivery, when the message is no longer this consumer's.
   */
  readonly signal: AbortSignal;
  /**
   * Settle the message, because it is done. The ack is queued when this returns. With `confirm` the
   * promise resolves when the ack is durable.
   *
   * @throws StaleDelivery: the message is no longer this consumer's; it is or will be delivered
   *     again. OutcomeUnknown (only with `confirm`): the session was lost before the answer.
   */
  ack(how?: { confirm?: boolean }): Promise<void>;
  /**
   * Return the message to the group. Later messages of its key wait for it.
   *
   * It is delivered again after `delayS` seconds, or after the group's backoff if that is left out.
   * `reason` goes with it if it is dead-lettered. The nack is queued when this returns: count,
   * delay and reason may still be lost with the connection or the broker. With `confirm` the
   * promise resolves when they are durable.
   *
   * @throws StaleDelivery. InvalidRequest, and nothing happens: `delayS` is above a day (86,400),
   *     or `reason` has more than 1024 characters. OutcomeUnknown (only with `confirm`): the
   *     session was lost before the answer.
   */
  nack(how?: {
    delayS?: number | null;
    reason?: string | null;
    confirm?: boolean;
  }): Promise<void>;
  /**
   * Return the message for good, because no further attempt can help.
   *
   * It moves to the dead letters at once, or its key is parked if the queue's settings say so, as
   * after its last attempt. The rejection is queued when this returns; if that is lost with the
   * connection or the broker, the message comes again. With `confirm` the promise resolves when it
   * is durable.
   *
   * @throws the errors of `nack`.
   */
  reject(reason?: string | null, how?: { confirm?: boolean }): Promise<void>;
  /**
   * Extend the lease to `leaseS` seconds from now, or by default to the group's lease. Resolves
   * when the broker has agreed.
   *
   * @throws StaleDelivery: the message is no longer this consumer's, or its lease may not be
   *     extended. InvalidRequest: `leaseS` is above twelve hours (43,200).
   */
  extend(how?: { leaseS?: number | null }): Promise<void>;
}

/**
 * A place in a group. Made by `Client.subscribe`.
 *
 * Without a handler it is an async iterable: each message comes when its key is free, and several
 * loops may run over it at once. Leaving a loop does not leave the group; `close` does.
 */
export class Subscription implements AsyncIterableIterator<Message> {
  private constructor();
  readonly queue: string;
  readonly group: string;
  /**
   * A promise that resolves when the broker has accepted the subscription. Rejects with
   * QueueNotFound, Unauthorized, …
   */
  readonly opened: Promise<this>;
  /**
   * A promise that resolves when the subscription has ended: with null if it was closed, otherwise
   * with the error. Never rejects.
   */
  readonly ended: Promise<TocsinError | null>;
  /** Return the next message whose key is free, if one has arrived; otherwise null. */
  nextNowait(): Message | null;
  next(): Promise<IteratorResult<Message, undefined>>;
  return(value?: any): Promise<IteratorResult<Message, any>>;
  [Symbol.asyncIterator](): this;
  /**
   * Leave. Queued acks are sent; unsettled messages return to the group, and their signals are
   * aborted.
   */
  close(): Promise<void>;
  /** Close; for languages with `await using`. */
  [Symbol.asyncDispose](): Promise<void>;
}

/**
 * A reader of all messages of a queue, or of some keys, without a group. Made by `Client.read`.
 *
 * Without a handler it is an async iterable, and a message is done when the next one is requested.
 * With a handler, a message is done when the handler has ended.
 */
export class Reader implements AsyncIterableIterator<ReadMessage> {
  private constructor();
  readonly queue: string;
  /**
   * A promise that resolves when the reader is open. Rejects with QueueNotFound, PositionUnknown, …
   */
  readonly opened: Promise<this>;
  /**
   * A promise that resolves when the reader has ended: with null if it was closed, otherwise with
   * the error. Never rejects.
   *
   * A handler that throws ends its reader, before its message counts as done; `cause` is what it
   * threw.
   */
  readonly ended: Promise<TocsinError | null>;
  /** The position after the last message that was handed out; null before the reader is opened. */
  readonly position: Position | null;
  /** The verdict on the position in each partition, when the reader was opened last. */
  readonly verdicts: readonly Verdict[];
  /**
   * Return the next message, if one has arrived; otherwise null. Throws a Gap, as `next` rejects.
   */
  nextNowait(): ReadMessage | null;
  /** Wait for the next message. Rejects with a Gap; the next call continues after it. */
  next(): Promise<IteratorResult<ReadMessage, undefined>>;
  return(value?: any): Promise<IteratorResult<ReadMessage, any>>;
  /** Return a separate loop. Several may run over a reader at once. */
  [Symbol.asyncIterator](): AsyncIterableIterator<ReadMessage>;
  close(): Promise<void>;
  /** Close; for languages with `await using`. */
  [Symbol.asyncDispose](): Promise<void>;
}

/** A message as it is stored in its queue. Peeking delivers it to no consumer. */
export class PeekedMessage extends Content {
  private constructor();
  /**
   * The state for the group that was named: ready, in_flight, waiting, parked or dying. Null
   * without one.
   */
  readonly state: string | null;
  /** The number of failed attempts by that group that count. */
  readonly attempts: number;
  /** The time at which the message expires; 0 if it never does. */
  readonly expiresUnixMs: number;
}

/**
 * A message among the dead letters.
 *
 * `partition`, `offset` and `publishedUnixMs` belong to the letter. Key, id, body and headers are
 * those of the original message.
 */
export class DeadLetter extends Content {
  private constructor();
  /** The place of the message. `group` is null if the caller's rights show no groups. */
  readonly origin: { queue: string; group: string | null; partition: number; offset: number };
  /** The reason: exhausted, rejected, expired, overflow, skipped or queue_deleted. */
  readonly reason: string;
  readonly attempts: number;
  /** The reason that its last nack gave; null if there was none. */
  readonly nackReason: string | null;
}

/**
 * A message that waits until it is due.
 *
 * Its content is there only if the caller may read it, and in the answers of `scheduled` and
 * `scheduledMessage`. Otherwise `body` is null, and of what the publisher gave, only key and id are
 * known.
 */
export class ScheduledMessage extends Published {
  private constructor();
  /** Whether the answer has the content of the message. */
  readonly hasContent: boolean;
  /** The name that the broker gave to the message; its id, too, if the publisher gave none. */
  readonly ticket: string;
  /** The time at which it is due. */
  readonly dueUnixMs: number;
  /** The same as a Date. */
  readonly due: Date;
  /** The size of the whole message as JSON, in bytes. */
  readonly size: number;
  /** The time after which it is no longer delivered, in seconds; null if there is none. */
  readonly ttlS: number | null;
}

/** Scheduled messages, the one that is due first in front. */
export interface ScheduledList {
  readonly messages: ScheduledMessage[];
  /** The number of all messages that wait in the queue, of every key. */
  readonly count: number;
  /** The value of `after` with which the list goes on; null if there are no more. */
  readonly next: string | null;
}

/** What a scheduled message becomes. What is left out stays as it is. */
export interface ScheduledChange {
  /** The key of the message that has the id. A ticket needs no key. */
  key?: string | null;
  deliverAt?: Date | null;
  /** The same in seconds from the moment at which the broker receives the call. */
  delayS?: number | null;
  /**
   * Another body. It takes the place of the whole content, so that headers, `ttlS` and
   * `contentType` that are not given with it are gone.
   */
  body?: unknown;
  headers?: Record<string, string> | null;
  ttlS?: number | null;
  contentType?: string | null;
}

/** A message that was pulled. Settle it by its receipt, through any connection. */
export class PulledMessage extends Content {
  private constructor();
  readonly receipt: string;
  readonly attempt: number;
  /** The end of the lease, by the broker's clock. Until then the receipt counts. */
  readonly leaseUntilUnixMs: number;
}

/** The effect of an ack, nack or extend of receipts. */
export interface Settled {
  /** The number of receipts to which the call applied. */
  readonly settled: number;
  /** Receipts of deliveries that had ended before. */
  readonly stale: readonly string[];
  /** Texts that are no receipts of this group. */
  readonly invalid: readonly string[];
}

/** An answer of the broker, unchanged. /openapi.json describes it. */
export type Answer = Record<string, any>;

export class Client extends EventTarget {
  private constructor();
  readonly url: string;
  /** Whether a session is open now. If not, the client is opening one, or is closed. */
  readonly isConnected: boolean;
  /** The transport that carries the session now; null if none does. */
  readonly transport: Transport | null;
  /**
   * The time of the next attempt to connect while no session is open, in milliseconds of
   * `performance.now()`, or of `environment.now` if that is given.
   *
   * Null means that a session is open, an attempt is under way, or the client is closed.
   */
  readonly retryAt: number | null;
  /** The broker's id of the session. */
  readonly sessionId: string;
  /** The name under which this client numbers its messages. */
  readonly producer: string;
  /** The number of published messages without a final answer. */
  readonly unanswered: number;

  addEventListener(
    type: "connection",
    listener: ((event: ConnectionEvent) => void) | null,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | AddEventListenerOptions,
  ): void;

  /**
   * Try again at once, because something has changed and the broker may be reachable now.
   *
   * A waiting attempt to connect begins at once. Over long poll, a WebSocket is tried at once. If a
   * session is open, the broker is pinged; without an answer within three seconds the client
   * connects again. "connection" events report the outcome. The client calls this by itself when
   * the network is back (`online`), and when its page is visible again (`visibilitychange`,
   * `pageshow`).
   */
  hurry(): void;

  /**
   * Send what is queued, then close. Publishes without an answer end with ClientClosed. Deliveries
   * that subscriptions have not settled return to their groups.
   */
  close(): Promise<void>;
  /** Close; for languages with `await using`. */
  [Symbol.asyncDispose](): Promise<void>;

  /**
   * Publish a message; it is durable when this resolves.
   *
   * Calls that are made in one turn of the event loop travel together. Messages of a key are stored
   * in the order of the calls. If the broker refuses a message for the moment, or the connection is
   * lost, the client waits and sends again, and never reorders a key.
   *
   * @throws QueueNotFound, TooLarge, InvalidRequest, Unauthorized, …: refused, not stored.
   *     PublishTimeout: no final answer came in time; the message may have been stored.
   *     ClientClosed, SessionEnded: likewise, and this client cannot be used any more.
   */
  publish(queue: string, body: unknown, options?: PublishOptions): Promise<Receipt>;
  /**
   * Publish messages; resolves with their receipts, in order. Not atomic: each message has its own
   * outcome.
   *
   * @throws PublishManyFailed: some messages were not stored; `outcomes` has each one's receipt or
   *     error.
   */
  publishMany(
    queue: string,
    messages: Iterable<NewMessage>,
    options?: { timeoutS?: number | null },
  ): Promise<Receipt[]>;

  /**
   * Take a place in a group, which is created if it does not exist.
   *
   * Each message goes to one consumer of the group. Messages of a key come one after another, each
   * after the one before it has been settled.
   *
   * A handler is called with each message. Up to `concurrency` handlers run at a time across keys;
   * those of one key run one after another. When a handler ends, its message is acked, unless the
   * handler has settled it. When it fails, the message is nacked. `signal` is aborted when the
   * message is no longer this consumer's. Then the message comes again, and its key waits until the
   * handler has ended.
   */
  subscribe(
    queue: string,
    group: string,
    options?: SubscribeOptions,
    handler?: ((message: Message, context: { signal: AbortSignal }) => unknown) | null,
  ): Subscription;
  subscribe(
    queue: string,
    group: string,
    handler: (message: Message, context: { signal: AbortSignal }) => unknown,
  ): Subscription;

  /** Read all messages of a queue, or of some keys, without a group and without acks. */
  read(
    queue: string,
    options?: ReadOptions,
    handler?: ((message: ReadMessage) => unknown) | null,
  ): Reader;
  read(queue: string, handler: (message: ReadMessage) => unknown): Reader;

  /**
   * Make any call over HTTP with this client's credentials.
   *
   * Resolves with the parsed JSON of the answer, or null if it is empty. `timeoutS` is 30 by
   * default.
   */
  request(
    method: string,
    path: string,
    body?: unknown,
    settings?: { timeoutS?: number; signal?: AbortSignal },
  ): Promise<any>;

  /**
   * Create a queue if none of this name exists; resolves with its description.
   *
   * Settings that are left out have their defaults. An existing queue is never changed; then
   * `created` in the answer is false.
   *
   * @throws SettingsDiffer: the queue exists, and a setting of this call has another value.
   */
  createQueue(name: string, settings?: QueueSettings): Promise<Answer>;
  /**
   * Change the named settings of a queue, and no others. `changes` in the answer has the value
   * `before` and `after` of each changed setting.
   *
   * @throws WouldDelete. Conflict: `partitions` is fixed. QueueNotFound, InvalidRequest, …
   */
  updateQueue(name: string, settings: QueueChange, options?: ChangeOptions): Promise<Answer>;
  /**
   * Return a queue's description: settings, holder, partitions, depth, each group's lag.
   *
   * @throws QueueNotFound.
   */
  queue(name: string): Promise<Answer>;
  /** Return the descriptions of all queues, by name. */
  queues(): Promise<Answer[]>;
  /**
   * Stop giving messages of a queue to groups, durably, until `resumeQueue`. Publishing continues,
   * and so do readers.
   */
  pauseQueue(name: string): Promise<Answer>;
  /** End a pause. Resuming a queue that is not paused does nothing. */
  resumeQueue(name: string): Promise<Answer>;
  /**
   * Drop the messages that a group has not settled, or with `all` all messages, for all groups and
   * readers; final. Resolves with the number of messages.
   */
  purge(name: string, what: { group: string } | { all: true }): Promise<number>;
  /**
   * Explain why a key waits.
   *
   * The answer has the key's partition, and `groups` with an entry for each group, or for the named
   * one. An entry has the owner, a stable code, `waits_for`, and a sentence, `text`.
   */
  explain(queue: string, key: string, options?: { group?: string }): Promise<Answer>;
  /** Return this principal's sessions at the broker, by id: all, or up to `limit`. */
  sessions(options?: { limit?: number }): Promise<Answer[]>;

  /**
   * Create a group if it does not exist; resolves with its description.
   *
   * Settings that are left out are the queue's. An existing group is never changed, and `start` is
   * ignored. A queue without a retention keeps everything for its first group. If that group starts
   * at `latest` or at a time, earlier messages are deleted.
   *
   * @throws SettingsDiffer: the group exists, and a setting of this call has another value.
   *     WouldDelete: the call would delete more messages than `deletesMax`.
   */
  createGroup(
    queue: string,
    group: string,
    settings?: GroupSettings & { start?: Start },
    options?: ChangeOptions,
  ): Promise<Answer>;
  /**
   * Change the named settings of a group, and no others; null restores the queue's value.
   * `updateQueue` describes the answer and the errors.
   */
  updateGroup(
    queue: string,
    group: string,
    settings: GroupSettings,
    options?: ChangeOptions,
  ): Promise<Answer>;
  /**
   * Return a group's description: settings, lag, owners.
   *
   * @throws QueueNotFound. GroupNotFound.
   */
  group(queue: string, group: string): Promise<Answer>;
  /**
   * Delete a group. Resolves with the number of messages that were deleted with it.
   *
   * These are messages that only this group had not settled, and that no retention keeps. The last
   * group of a queue without a retention deletes nothing: its messages wait for the next group.
   *
   * @throws WouldDelete: the call would delete more messages than `deletesMax`.
   */
  deleteGroup(queue: string, group: string, options?: ChangeOptions): Promise<number>;
  /**
   * Move a group to "earliest", "latest", a time, or an offset, the same in each partition.
   *
   * Skipped messages are deleted if no other group needs them and no retention keeps them;
   * `deleted` in the answer is their number.
   *
   * @throws WouldDelete: the call would delete more messages than `deletesMax`.
   */
  seekGroup(
    queue: string,
    group: string,
    to: Start | number,
    options?: ChangeOptions,
  ): Promise<Answer>;
  /**
   * Return keys of a group with waiting messages, each with its `reason`: all, or up to `limit`.
   */
  heldKeys(queue: string, group: string, options?: { limit?: number }): Promise<Answer[]>;
  /** Return the deliveries in flight of a group, by partition and offset: all, or up to `limit`. */
  leases(queue: string, group: string, options?: { limit?: number }): Promise<Answer[]>;
  /**
   * Return keys that wait for an operator: `keys`, up to `limit` (100), and the number of all in
   * `keys_parked`.
   */
  parked(queue: string, group: string, options?: { limit?: number }): Promise<Answer>;
  /** Retry, skip or release a parked key, by its text or its hash, or all of them; durable. */
  decide(
    queue: string,
    group: string,
    decision: "retry" | "skip" | "release",
    which: { key: string } | { keyHash: string } | { all: true },
  ): Promise<Answer>;

  /**
   * Return stored messages of a queue, by partition and offset, up to `limit` (10), without taking
   * them.
   */
  peek(
    queue: string,
    options?: {
      group?: string;
      partition?: number;
      offset?: number;
      key?: string;
      limit?: number;
    },
  ): Promise<PeekedMessage[]>;
  /** Return the dead letters that have not been sent back, oldest first, up to `limit` (100). */
  deadLetters(
    queue: string,
    options?: { key?: string; reason?: string; limit?: number },
  ): Promise<DeadLetter[]>;
  /**
   * Send dead letters back into their queue, in the order of their keys; resolves with their
   * number.
   *
   * They become new messages for all groups and readers of the queue. After an error, call this
   * again.
   */
  redrive(
    queue: string,
    options?: { key?: string; reason?: string; limit?: number },
  ): Promise<number>;

  /**
   * Return the scheduled messages that are due first, up to `limit` (100; Infinity: all), of all
   * keys or of one. `after` goes on where an earlier answer ended, at its `next`.
   */
  scheduled(
    queue: string,
    options?: { key?: string; limit?: number; after?: string },
  ): Promise<ScheduledList>;
  /**
   * Return a scheduled message, by its id and its key, or by its ticket alone. An id that holds a
   * slash, or is "." or "..", cannot be named; then use the ticket.
   *
   * @throws NotFound: no message of this id is scheduled. Conflict: it is due already, or
   *     cancelled, or messages of several keys have this id.
   */
  scheduledMessage(
    queue: string,
    id: string,
    options?: { key?: string | null },
  ): Promise<ScheduledMessage>;
  /**
   * Cancel a scheduled message, for good; durable when this resolves. Resolves with what it was,
   * without its content. A publish under its key and id is answered `cancelled` from then on,
   * within the queue's dedup window.
   *
   * @throws the errors of `scheduledMessage`.
   */
  cancelScheduled(
    queue: string,
    id: string,
    options?: { key?: string | null },
  ): Promise<ScheduledMessage>;
  /**
   * Give a scheduled message another time, another content, or both; durable when this resolves.
   * Resolves with what it is now, without its content. It keeps its id and its ticket.
   *
   * @throws the errors of `scheduledMessage`. InvalidRequest: neither a time nor a body is given,
   *     both times are, or one breaks a rule.
   */
  changeScheduled(queue: string, id: string, change: ScheduledChange): Promise<ScheduledMessage>;

  /**
   * Take messages without a subscription. Waits up to `waitS` seconds (at most 30) for the first
   * one, and resolves with an empty array if none came.
   */
  pull(
    queue: string,
    group: string,
    options?: { messagesMax?: number; waitS?: number },
  ): Promise<PulledMessage[]>;
  /** Ack pulled messages; durable when this resolves. */
  ackReceipts(queue: string, group: string, receipts: readonly string[]): Promise<Settled>;
  /**
   * Return pulled messages to the group; durable when this resolves. They are delivered again after
   * `delayS` seconds, or after the group's backoff. `reason` is stored with the attempt.
   */
  nackReceipts(
    queue: string,
    group: string,
    receipts: readonly string[],
    options?: { delayS?: number; reason?: string },
  ): Promise<Settled>;
  /**
   * Return pulled messages for good: each moves to the dead letters, or its key is parked, at once.
   */
  rejectReceipts(
    queue: string,
    group: string,
    receipts: readonly string[],
    options?: { reason?: string },
  ): Promise<Settled>;
  /** Extend the leases of pulled messages to `leaseS` seconds from now, or the group's lease. */
  extendReceipts(
    queue: string,
    group: string,
    receipts: readonly string[],
    options?: { leaseS?: number },
  ): Promise<Settled>;
}

/** Base of all errors of the client. */
export class TocsinError extends Error {
  /**
   * A stable code for programs: one of docs/protocol.md, or cannot_connect, not_a_broker, no_token,
   * session_ended, closed, timeout, publish_many_failed, stale, gap, handler.
   */
  readonly code: string;
  /** A sentence for people. */
  readonly detail: string;
  /** Whether the same request may succeed later, unchanged. */
  readonly retry: boolean;
}
/** No broker answers at the URL. */
export class CannotConnect extends TocsinError {}
/** The server that answers at the URL is no Tocsin broker. */
export class NotABroker extends CannotConnect {}
/** The function given as `token` has thrown, or has returned no valid token. */
export class NoToken extends CannotConnect {}
/** The broker ended the session for good (4401, 4500 to 4999). */
export class SessionEnded extends TocsinError {
  readonly closeCode: number;
  readonly reason: string;
}
/** The client, or the subscription, has been closed. */
export class ClientClosed extends TocsinError {}
/** The broker answered with an error. */
export class BrokerError extends TocsinError {
  /** The broker's advice, in seconds. */
  readonly retryAfterS: number | null;
}
/** A name, a field, a message or a receipt breaks a rule. */
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
/** A setting of a call that differs from the setting of an existing queue or group. */
export interface Difference {
  readonly name: string;
  readonly current: unknown;
  readonly requested: unknown;
  /** Whether the setting can never change. */
  readonly fixed?: boolean;
}
/** A queue or group exists with other settings than those of the call, and was not changed. */
export class SettingsDiffer extends Conflict {
  readonly differences: readonly Difference[];
}
/**
 * A call would delete messages, and was not carried out.
 *
 * Such calls are a change of settings, a seek, the deletion of a group, and the creation of the
 * first group of a queue if that group starts after existing messages.
 */
export class WouldDelete extends Conflict {
  readonly deleted: number;
  readonly deadLettered: number;
  /** The sum of both numbers: the `deletesMax` with which the call is carried out. */
  readonly messages: number;
}
/** A reader's position belongs to another queue or another history. */
export class PositionUnknown extends Conflict {
  /** The verdicts on the partitions concerned; empty if the whole queue is another one. */
  readonly verdicts: readonly Verdict[];
}
/** The broker refuses the request now. The same request may succeed later. */
export class Busy extends BrokerError {}
/** The request may have been carried out. Repeating it under the same id is safe. */
export class OutcomeUnknown extends BrokerError {}
/**
 * No final answer came within `timeoutS`. The message may have been stored; publish it again under
 * the same id.
 */
export class PublishTimeout extends TocsinError {
  /** The broker's last refusal; null if there was none. */
  readonly last: BrokerError | null;
}
/** Some messages of a publishMany were not stored. */
export class PublishManyFailed extends TocsinError {
  /** The outcome of each message, in order. */
  readonly outcomes: ReadonlyArray<Receipt | TocsinError>;
}
/** The delivery has expired, was revoked or settled. An unsettled message comes again. */
export class StaleDelivery extends TocsinError {}
/** Messages that a reader wanted are no longer retained. Reading continues after them. */
export class Gap extends TocsinError {
  readonly partition: number;
  readonly first: number;
  readonly last: number;
}
