/**
 * A session that goes on over a reload of its page: what the page writes down when it is left, and
 * what the next one makes of it.
 *
 * What is written names the session, and what of it the broker cannot know: the acks that it
 * perhaps has not heard, and where readers stand. Everything else that was unsettled comes again.
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

/** What is kept under one name, in the storage of this tab. */
export class ResumeStore {
  #environment;
  #key;
  #url;
  #written = null;
  #recalled = null;
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
   * What an earlier life of this page has left; null: nothing, or nothing that can be used. It is
   * removed: a second tab that is made of this one must not take the same session.
   *
   * @returns {{session: string, producer: string, sequences: Record<string, number>,
   *     numbers: number[], numberMax: number, refMax: number} | null}
   */
  recall() {
    const text = this.#take();
    const said = parsed(text);
    if (said === null || said.url !== this.#url) return null;
    this.#recalled = text;
    this.#consumers = said.consumers;
    this.#readers = said.readers;
    const { session, producer, sequences, numberMax, refMax } = said;
    const numbers = said.consumers.map((place) => place.number);
    return { session, producer, sequences, numbers, numberMax, refMax };
  }

  /** It could not be used yet: a later life of the page may. */
  restore() {
    if (this.#recalled !== null) this.#put(this.#recalled);
  }

  /** A session stands that goes on with it, or it is over. */
  used() {
    this.#recalled = null;
  }

  /** The place in a group that was left, once; null: there is none. */
  consumer(queue, group) {
    return taken(this.#consumers, (place) => place.queue === queue && place.group === group);
  }

  /** Where a reader of the same stood, once; null: there was none. */
  reader(queue, keys) {
    const same = sameKeys(keys);
    return taken(this.#readers, (one) => one.queue === queue && sameKeys(one.keys) === same);
  }

  /** Nobody has taken what is left. */
  giveUp() {
    this.#consumers = [];
    this.#readers = [];
  }

  /** Write it down, with the places that nobody has taken yet. Whether that was possible. */
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

  /** The page is there again without having been loaded; whether nobody took what was written. */
  takeBack() {
    const written = this.#written;
    this.#written = null;
    if (written === null || this.#look() !== written) return false;
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

  #look() {
    try {
      return this.#environment.storage.getItem(this.#key);
    } catch {
      return null;
    }
  }

  #take() {
    const text = this.#look();
    try {
      this.#environment.storage.removeItem(this.#key);
    } catch {
      return null; // nor may anybody else have it: it would be used twice
    }
    return text;
  }
}

function taken(places, isIt) {
  const at = places.findIndex(isIt);
  return at < 0 ? null : places.splice(at, 1)[0];
}

function sameKeys(keys) {
  return keys === null ? "" : JSON.stringify([...new Set(keys)].sort());
}

/** The snapshot in a text; null: it is none. */
function parsed(text) {
  let said = null;
  try {
    said = JSON.parse(text ?? "null");
  } catch {
    return null;
  }
  if (!isObject(said) || said.version !== VERSION) return null;
  const isNumber = (number) => isWhole(number) && number >= 1 && number <= said.numberMax;
  const isPlace = (place) =>
    isObject(place) && isNumber(place.number) && isText(place.queue) && isText(place.group) &&
    isNumeric(place.leaseMs) && place.leaseMs > 0 && isCount(place.received) &&
    areRows(place.acked);
  const isReader = (one) =>
    isObject(one) && isText(one.queue) && isPosition(one.position) &&
    (one.keys === null || (Array.isArray(one.keys) && one.keys.every(isText)));
  const isWhat =
    isText(said.url) && isText(said.session) && isText(said.producer) &&
    isCount(said.numberMax) && isCount(said.refMax) &&
    isObject(said.sequences) && Object.values(said.sequences).every(isCount) &&
    Array.isArray(said.consumers) && said.consumers.every(isPlace) &&
    new Set(said.consumers.map((place) => place.number)).size === said.consumers.length &&
    Array.isArray(said.readers) && said.readers.every(isReader);
  return isWhat ? said : null;
}

function isPosition(position) {
  try {
    return isObject(position) && checkedPosition(position) !== null;
  } catch {
    return false;
  }
}
