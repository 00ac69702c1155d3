"""A disk that has a bad day under a real broker, at chosen instants: `kill -9` before, during and
after a commit, a sync that fails once, syncs of 50 ms, and no room left.

Acks ride with the commits of messages here, so each instant concerns both.
"""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest

from loadtests.faults import power_loss
from loadtests.faults.power_loss import mounted, new_image
from loadtests.server import SERVE, Server, ServerFailed
from runtime.process import EXIT_FATAL
from tests.system.bad_day import BROKEN, QUEUE, Day, bad_day, offsets
from tests.system.disk import (
    AFTER_SYNC,
    BEFORE_SYNC,
    BEFORE_WRITE,
    FILE,
    WAL,
    Disk,
    failing_disk,
    why_not,
)
from tests.system.talk import Talk, http_to, talking

REASON = why_not()
NO_POWER = power_loss.why_not()
IMAGE_BYTES = 512 << 20
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")
SMALL_SYNC_US = 3_000
"""Time that a sync takes longer, so that messages and acks come while a commit is under way."""
SLOW_SYNC_US = 50_000


def kill_at(disk: Disk, point: int, countdown: int) -> None:
    """Have the broker killed at a point of one of its next commits."""
    disk.set(sync_us=SMALL_SYNC_US)
    disk.signal_at(point, countdown, signal.SIGKILL)


@pytest.mark.parametrize(
    ("point", "countdown"),
    [(BEFORE_WRITE, 1), (BEFORE_WRITE, 20), (BEFORE_SYNC, 3), (AFTER_SYNC, 3)],
    ids=["handed over", "half written", "written", "synced and not answered"],
)
async def test_kill_9_in_each_phase_of_a_commit_loses_nothing(
    tmp_path: Path, point: int, countdown: int
) -> None:
    """P1, P2, P3, P4, P5, R21: what was answered holds, of messages and of the acks that ride with
    them."""
    with failing_disk(tmp_path / "disk") as disk:
        day = await bad_day(tmp_path, disk, lambda disk: kill_at(disk, point, countdown))
    assert day.exit_code == -signal.SIGKILL
    assert day.published > len(day.receipts) >= day.quiet, "the kill was within a commit"
    assert day.violations == []


async def test_receipts_before_the_commit_turn_a_kill_red(tmp_path: Path) -> None:
    with failing_disk(tmp_path / "disk") as disk:
        day = await bad_day(
            tmp_path, disk, lambda disk: kill_at(disk, BEFORE_WRITE, 20),
            flags=("--break=receipt-before-commit",),
        )  # fmt: skip
    assert day.exit_code == -signal.SIGKILL
    lost = [one for one in day.violations if "is not stored" in one or "given again" in one]
    assert lost, "neither a message nor an ack was lost"


# --- The power ------------------------------------------------------------------------------------


@contextmanager
def without_power(server: Server) -> Iterator[Path]:
    """Yield what a copy of the disk has of a broker that stands still: what was synced."""
    server.freeze()
    mount = server.data_dir.parent
    image = mount.with_suffix(".img")
    copy = mount.with_suffix(".copy")
    subprocess.run(["cp", "--sparse=always", str(image), str(copy)], check=True)
    with mounted(copy, mount.with_suffix(".mnt")) as place:
        yield place / "data"
    copy.unlink()


async def power_lost(tmp_path: Path, point: int, countdown: int, *flags: str) -> Day:
    """Return the day of a broker whose power fails at a point of one of its next commits."""
    image = new_image(tmp_path / "life.img", IMAGE_BYTES)

    def stop(disk: Disk) -> None:
        disk.set(sync_us=SMALL_SYNC_US)
        disk.signal_at(point, countdown, signal.SIGSTOP)

    with failing_disk(tmp_path / "disk") as disk, mounted(image, tmp_path / "life") as place:
        return await bad_day(place, disk, stop, flags=flags, remains=without_power)


@pytest.mark.skipif(NO_POWER is not None, reason=NO_POWER or "")
@pytest.mark.parametrize(
    ("point", "countdown"),
    [(BEFORE_WRITE, 20), (BEFORE_SYNC, 3), (AFTER_SYNC, 3)],
    ids=["half written", "written", "synced and not answered"],
)
async def test_power_that_fails_in_each_phase_of_a_commit_loses_nothing(
    tmp_path: Path, point: int, countdown: int
) -> None:
    """P1, P2, P3, P4, P5: on a copy of the disk, which has what was synced and nothing else."""
    day = await power_lost(tmp_path, point, countdown)
    assert day.exit_code is None
    assert day.published > len(day.receipts) >= day.quiet
    assert day.violations == []


@pytest.mark.skipif(NO_POWER is not None, reason=NO_POWER or "")
async def test_commits_without_a_sync_turn_a_power_loss_red(tmp_path: Path) -> None:
    day = await power_lost(tmp_path, BEFORE_WRITE, 20, "--break=synchronous-normal")
    assert day.violations, "what was never synced is there"


# --- A sync that fails ----------------------------------------------------------------------------


def fail_once(disk: Disk, part: str = WAL) -> None:
    """Have the next sync fail, and no other one."""
    disk.concern(part)
    disk.set(failing_syncs=1)


async def test_after_a_sync_that_failed_once_nothing_is_acknowledged(tmp_path: Path) -> None:
    """P1, R31: the disk works again at once, and what it had was not written."""
    with failing_disk(tmp_path / "disk") as disk:
        day = await bad_day(tmp_path, disk, fail_once)
        assert disk.get("failed") == 1
    assert day.exit_code == EXIT_FATAL
    assert len(day.receipts) == day.quiet, "a message was acknowledged after the failure"
    assert max(day.settled) < day.quiet, "an ack was confirmed after the failure"
    assert day.violations == []


async def test_after_a_failed_sync_of_the_file_everything_is_there(tmp_path: Path) -> None:
    """P1, R31: of a checkpoint, beside commits that go on until it is found."""
    with failing_disk(tmp_path / "disk") as disk:
        day = await bad_day(tmp_path, disk, lambda disk: fail_once(disk, FILE), waits_for_end=True)
        assert disk.get("failed") == 1
    assert day.exit_code == EXIT_FATAL
    assert day.violations == []


async def test_a_broker_that_goes_on_after_a_failed_sync_turns_it_red(tmp_path: Path) -> None:
    with failing_disk(tmp_path / "disk") as disk:
        day = await bad_day(tmp_path, disk, fail_once, flags=("--break=failed-commit-counts",))
    assert day.exit_code is None
    assert len(day.receipts) > day.quiet
    assert day.violations, "what was acknowledged after the failure was lost"


# --- A slow disk --------------------------------------------------------------------------------


def slow(disk: Disk) -> None:
    """Have each sync take 50 ms from now on, and count syncs from 0."""
    disk.set(sync_us=SLOW_SYNC_US, syncs=0)


async def on_a_slow_disk(folder: Path, *flags: str) -> tuple[Day, int]:
    """Return the day of a steady stream over syncs of 50 ms, and the number of its syncs."""
    with failing_disk(folder / "disk") as disk:
        day = await bad_day(folder, disk, slow, messages=60, every_s=0.03, flags=flags)
        assert day.violations == []
        assert day.exit_code is None
        return day, disk.get("syncs")


def p50_s(day: Day) -> float:
    """Return the median of the time until a receipt, of messages on the slow disk."""
    return median(waited_s for number, waited_s in day.waited_s.items() if number >= day.quiet)


async def test_on_a_slow_disk_the_pace_makes_nothing_worse(tmp_path: Path) -> None:
    """P9: a commit takes longer than the pace there, so it is as if there were none. Acks and
    messages share syncs."""
    without, syncs_without = await on_a_slow_disk(tmp_path / "a", "--break=no-pace")
    paced, syncs = await on_a_slow_disk(tmp_path / "b")
    assert syncs <= 1.5 * syncs_without + 4
    answers = len(paced.receipts) + len(paced.settled) - 2 * paced.quiet
    assert syncs < answers / 2, "a sync is for several messages or acks"
    sync_s = SLOW_SYNC_US / 1e6
    assert sync_s <= p50_s(paced) <= 2 * p50_s(without) + sync_s
    acks_s = median(paced.settled_s.values())
    assert acks_s <= 2 * median(without.settled_s.values()) + sync_s


async def test_a_pace_of_a_second_is_worse(tmp_path: Path) -> None:
    without, _ = await on_a_slow_disk(tmp_path / "a", "--break=no-pace")
    paced, _ = await on_a_slow_disk(tmp_path / "b", "--break=pace-of-a-second")
    assert p50_s(paced) > 2 * p50_s(without) + SLOW_SYNC_US / 1e6


# --- A full disk --------------------------------------------------------------------------------


def fill(disk: Disk, part: str, writes_left: int) -> None:
    """Have the disk full after so many writes to these files."""
    disk.concern(part)
    disk.set(writes_left=writes_left)


@pytest.mark.parametrize(
    ("part", "writes_left"), [(WAL, 0), (WAL, 7), ("/data/", 1), ("/data/", 30)]
)
async def test_a_disk_that_is_full_loses_nothing_that_was_answered(
    tmp_path: Path, part: str, writes_left: int
) -> None:
    """P1, P5, R31: the process ends at the first commit without room."""
    with failing_disk(tmp_path / "disk") as disk:
        day = await bad_day(tmp_path, disk, lambda disk: fill(disk, part, writes_left))
        assert disk.get("failed") > 0
    assert day.exit_code == EXIT_FATAL
    assert day.violations == []


async def test_a_checkpoint_without_room_is_made_later(tmp_path: Path) -> None:
    """R31: what it would copy is durable in the log."""
    with failing_disk(tmp_path / "disk") as disk:
        day = await bad_day(tmp_path, disk, lambda disk: fill(disk, FILE, 0))
    assert day.exit_code is None
    assert day.is_quiet
    assert day.violations == []


async def test_a_commit_without_room_that_counts_turns_it_red(tmp_path: Path) -> None:
    with failing_disk(tmp_path / "disk") as disk:
        day = await bad_day(
            tmp_path, disk, lambda disk: fill(disk, WAL, 7),
            flags=("--break=failed-commit-counts",),
        )  # fmt: skip
    assert day.violations, "what was acknowledged without room was lost"


async def published(talk: Talk, *numbers: int) -> list[list[object]]:
    """Publish these numbers, one after the other; return their receipts."""
    receipts: list[list[object]] = []
    for number in numbers:
        answer = await talk.ask(
            type="publish", ref=number + 10, queue="orders", sequence=number,
            messages=[{"key": "k", "body": number}],
        )  # fmt: skip
        receipts += answer["receipts"]
    return receipts


async def given(talk: Talk, last: int) -> list[int]:
    """Subscribe, and return the numbers that come, up to `last`."""
    fields = {"subscription": 1, "queue": "orders", "group": "g", "credit": 100}
    await talk.ask(type="subscribe", ref=1, **fields)
    numbers: list[int] = []
    while last not in numbers:
        numbers += [number for _, number in offsets(await talk.get("push"))]
    return numbers


@pytest.mark.parametrize("was_killed", [False, True], ids=["stopped", "killed"])
async def test_a_start_on_a_full_disk_ends_with_a_sentence_and_changes_nothing(
    tmp_path: Path, was_killed: bool
) -> None:
    """P1, R31: with room again it starts, and has everything."""
    with failing_disk(tmp_path / "disk") as disk:
        server = Server(tmp_path / "data", settings=disk.settings)
        try:
            server.start()
            async with http_to(server) as http, talking(server, producer="p") as talk:
                await http.put(QUEUE, json={"partitions": 1, "retention_s": 3600})
                receipts = await published(talk, 0, 1, 2)
            if was_killed:
                server.kill()
            else:
                server.stop()
            fill(disk, "/data/", 0)
            server.spawn()
            with pytest.raises(ServerFailed, match=r"cannot be opened|full|No space") as failed:
                server.wait_ready()
            assert "Traceback" not in str(failed.value)
            assert disk.get("failed") > 0
            disk.heal()
            server.start()
            async with talking(server, producer="p") as talk:
                again = await published(talk, 0, 1, 2, 3)
                assert again == [*([*receipt, True] for receipt in receipts), [0, 3]]
                assert await given(talk, 3) == [0, 1, 2, 3]
        finally:
            server.discard()


# --- A stop while acks wait for a commit ---------------------------------------------------------


async def stopped_while_acks_wait(folder: Path, *flags: str, is_killed: bool = False) -> list[int]:
    """Stop a broker in which acks wait for a commit that is expected and does not come; return
    what of the three messages comes again after a start."""
    flags = ("--break=acks-wait-for-ever", *flags)
    server = Server(folder / f"data{len(flags)}", command=[str(BROKEN), *flags])
    try:
        server.start()
        async with http_to(server) as http, talking(server, producer="p") as talk:
            await http.put(QUEUE, json={"partitions": 1, "retention_s": 3600})
            fields = {"subscription": 1, "queue": "orders", "group": "g", "credit": 100}
            await talk.ask(type="subscribe", ref=1, **fields)
            await published(talk, 0, 1, 2)
            for _ in range(3):
                push = await talk.get("push")
                ((offset, _),) = offsets(push)
                place = [push["partition"], push["epoch"], push["push"], offset, offset]
                await talk.tell(type="ack", subscription=1, deliveries=[place])
            await talk.answers()
            if is_killed:
                server.kill()
            else:
                server.stop()
                assert server.exit_code() == 0
        again = Server(server.data_dir, command=SERVE)
        try:
            again.start()
            async with talking(again, producer="p") as talk:
                await published(talk, 3)
                return [number for number in await given(talk, 3) if number < 3]
        finally:
            again.discard()
    finally:
        server.discard()


async def test_a_stop_writes_acks_that_wait_for_a_commit(tmp_path: Path) -> None:
    """P14."""
    assert await stopped_while_acks_wait(tmp_path) == []


async def test_a_stop_that_forgets_them_turns_it_red(tmp_path: Path) -> None:
    """So does a kill, which shows that they had not been written before."""
    assert await stopped_while_acks_wait(tmp_path, is_killed=True) == [0, 1, 2]
    assert await stopped_while_acks_wait(tmp_path, "--break=drain-forgets-acks") == [0, 1, 2]
