/**
 * Tocsin: publish, and be pushed to, in order and without loss. See README.md.
 *
 * Durations end in S (seconds), times since 1970 in UnixMs. Everything that returns a promise
 * rejects with a TocsinError, or with a TypeError where an argument is of a wrong kind.
 */

export const VERSION: string;

export type Transport = "websocket" | "long-poll";

/** Of the world; any of it may be replaced, for tests. */
export interface Environment {
  WebSocket: typeof WebSocket;
  fetch: typeof fetch;
  setTimeout: (callback: () => void, delayMs: number) => unknown;
  clearTimeout: (timer: any) => void;
  /** Monotonic, in milliseconds. */
  now: () => number;
  /** From 0 up to and without 1. */
  random: () => number;
  /** Where `resume` writes; null: nowhere. */
  storage: Pick<Storage, "getItem" | "setItem" | "removeItem"> | null;
  /**
   * Tells pagehide, pageshow, freeze, resume, online and visibilitychange; null: there is no page.
   */
  page: Pick<EventTarget, "addEventListener" | "removeEventListener"> | null;
}

export interface ConnectOptions {
  /**
   * A bearer token, or a function that returns a fresh one: asked at each attempt to connect, at
   * each call over HTTP, and before the one in use is over. Without one none is sent; requests to
   * the page's origin carry its cookies.
   */
  token?: string | (() => string | Promise<string>) | null;
  /** For the broker's logs. Default: "tocsin-javascript". */
  name?: string;
  /**
   * The name under which messages are numbered; a random one by default. Only one client at a time
   * may use a name.
   */
  producer?: string;
  /**
   * "auto" (the default): a WebSocket, long poll where none gets through, and back to a WebSocket
   * as soon as one does.
   */
  transport?: "auto" | Transport;
  /**
   * For so long after a connection is lost the broker keeps what this client holds: 0 to 300,
   * default 30. After it, or when the client is closed, it goes to the group's others.
   */
  lingerS?: number;
  /** For one attempt to connect. Default: 10. */
  connectTimeoutS?: number;
  /**
   * Go on over a reload of the page: see README.md. A name, of one client in its tab. Where the
   * browser lets nobody use sessionStorage, a reload begins a new session.
   */
  resume?: string;
  /**
   * Called with each message of frames as it goes over the wire, JSON text, to see what happens.
   * Tokens are left out.
   */
  trace?: (direction: "sent" | "received", transport: Transport, text: string) => void;
  environment?: Partial<Environment>;
}

/**
 * A client that is connected; a connection that is lost later is opened again until it is closed.
 *
 * @param url http or https; without it the page's origin, and outside of a page
 *     http://127.0.0.1:8080
 * @throws CannotConnect: nothing answers. NotABroker: something else does. Unauthorized, …
 */
export function connect(
  url?: string | URL | null,
  options?: ConnectOptions,
): Promise<Client>;

/** Emitted as "connection" whenever a session stands, stands no more, or changes its transport. */
export interface ConnectionEvent extends CustomEvent {
  readonly detail: {
    readonly isConnected: boolean;
    readonly transport: Transport | null;
    /** Why there is none now; empty where there is one. */
    readonly reason: string;
  };
}

export interface NewMessage {
  /**
   * Any value that JSON can say, or bytes: an ArrayBuffer, a typed array, a DataView. Fields that
   * are undefined are left out, as JSON.stringify has it; NaN, a Map or a Set, bytes or functions
   * inside of it are refused (InvalidRequest).
   */
  body: unknown;
  /** Messages of one key stay in order; without one none is promised. */
  key?: string | null;
  /** The same key and id within the queue's dedup window is stored once. */
  id?: string | null;
  headers?: Record<string, string> | null;
  /** After so many seconds it is no longer given out. */
  ttlS?: number | null;
  contentType?: string | null;
  /** Travels with it unchanged. */
  sentUnixMs?: number | null;
}

export interface PublishOptions extends Omit<NewMessage, "body"> {
  /** How long to wait for the final answer, 60 by default; null: for ever. */
  timeoutS?: number | null;
}

/** The broker has stored the message at this place; `durability` says how safely. */
export interface Receipt {
  /** The publisher's, or the name that the broker made; null where it did not say. */
  readonly id: string | null;
  readonly partition: number;
  readonly offset: number;
  /** It was there already, from an earlier publish under the same id or sequence. */
  readonly duplicate: boolean;
  readonly durability: { readonly level: string; readonly copies: number };
}

export type Start = "earliest" | "latest" | Date;

/** A reader's place. Opaque: give it back as it is, through JSON if need be. */
export interface Position {
  queue_id: string;
  ring_epoch?: number;
  partitions: Record<string, [number, number]>;
}

/** The truth about a reader's position in one partition. */
export interface Verdict {
  readonly partition: number;
  /**
   * "resumed": nothing was missed. "gap": the offsets `gap`, first and last, are not retained any
   * more. "unknown": the position is of another history, for `reason`; what was missed cannot be
   * said.
   */
  readonly kind: "resumed" | "gap" | "unknown";
  /** Where reading goes on. */
  readonly nextOffset: number;
  readonly gap: readonly [number, number] | null;
  readonly reason: string;
}

/** In camelCase, or as the broker names them: leaseS or lease_s. Null: the queue's. */
export interface GroupSettings {
  semantics?: "at_least_once" | "at_most_once";
  leaseS?: number | null;
  leaseTotalS?: number | null;
  attemptsMax?: number | null;
  backoffS?: number | null;
  backoffMaxS?: number | null;
  onExhausted?: "dead_letter" | "park" | null;
  expiresS?: number | null;
}

/** A threshold of a queue whose breach is told. */
export interface Alert {
  name: string;
  when: "lag" | "oldest_age_s" | "depth" | "dead_letters" | "parked_keys";
  above: number;
  lastsS?: number;
  group?: string | null;
  queue?: string | null;
  webhook?: string | null;
}

export interface QueueSettings {
  partitions?: number;
  messageBytesMax?: number;
  messagesMax?: number;
  bytesMax?: number;
  overflow?: "reject" | "dead_letter";
  retentionS?: number;
  messageTtlS?: number | null;
  leaseS?: number;
  leaseTotalS?: number;
  attemptsMax?: number;
  backoffS?: number;
  backoffMaxS?: number;
  onExhausted?: "dead_letter" | "park";
  deadLetterQueue?: string | null;
  dedupWindowS?: number;
  durability?: "local" | "quorum" | "all";
  publishMessagesPerS?: number | null;
  publishBytesPerS?: number | null;
  alerts?: Alert[];
  [setting: string]: unknown;
}

/**
 * Settings of a queue that change; the others stay. `alerts`: all of them, as a list; or by name
 * those that change, where null takes one away.
 */
export interface QueueChange extends Omit<QueueSettings, "partitions" | "alerts"> {
  alerts?: Alert[] | Record<string, Partial<Omit<Alert, "name">> | null>;
}

export interface ChangeOptions {
  /**
   * As many messages it may delete, or move to the dead letters; null: as many as there are.
   * Default: 0. Where it would be more, a WouldDelete is thrown, and nothing is done.
   */
  deletesMax?: number | null;
}

export interface SubscribeOptions extends GroupSettings {
  /** How many handlers run at once, across keys. Default: 16. */
  concurrency?: number;
  /** How many messages may be held here at a time. Default: four for each handler. */
  credit?: number;
  /** Where a group that does not exist yet starts. Default: "earliest". */
  start?: Start;
  /**
   * As many messages may go; null: as many as there are. Default: 0. A queue without a retention
   * keeps everything for its first group: where that starts at "latest", or at a time, what stands
   * before goes, and without this a WouldDelete is thrown.
   */
  deletesMax?: number | null;
  /**
   * The leases of what is held here are prolonged until it is settled, up to the group's
   * `leaseTotalS`. Default: true.
   */
  autoExtend?: boolean;
}

export interface ReadOptions {
  /** Only messages of these keys. */
  keys?: string[] | null;
  /** Default: "latest". Or the `position` of an earlier reader. */
  start?: Start | Position;
  /** How many handlers run at once, across keys. Default: 1. */
  concurrency?: number;
  /** How many messages may wait here at a time. Default: 1000. */
  credit?: number;
  /** Where messages are no longer retained: a Gap is thrown ("raise", the default), or told. */
  onGap?: "raise" | ((gap: Gap) => void);
  /**
   * Where the position means nothing any more (its queue was deleted and made again, or the
   * broker's data restored): "raise" a PositionUnknown (the default), go on there, or what is
   * called with it and returns where to go on.
   */
  onUnknown?:
    | "raise"
    | "earliest"
    | "latest"
    | ((error: PositionUnknown) => "earliest" | "latest");
}

/** What a message says. */
declare class Content {
  /** The routing and ordering key; null: the message is promised no order. */
  readonly key: string | null;
  /**
   * The JSON value, or for a binary message its bytes. Numbers are those of JSON.parse: whole ones
   * beyond 2^53 lose digits, and 1e400 is Infinity.
   */
  readonly body: any;
  /** The bytes of a binary message; null: the body is JSON. */
  readonly bytes: Uint8Array | null;
  readonly isBinary: boolean;
  readonly contentType: string | null;
  /** Empty when there are none. */
  readonly headers: Record<string, string>;
  /** The publisher's id, or a name made of its place. */
  readonly id: string;
  readonly partition: number;
  /** Its place in its partition. */
  readonly offset: number;
  /** Names the history that its offset counts in: a log and an offset never name two messages. */
  readonly log: string;
  /** When the broker accepted it. */
  readonly publishedUnixMs: number;
  /** When the publisher says to have sent it. */
  readonly sentUnixMs: number | null;
}

/** A message that a reader was given: nothing to settle. */
export class ReadMessage extends Content {
  private constructor();
}

/** A message that this consumer was given, until it is settled. */
export class Message extends Content {
  private constructor();
  /** 1 for the first delivery to the group, then one more each time. */
  readonly attempt: number;
  /**
   * Until when it is this consumer's by the client's own count, in milliseconds of
   * `performance.now()`; it moves on when the lease is prolonged.
   */
  readonly leaseUntil: number;
  /** Whether it is still this consumer's, and not settled. */
  readonly isHeld: boolean;
  /** Aborted, with a StaleDelivery, when it is no longer this consumer's. */
  readonly signal: AbortSignal;
  /**
   * It is done. The ack is queued when this returns; with `confirm` the promise resolves when it is
   * durable.
   *
   * @throws StaleDelivery: it is no longer this consumer's; it is or will be delivered again.
   *     OutcomeUnknown (`confirm`): the session was lost before the answer.
   */
  ack(how?: { confirm?: boolean }): Promise<void>;
  /**
   * Return it: it comes again after `delayS` seconds, or the queue's backoff; later messages of its
   * key wait for it. `reason` goes with it if it is dead-lettered. The nack is queued when this
   * returns: count, delay and reason may still be lost with the connection or the broker. With
   * `confirm` the promise resolves when they are durable.
   *
   * @throws StaleDelivery. InvalidRequest, and nothing happens: `delayS` is above a day (86,400),
   *     or `reason` has more than 1024 characters. OutcomeUnknown (`confirm`): the session was lost
   *     before the answer.
   */
  nack(how?: {
    delayS?: number | null;
    reason?: string | null;
    confirm?: boolean;
  }): Promise<void>;
  /**
   * Return it for good: no further attempt can help. It moves to the dead letters at once, or its
   * key is parked where the queue says so, as after its last attempt. The rejection is queued when
   * this returns: where it is lost with the connection or the broker, the message comes again. With
   * `confirm` the promise resolves when it is durable.
   *
   * @throws as `nack` does.
   */
  reject(reason?: string | null, how?: { confirm?: boolean }): Promise<void>;
  /**
   * Prolong the lease to `leaseS` seconds from now (the group's, if left out). Resolves when the
   * broker has agreed.
   *
   * @throws StaleDelivery: it is no longer this consumer's, or may not be prolonged.
   *     InvalidRequest: `leaseS` is above twelve hours (43,200).
   */
  extend(how?: { leaseS?: number | null }): Promise<void>;
}

/**
 * A place in a group. Without a handler an async iterable: each message comes when its key is free,
 * and several loops may run over it at once. Leaving a loop does not leave the group: `close` does.
 */
export class Subscription implements AsyncIterableIterator<Message> {
  private constructor();
  readonly queue: string;
  readonly group: string;
  /** Resolves when the broker has let it in; rejects with QueueNotFound, Unauthorized, … */
  readonly opened: Promise<this>;
  /** Resolves when it is over: with null when it was closed, else with why. Never rejects. */
  readonly ended: Promise<TocsinError | null>;
  /** The next message whose key is free, if one is here; null: not now. */
  nextNowait(): Message | null;
  next(): Promise<IteratorResult<Message, undefined>>;
  return(value?: any): Promise<IteratorResult<Message, any>>;
  [Symbol.asyncIterator](): this;
  /** Leave: queued acks are sent; what is not settled returns to the group, and is aborted. */
  close(): Promise<void>;
  /** `close`, where the language has `await using`. */
  [Symbol.asyncDispose](): Promise<void>;
}

/**
 * All messages of a queue, or of some keys, without a group. Without a handler an async iterable; a
 * message is done when the next one is asked for. With one, when the handler has ended.
 */
export class Reader implements AsyncIterableIterator<ReadMessage> {
  private constructor();
  readonly queue: string;
  /** Resolves when it stands; rejects with QueueNotFound, PositionUnknown, … */
  readonly opened: Promise<this>;
  /**
   * Resolves when it is over: with null when it was closed, else with why. A handler that throws
   * ends its reader, before its message counts as done: `cause` is what it threw.
   */
  readonly ended: Promise<TocsinError | null>;
  /** Behind the last message that was handed out; null: not opened yet. */
  readonly position: Position | null;
  /** What was said of the position when the reader was opened, or opened again. */
  readonly verdicts: readonly Verdict[];
  /** The next message, if one is here; null: not now. Throws a Gap as `next` does. */
  nextNowait(): ReadMessage | null;
  /** Rejects with a Gap; asked again it goes on behind that. */
  next(): Promise<IteratorResult<ReadMessage, undefined>>;
  return(value?: any): Promise<IteratorResult<ReadMessage, any>>;
  /** A loop of its own: several may run over a reader at once. */
  [Symbol.asyncIterator](): AsyncIterableIterator<ReadMessage>;
  close(): Promise<void>;
  /** `close`, where the language has `await using`. */
  [Symbol.asyncDispose](): Promise<void>;
}

/** A message as it stands in its queue; nobody has been given it by this. */
export class PeekedMessage extends Content {
  private constructor();
  /** ready, in_flight, waiting, parked or dying, for the group that was asked for; else null. */
  readonly state: string | null;
  /** Failed attempts that are counted, of that group. */
  readonly attempts: number;
  /** 0: never. */
  readonly expiresUnixMs: number;
}

/**
 * A message among the dead letters. `partition`, `offset` and `publishedUnixMs` are those of the
 * letter; key, id, body and headers those of the message that it was.
 */
export class DeadLetter extends Content {
  private constructor();
  readonly origin: { queue: string; group: string; partition: number; offset: number };
  /** exhausted, rejected, expired, overflow or skipped. */
  readonly reason: string;
  readonly attempts: number;
  /** What its last nack gave as the reason. */
  readonly nackReason: string | null;
}

/** A message that was pulled; settle it by its receipt, through any connection. */
export class PulledMessage extends Content {
  private constructor();
  readonly receipt: string;
  readonly attempt: number;
  /** Until then, by the broker's clock, the receipt counts. */
  readonly leaseUntilUnixMs: number;
}

/** What an ack, nack or extend of receipts did. */
export interface Settled {
  readonly settled: number;
  /** Receipts of deliveries that had ended before. */
  readonly stale: readonly string[];
  /** Texts that are no receipts of this group. */
  readonly invalid: readonly string[];
}

/** An answer of the broker, as it is: /openapi.json describes it. */
export type Answer = Record<string, any>;

export class Client extends EventTarget {
  private constructor();
  readonly url: string;
  /** Whether a session stands right now; if not, one is being opened. */
  readonly isConnected: boolean;
  /** What carries the session right now; null: nothing does. */
  readonly transport: Transport | null;
  /**
   * While no session stands: when the next attempt to connect begins, in milliseconds of
   * `performance.now()` (of `environment.now`, where that is given). null: a session stands, an
   * attempt is under way, or the client is closed.
   */
  readonly retryAt: number | null;
  /** The broker's name for the session. */
  readonly sessionId: string;
  /** The name under which this client numbers its messages. */
  readonly producer: string;
  /** Messages that have been published here and have no final answer yet. */
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
   * Something has changed, there may be a way now: the attempt to connect that is waited for begins
   * at once, and over long poll a WebSocket is tried at once. Where a session stands, the broker is
   * asked for a sign of life, and has three seconds for it before the client connects anew. What
   * comes of it, "connection" tells. The client does this by itself when the network is back
   * (`online`) and when its page is looked at again (`visibilitychange`, `pageshow`).
   */
  hurry(): void;

  /**
   * Send what is queued and close. Publishes without an answer end with ClientClosed; what
   * subscriptions have not settled returns to its group.
   */
  close(): Promise<void>;
  /** `close`, where the language has `await using`. */
  [Symbol.asyncDispose](): Promise<void>;

  /**
   * Publish a message; it is durable when this resolves.
   *
   * Calls that are made in one turn of the event loop travel together. Messages of a key are stored
   * in the order of the calls. What the broker refuses for the moment, and a lost connection, is
   * waited out, without ever reordering a key.
   *
   * @throws QueueNotFound, TooLarge, InvalidRequest, Unauthorized, …: refused, not stored.
   *     PublishTimeout: no final answer in time; perhaps it was stored. ClientClosed, SessionEnded:
   *     likewise, and this client is of no more use.
   */
  publish(queue: string, body: unknown, options?: PublishOptions): Promise<Receipt>;
  /**
   * Publish messages; resolves with their receipts, in order. Not atomic: each message has its own
   * outcome.
   *
   * @throws PublishManyFailed: some were not stored; `outcomes` has each one's receipt or error.
   */
  publishMany(
    queue: string,
    messages: Iterable<NewMessage>,
    options?: { timeoutS?: number | null },
  ): Promise<Receipt[]>;

  /**
   * A place in a group, which is created where it does not exist. Inside it each message goes to
   * one consumer; those of a key come one after another, the next when the one before is settled.
   *
   * With a handler, it is called with each message: up to `concurrency` at a time across keys, one
   * after another within a key. A message is acked when its handler has ended and not settled it,
   * and nacked when it fails. `signal` is aborted when the message is no longer this consumer's: it
   * comes again, and its key waits until the handler has ended.
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

  /** A reader: every message, or every one of some keys, without a group and without acks. */
  read(
    queue: string,
    options?: ReadOptions,
    handler?: ((message: ReadMessage) => unknown) | null,
  ): Reader;
  read(queue: string, handler: (message: ReadMessage) => unknown): Reader;

  /**
   * Any call over HTTP with this client's credentials; resolves with the answer's parsed JSON, null
   * where it is empty. `timeoutS` is 30 by default.
   */
  request(
    method: string,
    path: string,
    body?: unknown,
    settings?: { timeoutS?: number; signal?: AbortSignal },
  ): Promise<any>;

  /**
   * Create a queue, if it is not there, with these settings and the defaults of the others. A queue
   * that is there never changes by this: `created` of the answer is false then.
   *
   * @throws SettingsDiffer: it is there, and one of the settings that are named has another value.
   */
  createQueue(name: string, settings?: QueueSettings): Promise<Answer>;
  /**
   * Change the settings of a queue that are named, and no others. `changes` of the answer has what
   * each of them was (`before`) and is (`after`).
   *
   * @throws WouldDelete. Conflict: `partitions` is fixed. QueueNotFound, InvalidRequest, …
   */
  updateQueue(name: string, settings: QueueChange, options?: ChangeOptions): Promise<Answer>;
  queue(name: string): Promise<Answer>;
  /** The descriptions of all queues, by name. */
  queues(): Promise<Answer[]>;
  /** Let nothing of the queue be given out to groups, durably, until it is resumed. */
  pauseQueue(name: string): Promise<Answer>;
  resumeQueue(name: string): Promise<Answer>;
  /**
   * Drop what a group has not settled, or with `all` everything, for all groups and readers; for
   * good. Resolves with how many messages that were.
   */
  purge(name: string, what: { group: string } | { all: true }): Promise<number>;
  /**
   * Where a key of a queue goes, and in `groups` (all, or the one named) who has it, and what it
   * waits for: a stable code, `waits_for`, and a sentence, `text`.
   */
  explain(queue: string, key: string, options?: { group?: string }): Promise<Answer>;
  /** The sessions that stand at the broker, by id: all, or up to `limit`. */
  sessions(options?: { limit?: number }): Promise<Answer[]>;

  /**
   * Create a group, if it is not there; the settings that are left out are the queue's. A group
   * that is there never changes by this, and `start`, which only matters when it is made, is
   * ignored. A queue without a retention keeps everything for its first group: one that starts at
   * `latest`, or at a time, lets go what stands before.
   *
   * @throws SettingsDiffer: it is there, and one of the settings that are named has another value.
   * WouldDelete: more messages would go than `deletesMax` allows.
   */
  createGroup(
    queue: string,
    group: string,
    settings?: GroupSettings & { start?: Start },
    options?: ChangeOptions,
  ): Promise<Answer>;
  /** Change the settings of a group that are named, and no others, as `updateQueue`. */
  updateGroup(
    queue: string,
    group: string,
    settings: GroupSettings,
    options?: ChangeOptions,
  ): Promise<Answer>;
  group(queue: string, group: string): Promise<Answer>;
  /**
   * Delete it. Resolves with how many messages went with it: those that it alone had not settled,
   * and that no retention keeps. The last group of a queue without a retention leaves everything to
   * whoever comes next.
   *
   * @throws WouldDelete: more messages would go than `deletesMax` allows.
   */
  deleteGroup(queue: string, group: string, options?: ChangeOptions): Promise<number>;
  /**
   * Send it to its start, its end, a time, or an offset, the same in each partition. What it skips
   * goes where no other group needs it and no retention keeps it: `deleted` of the answer.
   *
   * @throws WouldDelete: more messages would go than `deletesMax` allows.
   */
  seekGroup(
    queue: string,
    group: string,
    to: Start | number,
    options?: ChangeOptions,
  ): Promise<Answer>;
  /** Keys of a group of which messages wait, each with its `reason`: all, or up to `limit`. */
  heldKeys(queue: string, group: string, options?: { limit?: number }): Promise<Answer[]>;
  /** What is in flight of a group, by partition and offset: all, or up to `limit`. */
  leases(queue: string, group: string, options?: { limit?: number }): Promise<Answer[]>;
  /** Keys that wait for an operator: `keys`, up to `limit` (100), and `keys_parked`. */
  parked(queue: string, group: string, options?: { limit?: number }): Promise<Answer>;
  /** Retry, skip or release a parked key, by its text or its hash, or all of them; durable. */
  decide(
    queue: string,
    group: string,
    decision: "retry" | "skip" | "release",
    which: { key: string } | { keyHash: string } | { all: true },
  ): Promise<Answer>;

  /** Messages as they stand in a queue, by partition and offset; up to `limit` (10). */
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
  /** The dead letters that have not gone back, oldest first; up to `limit` (100). */
  deadLetters(
    queue: string,
    options?: { key?: string; reason?: string; limit?: number },
  ): Promise<DeadLetter[]>;
  /**
   * Send dead letters back into their queue, in the order of their keys, as new messages for all of
   * its groups and readers; resolves with how many went. After an error, call it again.
   */
  redrive(
    queue: string,
    options?: { key?: string; reason?: string; limit?: number },
  ): Promise<number>;

  /** Take messages without a subscription; waits up to `waitS` (at most 30) for the first. */
  pull(
    queue: string,
    group: string,
    options?: { messagesMax?: number; waitS?: number },
  ): Promise<PulledMessage[]>;
  ackReceipts(queue: string, group: string, receipts: readonly string[]): Promise<Settled>;
  nackReceipts(
    queue: string,
    group: string,
    receipts: readonly string[],
    options?: { delayS?: number; reason?: string },
  ): Promise<Settled>;
  rejectReceipts(
    queue: string,
    group: string,
    receipts: readonly string[],
    options?: { reason?: string },
  ): Promise<Settled>;
  extendReceipts(
    queue: string,
    group: string,
    receipts: readonly string[],
    options?: { leaseS?: number },
  ): Promise<Settled>;
}

/** Base of what the client rejects with. */
export class TocsinError extends Error {
  /**
   * Stable, made for programs: a code of PROTOCOL.md, or cannot_connect, not_a_broker, no_token,
   * session_ended, closed, timeout, publish_many_failed, stale, gap, handler.
   */
  readonly code: string;
  /** A sentence for people. */
  readonly detail: string;
  /** Whether the same may succeed later, unchanged. */
  readonly retry: boolean;
}
/** No broker answers at the URL. */
export class CannotConnect extends TocsinError {}
/** What answers at the URL is no Tocsin broker. */
export class NotABroker extends CannotConnect {}
/** The function that was given as `token` has thrown, or returned what is no token. */
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
/** No valid token, or one without the right. */
export class Unauthorized extends BrokerError {}
export class NotFound extends BrokerError {}
export class QueueNotFound extends NotFound {}
export class GroupNotFound extends NotFound {}
/** It contradicts what is there already. */
export class Conflict extends BrokerError {}
/** A setting that was named, of what is there already with another value. */
export interface Difference {
  readonly name: string;
  readonly current: unknown;
  readonly requested: unknown;
  /** Nothing changes it any more. */
  readonly fixed?: boolean;
}
/** It exists with other settings than those that were named, and nothing of it was changed. */
export class SettingsDiffer extends Conflict {
  readonly differences: readonly Difference[];
}
/**
 * A change of settings, a seek, the deletion of a group, or the first group of a queue that begins
 * behind its messages, would delete messages, and was not done.
 */
export class WouldDelete extends Conflict {
  readonly deleted: number;
  readonly deadLettered: number;
  /** Both: the `deletesMax` with which it is done. */
  readonly messages: number;
}
/** A reader's position belongs to another queue or another history. */
export class PositionUnknown extends Conflict {
  /** Of the partitions in which it does; none where the whole queue is another one. */
  readonly verdicts: readonly Verdict[];
}
/** Refused now; the same may succeed later. */
export class Busy extends BrokerError {}
/** Perhaps it happened: doing it again under the same id is safe. */
export class OutcomeUnknown extends BrokerError {}
/** No final answer within `timeoutS`. Perhaps it was stored: publish again under the same id. */
export class PublishTimeout extends TocsinError {
  /** The broker's last refusal, if there was one. */
  readonly last: BrokerError | null;
}
/** Some messages of a publishMany were not stored. */
export class PublishManyFailed extends TocsinError {
  /** One a message, in order. */
  readonly outcomes: ReadonlyArray<Receipt | TocsinError>;
}
/** The delivery has expired, was revoked or settled; an unsettled message comes again. */
export class StaleDelivery extends TocsinError {}
/** Messages that a reader wanted are no longer retained; reading goes on behind them. */
export class Gap extends TocsinError {
  readonly partition: number;
  readonly first: number;
  readonly last: number;
}
