"""The loop stands still until the writer is at its COMMIT: when, for how long, and with what."""

import threading

import pytest

from push.errors import Unknown
from storage.sqlite import writer as sqlite_turn
from storage.sqlite.writer import HANDOFF_BYTES_MAX, HANDOFF_BYTES_MIN, CommitHandoff
from tests.contract.stores import append, change, with_group
from tests.histories.house import eventually
from tests.storage.conftest import Embedded, commits

LONG_S = 20.0


def idle() -> CommitHandoff:
    """Of a writer that waits."""
    handoff = CommitHandoff()
    handoff.is_idle = True
    return handoff


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        (HANDOFF_BYTES_MIN - 1, False), (HANDOFF_BYTES_MIN, True),
        (HANDOFF_BYTES_MAX, True), (HANDOFF_BYTES_MAX + 1, False),
    ],
)  # fmt: skip
def test_the_loop_stands_for_commits_of_some_size(size: int, wanted: bool) -> None:
    assert idle().prepare(size) is wanted


def test_it_stands_only_where_the_writer_begins_at_once() -> None:
    """A writer that is in the middle of an fsync would have it stand for nothing."""
    assert not CommitHandoff().prepare(HANDOFF_BYTES_MIN)
    handoff = idle()
    assert handoff.prepare(HANDOFF_BYTES_MIN)
    assert not handoff.prepare(HANDOFF_BYTES_MIN), "it has been woken up"


def test_it_stands_until_what_needs_the_lock_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_turn, "HANDOFF_S_MAX", LONG_S)
    handoff, said = idle(), []
    handoff.prepare(HANDOFF_BYTES_MIN)

    def write() -> None:
        said.append("written")
        handoff.release()

    writer = threading.Thread(target=write)
    writer.start()
    handoff.wait()
    assert said == ["written"]
    writer.join()
    handoff.wait()  # it is over: nothing happens


def test_it_stands_no_longer_than_it_may_and_the_next_time_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What comes too late is not taken for the next one's."""
    monkeypatch.setattr(sqlite_turn, "HANDOFF_S_MAX", 0.001)
    handoff = idle()
    handoff.prepare(HANDOFF_BYTES_MIN)
    first = handoff._gate
    handoff.wait()
    assert handoff._gate is first is not None
    handoff.release()
    handoff.is_idle = True
    assert handoff.prepare(HANDOFF_BYTES_MIN)
    assert handoff._gate is not None
    assert handoff._gate.locked()


@pytest.fixture
def stood(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each time that the loop stood, whether it went on because the writer said so."""
    monkeypatch.setattr(sqlite_turn, "HANDOFF_S_MAX", LONG_S)
    found: list[bool] = []
    wait = CommitHandoff.wait

    def watched(handoff: CommitHandoff) -> None:
        wait(handoff)
        found.append(handoff._gate is None)

    monkeypatch.setattr(CommitHandoff, "wait", watched)
    return found


@pytest.mark.usefixtures("unasked")
async def test_what_is_handed_over_with_it_has_its_transaction(
    embedded: Embedded, stood: list[bool]
) -> None:
    """P9: the cursors too, that come behind it in the same turn of the loop."""
    store = await embedded.open()
    await with_group(store)
    await store.append([append(messages=1)])
    await eventually(lambda: store._writer._handoff.is_idle)
    before = await commits(store)
    await eventually(lambda: store._writer._handoff.is_idle)
    stored = store.append([append(messages=1, size=HANDOFF_BYTES_MIN)])
    passed = store.write_cursors([change(settled=[(0, 0)])])
    await stored
    await passed
    assert stood == [True]
    assert await commits(store) == before + 1


async def test_nobody_stands_while_the_disk_writes(embedded: Embedded, stood: list[bool]) -> None:
    """It takes as long as it takes, and needs no lock."""
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    await eventually(lambda: store._writer._handoff.is_idle)
    goes_on: list[bool] = []

    def said(statement: str) -> None:
        if statement == "COMMIT":
            goes_on.append(store._writer._handoff._gate is None)

    store._connections.writer.set_trace_callback(said)
    await store.append([append(messages=1, size=HANDOFF_BYTES_MIN)])
    assert goes_on == stood == [True]


async def test_a_commit_that_fails_lets_the_loop_go_on(
    embedded: Embedded, stood: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is at its COMMIT then."""
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    await eventually(lambda: store._writer._handoff.is_idle)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(store._state, "flush", fail)
    with pytest.raises(Unknown):
        await store.append([append(messages=1, size=HANDOFF_BYTES_MIN)])
    assert stood == [True]


async def test_an_act_that_changes_nothing_lets_the_loop_go_on(
    embedded: Embedded, stood: list[bool]
) -> None:
    store = await embedded.open()
    await eventually(lambda: store._writer._handoff.is_idle)
    assert await store._writer.submit(lambda: 7, HANDOFF_BYTES_MIN) == 7
    assert stood == [True]


async def test_for_what_goes_beside_others_nobody_stands(
    embedded: Embedded, stood: list[bool]
) -> None:
    """The writer waits for those others."""
    store = await embedded.open()
    await eventually(lambda: store._writer._handoff.is_idle)
    assert await store._writer.submit(lambda: 7, HANDOFF_BYTES_MIN, is_background=True) == 7
    assert stood == []
