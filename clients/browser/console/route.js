// @ts-check
/**
 * Where in the console one is, as the part of the address behind `#`. Pure.
 *
 * `#/queues/orders/groups/billing?key=user-7` is {view: "group", queue: "orders",
 * group: "billing", query: {key: "user-7"}}. An address that means nothing is {view: "unknown"}.
 */

/**
 * @typedef {{view: string, queue?: string, group?: string, query: Record<string, string>}} Route
 */

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/;
const WHOLE = ["sessions", "clusters", "explain"];
const VIEWS_OF_QUEUE = new Map([
  [undefined, "queue"],
  ["messages", "messages"],
  ["dead-letters", "deadLetters"],
  ["scheduled", "scheduled"],
]);
const WORDS_OF_VIEWS = new Map([
  ["messages", "messages"],
  ["deadLetters", "dead-letters"],
  ["scheduled", "scheduled"],
]);

/**
 * @param {string} hash as `location.hash` has it, with or without its `#`
 * @returns {Route}
 */
export function parseRoute(hash) {
  const [path, search = ""] = splitOnce(hash.replace(/^#/, ""), "?");
  const query = Object.fromEntries(new URLSearchParams(search));
  const unknown = { view: "unknown", query };
  let parts;
  try {
    parts = path.split("/").filter((part) => part !== "").map(decodeURIComponent);
  } catch {
    return unknown; // a % that begins no character
  }
  const [first, queue, word, group, last] = parts;
  if (first === undefined) return { view: "overview", query };
  if (parts.length === 1 && first === "queues") return { view: "overview", query };
  if (parts.length === 1 && WHOLE.includes(first)) return { view: first, query };
  if (first !== "queues" || !NAME.test(queue)) return unknown;
  if (word !== "groups") {
    const view = VIEWS_OF_QUEUE.get(word);
    return view && parts.length <= 3 ? { view, queue, query } : unknown;
  }
  if (group === undefined || !NAME.test(group) || parts.length > 5) return unknown;
  if (last === undefined) return { view: "group", queue, group, query };
  return last === "parked" ? { view: "parked", queue, group, query } : unknown;
}

/**
 * The address of a route: parseRoute() of it is that route again.
 * @param {string} view
 * @param {{queue?: string, group?: string, query?: Record<string, string | undefined>}} [place]
 */
export function formatRoute(view, { queue, group, query = {} } = {}) {
  const path = pathOf(view, queue ?? "", group ?? "");
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value) search.set(name, value);
  const text = search.toString();
  return text ? `#${path}?${text}` : `#${path}`;
}

/** @param {string} view @param {string} queue @param {string} group */
function pathOf(view, queue, group) {
  if (view === "overview") return "/queues";
  if (WHOLE.includes(view)) return `/${view}`;
  const ofQueue = `/queues/${encodeURIComponent(queue)}`;
  if (view === "group") return `${ofQueue}/groups/${encodeURIComponent(group)}`;
  if (view === "parked") return `${ofQueue}/groups/${encodeURIComponent(group)}/parked`;
  const word = WORDS_OF_VIEWS.get(view);
  return word ? `${ofQueue}/${word}` : ofQueue;
}

/** @param {string} text @param {string} mark @returns {[string, string?]} */
function splitOnce(text, mark) {
  const at = text.indexOf(mark);
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}
