/**
 * Places of messages: delivery lists, which are columns of integers, and positions. Pure.
 *
 *     [[partition, epoch, push, first, last, first, last, …], …]
 *
 * @module
 */

import { isObject } from "./wire.js";

/** Ranges named in one ack, nack or extend; the broker takes a few more. */
export const RANGES_PER_FRAME_MAX = 1000;

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
