/** What the workers of other tabs are called, from the broker's list of sessions. */

import { sessionOf } from "./owners.js";

const SESSIONS_MAX = 1000;

/** Asks where somebody has come who is not of this page, and once about each. */
export class Names {
  constructor() {
    /** @type {Map<string, string|undefined>} session → name; undefined: it is no worker of a tab */
    this.known = new Map();
  }

  /**
   * @param {object} client
   * @param {string[]} members of the group
   * @param {Map<string, string>} here session → name, of this page
   * @returns {Promise<Map<string, string|undefined>>} session → name, of others; never rejects
   */
  async ask(client, members, here) {
    const others = new Set(members.map(sessionOf).filter((session) => !here.has(session)));
    for (const session of [...this.known.keys()].filter((one) => !others.has(one))) {
      this.known.delete(session);
    }
    if ([...others].some((session) => !this.known.has(session))) {
      try {
        const names = namesIn(await client.sessions({ limit: SESSIONS_MAX }));
        others.forEach((session) => this.known.set(session, names.get(session)));
      } catch {
        // The next look asks again.
      }
    }
    return this.known;
  }
}

/**
 * `tab-k3a/worker-1`, as the pages call their clients → `worker 1 of tab k3a`.
 * @param {any[]} sessions as GET /v1/sessions lists them
 */
export function namesIn(sessions) {
  const names = new Map();
  for (const row of sessions) {
    const found = /^(tab-[a-z0-9]{3})\/(worker-\d+)$/.exec(row?.client);
    if (found) {
      names.set(row.session, `${found[2]} of ${found[1]}`.replaceAll("-", " "));
    }
  }
  return names;
}
