/**
 * Replays transcripts against a client, and alters them to see that this is noticed. The same in
 * Node and in a browser; who calls it brings the texts.
 */

import { show } from "./matching.js";
import { Replay } from "./replay.js";
import { Line, Transcript, parse } from "./transcript.js";

const FREE = new Set(["credit", "ping", "pong", "extend"]);
const ALTERED_LISTS = ["deliveries", "revoked", "stale"];
const ALTERED_VALUES = ["offset", "settled", "received", "code", "lease_s"];

/**
 * Replay a file over each of its transports.
 *
 * @param {string} name without its suffix
 * @param {string} text
 * @param {object} tocsin the client's module
 * @returns {Promise<{name: string, transport: string, why: string | null}[]>} why: null where the
 *     client says what is shown
 */
export async function replayed(name, text, tocsin) {
  const transcript = parse(name, text);
  if (!transcript.isForClients) return [];
  const results = [];
  for (const transport of transcript.transports) {
    results.push({ name, transport, why: await deviation(transcript, transport, tocsin) });
  }
  return results;
}

/**
 * Replay a file whose last two lines of the client say something else, or are left out, one after
 * another, over its first transport: each of them must be noticed.
 *
 * @returns {Promise<{name: string, change: string, isNoticed: boolean}[]>}
 */
export async function controlled(name, text, tocsin) {
  const transcript = parse(name, text);
  if (!transcript.isForClients) return [];
  const results = [];
  for (const place of awaited(transcript).slice(-2)) {
    const line = transcript.lines[place];
    const wrong = [];
    if (!line.has("cut")) wrong.push(["altered", altered(transcript, place)]);
    if (!line.has("at")) wrong.push(["left out", without(transcript, place)]);
    for (const [change, other] of wrong) {
      const why = await deviation(other, other.transports[0], tocsin);
      const isNoticed = why !== null && why.startsWith(`${name}.jsonl:`);
      results.push({ name, change: `line ${line.number} ${change}`, isNoticed });
    }
  }
  return results;
}

/** Null, or how the client went another way than the transcript. */
async function deviation(transcript, transport, tocsin) {
  const replay = new Replay(transcript, transport, tocsin);
  const stop = onUnhandled((error) => replay.report(error));
  try {
    await replay.play();
    return null;
  } catch (error) {
    return error.message;
  } finally {
    stop();
  }
}

/** Tell of promises that fail and that nobody looks at. Returns what ends it. */
function onUnhandled(report) {
  const { process } = globalThis;
  if (process?.on) {
    process.on("unhandledRejection", report);
    return () => process.off("unhandledRejection", report);
  }
  const listener = (event) => {
    event.preventDefault();
    report(event.reason);
  };
  globalThis.addEventListener("unhandledrejection", listener);
  return () => globalThis.removeEventListener("unhandledrejection", listener);
}

// --- wrong transcripts --------------------------------------------------------------------------

/** The places of the lines that show what the client must say, and may not say unshown. */
function awaited({ lines }) {
  return lines.flatMap((line, place) => {
    const isFree = line.has("frame") && FREE.has(line.fields.frame.type);
    return line.who === "client" && line.role === "shows" && !isFree ? [place] : [];
  });
}

function without({ name, head, lines }, place) {
  return new Transcript(name, head, lines.toSpliced(place, 1));
}

/** A line says something else: another offset, number or word. */
function altered({ name, head, lines }, place) {
  const { number, fields, at, by } = lines[place];
  const other = JSON.parse(JSON.stringify(fields));
  if ("close" in other) other.close += 1;
  else if ("frame" in other) alter(other.frame);
  return new Transcript(name, head, lines.with(place, new Line(number, other, at, by)));
}

function alter(frame) {
  const list = ALTERED_LISTS.find((name) => frame[name]?.length);
  const value = ALTERED_VALUES.find((name) => name in frame);
  if (list !== undefined) {
    const row = frame[list].at(-1);
    row[row.length - 1] += 1;
  } else if (value === undefined) {
    frame.type = "another";
  } else {
    frame[value] = typeof frame[value] === "number" ? frame[value] + 1 : `no ${show(frame[value])}`;
  }
}
