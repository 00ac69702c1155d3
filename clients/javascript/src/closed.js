/**
 * Keys that are closed: what still comes of them was sent too early. Pure.
 *
 * The client returns a message, by a nack or because its own deadline has come, at a moment when
 * later messages of the key may be under way to it. The broker will take those back as soon as it
 * knows, and give everything again in order; until then nothing of the key may be let in (R17).
 *
 *     [m is nacked; m+1, pushed before the broker has read the nack, arrives and is handled; m
 *     comes again: the key is out of order.]
 *
 * A closed key opens when the broker has answered the nack, or has revoked the message itself, or
 * gives that very message again. One that was closed before the client said, coming back, what it
 * holds opens with the answer to that; one that was closed since does not.
 *
 *     [m is said to be held, and its time is over before the answer comes: the broker takes it for
 *     held, and gives m+1, which is handled; m comes again when the broker's lease has ended.]
 *
 * @module
 */

export class ClosedKeys {
  /** @type {Map<string, {key: string, partition: number, offset: number, isTold: boolean}>} */
  #byKey = new Map();
  /** @type {Map<number, Array<{key: string}>>} */
  #asked = new Map();

  get isEmpty() {
    return this.#byKey.size === 0;
  }

  /** @param {string} key */
  has(key) {
    return this.#byKey.has(key);
  }

  /** This message of its key is returned; an earlier one that is stands for it too. */
  close({ key, partition, offset }) {
    if (key === null) return;
    const closing = this.#byKey.get(key);
    if (closing?.partition === partition && closing.offset <= offset) return;
    this.#byKey.set(key, { key, partition, offset, isTold: false });
  }

  /** The broker has been told of these in one nack; its answer opens their keys. */
  ask(ref, messages) {
    const keys = new Set(messages.map((message) => message.key));
    const closings = [...keys].map((key) => this.#byKey.get(key));
    this.#asked.set(ref, closings.filter((closing) => closing !== undefined));
  }

  /** It has answered: what it sends from now on it sends knowing of the nack. */
  answered(ref) {
    for (const closing of this.#asked.get(ref) ?? []) {
      if (this.#byKey.get(closing.key) === closing) this.#byKey.delete(closing.key);
    }
    this.#asked.delete(ref);
  }

  /** The broker is about to be told what is held, and with that what is not. */
  tell() {
    for (const closing of this.#byKey.values()) closing.isTold = true;
  }

  /** It has answered, and has heard no nack that is still to be answered. */
  told() {
    for (const { key, isTold } of [...this.#byKey.values()]) {
      if (isTold) this.#byKey.delete(key);
    }
    this.#asked.clear();
  }

  /** It has taken these back. */
  revoked(partition, first, last) {
    for (const closing of [...this.#byKey.values()]) {
      const { offset } = closing;
      if (closing.partition === partition && first <= offset && offset <= last) {
        this.#byKey.delete(closing.key);
      }
    }
  }

  /** Whether this message may come in. The one that closed the key opens it. */
  admits(key, partition, offset) {
    const closing = this.#byKey.get(key);
    if (closing === undefined) return true;
    if (closing.partition !== partition || closing.offset !== offset) return false;
    this.#byKey.delete(key);
    return true;
  }
}
