"""Figures of the code only fall, and each fall is recorded. The figures are in
tests/layout/ratchets.py."""

import ast
from pathlib import Path

import pytest

from tests.layout.ratchets import FIGURES, counted, docstrings, judge, modules, reasons, table
from tests.layout.tree import SERVER, files

LOWER = ".venv/bin/python -m tests.layout.ratchets --lower"
OFFENDERS = ".venv/bin/python -m tests.layout.ratchets"


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_only_falls(name: str) -> None:
    wrong = judge(name, len(counted(name)), table()["figures"][name])
    assert not wrong, f"{wrong} ({OFFENDERS} {name} shows what counts; {LOWER} lowers)"


def test_every_recorded_figure_is_measured() -> None:
    assert list(table()["figures"]) == list(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_a_reason_is_for_something_that_is_there(name: str) -> None:
    still = {one.partition(" ")[0] for one in FIGURES[name].measure()}
    assert set(reasons(name)) <= still
    assert all(reasons(name).values())


def test_risen_fallen_and_equal_figures_are_distinguished() -> None:
    assert "may only fall" in judge("it", 3, 2)
    assert "lower the recorded number from 2 to 1" in judge("it", 1, 2)
    assert judge("it", 2, 2) == ""
    assert judge("it", 96, 100, slack=5) == ""
    assert "lower" in judge("it", 94, 100, slack=5)
    assert "risen" in judge("it", 101, 100, slack=5)


def test_docstrings_of_attributes_are_found_with_what_they_are_about() -> None:
    tree = ast.parse(
        '"""Module."""\nX: bool = True\n"""Whether it is."""\n'
        'class A:\n    """Class."""\n    y: int = 1\n    """Number."""\n'
        '    def m(self) -> bool:\n        """Whether."""\n'
    )
    assert [(text, is_bool) for _, text, is_bool in docstrings(tree)] == [
        ("Module.", None), ("Whether it is.", True), ("Class.", None), ("Number.", False),
        ("Whether.", True),
    ]  # fmt: skip


def test_every_module_of_the_server_is_counted() -> None:
    here = [path for path in files(".py", *SERVER) if path.name != "__init__.py"]
    assert len(modules()) == len(here) > 100
    assert Path("push/limits.py") in here
