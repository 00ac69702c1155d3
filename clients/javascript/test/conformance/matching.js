/**
 * What a transcript shows, compared with what came (clients/conformance/README.md). Pure.
 */

const CAPTURE = /^([#$][A-Za-z]\w*)([+-]\d+)?$/;
const DELIVERY_LISTS = new Set(["deliveries", "started", "stale", "revoked"]);
const FIRST_FRESH = 101;

/** The replay went another way than the transcript. */
export class Deviation extends Error {
  name = "Deviation";
}

/**
 * The deliveries that a list of rows names, one by one.
 *
 * @param {number[][]} rows `[partition, epoch, push, first, last, first, last, …]`
 * @returns {Set<string>}
 */
export function placesOf(rows) {
  const places = new Set();
  if (!Array.isArray(rows)) throw new Deviation(`${show(rows)} is no list of deliveries`);
  for (const row of rows) {
    const [partition, epoch, push, ...pairs] = row;
    if (pairs.length % 2) throw new Deviation(`${show(row)} has half a range`);
    for (let place = 0; place < pairs.length; place += 2) {
      for (let offset = pairs[place]; offset <= pairs[place + 1]; offset += 1) {
        places.add(`${partition} ${epoch} ${push} ${offset}`);
      }
    }
  }
  return places;
}

/** Whether two sets hold the same. */
export function isSame(one, other) {
  return one.size === other.size && isWithin(one, other);
}

/** Whether the second set holds all of the first. */
export function isWithin(one, other) {
  return [...one].every((item) => other.has(item));
}

/** A value as a person reads it. */
export function show(value) {
  return value instanceof Error ? `${value.name}: ${value.message}` : JSON.stringify(value);
}

/** What `#number` and `$text` stand for: bound where they come first, compared afterwards. */
export class Captures {
  #bound = new Map();
  #fresh = FIRST_FRESH;

  /**
   * What is shown, with every capture replaced. One that comes first here stands for a number
   * above all others that were made here, or for a text of its own.
   */
  fill(value) {
    if (Array.isArray(value)) return value.map((part) => this.fill(part));
    if (isObject(value)) {
      return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, this.fill(part)]));
    }
    const found = captureIn(value);
    if (!found) return value;
    const [name, plus] = found;
    if (!this.#bound.has(name)) {
      const fresh = this.#fresh++;
      this.#bound.set(name, name[0] === "$" ? `${name.slice(1)}-${fresh}` : fresh);
    }
    return plus ? this.#bound.get(name) + plus : this.#bound.get(name);
  }

  /** Compare; null: it fits, and what came first is bound. Else where it does not. */
  match(shown, value) {
    const bound = new Map(this.#bound);
    const why = compare(shown, value, bound, "");
    if (why === null) this.#bound = bound;
    return why;
  }

  /** What a capture of a number stands for. */
  number(name) {
    if (!this.#bound.has(name)) throw new Deviation(`nothing has said what ${name} is`);
    return this.#bound.get(name);
  }
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function captureIn(value) {
  const found = typeof value === "string" ? CAPTURE.exec(value) : null;
  return found && [found[1], Number(found[2] ?? 0)];
}

function compare(shown, value, bound, path) {
  if (isObject(shown)) return compareFields(shown, value, bound, path);
  if (Array.isArray(shown)) {
    if (!Array.isArray(value) || value.length !== shown.length) {
      return `${path}: ${show(value)} is not ${show(shown)}`;
    }
    for (const [place, part] of shown.entries()) {
      const why = compare(part, value[place], bound, `${path}[${place}]`);
      if (why !== null) return why;
    }
    return null;
  }
  const found = captureIn(shown);
  if (found) return compareCapture(found, value, bound, path);
  return shown === value ? null : `${path}: ${show(value)} is not ${show(shown)}`;
}

function compareFields(shown, value, bound, path) {
  if (!isObject(value)) return `${path}: ${show(value)} is no object`;
  const later = [];
  for (const [name, part] of Object.entries(shown)) {
    if (DELIVERY_LISTS.has(name)) {
      later.push(name);
      continue;
    }
    if (!Object.hasOwn(value, name)) return `${path}.${name} is missing`;
    const why = compare(part, value[name], bound, `${path}.${name}`);
    if (why !== null) return why;
  }
  for (const name of later) {
    const filled = filledRows(shown[name], bound);
    if (!isSame(placesOf(filled), placesOf(value[name] ?? []))) {
      return `${path}.${name}: ${show(value[name])} does not name what ${show(filled)} names`;
    }
  }
  return null;
}

function compareCapture([name, plus], value, bound, path) {
  const fits = name[0] === "$" ? typeof value === "string" : Number.isInteger(value);
  if (!fits) return `${path}: ${show(value)} for ${name}`;
  const meant = plus ? value - plus : value;
  if (!bound.has(name)) bound.set(name, meant);
  return bound.get(name) === meant
    ? null
    : `${path}: ${show(meant)}, when ${name} is ${show(bound.get(name))}`;
}

/** Rows with their captures replaced: they stood in a push before. */
function filledRows(rows, bound) {
  return rows.map((row) =>
    row.map((cell) => {
      if (typeof cell !== "string") return cell;
      if (!bound.has(cell)) throw new Deviation(`nothing has said what ${cell} is`);
      return bound.get(cell);
    }),
  );
}
