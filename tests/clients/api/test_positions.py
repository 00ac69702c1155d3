"""Where readers keep their positions, and when: stores, throttling, at least once."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import tocsin
from tocsin.api import positions
from tocsin.api.positions import default_name
from tocsin.proto import wire
from tocsin.proto.reader_opening import ReaderOpening

from gateway.wire import frames
from tests.clients.fake_broker import FakeBroker

POSITION = tocsin.Position(queue_id="id", partitions={"0": (1, 7), "1": (2, 0)})
OTHER = tocsin.Position(queue_id="id", partitions={"0": (1, 8), "1": (2, 0)})


class Recorder:
    """A store of one's own; `failing` makes it raise."""

    def __init__(self) -> None:
        self.saved: list[tocsin.Position] = []
        self.failing = False
        self.saving = asyncio.Event()

    async def load(self, name: str) -> tocsin.Position | None:
        return self.saved[-1] if self.saved else None

    async def save(self, name: str, position: tocsin.Position) -> None:
        self.saving.set()
        if self.failing:
            raise OSError("the disk is full")
        self.saved.append(position)

    def offsets(self) -> list[int]:
        """How many messages were done, each time it was saved."""
        return [sum(at for _, at in one.partitions.values()) for one in self.saved]


async def fill(client: tocsin.Client, count: int) -> None:
    await client.publish_many("orders", [{"body": n, "key": "k"} for n in range(count)])


async def break_off(reading: tocsin.Reader, before: Callable[[], None]) -> None:
    """Fail while the second message is being worked on."""
    async with reading as reader:
        await anext(reader)
        await anext(reader)
        before()
        raise KeyError


# --- FilePositions ------------------------------------------------------------------------------


async def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    store = tocsin.FilePositions(tmp_path / "new" / "folder")
    assert await store.load("orders") is None
    await store.save("orders", POSITION)
    await store.save("orders", OTHER)
    store.release("orders")
    assert await tocsin.FilePositions(store.folder).load("orders") == OTHER


async def test_a_crash_while_writing_leaves_the_old_position(tmp_path: Path) -> None:
    store = tocsin.FilePositions(tmp_path)
    await store.save("orders", POSITION)
    store.release("orders")
    (tmp_path / "orders.new").write_bytes(b'{"version":1,"na')
    assert await store.load("orders") == POSITION
    await store.save("orders", OTHER)
    store.release("orders")
    assert await store.load("orders") == OTHER


class Held:
    """A call that a thread is in until it is let go."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.entered = threading.Event()
        self.let_go = threading.Event()

    def __call__(self, *args: Any) -> Any:
        self.entered.set()
        assert self.let_go.wait(10)
        return self._call(*args)

    async def cancelled_inside(self, task: "asyncio.Task[Any]") -> None:
        """Cancel the task that is in it, twice; it ends when the call does, and not before."""
        await asyncio.to_thread(self.entered.wait, 10)
        for _ in range(2):
            task.cancel()
            assert await asyncio.wait((task,), timeout=0.01) == (set(), {task})
        self.let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_save_that_is_cancelled_is_over_before_the_next_one_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that write one file leave half a position, or the earlier one."""
    store = tocsin.FilePositions(tmp_path)
    held = Held(os.fsync)
    monkeypatch.setattr(os, "fsync", held)
    await held.cancelled_inside(asyncio.create_task(store.save("orders", POSITION)))
    await store.save("orders", OTHER)
    store.release("orders")
    assert await store.load("orders") == OTHER


async def test_a_load_that_is_cancelled_leaves_the_name_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(positions._parse)
    monkeypatch.setattr(positions, "_parse", held)
    loading = asyncio.create_task(tocsin.FilePositions(tmp_path).load("orders"))
    await held.cancelled_inside(loading)
    assert await tocsin.FilePositions(tmp_path).load("orders") is None


DAMAGE = {
    "empty": (b"", "truncated"),
    "half": (b'{"version":1,"name":"orders","crc32":12', "truncated"),
    "no position": (b'{"version":1,"name":"orders","crc32":0,"position":{}}', "queue_id"),
    "other bytes": (b"\xff\xfe", ""),
    "checksum": (
        b'{"version":1,"name":"orders","crc32":1,"position":{"queue_id":"i","partitions":{}}}',
        "checksum",
    ),
    "name": (
        b'{"version":1,"name":"x","crc32":0,"position":{"queue_id":"i","partitions":{}}}',
        "'x'",
    ),
    "version": (
        b'{"version":2,"name":"orders","crc32":0,"position":{"queue_id":"i","partitions":{}}}',
        "version 2",
    ),
}


@pytest.mark.parametrize(("content", "why"), DAMAGE.values(), ids=DAMAGE)
async def test_a_damaged_file_is_an_error_that_says_what_to_do(
    client: tocsin.Client, tmp_path: Path, content: bytes, why: str
) -> None:
    """Nothing is read, and nothing overwritten; deleted as told, the reader begins."""
    path = tmp_path / "orders.json"
    path.write_bytes(content)
    store = tocsin.FilePositions(tmp_path)
    with pytest.raises(tocsin.PositionDamaged, match=f"{path}.*{why}.*delete it") as told:
        async with client.read("orders", position_store=store):
            pass
    assert told.value.path == str(path)
    assert path.read_bytes() == content
    path.unlink()
    async with client.read("orders", position_store=store):
        pass


async def test_two_readers_never_share_a_name(client: tocsin.Client, tmp_path: Path) -> None:
    async with client.read("orders", position_store=tocsin.FilePositions(tmp_path)):
        for store in (tocsin.FilePositions(tmp_path), tocsin.FilePositions(tmp_path)):
            with pytest.raises(tocsin.PositionInUse, match=r"orders.*locked.*another name"):
                async with client.read("orders", position_store=store):
                    pass
        other = tocsin.FilePositions(tmp_path)
        async with client.read("orders", position_store=other, name="another"):
            pass
    async with client.read("orders", position_store=tocsin.FilePositions(tmp_path)):
        pass


HOLDER = """
import asyncio, sys, tocsin
asyncio.run(tocsin.FilePositions(sys.argv[1]).load("orders"))
print("held", flush=True)
sys.stdin.read()
"""


async def test_another_process_holds_the_name_until_its_end(tmp_path: Path) -> None:
    store = tocsin.FilePositions(tmp_path)
    pipe = asyncio.subprocess.PIPE
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(tmp_path), stdin=pipe, stdout=pipe
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"held\n"
    with pytest.raises(tocsin.PositionInUse):
        await store.load("orders")
    holder.kill()
    await holder.wait()
    assert await store.load("orders") is None


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a" * 201, "ä"])
async def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        await tocsin.FilePositions(tmp_path).load(name)
    assert await tocsin.FilePositions(tmp_path).load("a" * 200) is None


def test_the_default_name_tells_readers_of_other_keys_apart() -> None:
    """A position behind messages of a says nothing about b: these would be skipped."""
    names = [default_name("orders", keys) for keys in (None, ["a"], ["b"], ["a", "b"], ["ab"])]
    assert len(set(names)) == len(names)
    assert default_name("orders", ["b", "a", "a"]) == default_name("orders", ["a", "b"])


# --- when it is saved ---------------------------------------------------------------------------


async def test_it_is_saved_every_so_many_messages_and_at_the_end(client: tocsin.Client) -> None:
    store = Recorder()
    await fill(client, 10)
    reading = client.read("orders", start="earliest", position_store=store, save_every=4)
    async with reading as reader:
        assert store.offsets() == [0], "the start itself"
        for _ in range(10):
            await anext(reader)
    assert store.offsets() == [0, 4, 8, 10]


async def test_it_is_saved_by_the_clock_too(client: tocsin.Client) -> None:
    store = Recorder()
    await fill(client, 3)
    reading = client.read("orders", start="earliest", position_store=store, save_every_s=0.01)
    async with reading as reader:
        await anext(reader)
        await anext(reader)
        store.saving.clear()
        waiting = asyncio.ensure_future(anext(reader))
        async with asyncio.timeout(4):  # after 5 s it would be saved by the default
            await waiting
            await store.saving.wait()
        assert store.offsets() == [0, 2], "the third is in the making"


async def test_never_a_message_is_saved_before_the_next_is_asked_for(
    client: tocsin.Client,
) -> None:
    """At least once: while it is being worked on, the position is before it."""
    store = Recorder()
    await fill(client, 5)
    reading = client.read("orders", start="earliest", position_store=store, save_every=1)
    async with reading as reader:
        for number in range(5):
            assert (await anext(reader)).body == number
            assert store.offsets()[-1] == number
            assert reader.position is not None
            assert sum(at for _, at in reader.position.partitions.values()) == number + 1
            assert store.offsets()[-1] == number, "looking at it moves nothing"


async def test_an_exception_leaves_the_last_message_undone(client: tocsin.Client) -> None:
    store = tocsin.MemoryPositions()
    await fill(client, 5)
    reader = client.read("orders", start="earliest", position_store=store)
    with pytest.raises(KeyError):
        await break_off(reader, lambda: None)
    async with client.read("orders", position_store=store) as reader:
        assert (await anext(reader)).body == 1


async def test_a_gap_that_was_raised_and_not_passed_is_reported_again(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    store = tocsin.MemoryPositions()
    await fill(client, 5)
    async with client.read("orders", start="earliest", position_store=store):
        pass
    broker.retained_from = 3
    for _ in range(2):
        with pytest.raises(tocsin.Gap):
            async with client.read("orders", position_store=store) as reader:
                await anext(reader)
    async with client.read("orders", position_store=store, on_gap=lambda _: None) as reader:
        assert (await anext(reader)).body == 3


async def test_what_the_store_raises_reaches_the_reader_and_nothing_is_lost(
    client: tocsin.Client,
) -> None:
    store = Recorder()
    await fill(client, 6)
    reading = client.read("orders", start="earliest", position_store=store, save_every=2)
    async with reading as reader:
        bodies = [(await anext(reader)).body for _ in range(2)]
        store.failing = True
        with pytest.raises(OSError, match="full"):
            await anext(reader)
        store.failing = False
        bodies += [(await anext(reader)).body for _ in range(4)]
        assert bodies == list(range(6))
    assert store.offsets()[-1] == 6


async def test_a_timed_save_that_failed_is_reported_once(client: tocsin.Client) -> None:
    store = Recorder()
    await fill(client, 3)
    reading = client.read("orders", start="earliest", position_store=store, save_every_s=0.01)
    async with reading as reader:
        await anext(reader)
        store.saving.clear()
        store.failing = True
        await anext(reader)
        await store.saving.wait()
        await asyncio.sleep(0)
        store.failing = False
        with pytest.raises(OSError, match="full"):
            await anext(reader)
        assert (await anext(reader)).body == 2


async def test_a_failure_at_the_end_hides_no_other(client: tocsin.Client) -> None:
    store = Recorder()
    await fill(client, 2)
    reading = client.read("orders", start="earliest", position_store=store)
    with pytest.raises(KeyError):
        await break_off(reading, lambda: setattr(store, "failing", True))
    with pytest.raises(OSError, match="full"):
        async with client.read("orders", position_store=store) as reader:
            await anext(reader)


@pytest.mark.parametrize("wrong", [{"save_every": 0}, {"save_every_s": 0}])
async def test_a_throttle_that_never_saves_is_refused(
    client: tocsin.Client, wrong: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="every"):
        client.read("orders", position_store=tocsin.MemoryPositions(), **wrong)


# --- unknown, after a reconnect -----------------------------------------------------------------


@pytest.mark.parametrize("choice", ["earliest", "latest", "callback"])
async def test_a_reader_goes_on_in_another_history_at_the_chosen_place(
    broker: FakeBroker, client: tocsin.Client, choice: str
) -> None:
    """R26, in mid-stream: what had come before is handed out first. What the broker pushes before
    it hears of the choice is not."""
    asked: list[tocsin.PositionUnknown] = []

    def ask(error: tocsin.PositionUnknown) -> str:
        asked.append(error)
        return "latest"

    await fill(client, 4)
    how: Any = ask if choice == "callback" else choice
    async with client.read("orders", start="earliest", on_unknown=how) as reader:
        assert (await anext(reader)).body == 0
        await broker.until(lambda: reader._ledger._buffered == 3)
        broker.history = "history-2"
        subscribed = len(broker.received(frames.Subscribe))
        broker.cut()
        ends = 1 if choice == "earliest" else 3
        await broker.until(lambda: len(broker.received(frames.Subscribe)) == subscribed + ends)
        await client.publish("orders", 4, key="k")
        again = [0, 1, 2, 3] if choice == "earliest" else []
        wanted = [1, 2, 3, *again, 4]
        assert [(await anext(reader)).body for _ in wanted] == wanted
        assert {verdict.kind for verdict in reader.verdicts.values()} == {"unknown"}
        assert reader.position is not None
        assert set(reader.position.partitions.values()) == {(2, 0), (2, 5)}
    assert len(asked) == (choice == "callback")


def test_a_position_of_the_brokers_own_that_it_does_not_know_is_no_endless_loop() -> None:
    opening = ReaderOpening((None, POSITION), "latest")
    unknown = wire.Verdict(0, "unknown", first=0, generation=2)
    assert not opening.on_answer(wire.Ok(ref=1, queue_id="id", positions=[unknown]))
    assert not opening.on_answer(wire.Ok(ref=2, queue_id="id", positions=[unknown]))
    assert opening.where[1] == wire.Position(queue_id="id", partitions={"0": (2, 0)})
    with pytest.raises(tocsin.PositionUnknown):
        opening.on_answer(wire.Ok(ref=3, queue_id="id", positions=[unknown]))


@pytest.mark.parametrize("answer", ["sideways", ValueError("no"), tocsin.TocsinError("mine")])
async def test_a_callback_that_fails_ends_the_reader_with_what_it_was_asked(
    broker: FakeBroker, client: tocsin.Client, answer: object
) -> None:
    def ask(error: tocsin.PositionUnknown) -> str:
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    await fill(client, 1)
    async with client.read("orders", start="earliest") as reader:
        position = reader.position
    assert position is not None
    broker.history = "history-2"
    with pytest.raises(tocsin.TocsinError) as told:
        async with client.read("orders", start=position, on_unknown=cast("Any", ask)):
            pass
    if isinstance(answer, tocsin.TocsinError):
        assert told.value is answer
    else:
        assert isinstance(told.value, tocsin.PositionUnknown)
        assert isinstance(told.value.__cause__, ValueError)
    assert await client.publish("orders", 2), "the session is none the worse"
