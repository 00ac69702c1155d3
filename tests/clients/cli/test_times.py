"""Times that are typed and times that are printed: one rule for all commands."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import click
import pytest
from tocsin.api.session_subscription import start_at
from tocsin.cli.common import shown_name, shown_value
from tocsin.cli.queues import shown_settings
from tocsin.cli.times import from_now, future_time, local_time, parse_time, unix_ms

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def in_vienna(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Vienna")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("2026-11-21T09:30", datetime(2026, 11, 21, 8, 30, tzinfo=UTC)),
        ("2026-11-21 09:30", datetime(2026, 11, 21, 8, 30, tzinfo=UTC)),
        ("2026-07-01T09:30", datetime(2026, 7, 1, 7, 30, tzinfo=UTC)),
        ("2026-11-21", datetime(2026, 11, 20, 23, tzinfo=UTC)),
        ("2026-11-21T09:30Z", datetime(2026, 11, 21, 9, 30, tzinfo=UTC)),
        ("2026-11-21T09:30-05:00", datetime(2026, 11, 21, 14, 30, tzinfo=UTC)),
        ("9999-12-31T23:59Z", datetime(9999, 12, 31, 23, 59, tzinfo=UTC)),
        ("12h", datetime(2026, 11, 21, 0, tzinfo=UTC)),
        ("1d 12h", datetime(2026, 11, 20, 0, tzinfo=UTC)),
    ],
)
def test_a_typed_time_is_local_unless_it_says_otherwise(text: str, when: datetime) -> None:
    assert parse_time(text, now=NOW) == when


@pytest.mark.parametrize(
    "text", ["", "yesterday", "12", "2026-13-01", "9999-12-31T23:59:60", "99999999999d", "soon 3d"]
)
def test_what_is_no_time_is_a_sentence(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no time; write"):
        parse_time(text, now=NOW)


def test_a_time_to_come_is_no_age() -> None:
    assert future_time("2026-11-21T09:30") == datetime(2026, 11, 21, 8, 30, tzinfo=UTC)
    with pytest.raises(click.BadParameter, match="is a duration; give it with --delay"):
        future_time("12h")
    with pytest.raises(click.BadParameter, match="is no time; write") as refused:
        future_time("tomorrow")
    assert "ago" not in refused.value.message


@pytest.mark.parametrize(
    ("after_s", "text"),
    [(12_000, "in 3h 20m"), (90, "in 1m 30s"), (0.2, "now"), (-0.2, "now"), (-120, "2m ago")],
)
def test_how_far_a_time_is_from_now(after_s: float, text: str) -> None:
    assert from_now(unix_ms(NOW + timedelta(seconds=after_s)), now=NOW) == text


@pytest.mark.parametrize("zone", ["Europe/Vienna", "America/Los_Angeles", "Pacific/Kiritimati"])
def test_the_ends_of_the_calendar_end_nothing(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    for text in ("9999-12-31T23:59", "9999-12-31", "0001-01-01", "0001-01-01T00:00+14:00"):
        try:
            when = parse_time(text)
        except click.BadParameter:
            continue
        assert isinstance(unix_ms(when), int)
    for last in (253_402_300_799_999, 253_402_300_800_000, 10**18, -1, 0):
        assert local_time(last)
    assert start_at(datetime(9999, 12, 31, 23, tzinfo=UTC)) is not None
    try:
        datetime(9999, 12, 31, 23).astimezone()
    except (OverflowError, OSError, ValueError):
        with pytest.raises(ValueError, match="give it a time zone"):
            start_at(datetime(9999, 12, 31, 23))


def test_a_printed_time_has_its_offset_and_can_be_typed_again() -> None:
    shown = local_time(1_763_690_400_000)
    assert shown == "2025-11-21 03:00:00+01:00"
    assert unix_ms(parse_time(shown)) == 1_763_690_400_000


def test_a_start_without_a_zone_is_local() -> None:
    with_zone = datetime(2026, 11, 21, 9, 30, tzinfo=timezone(timedelta(hours=1)))
    assert start_at(datetime(2026, 11, 21, 9, 30)) == start_at(with_zone)


def test_settings_are_shown_as_people_write_them() -> None:
    shown = shown_settings(
        {
            "partitions": 4, "retention_s": 86_400.0, "messages_max": 0, "attempts_max": 5,
            "message_bytes_max": 262_144, "alerts": [{"name": "behind"}], "dead_letter_queue": None,
            "publish_messages_per_s": 2.5, "is_old": True,
        }
    )  # fmt: skip
    assert shown == {
        "retention": "1d", "messages max": "no bound", "attempts max": "5",
        "message bytes max": "262,144 bytes", "alerts": "behind", "publish messages per s": "2.5",
        "is old": "yes",
    }  # fmt: skip
    assert (shown_name("started_unix_ms"), shown_value("not_ready", [])) == ("started", "none")
