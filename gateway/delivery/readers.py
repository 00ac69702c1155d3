"""All readers of this gateway: how a subscription without a group begins (R26)."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from gateway.catalog.agreement import UNSEEN
from gateway.counting import Counting
from gateway.delivery.delivery_ports import Link, StartFrom
from gateway.delivery.queue_readers import QueueReaders
from gateway.delivery.reader import Reader
from gateway.deliverylog.log import OFF, DeliveryLog
from gateway.hit_rate import HitRate
from gateway.publish.tail import Tail
from gateway.wire import frames
from metadata.catalog import Queue
from push.errors import Refused
from push.ports import PartitionState, Storage
from push.positions import Gap, Place, Position, Resumed, UnknownPosition, verdicts
from push.ring import MEMBER_MAX, key_hash

_DIGITS_MAX: Final = len(str(MEMBER_MAX))


class Readers:
    """All readers of this gateway."""

    def __init__(
        self, storage: Storage, tail: Tail, log: DeliveryLog = OFF, counting: Counting | None = None
    ) -> None:
        self._log = log
        self._counting = counting or Counting()
        self._storage = storage
        self._tail = tail
        self._queues: dict[str, QueueReaders] = {}
        self.encoded = HitRate()
        """How many readers were given a push that was encoded for another one."""

    async def open(
        self,
        link: Link,
        subscription: int,
        queue: Queue,
        *,
        keys: list[str] | None,
        start: StartFrom | None,
        position: frames.Position | None,
        credit: int,
    ) -> Reader:
        """A new reader with its verdicts; `start` and `position` exclude each other.

        Raises:
            Refused: position_unknown: the position is of another queue; invalid_request: it names
                no partitions; storage_unavailable: the storage has no such queue.
        """
        if start is not None and position is not None:
            raise Refused("invalid_request", "start and position exclude each other")
        readers = self._queues.get(queue.queue_id)
        # Who begins at the end, where others stand already, needs nothing of the storage.
        states: Sequence[PartitionState] = ()
        if readers is None or start != "latest":
            states = await self._storage.partitions(queue.queue_id)
            if not states:
                raise Refused("storage_unavailable", UNSEEN)
        told: list[dict[str, object]] = []
        if position is not None:
            starts, told = _resume(queue, position, states)
        else:
            starts = await self._begins(states, start)
        hashes = (
            frozenset(key_hash(key, queue.hash_key) for key in keys) if keys is not None else None
        )
        readers = self._queues.get(queue.queue_id)
        if readers is None:
            readers = self._queues[queue.queue_id] = QueueReaders(
                self._tail, queue, states, lambda: self._closed(queue.queue_id), self.encoded,
                log=self._log, counted=self._counting.queue(queue.queue_id),
            )  # fmt: skip
        reader = Reader(readers, link, subscription, hashes)
        reader.credit.grant(credit)
        reader.verdicts = told
        if position is None:
            reader.verdicts = [
                {"partition": n, "verdict": "resumed", "from": starts.get(n, at),
                 "generation": readers.generations[n]}
                for n, at in readers.next.items()
            ]  # fmt: skip
        for number, at in starts.items():
            if at < readers.next[number]:
                reader.behind[number] = at
            elif at > readers.next[number]:
                reader.floors[number] = at
        readers.add(reader)
        asyncio.get_running_loop().call_soon(reader.pump)
        return reader

    async def _begins(
        self, states: Sequence[PartitionState], start: str | int | None
    ) -> dict[int, int]:
        """From which offset each partition is read; one that is not named, from its end."""
        if start == "earliest":
            return {state.partition.number: state.start for state in states}
        if isinstance(start, int):
            return {
                state.partition.number: await self._storage.offset_at(state.partition, start)
                for state in states
            }
        return {}

    def counts(self) -> dict[str, int]:
        """How many there are of each queue that has some, by its id."""
        return {queue_id: len(readers) for queue_id, readers in self._queues.items()}

    def _closed(self, queue_id: str) -> None:
        self._queues.pop(queue_id).close()

    def queue_deleted(self, queue_id: str) -> None:
        """Its readers are closed; their sessions hear of it."""
        readers = self._queues.get(queue_id)
        if readers is not None:
            readers.queue_deleted()


def _resume(
    queue: Queue, position: frames.Position, states: Iterable[PartitionState]
) -> tuple[dict[int, int], list[dict[str, object]]]:
    """Where each partition goes on, and the truth about it."""
    if position.queue_id != queue.queue_id:
        raise Refused("position_unknown", "the position is of another queue of that name")
    places: dict[int, Place] = {}
    for text, (generation, offset) in position.partitions.items():
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
            raise Refused("invalid_request", "position: a partition is named by its number")
        if text[0] == "0" != text:  # two names of one partition could contradict each other
            detail = "position: a partition's number has no leading zeros"
            raise Refused("invalid_request", detail)
        places[int(text)] = Place(generation, offset)
    by_number = {state.partition.number: state for state in states}
    starts: dict[int, int] = {}
    told: list[dict[str, object]] = []
    judged = verdicts(
        Position(position.queue_id, position.ring_epoch, places),
        queue.ring_epoch,
        by_number.values(),
    )
    for number, one in judged.items():
        line: dict[str, object] = {
            "partition": number, "generation": by_number[number].generation,
        }  # fmt: skip
        if isinstance(one, Resumed):
            starts[number] = one.next_offset
            line |= {"verdict": "resumed", "from": one.next_offset}
        elif isinstance(one, Gap):
            starts[number] = one.next_offset
            line |= {"verdict": "gap", "from": one.first, "to": one.last}
        elif isinstance(one, UnknownPosition):
            starts[number] = by_number[number].start
            line |= {"verdict": "unknown", "from": starts[number], "reason": one.reason}
        told.append(line)
    return starts, told
