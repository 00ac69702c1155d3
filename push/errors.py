"""The errors a client can meet. The code is stable, the text is for people.

TocsinError            base: code, HTTP status, text, whether trying again may help
├── Refused            the request was refused and changed nothing
├── Unavailable        no answer came in time: a change may still come about, asking again is safe
└── Unknown            the outcome is not known: send again under the same id or sequence
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Code:
    """A line of the public table of errors, with a name that a client can switch on."""

    name: str
    http_status: int
    retry: bool
    """Whether the same request may succeed later, unchanged."""
    meaning: str


def _table(*codes: Code) -> dict[str, Code]:
    return {code.name: code for code in codes}


CODES: Final = _table(
    Code("invalid_json", 400, False, "not JSON, or not valid UTF-8"),
    Code("invalid_request", 400, False, "a field is missing, unknown, of a wrong type or range"),
    Code("invalid_message", 400, False, "a message breaks a rule: key, body, headers, id"),
    Code("invalid_name", 400, False, "a queue, group or producer name outside [A-Za-z0-9._-]"),
    Code("unauthorized", 401, False, "no valid credentials"),
    Code("forbidden", 403, False, "the credentials do not allow this"),
    Code("origin_refused", 403, False, "a web page of this origin may not talk to this broker"),
    Code("queue_not_found", 404, False, "no such queue"),
    Code("group_not_found", 404, False, "no such group"),
    Code("session_not_found", 404, False, "no such session"),
    Code("id_unknown", 404, False, "no message with this id is known"),
    Code("not_found", 404, False, "no such resource"),
    Code("method_not_allowed", 405, False, "the resource does not have this method"),
    Code("setting_fixed", 409, False, "this setting cannot change once the queue exists"),
    Code("settings_differ", 409, False, "it exists with other settings than those that were named"),
    Code("would_delete", 409, False, "it would delete messages: confirm how many"),
    Code("cancelled", 409, False, "this message was scheduled, and then cancelled"),
    Code("ambiguous", 409, False, "several messages have this id: name the key, too"),
    Code("already_due", 409, False, "this message was due, and is in its key's order by now"),
    Code("out_of_sequence", 409, True, "an earlier message of this producer was not stored"),
    Code("sequence_too_old", 409, False, "this sequence was answered before, or forgotten"),
    Code("already_subscribed", 409, False, "this subscription number is taken"),
    Code("not_subscribed", 409, False, "no subscription of this number"),
    Code("not_delivered", 409, False, "this delivery was never given to this session"),
    Code("not_parked", 409, False, "this key is not parked in this group"),
    Code("invalid_receipt", 400, False, "a receipt that this broker did not give, for this group"),
    Code("position_unknown", 409, False, "the position belongs to another queue or history"),
    Code("message_too_large", 413, False, "a message is larger than its queue allows"),
    Code("unsupported_encoding", 415, False, "the request body has an unknown content coding"),
    Code("request_timeout", 408, True, "the request did not arrive in time"),
    Code("request_too_large", 413, False, "a frame or request body over its limit"),
    Code("header_too_large", 431, False, "a request header over its limit"),
    Code("limit_reached", 409, False, "a bound is reached that waiting does not change"),
    Code("too_many", 429, True, "too many of these at the moment"),
    Code("rate_limited", 429, True, "more than a limit allows: again after `retry_after_s`"),
    Code("queue_full", 429, True, "the queue holds as much as its settings allow"),
    Code("schedule_full", 429, True, "the queue has as much scheduled as its settings allow"),
    Code("too_many_in_flight", 429, True, "this producer has too many unanswered messages"),
    Code("overloaded", 503, True, "too much waits for the storage"),
    Code("storage_full", 507, True, "the free-space reserve is reached: publishing stops"),
    Code("clock_in_doubt", 503, True, "the clock has jumped: no time is judged by it for a while"),
    Code("draining", 503, True, "this gateway is going down; another one answers"),
    Code("unknown", 503, True, "the outcome is unknown: send again under the same id or sequence"),
    Code("storage_unavailable", 503, True, "the storage does not answer"),
    Code("metadata_unavailable", 503, True, "the metadata service or store does not answer"),
    Code("internal", 500, True, "a bug of Tocsin; please report it"),
)


class TocsinError(Exception):
    """Base of what Tocsin raises. `code` is a key of CODES, and as an attribute its line there;
    `detail` is a sentence for people; `more` has further fields of the problem document, for
    programs."""

    def __init__(
        self,
        code: str,
        detail: str = "",
        retry_after_s: float | None = None,
        *,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self.code = CODES[code]
        self.detail = detail or self.code.meaning
        self.retry_after_s = retry_after_s
        self.more = more or {}
        super().__init__(f"{code}: {self.detail}")


class Refused(TocsinError):
    """The error of a request that was refused and changed nothing."""


class Unknown(TocsinError):
    """The error of a request whose outcome is not known. The same request under the same id or
    sequence is safe."""

    def __init__(self, detail: str = "") -> None:
        super().__init__("unknown", detail)


class Unavailable(TocsinError):
    """No answer came in time, or none that can be believed. The requested change may still come
    about; requesting it again is safe."""


class Fenced(TocsinError):
    """A newer epoch owns this (group, partition); the caller must stop acting for it."""

    def __init__(self, detail: str = "a newer owner holds this group and partition") -> None:
        super().__init__("forbidden", detail)
