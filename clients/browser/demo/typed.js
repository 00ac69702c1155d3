/** What was typed as a body. Pure. */

/** JSON where it is JSON, else the text itself. */
export function parseBody(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** A remark on what looks like JSON and is none; empty: there is nothing to say. */
export function remarkOn(text) {
  const looksLike = /^\s*[{["]/.test(text);
  return looksLike && parseBody(text) === text ? "Sent as text: it is no JSON." : "";
}
