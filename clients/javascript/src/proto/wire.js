/**
 * The wire format of `tocsin.v1`: frames, delivery lists, positions and close codes. Pure.
 *
 * A WebSocket message carries one frame, an object, or several, an array of objects. The decoder
 * ignores fields and frames that it does not know, so that a newer broker can add some. A known
 * field of a wrong type is an error, because the client must not act upon it.
 *
 * @module
 */

import { brokerError } from "./errors.js";

export const SUBPROTOCOL = "tocsin.v1";
/** The number of frames that the broker accepts in one message. */
export const FRAMES_PER_MESSAGE_MAX = 256;
/**
 * The size at which a WebSocket message accepts no further frame, in characters; one frame may be
 * larger. The broker handles a message in one go. Larger ones are no faster, and others wait
 * longer.
 */
export const MESSAGE_CHARS_AIM = 64 * 1024;
/** The longest frame that a client may send before a welcome has named the bound. */
export const FRAME_BYTES_MAX = 2 * 1_048_576;
/** The number of ranges named in one ack, nack or extend; the broker accepts a few more. */
export const RANGES_PER_FRAME_MAX = 1000;

/** A text is no frame of the protocol. */
export class NotTheProtocol extends Error {}

// --- close codes ---------------------------------------------------------------------------------

/**
 * Codes with which a session or its carrier ends. After 4000 to 4499 the client reconnects. After
 * 4500 to 4999 it does not, because the same attempt would end the same way.
 */
export const CloseCode = Object.freeze({
  /** Sent to end the session. The broker drops it at once. */
  GOOD_BYE: 1000,
  /** The code for a transport that ended without a close code (RFC 6455, 7.1.5). */
  ABNORMAL: 1006,
  /**
   * The other side does not keep to the protocol. A page may not send 1002 itself. After this code
   * the broker keeps the session as after 1002.
   */
  PROTOCOL_ERROR: 3002,
  /** Sent by a page that is left and may come back. The broker keeps the session. */
  LEAVING: 4000,
  /** Sent after a silence. The client gives up the connection, but not the session. */
  SILENT: 4001,
  /** Received without valid credentials. Reconnect with a fresh token. */
  UNAUTHORIZED: 4401,
  /** Received when the session continues over another transport. */
  REPLACED: 4503,
});

/**
 * Whether a session that was closed with this code may be opened again. It may after codes below
 * 4000, because these are the transport's: a lost connection, a proxy, or a restart.
 *
 * @param {number} closeCode
 * @returns {boolean}
 */
export function mayReconnect(closeCode) {
  return closeCode < 4500 || closeCode > 4999;
}

// --- frames that this client writes --------------------------------------------------------------

/** Half a surrogate pair as JSON.stringify writes it. Other parsers reject it as malformed. */
const HALVES = /(?<=(?:^|[^\\])(?:\\\\)*)\\ud[89a-f][0-9a-f]{2}/g;

/** Encode a value as JSON text, with halves of surrogate pairs as U+FFFD. @param {unknown} value */
function textOf(value) {
  return JSON.stringify(value).replace(HALVES, "\ufffd");
}

/** Whether a JSON text that JSON.stringify made has half a surrogate pair. */
export function hasHalves(text) {
  return text.search(HALVES) >= 0;
}

/** Encode a frame as text, without fields that are undefined. @param {object} frame */
export function encode(frame) {
  return textOf(frame);
}

/**
 * Encode a publish of messages that are encoded already; message i has the sequence `sequence + i`.
 *
 * @param {number} ref
 * @param {string} queue
 * @param {number} sequence
 * @param {number} resolved
 * @param {string[]} messages
 * @param {{produced_unix_us?: number, clock_offset_us?: number}} [times] for brokers that announce
 *     their clock
 */
export function publishFrame(ref, queue, sequence, resolved, messages, times = {}) {
  const head = `{"type":"publish","ref":${ref},"queue":${textOf(queue)},`;
  const sequences = `"sequence":${sequence},"resolved":${resolved},`;
  let more = "";
  for (const [name, us] of Object.entries(times)) more += `"${name}":${us},`;
  return `${head}${sequences}${more}"messages":[${messages.join(",")}]}`;
}

/**
 * Join frames into messages, in order, each of about `charsAim` characters at most.
 *
 * @param {string[]} frames
 * @param {number} [charsAim]
 * @returns {string[]}
 */
export function joinFrames(frames, charsAim = MESSAGE_CHARS_AIM) {
  const joined = [];
  let part = [];
  let size = 0;
  for (const frame of frames) {
    const isFull = size + frame.length > charsAim || part.length >= FRAMES_PER_MESSAGE_MAX;
    if (part.length > 0 && isFull) {
      joined.push(messageOf(part));
      part = [];
      size = 0;
    }
    part.push(frame);
    size += frame.length + 1;
  }
  if (part.length > 0) joined.push(messageOf(part));
  return joined;
}

function messageOf(frames) {
  return frames.length === 1 ? frames[0] : `[${frames.join(",")}]`;
}

/** Encode a start for frames and requests. @throws {TypeError} if it is no start */
export function startAt(start) {
  if (start === undefined || start === null) return undefined;
  if (start === "earliest" || start === "latest") return start;
  if (start instanceof Date && Number.isFinite(start.getTime())) {
    return { unix_ms: start.getTime() };
  }
  throw new TypeError('a start must be "earliest", "latest" or a Date');
}

// --- frames that the broker writes ---------------------------------------------------------------

/**
 * Decode the frames of one message; frames of an unknown type are left out.
 *
 * @param {string} text
 * @returns {object[]}
 * @throws {NotTheProtocol} when it is not JSON, or a known frame has a field of a wrong type
 */
export function decode(text) {
  let parsed;
  try {
    parsed = JSON.parse(text);
  } catch (error) {
    throw new NotTheProtocol(`not JSON: ${/** @type {Error} */ (error).message}`);
  }
  return framesOf(parsed);
}

/** Check frames that have been parsed. @param {unknown} parsed @returns {object[]} */
export function framesOf(parsed) {
  const frames = [];
  for (const frame of Array.isArray(parsed) ? parsed : [parsed]) {
    if (!isObject(frame) || typeof frame.type !== "string") {
      throw new NotTheProtocol("a frame must be an object with a type");
    }
    const fields = FIELDS.get(frame.type);
    if (fields !== undefined) frames.push(checked(frame, fields));
  }
  return frames;
}

export function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

const isText = (value) => typeof value === "string";
const isFlag = (value) => typeof value === "boolean";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const isWhole = Number.isSafeInteger;
const areWhole = (value) => Array.isArray(value) && value.every(isWhole);
const areRows = (value) => Array.isArray(value) && value.every(isRow);
const isRow = (row) => areWhole(row) && row.length >= 3;
const isPair = (value) => areWhole(value) && value.length === 2;
const areObjects = (value) => Array.isArray(value) && value.every(isObject);
const arePlaces = (value) => isObject(value) && Object.values(value).every(isPair);
const areTexts = (value) => isObject(value) && Object.values(value).every(isText);

/** The test of each field, and its default; a field without a default is required. */
const MESSAGE = {
  key: [isText, null],
  body_base64: [isText, null],
  content_type: [isText, null],
  id: [isText, null],
  headers: [areTexts, null],
  sent_unix_ms: [isWhole, null],
  deliver_at_unix_ms: [isWhole, null],
};
const VERDICT = {
  partition: [isWhole],
  verdict: [isText],
  from: [isWhole, null],
  to: [isWhole, null],
  generation: [isWhole, 0],
  next: [isWhole, null],
  reason: [isText, ""],
};
const areMessages = (value) => areObjects(value) && value.every((one) => checked(one, MESSAGE));
const areVerdicts = (value) => areObjects(value) && value.every((one) => checked(one, VERDICT));
const areReceipts = (value) =>
  Array.isArray(value) && value.every((one) => Array.isArray(one) || isObject(one));
const FIELDS = new Map(
  Object.entries({
    welcome: {
      session: [isText, ""],
      broker: [isText, ""],
      heartbeat_s: [isNumber, 20],
      linger_s: [isNumber, 0],
      resumed: [areWhole, null],
      right_lasts_s: [isNumber, null],
      clock_unix_us: [isWhole, null],
      frame_bytes_max: [isWhole, FRAME_BYTES_MAX],
      messages_per_publish_max: [isWhole, 1000],
      in_flight_max: [isWhole, 10_000],
      credit_max: [isWhole, 10_000],
    },
    ok: {
      ref: [isWhole],
      receipts: [areReceipts, []],
      durability: [isObject, null],
      id_prefix: [isText, null],
      lease_s: [isNumber, null],
      queue_id: [isText, ""],
      positions: [areVerdicts, []],
      settled: [isWhole, 0],
      stale: [areRows, []],
      revoked: [areRows, []],
      right_lasts_s: [isNumber, null],
    },
    error: {
      code: [isText],
      detail: [isText, ""],
      retry: [isFlag, false],
      retry_after_s: [isNumber, null],
      ref: [isWhole, null],
      subscription: [isWhole, null],
      deliveries: [areRows, []],
      stale: [areRows, []],
    },
    push: {
      subscription: [isWhole],
      partition: [isWhole, -1],
      messages: [areMessages, []],
      id_prefix: [isText, ""],
      published_unix_ms: [isNumber, 0],
      offset: [isWhole, null],
      epoch: [isWhole, 0],
      push: [isWhole, 0],
      attempt: [isWhole, 1],
      skips: [areWhole, []],
      offsets: [areWhole, null],
      next: [isWhole, null],
      gap: [isPair, null],
      positions: [arePlaces, {}],
    },
    revoked: { subscription: [isWhole], deliveries: [areRows, []], reason: [isText, ""] },
    drain: { reconnect_after_s: [isNumber, 0], reason: [isText, ""] },
    pong: { ref: [isWhole, null], clock_unix_us: [isWhole, null] },
    announce: { bytes: [isWhole] },
  }),
);

/** Test the known fields of an object, and fill in those that are absent or null. */
function checked(frame, fields) {
  for (const name in fields) {
    const [test, absent] = fields[name];
    const value = Object.hasOwn(frame, name) ? frame[name] : undefined;
    if (value === undefined || value === null) {
      if (absent === undefined) throw new NotTheProtocol(`${name} is missing`);
      frame[name] = absent;
    } else if (!test(value)) {
      throw new NotTheProtocol(`${name} has a wrong type`);
    }
  }
  return frame;
}

/** Return the welcome with the defaults that hold until one has been received. */
export function defaultWelcome() {
  return checked({ type: "welcome" }, FIELDS.get("welcome"));
}

/**
 * Return the offset of each message of a push, in order. A push names them as `offsets`, or as
 * consecutive from `offset` without `skips`.
 *
 * @param {any} push
 * @returns {number[]}
 */
export function offsetsOf(push) {
  if (push.offsets !== null) return push.offsets;
  const skips = new Set(push.skips);
  const offsets = [];
  for (let offset = push.offset ?? 0; offsets.length < push.messages.length; offset += 1) {
    if (!skips.has(offset)) offsets.push(offset);
  }
  return offsets;
}

/** Make an error of an error frame, of a refused message or of a problem document. */
export function exceptionOf(refusal) {
  const text = (value, otherwise) => (typeof value === "string" ? value : otherwise);
  return brokerError(text(refusal.code, "internal"), text(refusal.detail, ""), {
    retry: refusal.retry === true,
    retryAfterS: isNumber(refusal.retry_after_s) ? refusal.retry_after_s : null,
    differences: Array.isArray(refusal.differences) ? refusal.differences : undefined,
    deleted: isNumber(refusal.deleted) ? refusal.deleted : undefined,
    deadLettered: isNumber(refusal.dead_lettered) ? refusal.dead_lettered : undefined,
  });
}

/** Return the first and the last lost offset, or null. */
export function gapOf(verdict) {
  const { from, to } = verdict;
  return verdict.verdict === "gap" && from !== null && to !== null ? [from, to] : null;
}

/** Return the place where reading continues, as [generation, next offset]; or null. */
export function placeOf(verdict) {
  const gap = gapOf(verdict);
  const next = verdict.next ?? (gap === null ? verdict.from : gap[1] + 1);
  return next === null ? null : [verdict.generation, next];
}

/** Check a reader's position that the user passes. @throws {TypeError} if it is no position */
export function checkedPosition(position) {
  const { queue_id, ring_epoch = 1, partitions } = position;
  if (!isText(queue_id) || !isWhole(ring_epoch) || !arePlaces(partitions)) {
    throw new TypeError('a start must be "earliest", "latest", a Date, or a position of a reader');
  }
  return { queue_id, ring_epoch, partitions };
}

// --- delivery lists ------------------------------------------------------------------------------

/**
 * Deliveries by push, each row with ranges of offsets:
 * [[partition, epoch, push, first, last, first, last, …], …]
 *
 * @typedef {number[][]} DeliveryList
 */

/** Write offsets as ranges in order: first, last, first, last, … @param {number[]} offsets */
export function ranges(offsets) {
  const sorted = [...offsets].sort((one, other) => one - other);
  const pairs = [];
  let first = sorted[0];
  let previous = first;
  for (const offset of sorted) {
    if (offset > previous + 1) {
      pairs.push(first, previous);
      first = offset;
    }
    previous = offset;
  }
  pairs.push(first, previous);
  return pairs;
}

/** The key of a push in maps, from its place or a row. @param {ArrayLike<number>} numbers */
export function pushKey(numbers) {
  return `${numbers[0]}.${numbers[1]}.${numbers[2]}`;
}

/** Whether a delivery list contains this offset of the push at `place`. */
export function containsDelivery(deliveries, place, offset) {
  for (const row of deliveries) {
    const isSame = row[0] === place[0] && row[1] === place[1] && row[2] === place[2];
    if (isSame && isWithin(row, offset, 3)) return true;
  }
  return false;
}

/** Whether an offset lies in one of these ranges, which begin at index `at`. */
export function isWithin(pairs, offset, at = 0) {
  for (let first = at; first + 1 < pairs.length; first += 2) {
    if (pairs[first] <= offset && offset <= pairs[first + 1]) return true;
  }
  return false;
}

/**
 * Make the delivery list of messages, each with a `held.place` and an `offset`.
 *
 * @param {Iterable<{held: {place: number[]}, offset: number}>} messages
 * @returns {DeliveryList}
 */
export function deliveryList(messages) {
  const found = new Map();
  for (const { held, offset } of messages) {
    const offsets = found.get(held);
    if (offsets === undefined) found.set(held, [offset]);
    else offsets.push(offset);
  }
  return [...found].map(([held, offsets]) => [...held.place, ...ranges(offsets)]);
}

/** Split a delivery list into lists that a frame may carry. @param {DeliveryList} deliveries */
export function splitDeliveries(deliveries) {
  const found = [];
  let part = [];
  let count = 0;
  for (const row of deliveries) {
    for (const piece of splitRow(row)) {
      const size = (piece.length - 3) / 2;
      if (part.length > 0 && count + size > RANGES_PER_FRAME_MAX) {
        found.push(part);
        part = [];
        count = 0;
      }
      part.push(piece);
      count += size;
    }
  }
  if (part.length > 0) found.push(part);
  return found;
}

/** Split a row that is too long for one frame. */
function* splitRow(row) {
  const step = 2 * RANGES_PER_FRAME_MAX;
  if (row.length <= 3 + step) {
    yield row;
    return;
  }
  for (let at = 3; at < row.length; at += step) {
    yield [...row.slice(0, 3), ...row.slice(at, at + step)];
  }
}
