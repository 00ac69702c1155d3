/** Follows what waited behind a parked key, after its release, until all of it is through. Pure. */

import { formatCount, formatMs, plural } from "../shared/format.js";
import { GROUP, QUEUE } from "./settings.js";

/** Nothing has come of it for so long: it is over, whatever came. */
const SILENCE_MS = 5000;
const LETTERS_MAX = 5000;

/** All keys that were released and are not through yet. */
export class Releases {
  constructor() {
    /** @type {Map<string, Release>} */
    this.byKey = new Map();
  }

  /**
   * @param {import("./lanes.js").Lane} lane as it is now
   * @param {{offset: number}|undefined} parked what the broker said of it
   */
  begin(lane, parked, nowMs) {
    const head = parked?.offset ?? 0;
    const last = lane.message?.offset ?? head;
    this.byKey.set(
      lane.key ?? "",
      new Release({ head, last, partition: lane.partition, nowMs }),
    );
  }

  /** A message was handled in this page. */
  handled(message, nowMs) {
    this.byKey.get(message.key ?? "")?.handled(message, nowMs);
  }

  /**
   * Those that are over, each once; those of which nothing was seen here are left out.
   * @param {object} client that is asked for their dead letters
   * @returns {Promise<{key: string, text: string}[]>}
   */
  async over(client, nowMs) {
    const said = [];
    for (const [key, release] of this.byKey) {
      if (release.isOver(nowMs)) {
        this.byKey.delete(key);
        const which = { key: key || undefined, reason: "expired", limit: LETTERS_MAX };
        const text = release.sentence(await client.deadLetters(QUEUE, which));
        said.push({ key, text });
      }
    }
    return said.filter(({ text }) => text);
  }
}

/** One key that was released. */
export class Release {
  /**
   * @param {object} told
   * @param {number} told.head the offset of the first message that waited
   * @param {number} told.last that of the newest one
   * @param {number} told.partition
   * @param {number} told.nowMs
   */
  constructor({ head, last, partition, nowMs }) {
    this.head = head;
    this.last = last;
    this.partition = partition;
    this.sinceMs = nowMs;
    this.heardMs = nowMs;
    this.handledCount = 0;
    this.isThrough = false;
  }

  /** A message of the key was handled in this page. */
  handled({ offset }, nowMs) {
    this.heardMs = this.isThrough ? this.heardMs : nowMs;
    this.handledCount += offset <= this.last ? 1 : 0;
    this.isThrough ||= offset >= this.last;
  }

  isOver(nowMs) {
    return this.isThrough || nowMs - this.heardMs > SILENCE_MS;
  }

  /**
   * What became of them; empty: nothing of it was seen here.
   * @param {any[]} letters the key's dead letters that expired
   */
  sentence(letters) {
    const expired = letters.filter(({ origin }) => this.#wasOurs(origin)).length;
    if (this.handledCount === 0 && expired === 0) {
      return "";
    }
    const took = formatMs(this.heardMs - this.sinceMs);
    const handled = this.handledCount
      ? `${plural(this.handledCount, "message")} handled in ${took}, in order`
      : "none handled";
    const lost = expired
      ? `; ${formatCount(expired)} had expired: they are among the dead letters`
      : "";
    return `${handled}${lost}.`;
  }

  #wasOurs(origin) {
    return (
      origin?.group === GROUP &&
      origin.partition === this.partition &&
      origin.offset >= this.head &&
      origin.offset <= this.last
    );
  }
}
