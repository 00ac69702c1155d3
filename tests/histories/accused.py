"""Healthy histories, and ones with one fault planted in the log of each, in one folder of logs:
what an audit of all of them must find, and what it must not."""

import itertools
import json
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.histories.healthy import HEALTHY, mixed
from tests.histories.healthy_processes import PROCESSES, logs_of_processes
from tests.histories.logged_world import FILE_BYTES, logs_of
from tests.histories.planting import FAULTS, Planted, Planter
from tests.memory import in_memory

HOLE: Final = "hole"
WAITING: Final = "waiting"
"""A finding that is no fault."""
FILES: Final = ("missing_file", "damaged_file")
SHORT: Final = (
    "behind_at_its_stop", "exhausted", "left_parked", "sought_back", "at_most_once",
    "pulled_and_subscribed", "dead_letters_full", "expired", "overflowing",
    "one_of_two_is_killed", "one_of_two_stops",
)  # fmt: skip
"""Healthy histories of the short form; the long one has all of them."""
MIXED: Final = 12
"""Number of random ones in the long form."""
PLANTED_SHORT: Final = (
    ("lost_dispatched", "leases_that_end"), ("lost_settled", "behind_and_caught_up"),
    ("lost_message", "two_groups"), ("lost_certified", "without_keys"),
    ("doubled_dispatched", "paused"),
    ("doubled_settled", "clients_that_come_and_go"), ("swapped_dispatched", "behind_at_its_stop"),
    ("swapped_certified", "left_parked"), ("settled_early", "rejected"),
    ("overtaking", "exhausted"), ("given_at_the_next_owner", "partitions_that_move"),
    ("lost_message", "one_of_two_is_killed"), ("missing_file", "expired"),
    ("lost_beginning", "at_most_once"), ("lost_beginning", "sought_back"),
)  # fmt: skip
"""(fault, history) of the short form."""
PLANTED: Final = (
    *PLANTED_SHORT,
    ("lost_position", "partitions_that_move"),
    ("lost_dispatched", "pulled"), ("lost_dispatched", "one_of_two_is_killed"),
    ("lost_settled", "expired"), ("lost_settled", "one_of_two_is_killed"),
    ("lost_settled", "at_most_once"), ("lost_message", "stopped_and_started"),
    ("lost_message", "parked_and_skipped"), ("lost_certified", "one_of_two_is_killed"),
    ("doubled_certified", "sent_again"), ("doubled_certified", "killed"),
    ("given_again", "behind_at_its_stop"), ("given_again", "one_of_two_is_killed"),
    ("doubled_dispatched", "at_most_once"), ("doubled_settled", "redriven"),
    ("swapped_dispatched", "one_of_two_is_cut_off"), ("swapped_certified", "one_of_two_is_killed"),
    ("settled_early", "one_of_two_stops"), ("overtaking", "left_parked"),
    ("overtaking", "parked_at_two"), ("given_at_the_next_owner", "one_of_two_stops"),
    ("missing_file", "one_of_two_stops"), ("damaged_file", "nacks_with_backoff"),
    ("damaged_file", "one_of_two_is_cut_off"), ("lost_position", "stopped_and_started"),
)  # fmt: skip


SMALL_BYTES: Final = 30_000
"""The size of a file, for a fault that needs a file in the middle."""
RUNS_MAX: Final = 5
"""The most runs of a history until a fault has a place."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of an audit."""

    what: str
    queue_id: str
    group: str | None
    partition: int
    first: int
    count: int

    def where(self) -> set[tuple[int, int]]:
        """Return (partition, offset) of each message."""
        return {(self.partition, offset) for offset in range(self.first, self.first + self.count)}


@dataclass(frozen=True, slots=True)
class Case:
    """A history, and its fault; None if it is healthy."""

    name: str
    queue_ids: frozenset[str]
    gateways: frozenset[str]
    planted: Planted | None
    is_exact: bool = True
    """Whether its fault must be found as what it is, all of it; otherwise any finding there will
    do."""

    def faults_of(self, certain: Sequence[Finding]) -> list[str]:
        """Return what an audit says wrongly of it, by its certain findings in its queues."""
        planted = self.planted
        accused = [one for one in certain if one.what != HOLE]
        if planted is None or planted.what is None:
            return [f"{self.name}: accused of {one}" for one in accused]
        wrong = [
            f"{self.name}: besides {planted} also {one}"
            for one in accused
            if one.group != planted.group or not one.where() <= planted.touched
        ]
        meant = [
            one.where() for one in certain
            if not self.is_exact or (one.what, one.group) == (planted.what, planted.group)
        ]  # fmt: skip
        found = set().union(*meant) & planted.touched
        if not found or (self.is_exact and not planted.offsets <= found):
            wrong.append(f"{self.name}: {planted} is not found, but {list(certain)}")
        return wrong


def _case(
    name: str, folders: Iterable[Path], planted: Planted | None, *, is_exact: bool = True
) -> Case:
    queue_ids, gateways = set(), set()
    for folder in folders:
        for path in folder.iterdir():
            gateways.add(path.name.partition("-")[0])
            for raw in path.read_bytes().splitlines():
                queue_ids.add(json.loads(raw).get("queue_id"))
    return Case(name, frozenset(queue_ids - {None}), frozenset(gateways), planted, is_exact)


def healthy_cases(into: Path, *, is_whole: bool, seed: int = 1) -> list[Case]:
    """Run healthy histories, and put their logs into folders of `into`."""
    made = []
    for name in HEALTHY if is_whole else SHORT:
        made.append(_case(name, logs_of(name, HEALTHY[name], seed, into), None))
    for number in range(MIXED if is_whole else 1):
        name = f"mixed{number}"
        made.append(_case(name, logs_of(name, mixed, seed * 1000 + number, into), None))
    for name in PROCESSES if is_whole else ():
        with in_memory() as folder:
            made.append(_case(name, logs_of_processes(name, seed, folder, into), None))
    return made


def planted_cases(into: Path, *, is_whole: bool, seed: int = 1) -> list[Case]:
    """Run histories, plant a fault in the log of each, and put them into folders of `into`."""
    made = []
    for fault, history in PLANTED if is_whole else PLANTED_SHORT:
        made.append(planted_case(into, fault, history, seed=seed))
    return made


def planted_case(into: Path, fault: str, history: str, *, seed: int) -> Case:
    """Plant this fault in the log of this history, which runs until the fault has a place."""
    name = f"{fault}-{history}"
    for again in range(RUNS_MAX):
        file_bytes = SMALL_BYTES if fault in FILES else FILE_BYTES
        folders = logs_of(name, HEALTHY[history], seed + again + 1, into, file_bytes=file_bytes)
        planted = FAULTS[fault](Planter(folders, Random(seed)))
        if planted is not None:
            return _case(name, folders, planted)
        for folder in folders:
            shutil.rmtree(folder.parent)
    raise AssertionError(f"{name}: there is no place for it")


def cases_of_any(into: Path, *, seed: int) -> list[Case]:
    """Return each history with each fault that has a place in it, and each history without a
    fault."""
    made = []
    for history, fault in itertools.product(HEALTHY, (None, *FAULTS)):
        name = f"any-{fault}-{history}"
        file_bytes = SMALL_BYTES if fault in FILES else FILE_BYTES
        folders = logs_of(name, HEALTHY[history], seed, into, file_bytes=file_bytes)
        planted = FAULTS[fault](Planter(folders, Random(seed))) if fault is not None else None
        if fault is None or planted is not None:
            made.append(_case(name, folders, planted, is_exact=False))
        else:
            for folder in folders:
                shutil.rmtree(folder.parent)
    return made


def wrong(
    cases: Sequence[Case], certain: Iterable[Finding], missing_files: Mapping[str, Sequence[int]]
) -> list[str]:
    """Return what an audit of all these cases says wrongly, or misses."""
    by_queue: dict[str, list[Finding]] = defaultdict(list)
    for one in certain:
        by_queue[one.queue_id].append(one)
    said: list[str] = []
    missed: dict[str, list[int]] = {}
    for case in cases:
        here = [one for queue_id in case.queue_ids for one in by_queue.pop(queue_id, [])]
        said += case.faults_of(here)
        if case.planted is not None and case.planted.kind == "missing_file":
            assert case.planted.file is not None
            gateway, _, number = case.planted.file.stem.split("-")
            missed[gateway] = [int(number)]
    said += [f"somewhere else: {one}" for rows in by_queue.values() for one in rows]
    if dict(missing_files) != missed:
        said.append(f"missing are {missed}, not {dict(missing_files)}")
    return said


def findings_of(rows: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Return the certain findings of an audit's rows."""
    return [
        Finding(
            row["what"], row["queue_id"], row["group"], row["partition"], row["first"], row["count"]
        )
        for row in rows
        if row["certain"] and row["what"] != WAITING
    ]
