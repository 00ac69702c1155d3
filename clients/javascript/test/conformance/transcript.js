/**
 * Transcripts as clients/conformance/README.md describes them, read and checked, and what the
 * replay against a client makes of each line. Pure.
 */

export const WITHIN_S = 1;
const HEAD = new Set(["title", "rules", "about", "sides", "broker", "client", "queues"]);
const COMMON = ["at", "by", "who", "only", "order", "note"];
const FIELDS = {
  client: ["frame", "frames", "text", "binary", "over", "close", "cut"],
  broker: ["frame", "frames", "text", "over", "close", "where"],
  carrier: ["do", "transport", "as", "over", "token", "how"],
  user: ["do", "told", "as", "of", "gets", "error", "with"],
  world: ["do", "as", "of", "gets", "with"],
};

/** One line behind the head. `at` and `by` are seconds from the beginning of the replay. */
export class Line {
  constructor(number, fields, at, by) {
    Object.assign(this, { number, fields, at, by });
  }

  /** Who does it. */
  get who() {
    return this.fields.who;
  }

  /** Whether it has this field. */
  has(name) {
    return Object.hasOwn(this.fields, name);
  }

  /** A field, or the default. */
  get(name, otherwise = undefined) {
    return this.has(name) ? this.fields[name] : otherwise;
  }

  /** The frames that it shows. */
  get frames() {
    return this.has("frame") ? [this.fields.frame] : this.get("frames", []);
  }

  /** What the replay against a client makes of it: "does", "shows" or "skips". */
  get role() {
    if (this.get("only", "client") !== "client" || this.who === "world") return "skips";
    if (this.who === "client") return "shows";
    if (this.who === "broker") return "does";
    if (this.who === "carrier") {
      return ["open", "refuse"].includes(this.get("do")) ? "shows" : "does";
    }
    return this.has("told") ? "shows" : "does";
  }
}

/** A file: its head and its lines. */
export class Transcript {
  constructor(name, head, lines) {
    Object.assign(this, { name, head, lines });
  }

  /** Whether it is made for the replay against a client. */
  get isForClients() {
    return (this.head.sides ?? ["client"]).includes("client");
  }

  /** The transports over which it is replayed, each once; one where the lines name theirs. */
  get transports() {
    const opens = this.lines.filter((line) => line.get("do") === "open");
    const isForBoth = opens.every((line) => line.get("transport", "any") === "any");
    return isForBoth ? ["websocket", "long-poll"] : ["websocket"];
  }

  /** The lines of this replay; neighbours whose order does not count stand together. */
  blocks() {
    const blocks = [];
    for (const line of this.lines) {
      if (line.role === "skips") continue;
      const last = blocks.at(-1);
      if (last && goesWith(last.at(-1), line)) last.push(line);
      else blocks.push([line]);
    }
    return blocks;
  }
}

function goesWith(line, following) {
  const order = line.get("order");
  if (order === undefined || order !== following.get("order")) return false;
  return order === "crossing" || line.role === following.role;
}

/**
 * Read one.
 *
 * @param {string} name of the file, without its suffix
 * @param {string} text its lines
 * @returns {Transcript}
 * @throws {Error} for what the format does not know; it names the line
 */
export function parse(name, text) {
  const [head, ...rest] = text.trimEnd().split("\n").map((record) => JSON.parse(record));
  for (const wanted of ["title", "rules", "about"]) {
    if (!Object.hasOwn(head, wanted)) throw new Error(`${name}: its head has no ${wanted}`);
  }
  const unknown = Object.keys(head).filter((field) => !HEAD.has(field));
  if (unknown.length) throw new Error(`${name}: its head has ${unknown}`);
  let [now, by] = [0, 0];
  const lines = rest.map((fields, place) => {
    const number = place + 2;
    if (!Object.hasOwn(FIELDS, fields.who)) throw new Error(`${name}:${number}: ${fields.who}`);
    const known = [...COMMON, ...FIELDS[fields.who]];
    const others = Object.keys(fields).filter((field) => !known.includes(field));
    if (others.length) throw new Error(`${name}:${number}: ${others} of ${fields.who}`);
    if ((fields.at ?? now) < now) throw new Error(`${name}:${number}: time goes back`);
    now = fields.at ?? now;
    by = fields.by ?? Math.max(by, now + WITHIN_S);
    return new Line(number, fields, now, by);
  });
  return new Transcript(name, head, lines);
}
