"""The delivery log of a house, kept in memory, line by line."""

from typing import Any, TypeVar

import msgspec

from gateway.deliverylog.counts import KINDS, Counts
from gateway.deliverylog.lines import CertifiedLine, DispatchedLine, Line, PositionLine, SettledLine
from gateway.deliverylog.log import DeliveryLog
from gateway.deliverylog.writer import Chunk, LogStatus, LogWriter, Shortfall
from tests.histories.house import House

_DECODE = msgspec.json.Decoder(Line).decode
T = TypeVar("T", CertifiedLine, DispatchedLine, SettledLine, PositionLine)
S = TypeVar("S", CertifiedLine, DispatchedLine, SettledLine)


class Kept(LogWriter):
    """A writer that keeps its chunks."""

    waiting_bytes = 0

    def __init__(self) -> None:
        self.counts: Counts = [0] * KINDS
        self.is_failing = False
        self.chunks: list[Chunk] = []
        self.unlogged = Shortfall(spans=0, certified=0, dispatched=0, settled=0)
        self.is_stopped = False

    def put(self, chunk: Chunk) -> None:
        """Keep a chunk."""
        self.chunks.append(chunk)

    def stop(self, within_s: float) -> None:
        """Note the stop."""
        self.is_stopped = True

    def status(self) -> LogStatus:
        """Return the status of the kept chunks."""
        return LogStatus(
            written_bytes=sum(chunk.bytes for chunk in self.chunks),
            waiting_bytes=self.waiting_bytes, is_failing=self.is_failing, unlogged=self.unlogged,
        )  # fmt: skip


def decoded(sink: Kept) -> list[Any]:
    """Return every line that the writer received."""
    return [_DECODE(line) for chunk in sink.chunks for line in chunk.lines]


class Logged:
    """The log of a house, from now on."""

    def __init__(self, house: House) -> None:
        self.log: DeliveryLog = house.broker.delivery_log
        self.sink = Kept()
        self.log.begin(self.sink, "00000000000000aa")

    def lines(self) -> list[Any]:
        """Return every line, once the sockets were written."""
        self.log.on_flush()
        self.log._hand_over()
        return decoded(self.sink)

    def of(self, kind: type[T]) -> list[T]:
        """Return the lines of a kind."""
        return [line for line in self.lines() if isinstance(line, kind)]


def offsets(lines: list[S]) -> list[tuple[int, int]]:
    """Return (partition, offset) of every message of these lines, in order."""
    return [
        (number, offset)
        for line in lines
        for number, first, count in line.runs
        for offset in range(first, first + count)
    ]
