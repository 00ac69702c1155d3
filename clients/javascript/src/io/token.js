/**
 * The token: checked when it is given, fetched when it is needed, and renewed before it expires.
 *
 * @module
 */

import { NoToken, wordsOf } from "../proto/errors.js";

const TOKEN = /^[!-~]+$/;
const NO_TOKEN = "is no token; a token is printable ASCII without blanks or line ends";
/** The share of a token's life after which a fresh one follows. */
const RENEW_SHARE = 0.8;
/** The shortest pause after a failed attempt. */
const AGAIN_MS = 5000;

/**
 * Check a token. The result of a token function is checked later. The error does not show the
 * token.
 *
 * @throws {TypeError} if it cannot be sent in a header
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
 * Return the token's text to use now, or null.
 *
 * @throws {NoToken} if the token function has failed, or returned no valid token
 */
export async function freshToken(token) {
  if (typeof token !== "function") return token;
  let text;
  try {
    text = await token();
  } catch (cause) {
    const why = wordsOf(cause);
    throw new NoToken(`the function for the token has failed: ${why}`, { cause });
  }
  if (typeof text !== "string" || !TOKEN.test(text)) {
    throw new NoToken(`the text from the function for the token ${NO_TOKEN}`);
  }
  return text;
}

/**
 * The renewal of a session's token, as a part of the session, for tokens that a function returns. A
 * token given as text is never renewed; the broker closes with 4401 when it expires.
 */
export class TokenRenewal {
  #session;
  #token;
  #environment;
  #due = Infinity;
  #ends = 0;
  /** The number of carriers up to now. A token that comes for an earlier one is not sent. */
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

  onOpen() {
    this.#schedule(this.#session.welcome.right_lasts_s);
  }

  /** Stop, because the next attempt to connect brings a fresh token. */
  onDisconnect() {
    this.#due = Infinity;
    this.#round += 1;
  }

  onFailure() {
    this.onDisconnect();
  }

  takeFrames() {
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
    } catch { // the next call, or the next attempt to connect, may return one
      if (round === this.#round) this.#retry();
      return;
    }
    const session = this.#session;
    if (round !== this.#round || !session.isOpen) return;
    const ref = session.nextRef();
    session.expect(ref, (answer) => this.#onAnswer(token, answer));
    session.request({ type: "auth", ref, token });
  }

  #onAnswer(token, answer) {
    if (answer === null) return;
    if (answer.type === "ok") {
      this.#session.setToken(token);
      this.#schedule(answer.right_lasts_s);
    } else this.#retry();
  }

  #schedule(lastsS) {
    this.#due = Infinity;
    if (lastsS === null) return;
    const now = this.#environment.now();
    this.#ends = now + 1000 * lastsS;
    this.#wakeAt(now + RENEW_SHARE * 1000 * lastsS);
  }

  #retry() {
    const now = this.#environment.now();
    const leftMs = this.#ends - now;
    if (leftMs > AGAIN_MS) this.#wakeAt(now + Math.max(AGAIN_MS, RENEW_SHARE * leftMs));
  }

  #wakeAt(due) {
    this.#due = due;
    this.#session.wakeAt(due);
  }
}
