"""A message's life passes no more modules than are recorded in tests/layout/ratchets.toml."""

from pathlib import Path

import pytest

from tests.layout.ratchets import judge, table
from tests.layout.tree import SERVER
from tests.system.life import JOURNEYS, LOOP, Hop, Life, as_read, lives, middle, path_of

SLACK = {"modules": 1, "returns": 12, "lines": 900}
"""The unnoticed fall of each figure. Threads run at the same time, so returns vary, and a module
with one function may be left out of a recording; lines change with every docstring."""


@pytest.mark.parametrize("journey", JOURNEYS)
def test_a_message_passes_no_more_modules_than_recorded(journey: str) -> None:
    life, recorded = middle(lives(journey)), table()["life"][journey]
    measured = {"modules": life.modules, "returns": life.returns, "lines": life.lines}
    found = [judge(f"{journey}.{name}", measured[name], recorded[name], SLACK[name])
             for name in measured]  # fmt: skip
    wrong = [one for one in found if one]
    assert not wrong, f"{wrong} (python -m tests.system.life {journey} --hops shows the way)"
    assert {name.partition(".")[0] for name in life.passages} <= set(SERVER)
    assert len({hop.thread for hop in life.hops}) >= 2, "the storage's thread was not seen"


def test_a_return_is_a_passage_through_a_module_that_was_left() -> None:
    def life(*names: str) -> Life:
        return Life(tuple(Hop(name, str(i), LOOP) for i, name in enumerate(names)), len(names))

    assert life("a", "a", "b").returns == 0
    assert life("a", "b", "a").returns == 1
    assert life("a", "b", "a", "b", "c").returns == 2
    assert life("a", "b", "a", "b", "c").modules == 3


def test_what_another_thread_does_meanwhile_is_read_in_one_piece() -> None:
    seen = [("a", LOOP), ("s", "store"), ("b", LOOP), ("t", "store"), ("c", LOOP)]
    hops = [Hop(name, name, thread) for name, thread in seen]
    assert [hop.module for hop in as_read(hops).hops] == ["a", "s", "t", "b", "c"]
    assert as_read([*hops, *hops]).calls == 10
    assert len(as_read([*hops, *hops]).hops) == 5


def test_every_module_that_is_passed_has_a_file() -> None:
    assert path_of("push.limits") == Path("push/limits.py")
    assert path_of("push") == Path("push/__init__.py")
