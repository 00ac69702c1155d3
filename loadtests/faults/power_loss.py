"""Simulated power loss: only what is on the disk when the machine stops remains.

The broker's data are on an ext4 of their own, on a loop device over an image file. Data that were
not synced are in the page cache of that ext4 and not yet in the image. A loss has these steps: stop
the broker (SIGSTOP) and copy the image; mount the copy, start the shipped broker on it and drain
its group. Then judge the clients' frames before the copy together with the copy's deliveries, and
let the first broker go on.
"""

import asyncio
import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from loadtests.checker.history import merge, read_lines
from loadtests.checker.judge import judge
from loadtests.checker.verdict import Verdict
from loadtests.clients.recorder import GROUP_PLACE, RunState
from loadtests.faults.soak_clients import SoakClients
from loadtests.server import SERVE, Server, ServerFailed

IMAGE_BYTES: Final = 1 << 30
"""Size of the sparse image, well above the free-space reserve of the broker."""
LIFE_S: Final = (0.05, 1.2)
LOSSES_PER_LIFE: Final = 4
FLOWING_MESSAGES: Final = 200
MOUNT_OPTIONS: Final = "loop,commit=300"
"""ext4 writes nothing back by itself for five minutes, so all that is in the image was synced."""


def why_not() -> str | None:
    """Return why power losses cannot be simulated here; None if they can."""
    if os.geteuid() != 0:
        return "power losses mount loop devices, which only root may; this is not root"
    for tool in ("mkfs.ext4", "mount", "umount", "cp"):
        if shutil.which(tool) is None:
            return f"power losses need {tool} (Debian: e2fsprogs, mount)"
    if not Path("/dev/loop-control").exists():
        return "power losses need loop devices; there is no /dev/loop-control here"
    with tempfile.TemporaryDirectory(prefix="tocsin-probe-") as name:
        folder = Path(name)
        try:
            with mounted(new_image(folder / "probe.img", 16 << 20), folder / "probe"):
                pass
        except subprocess.CalledProcessError as error:
            return f"power losses need loop mounts: {error.stderr.decode().strip()}"
    return None


@dataclass
class PowerLossReport:
    """The events and findings of a run of power losses."""

    seed: int
    losses: int = 0
    losses_with_commit_under_way: int = 0
    acknowledged: int = 0
    """Number of messages whose receipt came before their copy was made, over all copies."""
    violated: int = 0
    """Number of copies with any violation."""
    not_started: list[str] = field(default_factory=list)
    """The errors of copies on which the broker did not even start."""
    verdict: Verdict | None = None
    """The verdict on the first copy with a violation, or on the last one if there is none."""

    @property
    def ok(self) -> bool:
        """Whether there was a loss, the broker started on every copy, and no copy had a
        violation."""
        return self.losses > 0 and not self.violated and not self.not_started

    def fields(self) -> dict[str, object]:
        """Return the report for JSON."""
        return vars(self) | {"verdict": self.verdict and self.verdict.fields()}


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def new_image(path: Path, size: int) -> Path:
    """Create an empty ext4 in a sparse file. Needs root."""
    with path.open("wb") as file:
        file.truncate(size)
    _run("mkfs.ext4", "-q", "-F", str(path))
    return path


@contextlib.contextmanager
def mounted(image: Path, place: Path) -> Iterator[Path]:
    """Mount an image as a file system of its own that writes nothing back by itself. Needs root."""
    place.mkdir()
    _run("mount", "-o", MOUNT_OPTIONS, str(image), str(place))
    try:
        yield place
    finally:
        _run("umount", str(place))
        place.rmdir()


async def power_losses(
    *,
    seed: int,
    losses: int,
    command: Sequence[str] = SERVE,
    progress: Callable[[str], None],
) -> PowerLossReport:
    """Simulate a power loss `losses` times. `command` is the broker that suffers it (negative
    controls). The broker on the copy is always the shipped one."""
    report = PowerLossReport(seed)
    chance = Random(seed)
    with tempfile.TemporaryDirectory(prefix="tocsin-power-") as name:
        folder = Path(name)
        for life in itertools.count(1):
            wanted = min(LOSSES_PER_LIFE, losses - report.losses)
            if not wanted:
                break
            image = new_image(folder / f"life{life}.img", IMAGE_BYTES)
            with mounted(image, folder / f"life{life}") as place:
                server = Server(place / "data", command=command, level="warning")
                server.log_path = image.with_suffix(".log")
                server.key_path = image.with_suffix(".key")  # not on the disk that it decrypts
                await _life(server, image, wanted, chance, report, synced=life % 2 == 1)
            image.unlink()
            progress(
                f"{report.losses} of {losses} power losses "
                f"({report.losses_with_commit_under_way} with a commit under way), "
                f"{report.acknowledged:,} receipts checked, {report.violated} violated, "
                f"{len(report.not_started)} not started"
            )
    return report


async def _life(
    server: Server,
    image: Path,
    losses: int,
    chance: Random,
    report: PowerLossReport,
    *,
    synced: bool,
) -> None:
    """Run one broker, and copy its disk at random instants while it works. Each copy is opened by a
    second broker and judged into `report`. `synced`: the disk is
    synced from outside when the queue exists, so that only messages can be missing."""
    log = image.with_suffix(".jsonl")
    shared = RunState(server.url, log, Random(chance.random()))
    crew = SoakClients(shared)
    try:
        shared.server = 1
        server.spawn()
        await asyncio.to_thread(server.wait_ready)
        await crew.prepare()
        if synced:
            _run("sync", "-f", str(server.data_dir))
        crew.start()
        for number in range(losses):
            await crew.flowing(FLOWING_MESSAGES)
            await crew.wait(chance.uniform(*LIFE_S))
            copy = image.with_suffix(f".copy{number}")
            server.freeze()
            seen, acknowledged = shared.log.size(), shared.acknowledged
            missing = set(shared.missing)
            report.losses_with_commit_under_way += crew.in_flight > 0
            _run("cp", "--sparse=always", str(image), str(copy))
            try:
                verdict = await _judge_copy(copy, log, seen, missing)
            except ServerFailed as error:
                report.not_started.append(str(error))
            else:
                report.violated += not verdict.ok
                if report.verdict is None or report.verdict.ok:
                    report.verdict = verdict
            server.thaw()
            copy.unlink()
            report.losses += 1
            report.acknowledged += acknowledged
    finally:
        await crew.leave()
        server.kill()
    log.unlink()


async def _judge_copy(copy: Path, log: Path, seen: int, missing: set[int]) -> Verdict:
    """Start the shipped broker on the copy, let consumers drain the group, judge. `seen`: bytes of
    the log before the copy; `missing`: messages acknowledged and not settled by then."""
    after = copy.with_suffix(copy.suffix + ".jsonl")
    with mounted(copy, copy.with_suffix(copy.suffix + ".mnt")) as place:
        server = Server(place / "data", level="warning")
        server.log_path = copy.with_suffix(copy.suffix + ".log")
        server.key_path = copy.with_suffix(".key")  # the image's key
        shared = RunState(server.url, after, Random(1))
        shared.server = 2
        shared.sockets = itertools.count(1_000_000)
        crew = SoakClients(shared, producers=0)
        try:
            server.spawn()
            await asyncio.to_thread(server.wait_ready)
            shared.missing = missing
            crew.start()
            await crew.drain(lambda _: None)  # a copy holds seconds of work
        finally:
            await crew.leave()
            server.kill()
    with log.open("rb") as before:
        first = read_lines(before.read(seen).splitlines(keepends=True))
    with after.open("rb") as rest:
        verdict = judge(merge([first, read_lines(rest)]), [GROUP_PLACE], drained=True)
    after.unlink()
    return verdict
