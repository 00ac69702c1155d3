"""The cost of the delivery log on the event loop, in microseconds for a frame of 100 messages.

    .venv/bin/python scripts/log_cost.py [--frames N] [--write]

Measures the three spans of such frames, over 1 partition and over 16, and of frames of one message.
They go through the code of a broker, without the broker: the work that its loop does only for the
log. With `--write` a writer's thread takes the lines, as in a broker. The budget is 40 µs for a
frame of 100, all spans together. `python -m loadtests.bench.log_cost` measures the loss of a whole
broker.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from gateway.deliverylog.counts import KINDS
from gateway.deliverylog.deliveries import LoggedPlace
from gateway.deliverylog.files import Bounds
from gateway.deliverylog.log import CommittedOrigins, CommitTimes, DeliveryLog, PublishOrigin
from gateway.deliverylog.writer import Chunk, LogStatus, LogWriter, Shortfall
from gateway.models import Transport
from metadata.catalog import ANYBODY, Queue, QueueSettings
from push.record import Header
from push.storage_port import Appended

BUDGET_US: Final = 40.0
ROUNDS: Final = 100
FRAMES: Final = 50
BOUNDS: Final = Bounds(bytes_max=1 << 30, age_s=3600, file_bytes=1 << 26, file_s=60)
QUEUE: Final = Queue(
    queue_id="qm2s6x", name="orders", tenant="default", holder="operator", created_unix_ms=0,
    settings=QueueSettings(), ring_epoch=1, members=tuple(range(16)), hash_key=bytes(16),
)  # fmt: skip


class Nowhere(LogWriter):
    """A writer that drops every chunk."""

    is_failing = False
    waiting_bytes = 0

    def __init__(self) -> None:
        self.counts = [0] * KINDS

    def put(self, chunk: Chunk) -> None:
        """Do nothing."""

    def stop(self, within_s: float) -> None:
        """Do nothing."""

    def status(self) -> LogStatus:
        """Return that nothing was written and nothing is missing."""
        missing = Shortfall(spans=0, certified=0, dispatched=0, settled=0)
        return LogStatus(written_bytes=0, waiting_bytes=0, is_failing=False, unlogged=missing)


class Session:
    """The session of a consumer."""

    session_id = "s-5c1f9a0e2b7d4433"
    principal = ANYBODY
    transport: Transport | None = "websocket"


class Answered:
    """A publish, with its origin."""

    origin: PublishOrigin | None = None


class Frame:
    """A frame of `count` messages over some partitions, with the broker's data about it.

    The broker has these data when the frame is certified, dispatched, and acknowledged in no order.
    """

    def __init__(self, count: int, partitions: int) -> None:
        each, rest = divmod(count, partitions)
        sizes = [each + (number < rest) for number in range(partitions)]
        self.publish = Answered()
        self.records = [
            (
                number,
                [(self.publish, range(size), 300 * size)],
                Appended(0, size, size, 1),
                _header(size),
            )
            for number, size in enumerate(sizes)
            if size
        ]
        self.acks = []
        self.pushes = [[(number, 0, result.count)] for number, _, result, _ in self.records]
        for number, _, result, _ in self.records:
            # Every other one of a push, as one of two handlers would finish them.
            mask = sum(1 << 2 * offset for offset in range(result.count))
            self.acks.append((number, mask, result.count))
        self.count = count

    def certify(self, log: DeliveryLog, place: LoggedPlace) -> None:
        """Log the end of its commit."""
        now_us = log.now_ns() // 1000
        origin = PublishOrigin(
            log, QUEUE, now_us, self.count, "websocket", producer="checkout",
            session="s-5c1f9a0e2b7d4433", produced_us=now_us, clock_offset_us=-8310,
        )  # fmt: skip
        self.publish.origin = origin
        placed = CommittedOrigins(CommitTimes(now_us, now_us), is_late=False)
        for number, runs, result, header in self.records:
            placed.add(runs, number, result, header)
        log.add_commit(placed)

    def give(self, log: DeliveryLog, place: LoggedPlace) -> None:
        """Log its dispatch."""
        for runs in self.pushes:
            place.dispatch(
                runs, sum(run[2] for run in runs), 1, "none", 1, published_unix_ms=1_763_726_400_000
            )
        log.on_flush()

    def settle(self, log: DeliveryLog, place: LoggedPlace) -> None:
        """Log its acks."""
        for number, mask, size in self.acks:
            place.settle("acked", [number, 1, 0, hex(mask)], size)
        place.cut()


def _header(count: int) -> Header:
    empty = array("Q")
    return Header(
        tenant=0, record_id=bytes(16), published_unix_ms=0, ring_epoch=1,
        sizes=array("I", [300] * count),
        key_hashes=array("Q", [random.getrandbits(64) for _ in range(count)]),
        producers=[], producer_indexes=array("H"), sequences=empty, digests=[],
        expires_unix_ms=empty, deliver_at_unix_ms=empty, priorities=b"",
    )  # fmt: skip


def measure(act: Callable[[], None], frames: int) -> float:
    """Return the best of some rounds, in microseconds for each frame. Other work of the machine
    only adds time."""
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        for _ in range(frames):
            act()
        found.append((time.perf_counter_ns() - began) / frames / 1000)
    return min(found)


async def main(frames: int, folder: Path | None) -> int:
    """Print the table; returns 1 if the budget is exceeded."""
    writer: LogWriter = Nowhere() if folder is None else LogWriter.open(folder, "0" * 16, BOUNDS)
    log = DeliveryLog()
    log.begin(writer, "0" * 16)
    say = sys.stdout.write
    say("messages  partitions  certified  dispatched  settled      sum  (microseconds a frame)\n")
    worst = 0.0
    for count, partitions in ((100, 1), (100, 16), (1, 1)):
        frame, place = Frame(count, partitions), LoggedPlace(log, QUEUE, "billing", Session())
        parts = [
            measure(partial(act, log, place), frames)
            for act in (frame.certify, frame.give, frame.settle)
        ]
        say(f"{count:8}  {partitions:10}  " + "  ".join(f"{part:9.2f}" for part in parts))
        say(f"  {sum(parts):7.2f}\n")
        worst = max(worst, sum(parts))
        await asyncio.sleep(0.1)
    await log.stop()
    say(f"the budget is {BUDGET_US:g}\n")
    return int(worst > BUDGET_US)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=FRAMES)
    parser.add_argument("--write", action="store_true", help="with a writer, in a temporary folder")
    said = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        wanted = Path(temporary) if said.write else None
        sys.exit(asyncio.run(main(said.frames, wanted)))
