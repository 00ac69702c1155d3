"""Delivery logs that no broker wrote, with known answers: for tests, demonstrations, measurements.

    python -m spark synthetic --messages 100000 --to FOLDER

The same plan makes the same bytes. Frames are certified one after the other. Each is given to every
group in the order of offsets, and acked some time later. On request faults are planted that an
audit has to find, and nothing else. Needs neither PySpark nor a broker.
"""

import base64
import datetime
import itertools
import json
import random
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

Run = list[int]
"""[partition, first offset, count]."""
SCHEMA: Final = 3
_SCHEDULED: Final = 7
"""Every seventh frame of a queue was scheduled, and is due at its time."""
_US: Final = 1_000_000
TENANT: Final = "default"
_CAUSES: Final = ("none",) * 7 + ("credit", "credit", "key_held")


@dataclass(frozen=True)
class Plan:
    """The content of the log. Times are of the gateways' clocks as they were before any step."""

    seed: int = 1
    messages: int = 10_000
    frame: int = 100
    queues: tuple[str, ...] = ("orders", "emails")
    groups: tuple[str, ...] = ("billing", "audit")
    partitions: int = 4
    keys: int = 500
    hot: float = 0.0
    """The part of all messages that have one key, in addition to its share."""
    gateways: int = 2
    start: datetime.datetime = datetime.datetime(2026, 1, 31, 22, tzinfo=datetime.UTC)
    lasts_s: float = 4 * 3600.0
    lines_max: int = 2_000
    """The largest number of lines in a file."""
    steps: tuple[tuple[float, int], ...] = ()
    """The steps of the first gateway's clock: (when, as a part of the whole; by how many
    seconds)."""
    faults: tuple[str, ...] = ()
    """The planted faults, of gap, repetition, inversion, overtaken and hole: one of each name."""
    redeliveries: int = 0
    """The number of messages that are nacked and given again, correctly. No audit may report
    them."""


@dataclass
class Answers:
    """The truth about the log."""

    messages: Counter[str] = field(default_factory=Counter)
    """The number of messages of each kind."""
    by_hour: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """(kind, date, hour) → messages, by the gateway's clock with its steps."""
    durations: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    """(stage, queue) → the durations: (microseconds, number of messages that share it)."""
    planted: list[tuple[str, str, str | None, int, int]] = field(default_factory=list)
    """(what, queue id, group, partition, offset)."""
    unlogged: int = 0
    """The number of certified messages in no line."""


@dataclass
class _Gateway:
    name: str
    began_unix_ms: int
    stepped_us: int = 0
    lines: list[bytes] = field(default_factory=list)
    number: int = 0


@dataclass(frozen=True)
class _Frame:
    """The messages of one publish, and its times."""

    gateway: _Gateway
    queue: str
    runs: list[Run]
    odd_key: bytes
    """The hash of the key of the first run's last message, which faults are about."""
    produced_us: int | None
    accepted_us: int
    certified_us: int
    due_us: int | None = None
    """When the messages were due, if they were scheduled."""

    @property
    def odd(self) -> Run:
        partition, first, count = self.runs[0]
        return [partition, first + count - 1, 1]


class Synthetic:
    """A log. `write` makes the files, once; then `answers` is full."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.answers = Answers()
        self._rng = random.Random(plan.seed)
        self._start_us = int(plan.start.timestamp() * _US)
        self._now_us = self._start_us
        self._gateways = [
            _Gateway(f"{self._rng.getrandbits(64):016x}", self._start_us // 1000 + number)
            for number in range(plan.gateways)
        ]
        self._hashes = [self._rng.randbytes(8) for _ in range(plan.keys)]
        share = (1.0 - plan.hot) / plan.keys
        self._weights = [plan.hot + share * (key + 1) for key in range(plan.keys)]
        self._next: Counter[tuple[str, int]] = Counter()
        self._frames: Counter[str] = Counter()
        self._lateness = random.Random(plan.seed)
        self._given_us: Counter[tuple[str, str]] = Counter()
        self._owed: dict[tuple[str, str], int] = {}
        """The time until which a group is busy because of a fault in another one."""
        self._used: dict[tuple[int, str], Counter[str]] = {}
        self._folder = Path()

    def write(self, folder: Path) -> Answers:
        """Write `delivery/` and `usage/` into the folder."""
        self._folder = folder / "delivery"
        self._folder.mkdir(parents=True, exist_ok=True)
        frames = max(1, self.plan.messages // self.plan.frame)
        steps = sorted(self.plan.steps)
        faults = self._places(frames)
        self._positions("owned")
        for number in range(frames):
            while steps and number >= steps[0][0] * frames:
                self._step(steps.pop(0)[1] * _US)
            self._now_us = self._start_us + int(self.plan.lasts_s * _US * number / frames)
            self._frame(faults.get(number))
        self._positions("released")
        for gateway in self._gateways:
            self._finish(gateway, is_last=True)
        self._write_usage(folder / "usage")
        return self.answers

    def _places(self, frames: int) -> dict[int, str]:
        """Return the fault of each frame that has one. They are far from each other and from both
        ends."""
        wanted = [*self.plan.faults, *["redelivery"] * self.plan.redeliveries]
        distance = max(1, frames // (len(wanted) + 1))
        return {(index + 1) * distance: name for index, name in enumerate(wanted)}

    # --- Frames ---------------------------------------------------------------------------------

    def _frame(self, fault: str | None) -> None:
        plan, rng = self.plan, self._rng
        queue = plan.queues[rng.randrange(len(plan.queues))]
        gateway = self._owner(queue)
        keys = rng.choices(range(plan.keys), cum_weights=self._weights, k=plan.frame)
        keys.sort(key=lambda key: key % plan.partitions)
        hashes = [self._hashes[key] for key in keys]
        runs = self._placed(queue, keys)
        if fault == "hole":
            self._lose(gateway, queue, runs)
            return
        accepted_us = self._now_us
        asked_us = accepted_us + 50 + int(rng.expovariate(1 / 300))
        due_us = None
        self._frames[queue] += 1
        if self._frames[queue] % _SCHEDULED == 0:
            due_us = accepted_us - int(self._lateness.expovariate(1 / 5_000))
            accepted_us = asked_us
        frame = _Frame(
            gateway, queue, runs, hashes[runs[0][2] - 1],
            produced_us=accepted_us - 100 - int(rng.expovariate(1 / 1_000)),
            accepted_us=accepted_us,
            certified_us=asked_us + 400 + int(rng.expovariate(1 / 2_000)),
            due_us=due_us,
        )  # fmt: skip
        if due_us is not None:
            self._schedule(frame, len(hashes))
        self._certify(frame, hashes, asked_us)
        for index, group in enumerate(plan.groups):
            given_us = self._given(frame, group, None if index else fault)
            self._given_us[queue, group] = max(given_us, self._owed.pop((queue, group), 0))

    def _owner(self, queue: str) -> _Gateway:
        """Return the gateway that owns all partitions of a queue, in all groups, and serves its
        publishers."""
        return self._gateways[self.plan.queues.index(queue) % len(self._gateways)]

    def _positions(self, event: str) -> None:
        """Write the positions of all groups, at the beginning, or when everything is settled."""
        at = self._start_us if event == "owned" else self._now_us + 60 * _US
        for queue, group in itertools.product(self.plan.queues, self.plan.groups):
            gateway = self._owner(queue)
            for partition in range(self.plan.partitions):
                reach = self._next[queue, partition]
                line = {
                    "schema": SCHEMA, "kind": "position", "gateway": gateway.name,
                    "stepped_us": gateway.stepped_us, "tenant": TENANT, "queue": queue,
                    "queue_id": queue_id(queue), "group": group, "group_id": f"id-of-{group}",
                    "epoch": 1, "event": event,
                    "at_unix_us": at + gateway.stepped_us, "is_clean": event == "released",
                }  # fmt: skip
                self._write(gateway, line, partition=partition, frontier=reach)

    def _placed(self, queue: str, keys: list[int]) -> list[Run]:
        """Return the runs of these keys, which are in the order of their partitions."""
        runs: list[Run] = []
        for key in keys:
            partition = key % self.plan.partitions
            offset = self._next[queue, partition]
            self._next[queue, partition] += 1
            if runs and runs[-1][0] == partition:
                runs[-1][2] += 1
            else:
                runs.append([partition, offset, 1])
        return runs

    def _lose(self, gateway: _Gateway, queue: str, runs: list[Run]) -> None:
        """Write a line with the number of messages that are in no other line."""
        count = sum(run[2] for run in runs)
        self.answers.unlogged += count
        self.answers.messages["unlogged"] += count
        self.answers.planted += [("hole", queue_id(queue), None, run[0], run[1]) for run in runs]
        now = self._now_us + gateway.stepped_us
        self._write(
            gateway,
            {"schema": SCHEMA, "kind": "unlogged", "gateway": gateway.name, "since_unix_us": now,
             "until_unix_us": now + 5, "spans": 1, "certified": count, "reason": "full"},
        )  # fmt: skip

    def _schedule(self, frame: _Frame, count: int) -> None:
        """Write that the messages of a frame were scheduled, some time before they were due."""
        assert frame.due_us is not None
        at = frame.due_us - 60 * _US
        step = frame.gateway.stepped_us
        line = {
            "schema": SCHEMA, "kind": "certified", "gateway": frame.gateway.name,
            "stepped_us": step, "tenant": TENANT, "queue": frame.queue,
            "queue_id": queue_id(frame.queue), "outcome": "scheduled", "messages": count,
            "producer": "operator", "transport": "http", "level": "all", "bytes": count * 256,
            "accepted_unix_us": at + step, "asked_unix_us": at + step + 40,
            "certified_unix_us": at + step + 900,
        }  # fmt: skip
        self._write(frame.gateway, line)
        self._count("gathering", frame, 40, count)
        self._count("storing", frame, 860, count)

    def _certify(self, frame: _Frame, hashes: list[bytes], asked_us: int) -> None:
        known = frame.produced_us is not None
        if frame.due_us is not None:
            self._line(
                frame, "certified", frame.runs, frame.certified_us, transport="internal",
                level="all", accepted_unix_us=frame.accepted_us, asked_unix_us=asked_us,
                certified_unix_us=frame.certified_us, due_unix_us=frame.due_us,
                bytes=len(hashes) * 256, keys=base64.b64encode(b"".join(hashes)).decode(),
            )  # fmt: skip
            self._count("late", frame, asked_us - frame.due_us, len(hashes))
            self._count("storing", frame, frame.certified_us - asked_us, len(hashes))
            return
        self._line(
            frame, "certified", frame.runs, frame.certified_us, producer="operator",
            session="p1" if known else None, transport="websocket" if known else "http",
            level="all", produced_unix_us=frame.produced_us, clock_offset_us=-7 if known else None,
            accepted_unix_us=frame.accepted_us, asked_unix_us=asked_us,
            certified_unix_us=frame.certified_us, bytes=len(hashes) * 256,
            keys=base64.b64encode(b"".join(hashes)).decode(),
        )  # fmt: skip
        if frame.produced_us is not None:
            self._count("arriving", frame, frame.accepted_us - frame.produced_us, len(hashes))
        self._count("gathering", frame, asked_us - frame.accepted_us, len(hashes))
        self._count("storing", frame, frame.certified_us - asked_us, len(hashes))

    def _given(self, frame: _Frame, group: str, fault: str | None) -> int:
        """Give a frame to a group and settle it; returns when the group may have the next one."""
        rng = self._rng
        cause = rng.choice(_CAUSES)
        waited = 20 + int(rng.lognormvariate(6, 1.2)) * (1 if cause == "none" else 20)
        given_us = max(frame.certified_us + waited, self._given_us[frame.queue, group] + 1)
        settled_us = given_us + 300 + int(rng.expovariate(1 / 5_000))
        apart = fault not in (None, "repetition")
        runs = without(frame.runs, frame.odd) if apart else frame.runs
        self._give(frame, group, runs, given_us, cause)
        self._settle(frame, group, runs, given_us, settled_us)
        return given_us if fault is None else self._plant(frame, group, fault, settled_us + 1_000)

    def _plant(self, frame: _Frame, group: str, fault: str, at: int) -> int:
        """Plant a fault about one message, from this moment on; returns when it is over."""
        odd = frame.odd
        place = (odd[0], odd[1])
        if fault == "repetition":
            self._give(frame, group, [odd], at, "none", attempt=2)
        elif fault in ("redelivery", "overtaken"):
            self._give(frame, group, [odd], at, "none")
            self._settle(frame, group, [odd], at, at + 500, outcome="nacked")
            if fault == "overtaken":
                place = self._second(frame, group, at + 2_000)
            self._give(frame, group, [odd], at + 3_000, "key_backoff", attempt=2)
            self._settle(frame, group, [odd], at + 3_000, at + 3_500)
        elif fault == "inversion":
            self._second(frame, group, at)
            self._give(frame, group, [odd], at + 3_000, "none")
            self._settle(frame, group, [odd], at + 3_000, at + 3_500)
        if fault != "redelivery":
            self.answers.planted.append((fault, queue_id(frame.queue), group, *place))
        return at + 4_000

    def _second(self, frame: _Frame, group: str, at: int) -> tuple[int, int]:
        """Publish one more message of the odd one's key, and give it to the group at this moment.

        Other groups receive it after the messages that they have to receive before. Returns its
        place.
        """
        partition = frame.odd[0]
        offset = self._next[frame.queue, partition]
        self._next[frame.queue, partition] += 1
        one = _Frame(
            frame.gateway, frame.queue, [[partition, offset, 1]], frame.odd_key, None, at - 900,
            at - 600,
        )  # fmt: skip
        self._certify(one, [frame.odd_key], at - 800)
        for name in self.plan.groups:
            given_us = at
            if name != group:
                before = self._given_us[frame.queue, name]
                given_us = max(at, before) + 10 * _US  # after the frame itself
                self._owed[frame.queue, name] = given_us
            self._give(one, name, one.runs, given_us, "none")
            self._settle(one, name, one.runs, given_us, given_us + 200)
        return partition, offset

    def _give(
        self, frame: _Frame, group: str, runs: list[Run], at: int, cause: str, *, attempt: int = 1
    ) -> None:  # fmt: skip
        written_us = at + 10 + int(self._rng.expovariate(1 / 60))
        self._line(
            frame, "dispatched", runs, at, group=group, session="c1", transport="websocket",
            attempt=attempt, cause=cause, published_unix_ms=frame.certified_us // 1000,
            certified_unix_us=frame.certified_us if attempt == 1 else None,
            dispatched_unix_us=at, written_unix_us=written_us,
        )  # fmt: skip
        count = sum(run[2] for run in runs)
        self._count("writing", frame, written_us - at, count)
        if attempt == 1:
            self._count("waiting", frame, at - frame.certified_us, count)
            begin_us = frame.accepted_us if frame.due_us is None else frame.due_us
            self._count("delivery", frame, written_us - begin_us, count)
            produced_us = frame.produced_us if frame.due_us is None else frame.due_us
            if produced_us is not None:
                self._count("whole", frame, written_us - produced_us, count)

    def _settle(
        self, frame: _Frame, group: str, runs: list[Run], given_us: int, at: int,
        *, outcome: str = "acked",
    ) -> None:  # fmt: skip
        self._line(
            frame, "settled", runs, at, group=group, session="c1", transport="websocket",
            outcome=outcome, settled_unix_us=at, dispatched_unix_us=given_us,
        )  # fmt: skip
        if outcome == "acked":
            self._count("handling", frame, at - given_us, sum(run[2] for run in runs))

    # --- Lines and files ------------------------------------------------------------------------

    def _line(self, frame: _Frame, kind: str, runs: list[Run], at: int, **more: Any) -> None:
        if not runs:
            return
        step = frame.gateway.stepped_us
        fields = {name: _moved(name, value, step) for name, value in more.items()}
        where = {"runs": runs}
        if kind == "settled":
            where = {"pushes": _pushes(runs, fields.pop("dispatched_unix_us"))}
        line = {
            "schema": SCHEMA, "kind": kind, "gateway": frame.gateway.name, "stepped_us": step,
            "tenant": TENANT, "queue": frame.queue, "queue_id": queue_id(frame.queue),
            **where, **fields,
        }  # fmt: skip
        self._write(frame.gateway, line)
        count = sum(run[2] for run in runs)
        moment = datetime.datetime.fromtimestamp((at + step) // _US, datetime.UTC)
        self.answers.messages[kind] += count
        self.answers.by_hour[kind, moment.date().isoformat(), moment.hour] += count
        minute = (at + step) // (60 * _US) * 60_000
        used = self._used.setdefault((minute, frame.queue), Counter())
        used[kind] += count
        used["bytes"] += more.get("bytes") or 0

    def _write(self, gateway: _Gateway, line: dict[str, Any], **always: Any) -> None:
        """Append a line. `always` are fields that are in the line even if they are 0."""
        known = {name: value for name, value in line.items() if value is not None and value != 0}
        known |= always
        gateway.lines.append(json.dumps(known, separators=(",", ":")).encode() + b"\n")
        if len(gateway.lines) >= self.plan.lines_max:
            self._finish(gateway)

    def _step(self, by_us: int) -> None:
        gateway = self._gateways[0]
        gateway.stepped_us += by_us
        seen = self._now_us + gateway.stepped_us
        self._write(
            gateway,
            {"schema": SCHEMA, "kind": "clock", "gateway": gateway.name, "seen_unix_us": seen,
             "step_us": by_us, "stepped_us": gateway.stepped_us},
        )  # fmt: skip

    def _finish(self, gateway: _Gateway, *, is_last: bool = False) -> None:
        """Write a file of the lines that wait. The last one is marked `recovered`, so that no
        reader expects another file of its gateway."""
        if not gateway.lines and not is_last:
            return
        gateway.number += 1
        name = f"{gateway.name}-{gateway.began_unix_ms}-{gateway.number:06}.jsonl"
        write_file(
            self._folder / name, gateway.name, gateway.lines,
            began_unix_ms=gateway.began_unix_ms, number=gateway.number, recovered=is_last,
        )  # fmt: skip
        gateway.lines = []

    def _write_usage(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        lines = [
            {"schema": 1, "minute_unix_ms": minute, "span_s": 60.0, "tenant": TENANT,
             "principal": "operator", "queue": queue, "overflow": False, "requests": 1,
             "messages_in": used["certified"], "bytes_in": used["bytes"], "duplicates": 0,
             "messages_out": used["dispatched"], "bytes_out": 0, "redeliveries": 0, "refusals": 0,
             "refusals_by_code": {}, "websocket_s": 0.0, "long_poll_s": 0.0}
            for (minute, queue), used in sorted(self._used.items())
        ]  # fmt: skip
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "usage-synthetic-1.jsonl").write_text(text)

    def _count(self, stage: str, frame: _Frame, us: int, messages: int) -> None:
        if messages:
            self.answers.durations.setdefault((stage, frame.queue), []).append((us, messages))


def queue_id(queue: str) -> str:
    """Return the id of a queue of this name."""
    return f"id-of-{queue}"


def without(runs: list[Run], odd: Run) -> list[Run]:
    """Return these runs without the one message, which is the last of one of them."""
    cut = [
        [run[0], run[1], run[2] - (run[0] == odd[0] and run[1] + run[2] - 1 == odd[1])]
        for run in runs
    ]
    return [run for run in cut if run[2]]


def write_file(path: Path, gateway: str, lines: list[bytes], **more: int) -> None:
    """Write a finished file of these lines; it appears as a whole. `more` is of its last line."""
    body = b"".join(lines)
    end = {"schema": SCHEMA, "kind": "end", "gateway": gateway, "lines": len(lines),
           "crc32": zlib.crc32(body)} | more  # fmt: skip
    part = path.with_name(path.name + ".part")
    part.write_bytes(body + json.dumps(end, separators=(",", ":")).encode() + b"\n")
    part.rename(path)


def _moved(name: str, value: Any, step_us: int) -> Any:
    """Return a time as the stepped clock shows it; any other value as it is."""
    if value is None:
        return None
    if name.endswith("_unix_ms"):
        return value + step_us // 1000
    if not name.endswith("_unix_us"):
        return value
    return value + step_us


def _pushes(runs: list[Run], given_unix_us: int) -> list[list[int]]:
    """Return one push for each partition that has runs, as if all its messages had been given at
    that time. A push is [partition, time, first, last, first, last, …]."""
    found: dict[int, list[int]] = {}
    for partition, first, count in runs:
        found.setdefault(partition, [partition, given_unix_us]).extend((first, first + count - 1))
    return list(found.values())
