/**
 * Errors as sentences: what happened, and what to do about it. Pure; nothing of an error is shown
 * as anything but text.
 */

import { titled, visibleText } from "./format.js";

const DETAIL_LENGTH_MAX = 300;

/** Code of the protocol → what to do. */
const REMEDIES = {
  unauthorized: "Sign in again: open the address that the broker prints, or enter its token.",
  forbidden: "These credentials do not allow this; use others, or ask whoever runs the broker.",
  origin_refused:
    "Open this page from the broker's own address, or name this origin in TOCSIN_ORIGINS.",
  queue_not_found: "Create the queue first: tocsin queue create NAME.",
  group_not_found: "The group is gone: reload the page, and it is made again.",
  settings_differ: "It is there with other settings; tocsin queue set and group set change them.",
  not_parked: "It is not parked any more: somebody has decided already, or it was settled.",
  invalid_message: "Change the message and publish it again; nothing was stored.",
  message_too_large:
    "Make it smaller, or raise the queue's message_bytes_max or bytes_max; nothing was stored.",
  request_too_large: "Make it smaller; nothing was stored.",
  queue_full: "Wait until consumers have worked some of it off, or raise the queue's bounds.",
  storage_full: "Free some space on the broker's disk; consuming goes on meanwhile.",
  overloaded: "Wait a moment and try again.",
  limit_reached: "Close or delete something of this kind first; waiting does not help.",
  too_many: "Wait a moment and try again.",
  rate_limited: "Wait a moment and try again, or have the limit raised; nothing was stored.",
  too_many_in_flight: "Wait a moment and try again.",
  draining: "The broker is going down; this page comes back by itself when it is up again.",
  unknown: "The outcome is unknown: send it again under the same id, and it is stored once.",
  storage_unavailable: "The broker's storage does not answer; look at the broker's log.",
  timeout: "Look at the connection, at the top, and try again; it may have been stored.",
  session_ended: "Reload the page: it begins a new session.",
  no_token: "Sign in again: open the address that the broker prints, or enter its token.",
  not_a_broker:
    "Something else answers at this address. Start a Tocsin here, and reload the page.",
  internal: "This is a bug of the broker; please report it with the broker's log.",
};

const UNREACHABLE = {
  what: "The broker does not answer.",
  remedy: "Look whether it still runs; `make run` starts it. This page comes back by itself.",
};

/**
 * What happened, and what to do.
 * @param {unknown} error anything that was thrown: a TocsinError, a failed fetch, garbage
 * @returns {{what: string, remedy: string, code: string}} `code` is empty where there is none
 */
export function explain(error) {
  const code = typeof error?.code === "string" ? error.code : "";
  if (code in REMEDIES) {
    return { what: sentence(error.detail || error.message || code), remedy: REMEDIES[code], code };
  }
  if (isUnreachable(error, code)) {
    return { ...UNREACHABLE, code };
  }
  const detail = error?.detail || error?.message || String(error);
  return {
    what: sentence(detail),
    remedy: error?.retry === true ? "Wait a moment and try again." : "",
    code,
  };
}

/** Both as one line. @param {unknown} error */
export function explainLine(error) {
  const { what, remedy } = explain(error);
  return remedy ? `${what} ${remedy}` : what;
}

function isUnreachable(error, code) {
  return (
    (error instanceof TypeError && /fetch|network|load failed/i.test(error.message)) ||
    code === "cannot_connect"
  );
}

/** With a capital letter and a full stop, as text that is fit for a line. */
function sentence(detail) {
  const text = visibleText(String(detail).trim(), DETAIL_LENGTH_MAX) || "Something went wrong.";
  const begun = titled(text);
  return /[.!?\u2026)]$/.test(begun) ? begun : `${begun}.`;
}
