/** What the workers of other tabs are called, from the broker's list of sessions. */

import { sessionOf } from "./owners.js";

/** Asks only where somebody is not of this page; a broker that does not tell is asked once. */
export class Names {
  constructor() {
    this.isSilent = false;
  }

  /**
   * @param {object} client
   * @param {string[]} members of the group
   * @param {Map<string, string>} here session → name, of this page
   * @returns {Promise<Map<string, string>>} session → name, of others; never rejects
   */
  async ask(client, members, here) {
    if (this.isSilent || members.every((member) => here.has(sessionOf(member)))) {
      return new Map();
    }
    try {
      return namesIn(await client.sessions());
    } catch (error) {
      this.isSilent = ["not_found", "method_not_allowed"].includes(error?.code);
      return new Map();
    }
  }
}

/**
 * `tab-k3a/worker-1`, as the pages call their clients → `worker 1 of tab k3a`.
 * @param {any} answer to GET /v1/sessions
 */
export function namesIn(answer) {
  const names = new Map();
  for (const row of Array.isArray(answer?.sessions) ? answer.sessions : []) {
    const found = /^(tab-[a-z0-9]{3})\/(worker-\d+)$/.exec(row?.client);
    if (found) {
      names.set(row.session, `${found[2]} of ${found[1]}`.replaceAll("-", " "));
    }
  }
  return names;
}
