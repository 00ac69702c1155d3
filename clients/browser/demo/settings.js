/** What the page's queue and group are, and what bounds it keeps to. */

export const QUEUE = "machine";
export const GROUP = "page";
export const ATTEMPTS_MAX = 3;
export const KEY_BYTES_MAX = 1024;
export const WORKERS_MAX = 4;
/** As `tocsin demo` has them, so that it does not matter who comes first. */
export const QUEUE_SETTINGS = {
  partitions: 8,
  retentionS: 60,
  messagesMax: 100_000,
  messageTtlS: 600,
};
/** A group that nobody is in ends before what waits in it expires: it leaves no dead letters. */
export const GROUP_SETTINGS = {
  start: "latest",
  attemptsMax: ATTEMPTS_MAX,
  onExhausted: "park",
  expiresS: 540,
  leaseS: 30,
};
export const LINGER_S = 30;
