/** Notices when partitions are divided anew. Pure: it is told once a second who owns what. */

/** So many looks without a change: everybody who comes with the page has come. */
const SAME_ENOUGH = 3;

/** How the group's partitions are divided, since the page opened. */
export class Division {
  constructor() {
    this.last = "";
    this.same = 0;
    /** @type {string|null} as it was when the page was ready */
    this.first = null;
    this.hasActed = false;
  }

  /** The visitor has added or removed a worker. */
  acted() {
    this.hasActed = true;
  }

  /**
   * @param {({session: string}|null)[]} owners by partition
   * @returns {boolean} whether the visitor has seen work shared: by what was done here, or by
   *   partitions that moved after the page was ready
   */
  look(owners) {
    const now = owners.map((owner) => owner?.session ?? "").join(" ");
    this.same = now === this.last ? this.same + 1 : 1;
    this.last = now;
    if (owners.length === 0 || owners.includes(null)) {
      return false;
    }
    if (this.same >= SAME_ENOUGH) {
      this.first ??= now;
    }
    const isShared = new Set(owners.map(({ session }) => session)).size > 1;
    return (this.hasActed && isShared) || (this.first !== null && now !== this.first);
  }
}
