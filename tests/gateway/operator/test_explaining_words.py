"""The sentences that say what a key waits for."""

import time

import msgspec
import pytest

from gateway.models import HeadDescription
from gateway.operator.explain import duration, sentence

NOW_MS = 1_763_690_419_000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1, "1 s"), (59, "59 s"), (60, "1 min"), (61, "1 min 1 s"), (200, "3 min 20 s"),
        (3599, "59 min 59 s"), (3600, "1 h 0 min"), (7500, "2 h 5 min"),
        (47 * 3600 + 59 * 60, "47 h 59 min"), (48 * 3600, "2 days"), (30 * 86_400, "30 days"),
    ],
)  # fmt: skip
def test_a_duration_is_written_as_the_console_writes_it(seconds: int, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("wait_ms", "text"),
    [
        (-5000, "at once"),
        (0, "at once"),
        (1, "in 1 s"),
        (1001, "in 2 s"),
        (200_000, "in 3 min 20 s"),
    ],
)
def test_a_wait_is_said_in_full_seconds_and_never_too_short(
    wait_ms: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW_MS / 1000)
    head = HeadDescription(
        offset=121, id="7d9f", published_unix_ms=NOW_MS, expires_unix_ms=0, attempts=2,
        nack=None, in_flight=None,
    )  # fmt: skip
    assert sentence("backoff", head, NOW_MS + wait_ms, None) == (
        f"Offset 121, its first message, is tried again {text}. It has failed 2 times."
    )


def test_a_sentence_says_why_it_failed_last() -> None:
    """In one line, however long the reason is."""
    head = HeadDescription(
        offset=121, id="7d9f", published_unix_ms=NOW_MS, expires_unix_ms=0, attempts=1,
        nack="card\n declined", in_flight=None,
    )  # fmt: skip
    said = "It has failed once. Its last nack said: “card declined”."
    assert sentence("parked", head, None, None).endswith(said)
    long = msgspec.structs.replace(head, nack="x" * 1024)
    assert sentence("parked", long, None, None).endswith(f"“{'x' * 199}…”.")
