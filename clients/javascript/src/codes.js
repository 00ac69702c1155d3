/**
 * The codes of the protocol: close codes of a session, and what they say about coming back.
 * 4000-4499: reconnect. 4500-4999: do not, the same attempt would end the same way.
 *
 * @module
 */

export const SUBPROTOCOL = "tocsin.v1";

/** A good-bye: the broker ends the session at once. */
export const GOOD_BYE = 1000;
/** A transport that ended without a word (RFC 6455, 7.1.5). */
export const ABNORMAL = 1006;
/**
 * What was said is not the protocol. A page may not send 1002 itself; the broker keeps the session
 * after this one as after that.
 */
export const PROTOCOL_ERROR = 3002;
/** Said by a page that is left and may come back: the broker keeps the session. */
export const LEAVING = 4000;
/** Nothing was heard: the connection is given up, the session is not. */
export const SILENT = 4001;
/** No valid credentials: reconnect with a fresh token. */
export const UNAUTHORIZED = 4401;
/** The session goes on over another transport. */
export const REPLACED = 4503;

/**
 * Whether a session that was closed with this code may be opened again. Codes below 4000 are the
 * transport's (a lost connection, a proxy, a restart): yes.
 *
 * @param {number} closeCode
 * @returns {boolean}
 */
export function mayReconnect(closeCode) {
  return closeCode < 4500 || closeCode > 4999;
}
