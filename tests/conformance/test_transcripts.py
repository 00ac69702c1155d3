"""The transcripts themselves: they cover their rules, and a wrong one is detected."""

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.wire import frames
from tests.conformance.gateway_side import _WORLD, GatewayReplay
from tests.conformance.replay import Replay, role_of
from tests.conformance.sdk_side import _USER, SdkReplay
from tests.conformance.transcript import (
    FOLDER,
    SIDES,
    Captures,
    Deviation,
    Line,
    Transcript,
    load,
    parse,
)
from tests.conformance.virtual import run
from tests.layout.tree import section, text

TRANSCRIPTS = {transcript.name: transcript for transcript in load()}
RULES = {"R5", "R6", "R7", "R16", "R17", "R19", "R20", "R21", "R22", "R25", "R26"}
"""The rules about sessions."""
OF_THE_SOCKET = {4003, 4509}
"""Close codes that come before the session, or from below it; a client must handle them."""
FREE = {"credit", "ping", "pong", "extend"}
PROTOCOL = "docs/protocol.md"
README = (FOLDER / "README.md").read_text()


# --- Coverage -----------------------------------------------------------------------------------


def test_every_rule_about_sessions_has_a_transcript_for_each_side() -> None:
    for side in SIDES:
        found = {rule for t in TRANSCRIPTS.values() if side in t.sides for rule in t.rules}
        assert found >= RULES, f"{side}: {sorted(RULES - found)}"


def test_they_name_rules_that_there_are() -> None:
    there = re.findall(r"^### ([PR]\d+)\. ", text(Path("docs/guarantees.md")), re.M)
    named = {rule for transcript in TRANSCRIPTS.values() for rule in transcript.rules}
    assert named <= set(there)


def test_every_frame_of_the_protocol_occurs() -> None:
    protocol = {
        who: set(re.findall(r"^### (\w+)$", section(PROTOCOL, f"Frames from the {who}"), re.M))
        for who in SIDES
    }
    for who, types in protocol.items():
        shown = {
            frame["type"]
            for transcript in TRANSCRIPTS.values()
            for speaker, frame in transcript.frames()
            if speaker == who
        }
        assert shown >= types, f"{who}: {sorted(types - shown)}"


def test_every_close_code_occurs() -> None:
    shown = {
        line["close"]
        for transcript in TRANSCRIPTS.values()
        for line in transcript.lines
        if line.who == "broker" and "close" in line
    }
    assert shown >= {close.code for close in frames.CLOSES}


def test_every_line_is_used_in_a_replay() -> None:
    for transcript in TRANSCRIPTS.values():
        for line in transcript.lines:
            roles = {role_of(line, side) for side in transcript.sides}
            assert roles != {"skips"}, f"{transcript.name}.jsonl:{line.number} is idle"


def test_what_they_use_is_described() -> None:
    words = {field for t in TRANSCRIPTS.values() for field in t.head}
    words |= {name for t in TRANSCRIPTS.values() for line in t.lines for name in line.fields}
    words |= _USER.keys() | _WORLD.keys() | {"given", "open", "cut", "refuse", "silence"}
    missing = {word for word in words if f"`{word}`" not in README and f'"{word}"' not in README}
    assert missing == set()


def test_every_transcript_says_something_of_its_own() -> None:
    for what in ("title", "about"):
        texts = [transcript.head[what] for transcript in TRANSCRIPTS.values()]
        assert all(texts)
    titles = [transcript.head["title"] for transcript in TRANSCRIPTS.values()]
    assert len(set(titles)) == len(titles)


# --- The format ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        [{"title": "t", "rules": []}],
        [{"title": "t", "rules": [], "about": "a", "colour": "blue"}],
        [{"title": "t", "rules": [], "about": "a"}, {"who": "nobody"}],
        [{"title": "t", "rules": [], "about": "a"}, {"who": "client", "told": "x"}],
        [{"title": "t", "rules": [], "about": "a"}, {"at": 2, "who": "user", "do": "close"},
         {"at": 1, "who": "user", "do": "close"}],
    ],
    ids=["no about", "unknown in the head", "unknown party", "unknown field", "time goes back"],
)  # fmt: skip
def test_what_the_format_does_not_know_is_refused(lines: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError):
        parse("wrong", "\n".join(json.dumps(line) for line in lines))


@pytest.mark.parametrize(
    ("shown", "value", "fits"),
    [
        ({"a": 5}, {"a": 5.0, "b": 1}, True),
        ({"a": 5}, {"b": 5}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, False),
        ({"stale": [[0, 1, 2, 3, 5]]}, {"stale": [[0, 1, 2, 4, 5], [0, 1, 2, 3, 3]]}, True),
        ({"deliveries": [[0, 1, 2, 3, 5]]}, {"deliveries": [[0, 1, 2, 3, 4]]}, False),
        ({"revoked": []}, {}, True),
        ({"ref": "#old"}, {"ref": 7}, True),
        ({"ref": "#old"}, {"ref": 8}, False),
        ({"ref": "#old+2"}, {"ref": 9}, True),
        ({"ref": "#new", "again": "#new"}, {"ref": 1, "again": 2}, False),
        ({"ref": "#new"}, {"ref": "7"}, False),
        ({"id": "$id"}, {"id": 7}, False),
    ],
)  # fmt: skip
def test_what_fits_what_is_shown(shown: Any, value: Any, fits: bool) -> None:
    captures = Captures()
    assert captures.match("#old", 7) is None
    assert (captures.match(shown, value) is None) is fits


def test_a_replayer_chooses_ever_higher_numbers() -> None:
    captures = Captures()
    assert captures.fill({"push": "#first"})["push"] < captures.fill(["#second"])[0]
    assert captures.fill("#first+1") == captures.fill("#first") + 1


# --- Negative controls --------------------------------------------------------------------------


def replayed(transcript: Transcript, side: str) -> None:
    """Replay a transcript over its first transport."""

    async def replay() -> None:
        kind: type[Replay] = GatewayReplay if side == "broker" else SdkReplay
        await kind(transcript, transcript.transports[0]).play()

    run(replay())


def awaited(transcript: Transcript, side: str) -> Iterator[int]:
    """Yield the places of the lines that show something that the side must send, and may not send
    unshown."""
    for place, line in enumerate(transcript.lines):
        is_free = "frame" in line and line["frame"]["type"] in FREE
        if line.who == side and role_of(line, side) == "shows" and not is_free:
            yield place


def without(transcript: Transcript, place: int) -> Transcript:
    """Return the transcript without a line."""
    lines = transcript.lines[:place] + transcript.lines[place + 1 :]
    return replace(transcript, lines=lines)


def altered(transcript: Transcript, place: int) -> Transcript:
    """Return the transcript with a line changed: another offset, number or word."""
    line = transcript.lines[place]
    fields = copy.deepcopy(line.fields)
    if "close" in fields:
        fields["close"] += 1
    elif "frame" in fields:
        _alter(fields["frame"])
    lines = list(transcript.lines)
    lines[place] = Line(line.number, fields, line.at, line.by)
    return replace(transcript, lines=lines)


def _alter(frame: dict[str, Any]) -> None:
    for name in ("deliveries", "revoked", "stale"):
        if frame.get(name):
            frame[name][-1][-1] += 1
            return
    for name in ("offset", "settled", "received", "code", "lease_s"):
        if name in frame:
            frame[name] = f"no {frame[name]}" if name == "code" else frame[name] + 1
            return
    frame["type"] = "another"


CONTROLS = [
    (transcript.name, side)
    for transcript in TRANSCRIPTS.values()
    for side in transcript.sides
    if any(awaited(transcript, side))
]


@pytest.mark.parametrize(("name", "side"), CONTROLS)
def test_a_wrong_transcript_is_noticed(name: str, side: str) -> None:
    """The last two lines of the side are changed or left out, one after another. (The replay ends
    soon after the last line, so it does not miss events that only time would bring.)"""
    transcript = TRANSCRIPTS[name]
    for place in list(awaited(transcript, side))[-2:]:
        line = transcript.lines[place]
        wrong = [] if "cut" in line else [altered(transcript, place)]
        wrong += [] if "at" in line else [without(transcript, place)]
        for one in wrong:
            with pytest.raises(Deviation, match=f"{name}.jsonl:"):
                replayed(one, side)


@pytest.mark.parametrize("side", SIDES)
def test_a_missing_revoked_is_noticed(side: str) -> None:
    """R17: the gateway sends a frame that the transcript does not show; the SDK returns a message
    that it must not."""
    transcript = TRANSCRIPTS["nack-revokes" if side == "broker" else "resume-revoked"]
    if side == "broker":
        (place,) = [n for n, line in enumerate(transcript.lines) if _says(line, "revoked")]
        wrong = without(transcript, place)
    else:
        (place,) = [
            n for n, line in enumerate(transcript.lines) if "revoked" in line.get("frame", {})
        ]
        fields = copy.deepcopy(transcript.lines[place].fields)
        fields["frame"]["revoked"] = []
        line = transcript.lines[place]
        lines = list(transcript.lines)
        lines[place] = Line(line.number, fields, line.at, line.by)
        wrong = replace(transcript, lines=lines)
    with pytest.raises(Deviation):
        replayed(wrong, side)


def _says(line: Line, kind: str) -> bool:
    return bool("frame" in line and line["frame"]["type"] == kind)
