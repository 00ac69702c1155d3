// @ts-check
/**
 * Figures of the console, beside the shared ones: rates, ages, exact times. Pure; what is no figure
 * is a dash. Times are milliseconds since 1970.
 */

import { formatCount, formatSeconds, NOTHING } from "../shared/format.js";

/** A rate per second, without its unit: "0", "0.25", "3.1", "1,234". @param {unknown} value */
export function rate(value) {
  if (!isFigure(value)) return NOTHING;
  if (value === 0 || value >= 99.95) return formatCount(value);
  return value < 0.995 ? Math.max(0.01, value).toFixed(2) : value.toFixed(1);
}

/** How long ago, in whole seconds, so that it does not flicker. @param {unknown} unixMs
 * @param {number} nowMs */
export function age(unixMs, nowMs) {
  if (!isFigure(unixMs) || unixMs <= 0) return NOTHING;
  return formatSeconds(Math.max(0, Math.floor((nowMs - unixMs) / 1000)));
}

/** How long until: "in 12 s", or "now". @param {unknown} unixMs @param {number} nowMs */
export function until(unixMs, nowMs) {
  if (!isFigure(unixMs) || unixMs <= 0) return NOTHING;
  const seconds = Math.ceil((unixMs - nowMs) / 1000);
  return seconds <= 0 ? "now" : `in ${formatSeconds(seconds)}`;
}

/** The exact time where one is: "2026-11-21 21:02:20.123 +01:00". @param {unknown} unixMs */
export function exactTime(unixMs) {
  if (!isFigure(unixMs) || unixMs <= 0) return NOTHING;
  const at = new Date(unixMs);
  if (Number.isNaN(at.getTime())) return NOTHING;
  const offset = -at.getTimezoneOffset();
  const away = Math.abs(offset);
  const zone = `${offset < 0 ? "-" : "+"}${pad(Math.floor(away / 60))}:${pad(away % 60)}`;
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  const clock = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  return `${day} ${clock}.${pad(at.getMilliseconds(), 3)} ${zone}`;
}

/** The time where one is, to the second: "2026-11-21 21:02:20". @param {unknown} unixMs */
export function localTime(unixMs) {
  return exactTime(unixMs).slice(0, "2026-11-21 21:02:20".length);
}

/** @param {unknown} value @returns {value is number} */
function isFigure(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** @param {number} value @param {number} [digits] */
function pad(value, digits = 2) {
  return String(value).padStart(digits, "0");
}
