"""What a key waits for, in a sentence for people."""

import math
import time
from typing import Final

from gateway.facts_values import HeadDescription, KeyWaits

REASON_SHOWN_MAX: Final = 200


def sentence(
    code: KeyWaits, head: HeadDescription | None, until_unix_ms: int | None, before: int | None
) -> str:
    """One sentence, or two. `until_unix_ms` and `before` as in KeyInGroup."""
    if head is None:
        return _NO_HEAD.get(code, "Its first message is not known; " + _WHY[code])
    which = f"Offset {head.offset}, its first message,"
    tried = f" It has failed {_times(head.attempts)}." if head.attempts else ""
    if head.nack is not None:
        tried += f" Its last nack said: “{_short(head.nack)}”."
    match code:
        case "in_flight":
            lease = head.in_flight
            until = _in(lease.lease_until_unix_ms) if lease is not None else "later"
            return f"{which} is with its consumer, whose lease ends {until}.{tried}"
        case "backoff":
            return f"{which} is tried again {_in(until_unix_ms)}.{tried}"
        case "backlog":
            return f"{which} comes behind at most {before or 0:,} other messages.{tried}"
        case "nothing":
            return f"{which} goes out in this moment.{tried}"
    return f"{which} waits: {_WHY[code]}{tried}"


def dead_letters_sentence(dying: int, why: str | None) -> str:
    """What is said besides of messages of the key that are on their way to the dead letters; `why`
    their queue does not take them. Empty: there are none, or they will be there at once."""
    if not dying or why is None:
        return ""
    what = "One message of the key is" if dying == 1 else f"{dying:,} messages of the key are"
    return f" {what} on the way to the dead letters, whose queue does not take them ({why})."


def _short(reason: str) -> str:
    """As much of it as a line takes."""
    text = " ".join(reason.split())
    return text if len(text) <= REASON_SHOWN_MAX else f"{text[: REASON_SHOWN_MAX - 1]}…"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _in(unix_ms: int | None) -> str:
    seconds = math.ceil((unix_ms or 0) / 1000 - time.time())
    return f"in {duration(seconds)}" if seconds > 0 else "at once"


def duration(seconds: int) -> str:
    """As the console writes it: `41 s`, `3 min 20 s`, `2 h 5 min`, `3 days`."""
    if seconds < 60:
        return f"{seconds} s"
    minutes, rest = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days"


_NO_HEAD: dict[KeyWaits, str] = {
    "nothing": "No message of this key waits.",
    "unknown": "None of its messages was found in the part of the log that one look reads; there "
    "may be some behind it.",
}
_WHY: dict[KeyWaits, str] = {
    "in_flight": "a consumer has it.",
    "parked": "the key is parked, until an operator retries, skips or releases it.",
    "dead_letter": "it is on its way to the dead letters.",
    "backoff": "it is tried again later.",
    "commit": "something of the key is being made durable first.",
    "behind": "what went out before it in its line is to be settled first.",
    "gate": "as many keys of its partition wait as may; one of them has to go on first.",
    "draining": "its owner hands the partition over, and settles what it holds.",
    "paused": "the queue is paused; `tocsin queue resume` ends that.",
    "no_consumer": "the group has no consumer here.",
    "absent": "its consumer was here before the broker began anew, and is waited for.",
    "moving": "the partition's next owner begins.",
    "elsewhere": "a consumer at another gateway has the partition; that gateway knows more.",
    "socket": "its consumer's connection takes no more bytes, or is gone.",
    "full": "its consumer holds as many unsettled messages as it may.",
    "credit": "its consumer takes no more messages at the moment; or nobody pulls.",
    "backlog": "other messages of the partition come first.",
    "unknown": "not all of the log was looked at.",
    "nothing": "nothing holds it up.",
}
