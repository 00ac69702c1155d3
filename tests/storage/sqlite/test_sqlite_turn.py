"""The loop stands still until the writer is at its COMMIT: when, for how long, and with what."""

import threading

import pytest

from push.errors import Unknown
from storage.sqlite import scheduling as sqlite_turn
from storage.sqlite.scheduling import STAND_BYTES_MAX, STAND_BYTES_MIN, CommitHandoff
from tests.contract.stores import append, change, with_group
from tests.histories.house import eventually
from tests.storage.conftest import Embedded, commits

LONG_S = 20.0


def idle() -> CommitHandoff:
    """Of a writer that waits."""
    turn = CommitHandoff()
    turn.is_idle = True
    return turn


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        (STAND_BYTES_MIN - 1, False), (STAND_BYTES_MIN, True),
        (STAND_BYTES_MAX, True), (STAND_BYTES_MAX + 1, False),
    ],
)  # fmt: skip
def test_the_loop_stands_for_commits_of_some_size(size: int, wanted: bool) -> None:
    assert idle().wanted(size) is wanted


def test_it_stands_only_where_the_writer_begins_at_once() -> None:
    """A writer that is in the middle of an fsync would have it stand for nothing."""
    assert not CommitHandoff().wanted(STAND_BYTES_MIN)
    turn = idle()
    assert turn.wanted(STAND_BYTES_MIN)
    assert not turn.wanted(STAND_BYTES_MIN), "it has been woken up"


def test_it_stands_until_what_needs_the_lock_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_turn, "STAND_S", LONG_S)
    turn, said = idle(), []
    turn.wanted(STAND_BYTES_MIN)

    def write() -> None:
        said.append("written")
        turn.over()

    writer = threading.Thread(target=write)
    writer.start()
    turn.stand()
    assert said == ["written"]
    writer.join()
    turn.stand()  # it is over: nothing happens


def test_it_stands_no_longer_than_it_may_and_the_next_time_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What comes too late is not taken for the next one's."""
    monkeypatch.setattr(sqlite_turn, "STAND_S", 0.001)
    turn = idle()
    turn.wanted(STAND_BYTES_MIN)
    first = turn._gate
    turn.stand()
    assert turn._gate is first is not None
    turn.over()
    turn.is_idle = True
    assert turn.wanted(STAND_BYTES_MIN)
    assert turn._gate is not None
    assert turn._gate.locked()


@pytest.fixture
def stood(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each time that the loop stood, whether it went on because the writer said so."""
    monkeypatch.setattr(sqlite_turn, "STAND_S", LONG_S)
    found: list[bool] = []
    stand = CommitHandoff.stand

    def watched(turn: CommitHandoff) -> None:
        stand(turn)
        found.append(turn._gate is None)

    monkeypatch.setattr(CommitHandoff, "stand", watched)
    return found


@pytest.mark.usefixtures("unasked")
async def test_what_is_handed_over_with_it_has_its_transaction(
    embedded: Embedded, stood: list[bool]
) -> None:
    """P9: the cursors too, that come behind it in the same turn of the loop."""
    store = await embedded.open()
    await with_group(store)
    await store.append([append(messages=1)])
    await eventually(lambda: store._writer._turn.is_idle)
    before = await commits(store)
    await eventually(lambda: store._writer._turn.is_idle)
    stored = store.append([append(messages=1, size=STAND_BYTES_MIN)])
    passed = store.write_cursors([change(settled=[(0, 0)])])
    await stored
    await passed
    assert stood == [True]
    assert await commits(store) == before + 1


async def test_nobody_stands_while_the_disk_writes(embedded: Embedded, stood: list[bool]) -> None:
    """It takes as long as it takes, and needs no lock."""
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    await eventually(lambda: store._writer._turn.is_idle)
    goes_on: list[bool] = []

    def said(statement: str) -> None:
        if statement == "COMMIT":
            goes_on.append(store._writer._turn._gate is None)

    store._opened.writer.set_trace_callback(said)
    await store.append([append(messages=1, size=STAND_BYTES_MIN)])
    assert goes_on == stood == [True]


async def test_a_commit_that_fails_lets_the_loop_go_on(
    embedded: Embedded, stood: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is at its COMMIT then."""
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    await eventually(lambda: store._writer._turn.is_idle)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(store._books, "flush", fail)
    with pytest.raises(Unknown):
        await store.append([append(messages=1, size=STAND_BYTES_MIN)])
    assert stood == [True]


async def test_an_act_that_changes_nothing_lets_the_loop_go_on(
    embedded: Embedded, stood: list[bool]
) -> None:
    store = await embedded.open()
    await eventually(lambda: store._writer._turn.is_idle)
    assert await store._writer.submit(lambda: 7, STAND_BYTES_MIN) == 7
    assert stood == [True]


async def test_for_what_goes_beside_others_nobody_stands(
    embedded: Embedded, stood: list[bool]
) -> None:
    """The writer waits for those others."""
    store = await embedded.open()
    await eventually(lambda: store._writer._turn.is_idle)
    assert await store._writer.submit(lambda: 7, STAND_BYTES_MIN, is_beside=True) == 7
    assert stood == []
