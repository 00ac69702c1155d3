"""Times as people write and read them, in every command alike.

A typed time is local unless it ends in an offset (`2026-11-21T09:30+01:00`, or `Z`). It may also be
an age (`30m`, `12h`, `7d`). A printed time is local and has its offset.
"""

import contextlib
import re
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from tocsin.cli.durations import format_duration, parse_duration

EXAMPLES: Final = "2026-11-21, 2026-11-21T09:30, 2026-11-21T09:30Z, or 12h for twelve hours ago"
FUTURE_EXAMPLES: Final = "2026-11-21, 2026-11-21T09:30, or 2026-11-21T09:30Z"
_AGO: Final = re.compile(r"[0-9.]+ *[a-z]+( *[0-9.]+ *[a-z]+)*")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, the last one that has a date."""


def parse_time(text: str, *, now: datetime | None = None) -> datetime:
    """Return the time that `text` names, with an offset. Ages count from `now`, by default this
    moment.

    Raises:
        click.BadParameter: the text names no time, or one that no calendar here has.
    """
    try:
        if _AGO.fullmatch(text.strip().lower()):
            return (now or datetime.now(UTC)) - timedelta(seconds=parse_duration(text))
        when = datetime.fromisoformat(text.strip())
        # A time of the first or the last days may have no neighbor in another zone.
        return when if when.tzinfo is not None else when.astimezone()
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(f"{text!r} is no time; write {EXAMPLES}") from None


def future_time(value: str | datetime) -> datetime:
    """Convert the value of a click option to the time at which something is to happen. It is no
    age, because an age lies in the past."""
    if isinstance(value, datetime):
        return value
    if _AGO.fullmatch(value.strip().lower()):
        raise click.BadParameter(f"{value!r} is a duration; give it with --delay instead")
    try:
        return parse_time(value)
    except click.BadParameter:
        raise click.BadParameter(f"{value!r} is no time; write {FUTURE_EXAMPLES}") from None


def from_now(unix_ms: int, *, now: datetime | None = None) -> str:
    """Return how far a time is from `now`, by default this moment: "in 3h 20m", or "2m ago"."""
    left_s = (unix_ms - (now or datetime.now(UTC)).timestamp() * 1000) / 1000
    if abs(left_s) < 1:
        return "now"
    text = format_duration(abs(left_s))
    return f"in {text}" if left_s > 0 else f"{text} ago"


def unix_ms(when: datetime) -> int:
    """Return the Unix milliseconds of a time with an offset, even beyond the platform's clock."""
    return (when - _EPOCH) // timedelta(milliseconds=1)


def local_time(unix_ms: int) -> str:
    """Return a time for people: local, with its offset."""
    if not 0 <= unix_ms <= _LAST_MS:
        return f"{unix_ms:,} ms since 1970"
    when = _EPOCH + timedelta(milliseconds=unix_ms)
    # On the last day some zones are already in the next year; UTC is shown then.
    with contextlib.suppress(OverflowError, ValueError, OSError):
        when = when.astimezone()
    return when.isoformat(" ", "seconds")
