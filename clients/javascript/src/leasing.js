/**
 * The leases of what is held, as this client counts them, and their prolongation. Pure.
 *
 * A lease is counted from the moment the push was received, less a margin, so that it ends here
 * before it ends at the broker. More time is asked for while enough of it is left to try again.
 *
 * What only waits behind a message that is in hand for long is not prolonged with it for ever: that
 * is up to whoever holds the leases, who is told of what is in hand for long (`longInHand`).
 *
 * @module
 */

import { Deadlines } from "./deadlines.js";
import { State } from "./message.js";
import { nameOf, names, parts, ranges } from "./places.js";

export const MARGIN_MS_MAX = 2000;
/** A lease ends here by this share of it earlier than at the broker, at most MARGIN_MS_MAX. */
export const MARGIN_SHARE = 0.1;
/** More time is asked for when this share of it is left. */
export const EXTEND_SHARE = 0.5;

/** How long a delivery may be worked on here when the broker grants so much. */
export function usableMs(leaseMs) {
  return leaseMs - Math.min(MARGIN_MS_MAX, MARGIN_SHARE * leaseMs);
}

export class Leases {
  #pushes;
  #autoExtend;
  #deadlines = new Deadlines();
  /** More time is to be asked for. */
  #late = [];
  /** ref -> what was asked for, and when */
  #asked = new Map();
  /** How often more time was asked for while a message was in hand. */
  #inHand = new Map();

  /**
   * @param {Map<string, import("./message.js").HeldPush>} pushes what is held; its owner keeps it
   * @param {{leaseMs: number, autoExtend: boolean}} settings `autoExtend`: what is held is
   *     prolonged until the broker refuses
   */
  constructor(pushes, { leaseMs, autoExtend }) {
    this.#pushes = pushes;
    this.#autoExtend = autoExtend;
    this.begin(leaseMs);
  }

  /** The group's leases are so long now; pushes are those that are held. */
  begin(leaseMs) {
    this.usableMs = usableMs(leaseMs);
    /** How long before the end of a lease more time is asked for. */
    this.leadMs = EXTEND_SHARE * this.usableMs;
    this.restart();
  }

  /** Whatever was asked for is asked for again. */
  restart() {
    this.#late = [];
    this.#asked.clear();
    for (const held of this.#pushes.values()) this.#setTimes(held);
    this.#deadlines.reset(this.#pushes.values());
  }

  /** Of a push that is received now. */
  times(now) {
    const deadline = now + this.usableMs;
    return { deadline, extendAt: this.#autoExtend ? deadline - this.leadMs : Infinity };
  }

  /** It is held, with these `times`. */
  received(held) {
    this.#deadlines.received(held);
  }

  /** This one may be worked on until then. */
  extended(message, until) {
    message.deadline = until;
    this.#setTimes(message.held);
    this.#deadlines.put(message.held);
  }

  /** The held messages whose lease is over. */
  expire(now) {
    const over = [];
    for (const held of this.#deadlines.take(now)) {
      if (held.deadline <= now) {
        const open = held.open();
        over.push(...open.filter((message) => message.deadline <= now));
        held.deadline = earliest(open.filter((message) => message.deadline > now));
      }
      if (held.extendAt <= now) {
        this.#late.push(held);
        held.extendAt = Infinity;
      }
      this.#deadlines.put(held);
    }
    return over;
  }

  /** When `expire` should be called, if nothing else happens before. */
  nextDeadline() {
    return this.#deadlines.next();
  }

  /** What was in hand when more time was asked for, and was so the time before. */
  longInHand() {
    for (const message of this.#inHand.keys()) {
      if (message.state !== State.HANDED) this.#inHand.delete(message);
    }
    return [...this.#inHand].filter(([, times]) => times > 1).map(([message]) => message);
  }

  /**
   * The frames that ask for more time for what needs it, but for what is `far` from its turn; see
   * `answered`.
   */
  ask(nextRef, subscription, far, now) {
    if (this.#late.length === 0) return [];
    const soon = now + this.leadMs;
    const late = this.#late.map((held) => {
      return { held, due: held.open().filter((message) => message.deadline <= soon) };
    });
    this.#late = [];
    for (const message of late.flatMap(({ due }) => due)) {
      if (message.state !== State.HANDED) continue;
      this.#inHand.set(message, (this.#inHand.get(message) ?? 0) + 1);
    }
    const without = far();
    const rows = [];
    for (const { held, due } of late) {
      const offsets = due.filter((message) => !without.has(message)).map(offsetOf);
      if (offsets.length > 0) {
        rows.push([...held.place, ...ranges(offsets)]);
      } else if (due.length > 0) {
        held.extendAt = now + this.leadMs / 2; // its turn may be nearer by then
        this.#deadlines.put(held);
      }
    }
    return parts(rows).map((deliveries) => {
      const ref = nextRef();
      this.#asked.set(ref, { deliveries, askedAt: now });
      return { type: "extend", subscription, deliveries, ref };
    });
  }

  /**
   * Of what was asked for, all but this. What was refused ends with its lease, and is not asked for
   * again.
   */
  answered(ref, refused) {
    const { deliveries, askedAt } = this.#take(ref);
    const until = askedAt + this.usableMs;
    for (const row of deliveries) {
      const held = this.#pushes.get(nameOf(row));
      if (held === undefined) continue;
      const granted = held.open().filter(
        ({ offset }) =>
          names([row], held.place, offset) && !names(refused, held.place, offset),
      );
      for (const message of granted) message.deadline = Math.max(message.deadline, until);
      held.deadline = earliest(held.open());
      held.extendAt = Infinity;
      if (granted.length > 0) {
        const againAt = earliest(granted) - this.leadMs;
        held.extendAt = Math.max(againAt, askedAt + this.leadMs / 2);
      }
      this.#deadlines.put(held);
    }
  }

  /** It could not be answered: leases end when they did, and it is asked again before. */
  failed(ref) {
    const { deliveries, askedAt } = this.#take(ref);
    for (const row of deliveries) {
      const held = this.#pushes.get(nameOf(row));
      if (held === undefined) continue;
      held.extendAt = askedAt + this.leadMs / 2;
      this.#deadlines.put(held);
    }
  }

  #take(ref) {
    const asked = this.#asked.get(ref) ?? { deliveries: [], askedAt: 0 };
    this.#asked.delete(ref);
    return asked;
  }

  #setTimes(held) {
    held.deadline = earliest(held.open());
    held.extendAt = this.#autoExtend ? held.deadline - this.leadMs : Infinity;
  }
}

function earliest(messages) {
  return messages.reduce((least, { deadline }) => Math.min(least, deadline), Infinity);
}

function offsetOf(message) {
  return message.offset;
}
