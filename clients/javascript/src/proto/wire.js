/**
 * Frames, delivery lists, positions and close codes of `tocsin.v1`, as this client writes and reads
 * them. Pure.
 *
 * A WebSocket message carries one frame, an object, or several, an array of objects. What is read
 * tolerates what it does not know, fields and frames, so that a newer broker can add; a known field
 * of a wrong type is an error, because what cannot be believed must not be acted upon.
 *
 * @module
 */

import { brokerError } from "./errors.js";

export const SUBPROTOCOL = "tocsin.v1";
/** Frames that the broker takes in one message. */
export const FRAMES_PER_MESSAGE_MAX = 256;
/**
 * A WebSocket message is closed when it has grown so large, in characters; one frame may be larger.
 * The broker works off a message in one go: larger ones are no faster, and others wait for longer.
 */
export const MESSAGE_CHARS_AIM = 64 * 1024;
/** What a client may say before a welcome has named the bounds. */
export const FRAME_BYTES_MAX = 2 * 1_048_576;
/** Ranges named in one ack, nack or extend; the broker takes a few more. */
export const RANGES_PER_FRAME_MAX = 1000;

/** What is no frame of the protocol. */
export class NotTheProtocol extends Error {}

// --- close codes ---------------------------------------------------------------------------------

/**
 * Why a session or a carrier ends. 4000 to 4499: reconnect. 4500 to 4999: do not, because the same
 * attempt would end the same way. Codes below 4000 are the transport's.
 */
export const CloseCode = Object.freeze({
  /** A good-bye: the broker ends the session at once. */
  GOOD_BYE: 1000,
  /** A transport that ended without a word (RFC 6455, 7.1.5). */
  ABNORMAL: 1006,
  /**
   * What was said is not the protocol. A page may not send 1002 itself; the broker keeps the
   * session after this one as after that.
   */
  PROTOCOL_ERROR: 3002,
  /** Sent by a page that is left and may come back: the broker keeps the session. */
  LEAVING: 4000,
  /** Nothing was received: the connection is given up, the session is not. */
  SILENT: 4001,
  /** No valid credentials: reconnect with a fresh token. */
  UNAUTHORIZED: 4401,
  /** The session goes on over another transport. */
  REPLACED: 4503,
});

/**
 * Whether a session that was closed with this code may be opened again. Codes below 4000 are the
 * transport's (a lost connection, a proxy, a restart): yes.
 *
 * @param {number} closeCode
 * @returns {boolean}
 */
export function mayReconnect(closeCode) {
  return closeCode < 4500 || closeCode > 4999;
}

// --- frames that this client writes --------------------------------------------------------------

/** Half a surrogate pair, as JSON.stringify writes it: other parsers take it for malformed. */
const HALVES = /(?<=(?:^|[^\\])(?:\\\\)*)\\ud[89a-f][0-9a-f]{2}/g;

/** JSON text; halves of surrogate pairs become U+FFFD. @param {unknown} value */
function textOf(value) {
  return JSON.stringify(value).replace(HALVES, "\ufffd");
}

/** Whether a JSON text that JSON.stringify made has half a surrogate pair. */
export function hasHalves(text) {
  return text.search(HALVES) >= 0;
}

/** A frame as text; fields that are undefined are left out. @param {object} frame */
export function encode(frame) {
  return textOf(frame);
}

/**
 * A publish of encoded messages; message i has the sequence `sequence + i`.
 *
 * @param {number} ref
 * @param {string} queue
 * @param {number} sequence
 * @param {number} resolved
 * @param {string[]} messages
 * @param {{produced_unix_us?: number, clock_offset_us?: number}} [times] for brokers that tell
 *     theirs
 */
export function publishFrame(ref, queue, sequence, resolved, messages, times = {}) {
  const head = `{"type":"publish","ref":${ref},"queue":${textOf(queue)},`;
  const sequences = `"sequence":${sequence},"resolved":${resolved},`;
  let more = "";
  for (const [name, us] of Object.entries(times)) more += `"${name}":${us},`;
  return `${head}${sequences}${more}"messages":[${messages.join(",")}]}`;
}

/**
 * Messages that carry these frames, in order, each of about `charsAim` at most.
 * @param {string[]} frames @param {number} [charsAim] @returns {string[]}
 */
export function joinFrames(frames, charsAim = MESSAGE_CHARS_AIM) {
  const joined = [];
  let part = [];
  let size = 0;
  for (const frame of frames) {
    const isFull =
      size + frame.length > charsAim || part.length >= FRAMES_PER_MESSAGE_MAX;
    if (part.length > 0 && isFull) {
      joined.push(together(part));
      part = [];
      size = 0;
    }
    part.push(frame);
    size += frame.length + 1;
  }
  if (part.length > 0) joined.push(together(part));
  return joined;
}

function together(frames) {
  return frames.length === 1 ? frames[0] : `[${frames.join(",")}]`;
}

/** A start as frames and requests say it. Throws TypeError: it is none. */
export function startAt(start) {
  if (start === undefined || start === null) return undefined;
  if (start === "earliest" || start === "latest") return start;
  if (start instanceof Date && Number.isFinite(start.getTime())) {
    return { unix_ms: start.getTime() };
  }
  throw new TypeError('a start is "earliest", "latest" or a Date');
}

// --- frames that the broker writes ---------------------------------------------------------------

/**
 * The frames of one message; frames of a type that is not known are left out.
 *
 * @param {string} text
 * @returns {object[]}
 * @throws {NotTheProtocol} it is not JSON, or a known frame has a field of a wrong type
 */
export function decode(text) {
  let said;
  try {
    said = JSON.parse(text);
  } catch (error) {
    throw new NotTheProtocol(`not JSON: ${/** @type {Error} */ (error).message}`);
  }
  return framesOf(said);
}

/** As `decode`, of what has been parsed. @param {unknown} said @returns {object[]} */
export function framesOf(said) {
  const frames = [];
  for (const frame of Array.isArray(said) ? said : [said]) {
    if (!isObject(frame) || typeof frame.type !== "string") {
      throw new NotTheProtocol("a frame is an object with a type");
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

/** Per field: its test, and what it is where it is left out; without that it must be there. */
const MESSAGE = {
  key: [isText, null],
  body_base64: [isText, null],
  content_type: [isText, null],
  id: [isText, null],
  headers: [areTexts, null],
  sent_unix_ms: [isWhole, null],
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

/** An object with its known fields tested, and those that are left out (or null) filled in. */
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

/** The default frame of a welcome, until one has come. */
export function plainWelcome() {
  return checked({ type: "welcome" }, FIELDS.get("welcome"));
}

/**
 * The offset of each message of a push, in order: consecutive from `offset` but for `skips`, or
 * `offsets`.
 *
 * @param {any} push
 * @returns {number[]}
 */
export function placesOf(push) {
  if (push.offsets !== null) return push.offsets;
  const skips = new Set(push.skips);
  const places = [];
  for (let offset = push.offset ?? 0; places.length < push.messages.length; offset += 1) {
    if (!skips.has(offset)) places.push(offset);
  }
  return places;
}

/** An error frame, a refused message or a problem document as an error. */
export function exceptionOf(said) {
  const text = (value, otherwise) => (typeof value === "string" ? value : otherwise);
  return brokerError(text(said.code, "internal"), text(said.detail, ""), {
    retry: said.retry === true,
    retryAfterS: isNumber(said.retry_after_s) ? said.retry_after_s : null,
    differences: Array.isArray(said.differences) ? said.differences : undefined,
    deleted: isNumber(said.deleted) ? said.deleted : undefined,
    deadLettered: isNumber(said.dead_lettered) ? said.dead_lettered : undefined,
  });
}

/** The first and last offset that are gone, or null. */
export function gapOf(verdict) {
  const { from, to } = verdict;
  return verdict.verdict === "gap" && from !== null && to !== null ? [from, to] : null;
}

/** Where a verdict says that reading goes on, as [generation, next offset]; or null. */
export function placeOf(verdict) {
  const gap = gapOf(verdict);
  const next = verdict.next ?? (gap === null ? verdict.from : gap[1] + 1);
  return next === null ? null : [verdict.generation, next];
}

/** A reader's position, as it was given out. Throws TypeError: it is none. */
export function checkedPosition(position) {
  const { queue_id, ring_epoch = 1, partitions } = position;
  const isPlace = (place) =>
    Array.isArray(place) && place.length === 2 && place.every(Number.isSafeInteger);
  const arePlaces = isObject(partitions) && Object.values(partitions).every(isPlace);
  if (typeof queue_id !== "string" || !Number.isSafeInteger(ring_epoch) || !arePlaces) {
    throw new TypeError('a start is "earliest", "latest", a Date, or the position of a reader');
  }
  return { queue_id, ring_epoch, partitions };
}

// --- delivery lists: [[partition, epoch, push, first, last, first, last, …], …] ------------------

/** @typedef {number[][]} DeliveryList */

/** Offsets as first, last, first, last, … in order. @param {number[]} offsets */
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

/** A push's or a delivery's name as a key of maps. @param {ArrayLike<number>} numbers */
export function nameOf(numbers) {
  return `${numbers[0]}.${numbers[1]}.${numbers[2]}`;
}

/** Whether a delivery list names this offset of a push. */
export function names(deliveries, place, offset) {
  for (const row of deliveries) {
    const isSame = row[0] === place[0] && row[1] === place[1] && row[2] === place[2];
    if (isSame && isWithin(row, offset, 3)) return true;
  }
  return false;
}

/** Whether an offset is in one of these pairs of a first and a last one, which begin at `at`. */
export function isWithin(pairs, offset, at = 0) {
  for (let first = at; first + 1 < pairs.length; first += 2) {
    if (pairs[first] <= offset && offset <= pairs[first + 1]) return true;
  }
  return false;
}

/**
 * The delivery list of messages, each with a `held.place` and an `offset`.
 *
 * @param {Iterable<{held: {place: number[]}, offset: number}>} messages
 * @returns {DeliveryList}
 */
export function columns(messages) {
  const found = new Map();
  for (const { held, offset } of messages) {
    const offsets = found.get(held);
    if (offsets === undefined) found.set(held, [offset]);
    else offsets.push(offset);
  }
  return [...found].map(([held, offsets]) => [...held.place, ...ranges(offsets)]);
}

/** The list in parts that a frame may carry. @param {DeliveryList} deliveries */
export function parts(deliveries) {
  const found = [];
  let part = [];
  let count = 0;
  for (const column of deliveries) {
    for (const piece of pieces(column)) {
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

/** A column that is too long for one frame, in several. */
function* pieces(column) {
  const step = 2 * RANGES_PER_FRAME_MAX;
  if (column.length <= 3 + step) {
    yield column;
    return;
  }
  for (let at = 3; at < column.length; at += step) {
    yield [...column.slice(0, 3), ...column.slice(at, at + step)];
  }
}
