// @ts-check
/** Which rows of a table are shown, and in which order. Pure. */

/**
 * @template Row
 * @typedef {{id: string, value: (row: Row) => string | number | null | undefined}} Sortable
 */

/**
 * The rows that contain every word of `text` (whatever their case), by `textOf`.
 * @template Row
 * @param {Row[]} rows
 * @param {string} text
 * @param {(row: Row) => string} textOf
 */
export function filterRows(rows, text, textOf) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return rows;
  return rows.filter((row) => {
    const found = textOf(row).toLowerCase();
    return words.every((word) => found.includes(word));
  });
}

/**
 * Sorted anew by a value, what has none last either way; equal ones keep their order.
 * @template Row
 * @param {Row[]} rows
 * @param {(row: Row) => string | number | null | undefined} valueOf
 * @param {boolean} descending
 */
export function sortRows(rows, valueOf, descending) {
  const decorated = rows.map((row) => ({ row, value: valueOf(row) }));
  decorated.sort((one, other) => {
    const missing = Number(isMissing(one.value)) - Number(isMissing(other.value));
    if (missing || isMissing(one.value)) return missing;
    const order = compare(one.value, other.value);
    return descending ? -order : order;
  });
  return decorated.map(({ row }) => row);
}

/**
 * One page of rows. A page that is not there is the nearest one that is.
 * @template Row
 * @param {Row[]} rows
 * @param {number} page from 0
 * @param {number} perPage
 */
export function pageOf(rows, page, perPage) {
  const pages = Math.max(1, Math.ceil(rows.length / perPage));
  const shown = Math.min(Math.max(0, Math.trunc(page) || 0), pages - 1);
  const first = shown * perPage;
  return { rows: rows.slice(first, first + perPage), page: shown, pages, first };
}

/** @param {unknown} value */
function isMissing(value) {
  return value === null || value === undefined || Number.isNaN(value);
}

/** @param {any} one @param {any} other */
function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  const [text, than] = [String(one), String(other)];
  const order = text.localeCompare(than, "en", { numeric: true });
  return order || (text < than ? -1 : Number(text > than));
}
