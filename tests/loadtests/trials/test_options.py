"""Options of trials reach the field of the Plan that declares them; what is not given keeps its
default."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner

from loadtests.trials import __main__ as command
from loadtests.trials import options
from loadtests.trials.trial import Finding, Progress


@dataclass(frozen=True)
class Plan:
    """A promise."""

    counts: Sequence[int] = options.wholes((3, 4), "How many.", 1, 9, "--count counts")
    keys: int = options.number_of(10, (10, 30), "Of keys.")
    kills: int = options.whole(5, "How often.", 1, 9, "--kills count")
    kinds: Sequence[str] = options.some_of(("a", "b"), "Only these.", "--kind kinds")
    turn_s: float = options.seconds(2.0, "How long.")
    handlers: bool = options.option(False, "By handlers.", shown=False, is_flag=True)
    settle_s: float = 1.5


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that the trial `sample` was run with."""
    found: list[Plan] = []

    async def run(plan: Plan, progress: Progress) -> Finding:
        found.append(plan)
        return Finding("sample")

    commands: dict[str, Any] = dict(command.trials.commands)
    monkeypatch.setattr(command.trials, "commands", commands)
    command.add("sample", Plan, run)
    return found


def test_without_options_a_trial_runs_with_the_defaults_of_its_plan(seen: list[Plan]) -> None:
    done = CliRunner().invoke(command.trials, ["sample", "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    assert seen == [Plan((3, 4), 10, 5, ("a", "b"), 2.0, False, 1.5)]


def test_options_reach_the_fields_that_declare_them(seen: list[Plan]) -> None:
    said = "sample --count 7 --count 8 --keys 30 --kills 2 --kind b --seconds 9 --handlers"
    done = CliRunner().invoke(command.trials, said.split(), catch_exceptions=False)
    assert done.exit_code == 0
    assert seen == [Plan((7, 8), 30, 2, ("b",), 9.0, True, 1.5)]


def test_a_plan_without_options_may_be_made_by_hand() -> None:
    assert Plan() == Plan((3, 4), 10, 5, ("a", "b"), 2.0, False, 1.5)
