/**
 * Sessions that outlive a reload of their page, by a snapshot. The page writes it when it is left,
 * and the next page reads it.
 *
 * A snapshot has the session's id, and everything that the broker cannot know: unconfirmed acks,
 * and the positions of readers. Everything else that was unsettled comes again.
 *
 * @module
 */

import { checkedPosition, isObject } from "../proto/wire.js";

const VERSION = 2;
const isWhole = Number.isSafeInteger;
const isNumeric = (value) => typeof value === "number";
const isCount = (value) => isWhole(value) && value >= 0;
const isText = (value) => typeof value === "string";
const isRow = (row) =>
  Array.isArray(row) && row.length >= 5 && row.length % 2 === 1 && row.every(isCount);
const areRows = (value) => Array.isArray(value) && value.every(isRow);

/** The snapshot under one name, in the storage of this tab. */
export class ResumeStore {
  #environment;
  #key;
  #url;
  #written = null;
  #loaded = null;
  /** @type {any[]} places in groups that may be taken again */
  #consumers = [];
  #readers = [];

  /**
   * @param {import("./platform.js").Environment} environment
   * @param {string} name
   * @param {string} url the broker's
   */
  constructor(environment, name, url) {
    this.#environment = environment;
    this.#key = `tocsin.resume.${name}`;
    this.#url = url;
  }

  /**
   * Load the snapshot from before a reload; null if there is none that can be used.
   *
   * It is removed, so that a second tab that is made of this one does not use the same session.
   *
   * @returns {{session: string, producer: string, sequences: Record<string, number>, numbers:
   *     number[], numberMax: number, refMax: number} | null}
   */
  load() {
    const text = this.#take();
    const snapshot = parseSnapshot(text);
    if (snapshot === null || snapshot.url !== this.#url) return null;
    this.#loaded = text;
    this.#consumers = snapshot.consumers;
    this.#readers = snapshot.readers;
    const { session, producer, sequences, numberMax, refMax } = snapshot;
    const numbers = snapshot.consumers.map((place) => place.number);
    return { session, producer, sequences, numbers, numberMax, refMax };
  }

  /** Put the loaded snapshot back, because it could not be used yet. */
  putBack() {
    if (this.#loaded !== null) this.#put(this.#loaded);
  }

  /** Forget the loaded snapshot, because it has been used, or is over. */
  onUse() {
    this.#loaded = null;
  }

  /** Take the place in a group from the snapshot; null if it has none. */
  takeConsumer(queue, group) {
    return takeFirst(this.#consumers, (place) => place.queue === queue && place.group === group);
  }

  /** Take the position of a reader from the snapshot; null if it has none. */
  takeReader(queue, keys) {
    const same = sameKeys(keys);
    return takeFirst(this.#readers, (one) => one.queue === queue && sameKeys(one.keys) === same);
  }

  /** Drop the places and positions that nothing has claimed. */
  dropRest() {
    this.#consumers = [];
    this.#readers = [];
  }

  /** Write a snapshot, with the unclaimed places. Returns whether that was possible. */
  write({ consumers, readers, ...snapshot }) {
    const text = JSON.stringify({
      version: VERSION,
      url: this.#url,
      ...snapshot,
      consumers: [...consumers, ...this.#consumers],
      readers: [...readers, ...this.#readers],
    });
    if (!this.#put(text)) return false;
    this.#written = text;
    return true;
  }

  /**
   * Remove the snapshot, because the page is back without a reload. Returns whether it was still
   * there.
   */
  takeBack() {
    const written = this.#written;
    this.#written = null;
    if (written === null || this.#read() !== written) return false;
    this.#take();
    return true;
  }

  #put(text) {
    try {
      this.#environment.storage.setItem(this.#key, text);
      return true;
    } catch {
      return false; // full, or forbidden meanwhile
    }
  }

  #read() {
    try {
      return this.#environment.storage.getItem(this.#key);
    } catch {
      return null;
    }
  }

  #take() {
    const text = this.#read();
    try {
      this.#environment.storage.removeItem(this.#key);
    } catch {
      return null; // otherwise another page would use it, too
    }
    return text;
  }
}

function takeFirst(places, isWanted) {
  const at = places.findIndex(isWanted);
  return at < 0 ? null : places.splice(at, 1)[0];
}

function sameKeys(keys) {
  return keys === null ? "" : JSON.stringify([...new Set(keys)].sort());
}

/** Parse a snapshot; null if the text is none. */
function parseSnapshot(text) {
  let snapshot = null;
  try {
    snapshot = JSON.parse(text ?? "null");
  } catch {
    return null;
  }
  if (!isObject(snapshot) || snapshot.version !== VERSION) return null;
  const isNumber = (number) => isWhole(number) && number >= 1 && number <= snapshot.numberMax;
  const isPlace = (place) =>
    isObject(place) && isNumber(place.number) && isText(place.queue) && isText(place.group) &&
    isNumeric(place.leaseMs) && place.leaseMs > 0 && isCount(place.received) &&
    areRows(place.acked);
  const isReader = (one) =>
    isObject(one) && isText(one.queue) && isPosition(one.position) &&
    (one.keys === null || (Array.isArray(one.keys) && one.keys.every(isText)));
  const isWhat =
    isText(snapshot.url) && isText(snapshot.session) && isText(snapshot.producer) &&
    isCount(snapshot.numberMax) && isCount(snapshot.refMax) &&
    isObject(snapshot.sequences) && Object.values(snapshot.sequences).every(isCount) &&
    Array.isArray(snapshot.consumers) && snapshot.consumers.every(isPlace) &&
    new Set(snapshot.consumers.map((place) => place.number)).size === snapshot.consumers.length &&
    Array.isArray(snapshot.readers) && snapshot.readers.every(isReader);
  return isWhat ? snapshot : null;
}

function isPosition(position) {
  try {
    return isObject(position) && checkedPosition(position) !== null;
  } catch {
    return false;
  }
}
