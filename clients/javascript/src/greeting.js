/**
 * What a carrier says before there is a session on it.
 *
 * @module
 */

import * as codes from "./codes.js";
import { Deferred } from "./environment.js";
import { CannotConnect, NotABroker, SessionEnded, Unauthorized, wordsOf } from "./errors.js";
import { exceptionOf } from "./wire.js";

/** The listener of a carrier until its welcome. */
export class Greeting {
  /** @type {Deferred<void>} */
  welcomed = new Deferred().unobserved();
  #dialer;
  #carrier;
  #hello;

  constructor(dialer, carrier, hello) {
    this.#dialer = dialer;
    this.#carrier = carrier;
    this.#hello = hello;
  }

  /**
   * Where a long poll stands, it first comes to rest: a post that arrived behind this hello would
   * be refused, and what it said be said again.
   */
  async onOpen() {
    await this.#dialer.rest();
    this.#carrier.send([this.#hello]);
  }

  /** The welcome, or why there is none. */
  onFrames(read) {
    let frames;
    try {
      frames = read();
    } catch (error) {
      const why = wordsOf(error);
      this.refuse(new NotABroker(`what answers does not talk tocsin.v1: ${why}`));
      return;
    }
    for (const frame of frames) {
      if (frame.type === "welcome") {
        this.welcomed.resolve();
        this.#dialer.onWelcome(this.#carrier, frame, frames);
        return;
      }
      if (frame.type === "error") this.refuse(exceptionOf(frame));
    }
  }

  onWritable() {}

  /** There was no welcome. */
  onClosed(closeCode, reason) {
    const { refusal } = this.#carrier;
    if (refusal !== null && refusal.code !== "cannot_connect") this.refuse(refusal);
    else if (closeCode === codes.UNAUTHORIZED || !codes.mayReconnect(closeCode)) {
      this.refuse(endOf(closeCode, reason));
    } else this.refuse(new CannotConnect(this.#dialer.unopened(closeCode, reason)));
  }

  refuse(error) {
    this.welcomed.reject(error);
  }
}

/** Why a session goes on nowhere. */
export function endOf(closeCode, reason) {
  if (closeCode === codes.UNAUTHORIZED) return new Unauthorized("unauthorized", reason);
  return new SessionEnded(closeCode, reason);
}
