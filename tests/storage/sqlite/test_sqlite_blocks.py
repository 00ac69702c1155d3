"""Blocks of the embedded store's two files that a disk has flipped, zeroed, swapped or cut off
(P13, R30): damage is found, or it costs nothing. What is read is never another message, and never
in another order."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from push.errors import TocsinError
from storage.sqlite import codec
from storage.sqlite.store import SqliteStorage
from storage.sqlite.verify import verify_store
from tests.contract.stores import ANN, P0, append, one
from tests.storage.conftest import Embedded

BLOCK = 4096
MESSAGES = 60
Messages = list[tuple[int, bytes]]
Damage = Callable[[bytes], Iterator[bytes]]


def flipped(data: bytes) -> Iterator[bytes]:
    """Yield the file with one bit flipped, at three places of each block."""
    for at in range(0, len(data) - BLOCK, BLOCK):
        for place, bit in ((5, 1), (1500, 4), (4000, 64)):
            changed = bytearray(data)
            changed[at + place] ^= bit
            yield bytes(changed)


def zeroed(data: bytes) -> Iterator[bytes]:
    """Yield the file with one block zeroed, each in turn."""
    for at in range(0, len(data), BLOCK):
        yield data[:at] + bytes(BLOCK) + data[at + BLOCK :]


def swapped(data: bytes) -> Iterator[bytes]:
    """Yield the file with two blocks in each other's place, neighbours and others."""
    blocks = [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)]
    for distance in (1, 4, 19):
        for first, second in zip(range(len(blocks)), range(distance, len(blocks)), strict=False):
            changed = list(blocks)
            changed[first], changed[second] = changed[second], changed[first]
            yield b"".join(changed)


def cut(data: bytes) -> Iterator[bytes]:
    """Yield the file cut off, at the end of blocks and within them."""
    for at in range(BLOCK, len(data), len(data) // 12):
        yield data[: at // BLOCK * BLOCK]
        yield data[:at]


DAMAGES = [flipped, zeroed, swapped, cut]


class Files:
    """The two files of a store with MESSAGES messages, of which copies are damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = b""
        self.log = b""
        self.damaged = folder / "damaged" / "store.sqlite"
        self.messages: Messages = []

    async def fill(self, *, is_stopped: bool) -> None:
        """Make the files, as a clean stop or a kill leaves them."""
        embedded = Embedded(self.folder / "made")
        store = await embedded.open()
        await store.create_queue("q-1", 1)
        for number in range(MESSAGES):
            await store.append([append(runs=[(ANN, 0, [number])], size=300)])
        self.messages = await read(store)
        assert len(self.messages) == MESSAGES
        if is_stopped:
            await embedded.close()
        else:
            self.log = embedded.path.with_name("store.sqlite-wal").read_bytes()
        self.file = embedded.path.read_bytes()
        await embedded.close()

    async def verdict(self, file: bytes, log: bytes) -> str:
        """Open a store with these contents; return what became of the messages."""
        shutil.rmtree(self.folder / "damaged", ignore_errors=True)
        embedded = Embedded(self.folder / "damaged")
        embedded.path.parent.mkdir()
        embedded.path.write_bytes(file)
        if log:
            embedded.path.with_name("store.sqlite-wal").write_bytes(log)
        try:
            store = await embedded.open()
            found = await read(store)
            if found == self.messages:
                return "intact"
            if embedded.fatal or (await store.state()).detail["damage_reports"] != "0":
                return "reported"
            states = await store.partitions("q-1")
            if found == self.messages[: len(found)] and states and states[0].messages == MESSAGES:
                return "missing"  # the depth shows it
            if not found and await one(store, append(messages=1)) == ["queue_not_found"]:
                return "unknown"  # the catalog knows the queue: nobody takes it for empty
            return "shorter" if found == self.messages[: len(found)] else "another history"
        except TocsinError:
            return "refused"
        finally:
            await embedded.close()


async def read(store: SqliteStorage) -> Messages:
    """Return (first offset, payload) of all records that can be read."""
    found: Messages = []
    offset = 0
    while records := (await store.read(P0, offset, 10**6)).records:
        found += [(record.first, record.payload) for record in records]
        offset = max(offset, *(record.last for record in records)) + 1
    return found


@pytest.fixture
async def files(tmp_path: Path) -> Files:
    """Nothing is in them yet."""
    return Files(tmp_path)


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_block_of_the_file_is_found_or_costs_nothing(
    files: Files, damage: Damage
) -> None:
    """After a clean stop, when nothing checks the whole structure at the start. Of two whole blocks
    in each other's place, some are only found by `verify`."""
    await files.fill(is_stopped=True)
    verdicts = []
    for file in damage(files.file):
        verdicts.append(await files.verdict(file, b""))
        if verdicts[-1] == "missing":
            assert damage is swapped
            files.damaged.write_bytes(file)
            assert verify_store(files.damaged, lambda *_: None).findings
    assert set(verdicts) <= {"intact", "reported", "refused", "unknown", "missing"}
    assert {"reported", "refused"}.intersection(verdicts)


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_block_of_the_log_costs_what_came_after_it_and_nothing_else(
    files: Files, damage: Damage
) -> None:
    """SQLite takes a damaged frame for one that was never whole, so the log ends before it."""
    await files.fill(is_stopped=False)
    damaged = list(damage(files.log))
    step = max(1, len(damaged) // 60)
    verdicts = [await files.verdict(files.file, log) for log in damaged[::step]]
    assert set(verdicts) <= {"intact", "shorter", "reported", "refused", "unknown"}
    assert {"shorter", "unknown"}.intersection(verdicts)


async def test_a_reader_that_believes_every_checksum_turns_it_red(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    await files.fill(is_stopped=True)
    monkeypatch.setattr("storage.sqlite.codec.is_record_sound", lambda row: True)
    verdicts = {await files.verdict(file, b"") for file in flipped(files.file)}
    assert "another history" in verdicts


def test_a_row_of_another_table_is_a_damaged_record() -> None:
    """A page of that table is in the place of one of the records', and has numbers for bytes."""
    assert not codec.is_record_sound((1 << 40, 1, 2, 3, 4, None, 5, 6))
