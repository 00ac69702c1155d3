/**
 * What the host's figures say: the bodies that `tocsin demo` publishes to the queue `machine`.
 * Whatever else comes is shown as text. Pure.
 */

import { formatBody, formatBytes, formatFigure, plural } from "../shared/format.js";

/** Field → how its value reads. The first field that a body has is the one that is drawn. */
const KNOWN = [
  { field: "busy_percent", reads: (body) => `${formatFigure(body.busy_percent)} % busy` },
  {
    field: "used_percent",
    reads: (body) =>
      isNumber(body.used_mib) && isNumber(body.total_mib)
        ? `${formatFigure(body.used_percent)} % of ${formatBytes(body.total_mib * 1024 ** 2)}`
        : `${formatFigure(body.used_percent)} % used`,
  },
  {
    field: "written_bytes_per_s",
    other: "read_bytes_per_s",
    reads: (body) => `${rate(body.written_bytes_per_s)} written`,
  },
  {
    field: "received_bytes_per_s",
    other: "sent_bytes_per_s",
    reads: (body) => `${rate(body.received_bytes_per_s)} received`,
  },
  { field: "m1", reads: (body) => `${formatFigure(body.m1)} load` },
];

/**
 * @param {{body?: any, bytes?: Uint8Array}} message
 * @param {number} [lengthMax] of the text of a body that is not known
 * @returns {{isKnown: boolean, text: string, value: number|null}} `value` is what a line can be
 *   drawn of
 */
export function readFigure(message, lengthMax = 80) {
  const body = bodyOf(message);
  if (typeof body === "number" && Number.isFinite(body)) {
    return { isKnown: false, text: formatFigure(body), value: body };
  }
  if (body === null || typeof body !== "object" || Array.isArray(body)) {
    return { isKnown: false, text: formatBody(message, lengthMax), value: null };
  }
  const known = KNOWN.find(({ field }) => Object.hasOwn(body, field) && isNumber(body[field]));
  if (!known) {
    return { isKnown: false, text: formatBody(message, lengthMax), value: null };
  }
  const other = known.other && isNumber(body[known.other]) ? body[known.other] : 0;
  return { isKnown: true, text: known.reads(body), value: body[known.field] + other };
}

/** So long nothing may come before the page says so. */
const SILENCE_MS = 5000;

/**
 * What is said above the rows.
 * @param {{shown: number, live: number, more: number, silentMs: number}} counts rows; those of
 *   which something came just now; keys without a row; how long nothing came of any, since the
 *   page opened
 */
export function sayFigures({ shown, live, more, silentMs }) {
  const others = more > 0 ? ` Not shown: ${plural(more, "more key")}.` : "";
  if (live > 0) {
    const isAll = live === shown;
    const keys = isAll ? plural(live, "key") : `${live} of ${shown} keys; the others are quiet`;
    return `Live: ${keys}.${others}`;
  }
  if (shown === 0) {
    return "Waiting for the first figures. They come where the broker was started with make run.";
  }
  return silentMs < SILENCE_MS
    ? "Waiting for new figures."
    : "No new figures. Is the demo running? Start it with make run; or publish messages above.";
}

function bodyOf(message) {
  try {
    return message.body;
  } catch {
    return undefined;
  }
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function rate(bytesPerS) {
  return `${formatBytes(bytesPerS)}/s`;
}
