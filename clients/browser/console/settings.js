// @ts-check
/** Settings of queues and groups as words; which of them a group has of its own. Pure. */

import { formatBytes, formatCount, formatMs, formatSeconds } from "../shared/format.js";

const OF_GROUP_ALONE = ["start", "semantics", "expires_s"];

/** A setting with its unit. @param {string} name @param {unknown} value */
export function settingText(name, value) {
  if (value === null || value === undefined) return "none";
  if (name === "alerts" && Array.isArray(value)) return value.map(alertText).join("; ") || "none";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (name.endsWith("_per_s")) {
    return `${name.includes("bytes") ? formatBytes(value) : formatCount(value)} per second`;
  }
  if (name.endsWith("_s")) return value % 1 ? formatMs(value * 1000) : formatSeconds(value);
  if (/^(due_)?(messages|bytes)_max$/.test(name) && !value) return "no bound";
  if (name.includes("bytes")) return formatBytes(value);
  if (name === "attempts_max" && !value) return "without end";
  return formatCount(value);
}

/** When it fires, and who is told. @param {any} alert */
function alertText({ name, when, above, lasts_s, group, queue, webhook }) {
  const bound = when.endsWith("_s") ? formatSeconds(above) : formatCount(above);
  const whose = group === null || group === undefined ? "" : ` of ${group}`;
  const told = [queue && `the queue ${queue}`, webhook && `the webhook ${webhook}`];
  return `${name}: ${settingLabel(when)}${whose} above ${bound} for ${formatSeconds(lasts_s)}, `
    + `told to ${told.filter(Boolean).join(" and ")}`;
}

/** The name of a setting, as it is read. @param {string} name */
export function settingLabel(name) {
  return name.replace(/(_per)?_s$/, "").replaceAll("_", " ");
}

/**
 * @typedef {{name: string, value: unknown, isOwn: boolean, ofQueue: unknown}} Effective
 * `isOwn`: the group has another value than the queue, which has `ofQueue`
 */

/**
 * What holds for a group: its own settings, and the queue's where it has none.
 * @param {Record<string, unknown>} own of the group; null: as the queue
 * @param {Record<string, unknown> | null} ofQueue null: not known yet
 * @returns {Effective[]}
 */
export function effectiveOf(own, ofQueue) {
  return Object.entries(own).map(([name, value]) => {
    if (OF_GROUP_ALONE.includes(name)) return { name, value, isOwn: false, ofQueue: undefined };
    const inherited = ofQueue?.[name];
    const isOwn = value !== null && ofQueue !== null && value !== inherited;
    return { name, value: value ?? inherited ?? null, isOwn, ofQueue: inherited };
  });
}

/** Whether what has been settled stays there. @param {any} queue */
export function isRetaining(queue) {
  return queue.settings?.retention_s > 0;
}
