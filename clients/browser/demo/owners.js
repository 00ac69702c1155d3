/**
 * Who owns which partition, from what the broker says of a group. Pure: the page asks once a
 * second, and draws what comes out here.
 */

const HUES = 6;
/** A tab that came late may have been left nothing to do. */
export const NO_KEY_HERE =
  "No key of the figures is with this tab's workers: add a worker, or close one elsewhere.";

/**
 * @typedef {object} Worker
 * @property {string} session
 * @property {string} letter A, B, … in the order of appearance; stays with the session
 * @property {number} hue 0 to 5
 * @property {string} name
 * @property {boolean} isHere one of this page
 * @property {boolean} isAbsent its connection is lost, its place is kept
 * @property {number[]} partitions that it owns
 * @property {number} waiting messages of these that it has not settled
 */

/** Keeps the letters and colours of sessions from one look to the next. */
export class Owners {
  constructor() {
    /** @type {Map<string, number>} session → number, as long as it is a member */
    this.numbers = new Map();
    /** @type {Worker[]} */
    this.workers = [];
    /** @type {(Worker|null)[]} by partition */
    this.partitions = [];
    this.lag = 0;
    this.inFlight = 0;
    this.keysParked = 0;
  }

  /**
   * @param {object} described what `client.group(…)` returned
   * @param {object} names
   * @param {Map<string, string>} names.here session → name, of this page's workers
   * @param {Map<string, string>} names.elsewhere session → name, as far as the broker tells
   * @param {number} partitionCount of the queue
   */
  look(described, { here, elsewhere }, partitionCount) {
    const rows = Array.isArray(described?.partitions) ? described.partitions : [];
    const absent = new Set(sessionsOf(described?.absent));
    const members = new Set([...sessionsOf(described?.members), ...absent]);
    for (const row of rows) {
      const session = sessionIn(row);
      if (session) {
        members.add(session);
      }
    }
    this.#number(members, here);
    this.workers = [...this.numbers].map(([session, number]) => ({
      session,
      letter: letterOf(number),
      hue: number % HUES,
      name: here.get(session) ?? elsewhere.get(session) ?? "a worker elsewhere",
      isHere: here.has(session),
      isAbsent: absent.has(session),
      partitions: [],
      waiting: 0,
    }));
    this.workers.sort((one, other) => (one.letter < other.letter ? -1 : 1));
    this.partitions = Array.from({ length: partitionCount }, () => null);
    this.inFlight = 0;
    for (const row of rows) {
      const owner = this.find(sessionIn(row));
      if (owner && row.partition < partitionCount) {
        this.partitions[row.partition] = owner;
        owner.partitions.push(row.partition);
        owner.waiting += Number(row.lag) || 0;
      }
      this.inFlight += Number(row.in_flight) || 0;
    }
    this.lag = Number(described?.lag) || 0;
    this.keysParked = Number(described?.keys_parked) || 0;
  }

  /** @param {string} session @returns {Worker|null} */
  find(session) {
    return this.workers.find((worker) => worker.session === session) ?? null;
  }

  /** Who owns the partition; null: nobody that is known. @param {number|null} partition */
  of(partition) {
    return partition === null ? null : (this.partitions[partition] ?? null);
  }

  /**
   * Whether all of these are known to be with workers of other tabs; not where there are none.
   * @param {(number|null)[]} partitions of keys
   */
  areElsewhere(partitions) {
    const owners = partitions.map((partition) => this.of(partition));
    return owners.length > 0 && owners.every((owner) => owner !== null && !owner.isHere);
  }

  /** Those of this page come first, so that the first one here is A. */
  #number(members, here) {
    for (const session of [...this.numbers.keys()]) {
      if (!members.has(session)) {
        this.numbers.delete(session);
      }
    }
    const ordered = [...here.keys(), ...[...members].sort()];
    for (const session of ordered) {
      if (members.has(session) && !this.numbers.has(session)) {
        this.numbers.set(session, this.#free());
      }
    }
  }

  #free() {
    const taken = new Set(this.numbers.values());
    let number = 0;
    while (taken.has(number)) {
      number += 1;
    }
    return number;
  }
}

/** Whose a partition is: who is given its messages, or, where that is at another gateway, whose it
 * is to be. @param {any} row */
function sessionIn(row) {
  return sessionOf(row.owner?.consumer ?? row.member);
}

/** `s-5c1f.1`, a session's place in a group → `s-5c1f`; where gateways share the group it is
 * `s-5c1f.1~0a1b2c3d`. @param {any} member */
export function sessionOf(member) {
  return typeof member === "string" ? member.replace(/\.\d+(~[0-9a-f]+)?$/, "") : "";
}

function sessionsOf(members) {
  return Array.isArray(members) ? members.map(sessionOf).filter(Boolean) : [];
}

/** A … Z, then A2 … */
function letterOf(number) {
  const round = Math.floor(number / 26);
  return String.fromCharCode(65 + (number % 26)) + (round ? String(round + 1) : "");
}
