"""What the log has, worked out without Spark: the answers that the jobs are compared with."""

import base64
import bisect
import itertools
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

GATEWAY = "00000000000000aa"
BEGAN_MS = 1_769_900_000_000
T0 = 1_769_900_000_000_000
"""2026-01-31 22:53:20 UTC, in microseconds."""


def percentile_us(durations: Sequence[tuple[int, int]], rank: float) -> int:
    """The duration at a rank, of a place between two messages that of the shorter one. `durations`
    are (microseconds, messages)."""
    ordered = sorted(durations)
    sums = list(itertools.accumulate(count for _, count in ordered))
    return ordered[bisect.bisect_right(sums, int(rank * (sums[-1] - 1)))][0]


def certified(runs: list[list[int]], at: int = T0, **more: Any) -> dict[str, Any]:
    """A line of `certified`, of messages without keys unless told otherwise."""

    count = sum(run[2] for run in runs)
    line = {
        "schema": 1, "kind": "certified", "gateway": GATEWAY, "tenant": "default",
        "queue": "orders", "queue_id": "q1", "producer": "operator", "transport": "http",
        "level": "all", "accepted_unix_us": at - 900, "asked_unix_us": at - 800,
        "certified_unix_us": at, "bytes": 10 * count, "runs": runs,
        "keys": base64.b64encode(bytes(8 * count)).decode(),
    }  # fmt: skip
    return line | more


def dispatched(runs: list[list[int]], at: int = T0 + 100, **more: Any) -> dict[str, Any]:
    """A line of `dispatched`."""
    line = {
        "schema": 1, "kind": "dispatched", "gateway": GATEWAY, "tenant": "default",
        "queue": "orders", "queue_id": "q1", "group": "billing", "session": "c1",
        "transport": "websocket", "attempt": 1, "cause": "none", "published_unix_ms": at // 1000,
        "dispatched_unix_us": at, "written_unix_us": at + 10, "runs": runs,
    }  # fmt: skip
    return line | more


def settled(runs: list[list[int]], at: int = T0 + 500, **more: Any) -> dict[str, Any]:
    """A line of `settled`: acked."""
    line = {
        "schema": 1, "kind": "settled", "gateway": GATEWAY, "tenant": "default", "queue": "orders",
        "queue_id": "q1", "group": "billing", "session": "c1", "transport": "websocket",
        "outcome": "acked", "settled_unix_us": at,
        "pushes": [[number, None, first, first + count - 1] for number, first, count in runs],
    }  # fmt: skip
    return line | more


def position(event: str, frontier: int, at: int = T0 - 50, **more: Any) -> dict[str, Any]:
    """A line of `position`, of partition 0 in epoch 1."""
    line = {
        "schema": 2, "kind": "position", "gateway": GATEWAY, "tenant": "default", "queue": "orders",
        "queue_id": "q1", "group": "billing", "group_id": "g1", "partition": 0, "epoch": 1,
        "event": event, "at_unix_us": at, "frontier": frontier,
    }  # fmt: skip
    return line | more


def write_log(
    folder: Path,
    number: int,
    lines: Sequence[object],
    /,
    *,
    gateway: str = GATEWAY,
    name: str | None = None,
    **more: Any,
) -> Path:
    """A finished file of these lines: objects, or bytes as they stand. Its process is over, since
    nothing comes behind it. `more` goes into its last line; None takes a field away, as files of
    older gateways lack some."""
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines]
    body = b"".join(raw)
    end = {
        "schema": 2, "kind": "end", "gateway": gateway, "lines": len(raw),
        "crc32": zlib.crc32(body), "began_unix_ms": BEGAN_MS, "number": number,
        "recovered": True,
    } | more  # fmt: skip
    end = {field: value for field, value in end.items() if value is not None}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (name or f"{gateway}-{BEGAN_MS}-{number:06}.jsonl")
    path.write_bytes(body + json.dumps(end).encode() + b"\n")
    return path
