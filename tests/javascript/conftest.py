"""Where the JavaScript client is, and the transcripts that it keeps to."""

import json
from pathlib import Path
from typing import Any

from loadtests.node import run_node
from tests.chromium import chromium
from tests.conformance.transcript import FOLDER, load
from tests.layout.tree import ROOT

__all__ = ["chromium"]

PACKAGE = ROOT / "clients/javascript"
REPLAYER = PACKAGE / "test/conformance/node.js"
Result = dict[str, Any]
"""`name`, `transport`, `why` (None: as it must be) and `logged` of a replay, or `name`, `change`
and `isNoticed` of a control."""
REPLAYS = [
    (transcript.name, transport)
    for transcript in load()
    if "client" in transcript.sides
    for transport in transcript.transports
]
"""Each with each of its transports: what there must be a result for."""

MAY_LOG = {"resume-refused"}
"""Where the broker says what cannot be: what the client writes to the console is for people."""


def check(name: str, transport: str, results: dict[tuple[str, str], Result]) -> None:
    """It was replayed, and the client kept to it without a word on the console."""
    assert (name, transport) in results, "not replayed"
    result = results[name, transport]
    assert result["why"] is None, result["why"]
    assert name in MAY_LOG or result["logged"] == []


def replay(*flags: str | Path, names: list[str] | None = None) -> list[Result]:
    """Replay these transcripts in Node, all when none is named."""
    files = [FOLDER / f"{name}.jsonl" for name in names or []]
    ran = run_node(REPLAYER, *flags, *files)
    assert not ran.stderr, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]
