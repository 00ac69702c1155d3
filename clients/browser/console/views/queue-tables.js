// @ts-check
/** The columns of a queue's tables. */

import { formatBytes, plural } from "../../shared/format.js";
import { badge, setBadge } from "../elements.js";
import { formatRoute } from "../route.js";
import { isOwnGroup } from "../words.js";
import { countColumn, textColumn, timeColumn } from "./columns.js";
import { link } from "./common.js";

/**
 * @param {string} queue
 * @param {() => number} now
 * @returns {import("../table.js").Column[]}
 */
export function groupColumns(queue, now) {
  return [
    {
      id: "name",
      title: "Group",
      value: (group) => group.name,
      make: (group) =>
        link(group.name, formatRoute("group", { queue, group: group.name }), "group-name"),
      draw: () => {},
    },
    {
      id: "state",
      title: "State",
      value: (group) => stateOfGroup(group)[0],
      make: () => badge(),
      draw: (element, group) => setBadge(element, ...stateOfGroup(group)),
    },
    countColumn("lag", "Lag", "lag"),
    timeColumn("oldest", "Oldest unsettled", (group) => group.oldest_unix_ms, now),
    countColumn("consumers", "Consumers", "consumers"),
    countColumn("in-flight", "In flight", "in_flight"),
    countColumn("aside", "Held aside", "aside"),
    countColumn("parked", "Parked keys", "keys_parked"),
  ];
}

/** @param {any} group @returns {[string, "good" | "warn" | "bad" | "accent" | ""]} */
export function stateOfGroup(group) {
  if (isOwnGroup(group)) return ["the broker's own", ""];
  if (group.keys_parked) return [`${plural(group.keys_parked, "key")} parked`, "bad"];
  if (group.lag > 0 && !group.consumers && !group.in_flight) return ["no consumer", "bad"];
  if (!group.consumers && !group.in_flight) return ["idle", ""];
  return ["has consumers", "good"];
}

export const PARTITIONS = [
  countColumn("number", "Partition", "partition"),
  countColumn("start", "First offset", "start"),
  countColumn("end", "Next offset", "end"),
  countColumn("certified", "Certified up to", "certified"),
  countColumn("messages", "Messages", "messages"),
  countColumn("bytes", "Size", "bytes", formatBytes),
  countColumn("generation", "Generation", "generation"),
  textColumn("cluster", "Cluster", (partition) => partition.cluster ?? ""),
];
