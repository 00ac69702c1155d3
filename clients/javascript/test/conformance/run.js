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
 * @returns {Promise<{name: string, transport: string, why: string | null, logged: string[]}[]>}
 *     why: null where the client says what is shown; logged: the errors that it wrote to the
 *     console
 */
export async function replayed(name, text, tocsin) {
  const transcript = parse(name, text);
  if (!transcript.isForClients) return [];
  const results = [];
  for (const transport of transcript.transports) {
    const logged = [];
    const why = await deviation(transcript, transport, tocsin, logged);
    results.push({ name, transport, why, logged });
  }
  return results;
}

/**
 * Replay a file whose last two lines of the client say something else, or are left out, one after
 * another, over each of its transports: each of them must be noticed.
 *
 * @returns {Promise<{name: string, transport: string, change: string, isNoticed: boolean}[]>}
 */
export async function controlled(name, text, tocsin) {
  const transcript = parse(name, text);
  if (!transcript.isForClients) return [];
  const results = [];
  for (const [change, wrong] of wrongs(transcript)) {
    for (const transport of transcript.transports) {
      const why = await deviation(wrong, transport, tocsin, []);
      const isNoticed = why !== null && why.startsWith(`${name}.jsonl:`);
      results.push({ name, transport, change, isNoticed });
    }
  }
  return results;
}

/** Null, or how the client went another way than the transcript. */
async function deviation(transcript, transport, tocsin, logged) {
  const replay = new Replay(transcript, transport, tocsin);
  const stop = onUnhandled((error) => replay.report(error));
  const { error: log } = console;
  console.error = (...what) => logged.push(what.map(String).join(" "));
  try {
    await replay.play();
    return null;
  } catch (error) {
    return error.message;
  } finally {
    console.error = log;
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

/** Its last two lines of the client, altered and left out: what was done, and the transcript. */
function wrongs(transcript) {
  return awaited(transcript).slice(-2).flatMap((place) => {
    const line = transcript.lines[place];
    const found = [];
    if (!line.has("cut")) found.push([`line ${line.number} altered`, altered(transcript, place)]);
    if (!line.has("at")) found.push([`line ${line.number} left out`, without(transcript, place)]);
    return found;
  });
}

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
