"""`tocsin admin usage`, over files."""

import json
from pathlib import Path
from typing import Any

import msgspec
from click.testing import CliRunner

from gateway.accounting.usage import SCHEMA, Usage
from gateway.cli.journal import usage

NOON = 1_763_726_400.0
"""2025-11-21T12:00:00Z, unix seconds."""


def line(**changed: Any) -> bytes:
    """Return a line of three requests, with other fields."""
    counted = Usage(now=0.0, wall=NOON)
    counted.counter("acme", "alice", "orders").requests += 3
    (found,) = counted.lines(now=60.0, wall=NOON + 60)
    return msgspec.json.encode({**msgspec.to_builtins(found), **changed})


def test_lines_of_a_later_version_are_not_counted_and_said(tmp_path: Path) -> None:
    """[A field that has another meaning by now was added to what it meant before.] So are lines
    that cannot be read as lines of this version. Torn lines are nobody's."""
    folder = tmp_path / "usage"
    folder.mkdir()
    later = SCHEMA + 1
    lines = [line(), line(schema=later), line(schema=later, requests="12"), line()[:-9], b'"\xff']
    (folder / "usage-20251121T12-000001.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    done = CliRunner().invoke(usage, ["--data-dir", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    (row,) = map(json.loads, done.stdout.splitlines())
    assert row["requests"] == 3
    assert "not counted: 2 lines of a later version of the broker.\n" in done.stderr
