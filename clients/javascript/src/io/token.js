/**
 * The token: checked when it is given, fetched when it is needed, and renewed before it runs out.
 *
 * @module
 */

import { NoToken, wordsOf } from "../proto/errors.js";

const TOKEN = /^[!-~]+$/;
const NO_TOKEN = "is no token: a word of printable ASCII, without blanks or the end of a line";
/** After this share of its life a token is followed by a fresh one. */
const RENEW_SHARE = 0.8;
/** So long after an attempt that failed comes the next one, at the earliest. */
const AGAIN_MS = 5000;

/**
 * The token; what a function returns is checked when it has. What a wrong one is, is not said.
 *
 * @throws {TypeError} it cannot stand in a header
 */
export function checkedToken(token) {
  const isAbsent = token === undefined || token === null;
  const isText = typeof token === "string" && TOKEN.test(token);
  if (!isAbsent && !isText && typeof token !== "function") {
    throw new TypeError(`the token ${NO_TOKEN}`);
  }
  return token ?? null;
}

/**
 * The text to present now; null: there is none.
 *
 * @throws {NoToken} the function that is to return one has failed, or returned none
 */
export async function freshToken(token) {
  if (typeof token !== "function") return token;
  let text;
  try {
    text = await token();
  } catch (cause) {
    const why = wordsOf(cause);
    throw new NoToken(`the function that is to return a token has failed: ${why}`, { cause });
  }
  if (typeof text !== "string" || !TOKEN.test(text)) {
    throw new NoToken(`what the function for the token returned ${NO_TOKEN}`);
  }
  return text;
}

/**
 * A part of the session, where a function returns tokens. Without one there is nothing to do: the
 * broker closes with 4401 when the one token is over.
 */
export class TokenRefresh {
  #session;
  #token;
  #environment;
  #due = Infinity;
  #ends = 0;
  /** Which carrier it is asked for: what comes for an earlier one is not said. */
  #round = 0;

  /**
   * @param {import("./session.js").Session} session
   * @param {() => string | Promise<string>} token
   * @param {import("./platform.js").Environment} environment
   */
  constructor(session, token, environment) {
    this.#session = session;
    this.#token = token;
    this.#environment = environment;
  }

  opened() {
    this.#lasts(this.#session.welcome.right_lasts_s);
  }

  /** The next attempt to connect brings a fresh token. */
  disconnected() {
    this.#due = Infinity;
    this.#round += 1;
  }

  failed() {
    this.disconnected();
  }

  collect() {
    return [];
  }

  nextDeadline() {
    return this.#due;
  }

  expire(now) {
    if (now < this.#due) return;
    this.#due = Infinity;
    this.#renew(this.#round);
  }

  async #renew(round) {
    let token;
    try {
      token = await freshToken(this.#token);
    } catch { // there may be one the next time, or when the broker has closed
      if (round === this.#round) this.#again();
      return;
    }
    const session = this.#session;
    if (round !== this.#round || !session.isOpen) return;
    const ref = session.nextRef();
    session.expect(ref, (answer) => this.#answered(token, answer));
    session.request({ type: "auth", ref, token });
  }

  #answered(token, answer) {
    if (answer === null) return;
    if (answer.type === "ok") {
      this.#session.present(token);
      this.#lasts(answer.right_lasts_s);
    } else this.#again();
  }

  #lasts(lastsS) {
    this.#due = Infinity;
    if (lastsS === null) return;
    const now = this.#environment.now();
    this.#ends = now + 1000 * lastsS;
    this.#wakeAt(now + RENEW_SHARE * 1000 * lastsS);
  }

  #again() {
    const now = this.#environment.now();
    const leftMs = this.#ends - now;
    if (leftMs > AGAIN_MS) this.#wakeAt(now + Math.max(AGAIN_MS, RENEW_SHARE * leftMs));
  }

  #wakeAt(due) {
    this.#due = due;
    this.#session.wakeAt(due);
  }
}
