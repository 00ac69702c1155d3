// @ts-check
/**
 * Asks for what is on screen, again and again: one request at a time, none while the page is
 * hidden, more and more seldom while nobody answers.
 */

export const PERIOD_MS = 1000;
export const BACKOFF_MAX_MS = 15_000;
/** At most this part of the time is spent asking: what takes the broker long is asked seldom, */
export const BUSY_PART_MAX = 0.05;
/** but so often that there are rates (GAP_MS in rates.js). */
export const PAUSE_MAX_MS = 10_000;

/** How long to wait after so many failures in a row. @param {number} failures */
export function backoffMs(failures) {
  return Math.min(BACKOFF_MAX_MS, PERIOD_MS * 2 ** Math.max(0, failures - 1));
}

/** How long to wait after an answer that took `tookMs`. @param {number | null} periodMs
 * @param {number} tookMs */
export function pauseMs(periodMs, tookMs) {
  if (periodMs === null) return null;
  const calmMs = Math.min(PAUSE_MAX_MS, tookMs * (1 / BUSY_PART_MAX - 1));
  return Math.max(periodMs - tookMs, calmMs);
}

/**
 * @typedef {{
 *   load: (signal: AbortSignal) => Promise<any>,
 *   show: (answer: any) => void,
 *   fail: (error: any, retryInMs: number | null) => void,
 *   isFinal?: (error: any) => boolean,
 *   periodMs?: number | null,
 * }} Polling
 * `periodMs` null: once, and again only when refreshed. `isFinal`: after such an error it is not
 * asked again by itself; `fail` is then told null.
 */

export class Poller {
  /** @param {Polling} polling
   * @param {{setTimeout: any, clearTimeout: any, performance: {now: () => number}}}
   *   [environment] */
  constructor(polling, environment = globalThis) {
    this.polling = { periodMs: PERIOD_MS, isFinal: () => false, ...polling };
    this.environment = environment;
    this.failures = 0;
    this.isHidden = false;
    this.isStopped = false;
    /** @type {AbortController | null} */
    this.asking = null;
    /** @type {any} */
    this.timer = null;
    this.isWanted = false;
  }

  /** Begin, with a first request at once (unless the page is hidden). */
  start() {
    return this.refresh();
  }

  /** Ask at once; while a request is under way, once more behind it. */
  async refresh() {
    if (this.isStopped) return;
    this.#clearTimer();
    this.isWanted = true;
    if (this.asking || this.isHidden) return;
    while (this.isWanted && !this.isStopped && !this.isHidden) {
      this.isWanted = false;
      await this.#ask();
    }
  }

  /** The page is hidden (nothing is asked), or seen again (asked at once).
   * @param {boolean} hidden */
  setHidden(hidden) {
    if (hidden === this.isHidden) return;
    this.isHidden = hidden;
    if (hidden) this.#clearTimer();
    else if (this.polling.periodMs !== null || this.isWanted || this.failures) void this.refresh();
  }

  /** End: nothing is asked or shown any more. */
  stop() {
    this.isStopped = true;
    this.#clearTimer();
    this.asking?.abort(new DOMException("no longer on screen", "AbortError"));
  }

  async #ask() {
    const asking = new AbortController();
    this.asking = asking;
    const beganMs = this.environment.performance.now();
    try {
      const answer = await this.polling.load(asking.signal);
      if (this.isStopped) return;
      this.failures = 0;
      const tookMs = this.environment.performance.now() - beganMs;
      this.polling.show(answer);
      this.#waitFor(pauseMs(this.polling.periodMs ?? null, tookMs));
    } catch (error) {
      if (!this.isStopped) this.#failed(error);
    } finally {
      this.asking = null;
    }
  }

  /** @param {unknown} error */
  #failed(error) {
    this.failures += 1;
    const retryInMs = this.polling.isFinal(error) ? null : backoffMs(this.failures);
    this.#waitFor(retryInMs);
    this.polling.fail(error, retryInMs);
  }

  /** @param {number | null} delayMs */
  #waitFor(delayMs) {
    this.#clearTimer();
    if (delayMs === null || this.isHidden || this.isStopped) return;
    this.timer = this.environment.setTimeout(() => void this.refresh(), delayMs);
  }

  #clearTimer() {
    if (this.timer !== null) this.environment.clearTimeout(this.timer);
    this.timer = null;
  }
}
