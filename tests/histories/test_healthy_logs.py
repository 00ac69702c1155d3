"""Logs of healthy brokers agree with themselves in any history, by an independent oracle. The
histories contain cases that a rougher rule takes for a fault."""

import os
from pathlib import Path

import pytest

from tests.histories.accused import PLANTED, PLANTED_SHORT, planted_case
from tests.histories.healthy import HEALTHY, mixed
from tests.histories.log_oracle import Log, passed_over, read_log
from tests.histories.logged_world import logs_of

SOAK = bool(os.environ.get("TOCSIN_SOAK"))
SEEDS = range(200 if SOAK else 4)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_log_agrees_with_itself(name: str, folder: Path) -> None:
    """P1, P5: Each position has as many messages open as are not settled below it. Every settled
    message was given, once."""
    log = Log(read_log(logs_of(name, HEALTHY[name], 1, folder)))
    assert log.faults() == []
    assert log.epochs


@pytest.mark.parametrize("seed", SEEDS)
def test_any_healthy_log_agrees_with_itself(seed: int, folder: Path) -> None:
    """P1, P5, R15, R17, R22."""
    assert Log(read_log(logs_of(f"mixed{seed}", mixed, seed, folder))).faults() == []


def test_a_seed_gives_the_same_log_each_time(folder: Path) -> None:
    """A history that a log accuses can be played again."""
    logs = []
    for time in ("first", "second"):
        (folder / time).mkdir()
        into = logs_of("mixed0", mixed, 0, folder / time)
        logs.append({path.name: path.read_bytes() for one in into for path in one.iterdir()})
    assert logs[0] == logs[1]
    assert logs[0]


@pytest.mark.parametrize("name", ["behind_at_its_stop", "left_parked", "paused", "one_hot_key"])
def test_a_group_that_is_behind_has_passed_messages_over(name: str, folder: Path) -> None:
    """A rule that takes each passed-over message for lost accuses these."""
    assert passed_over(Log(read_log(logs_of(name, HEALTHY[name], 1, folder))))


@pytest.mark.parametrize(("fault", "history"), PLANTED if SOAK else PLANTED_SHORT)
def test_a_fault_has_its_place_in_a_log_that_is_whole(
    fault: str, history: str, folder: Path
) -> None:
    """The files show nothing but the fault."""
    case = planted_case(folder, fault, history, seed=1)
    planted = case.planted
    assert planted is not None
    assert planted.touched or planted.what is None
    if fault != "damaged_file":
        read_log(sorted(folder.glob("*/delivery")))
