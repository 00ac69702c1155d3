"""The JavaScript client in Node: its own tests, and the transcripts of clients/conformance."""

import pytest

from loadtests.node import run_node
from tests.javascript.conftest import PACKAGE, REPLAYS, Result, check, replay

NAMES = sorted({name for name, _ in REPLAYS})


def test_the_tests_of_the_client_pass() -> None:
    rooms = ("proto", "io", "api", "conformance")
    files = [file for room in rooms for file in sorted((PACKAGE / "test" / room).glob("*.test.js"))]
    assert {file.parent.name for file in files} == set(rooms)
    ran = run_node("--test", *files, cwd=PACKAGE)
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-5_000:]


@pytest.fixture(scope="module")
def results() -> dict[tuple[str, str], Result]:
    """Of every replay."""
    return {(one["name"], one["transport"]): one for one in replay()}


@pytest.fixture(scope="module")
def controls() -> list[Result]:
    """Of every replay of an altered transcript."""
    return replay("--controls")


@pytest.mark.parametrize(("name", "transport"), REPLAYS)
def test_the_client_says_what_the_transcript_shows(
    name: str, transport: str, results: dict[tuple[str, str], Result]
) -> None:
    check(name, transport, results)


def test_no_other_transcript_is_replayed(results: dict[tuple[str, str], Result]) -> None:
    assert results.keys() == set(REPLAYS)


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_transcript_is_noticed(name: str, controls: list[Result]) -> None:
    """The last two lines of the client say something else, or are left out, one after another."""
    ours = [control for control in controls if control["name"] == name]
    assert ours, "not replayed"
    assert [control["change"] for control in ours if not control["isNoticed"]] == []
