"""A naive model of the storage: sets, dicts and loops, slow and plain."""

from dataclasses import dataclass, field, replace

from push import limits
from push.storage_port import Retry

LINE_BUCKET_S = limits.PRODUCER_IDLE_S / 4


@dataclass
class Message:
    """A message to be appended."""

    producer: int | None = None
    sequence: int = 0
    resolved: int = 0
    client_id: int | None = None
    size: int = 20


@dataclass
class Producer:
    stored: dict[int, int] = field(default_factory=dict)
    resolved: int = 0
    top: int = -1
    refused: set[int] = field(default_factory=set)
    bucket: int = 0


@dataclass
class Group:
    epoch: int = 0
    token: bytes = b""
    settled: set[int] = field(default_factory=set)
    aside: dict[int, int] = field(default_factory=dict)
    retries: dict[int, Retry] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    dead: dict[int, str] = field(default_factory=dict)
    dead_passed: set[int] = field(default_factory=set)
    """The offsets in `dead` that had been set aside."""


class Model:
    """A model of one partition."""

    def __init__(self) -> None:
        self.next_offset = 0
        self.records: list[tuple[int, list[Message], float]] = []
        """(first offset, stored messages, publishing time)."""
        self.producers: dict[int, Producer] = {}
        self.ids: dict[int, tuple[int, float]] = {}
        self.groups: dict[str, Group] = {}

    def retained(self) -> int:
        return sum(len(messages) for _, messages, _ in self.records)

    def append(
        self, messages: list[Message], *, now: float, messages_max: int, message_bytes_max: int
    ) -> list[int | str]:
        stored: list[Message] = []
        outcomes: list[int | str] = []
        first = self.next_offset
        for message in messages:
            room = not messages_max or self.retained() + len(stored) < messages_max
            full = None if room else "queue_full"
            if 0 < message_bytes_max < message.size:
                full = "message_too_large"
            outcome = self._one(message, now, full)
            outcomes.append(outcome)
            if isinstance(outcome, int) and outcome >= 0:
                stored.append(message)
        if stored:
            self.records.append((first, stored, now))
        return outcomes

    def _one(self, message: Message, now: float, full: str | None) -> int | str:
        """Append one message. `full`: the code with which it is refused if it is new."""
        producer = self._producer(message, now)
        if producer is not None:
            producer.resolved = max(producer.resolved, message.resolved)
            producer.top = max(producer.top, producer.resolved - 1)
            producer.refused = {n for n in producer.refused if n >= producer.resolved}
            if message.sequence < producer.resolved:
                return "sequence_too_old"
            if message.sequence in producer.stored:
                return -producer.stored[message.sequence] - 1
            if any(refused < message.sequence for refused in producer.refused):
                producer.refused.add(message.sequence)
                return "out_of_sequence"
        known = self.ids.get(message.client_id) if message.client_id is not None else None
        duplicate = known is not None and now - known[1] < 300
        if known is not None and duplicate:
            offset = known[0]
        elif full is None:
            offset = self.next_offset
            self.next_offset += 1
            if message.client_id is not None:
                self.ids[message.client_id] = (offset, now)
        else:
            if producer is not None:
                producer.refused.add(message.sequence)
            return full
        if producer is not None:
            producer.stored[message.sequence] = offset
            producer.top = max(producer.top, message.sequence)
            producer.refused.discard(message.sequence)
        return -offset - 1 if duplicate else offset

    def _producer(self, message: Message, now: float) -> Producer | None:
        if message.producer is None:
            return None
        bucket = int(now // LINE_BUCKET_S)
        producer = self.producers.setdefault(message.producer, Producer(bucket=bucket))
        if bucket - producer.bucket > 40:
            self.producers[message.producer] = producer = Producer()
        elif bucket - producer.bucket > 4:
            self.producers[message.producer] = producer = Producer(
                resolved=producer.top + 1, top=producer.top
            )
        producer.bucket = bucket
        return producer

    def restart(self) -> None:
        """Forget messages in flight, and so those of them that were refused."""
        for producer in self.producers.values():
            producer.refused.clear()

    def write(
        self, group: str, settled: range, retries: list[Retry], aside: dict[int, int], *,
        ended: range, dead: range, reason: str,
    ) -> list[int]:  # fmt: skip
        at = self.groups[group]
        at.ended.update(ended)
        for offset in settled:
            at.settled.add(offset)
            at.aside.pop(offset, None)
            at.retries.pop(offset, None)
            at.dead.pop(offset, None)
            at.dead_passed.discard(offset)
        # Dead messages of a side line are passed like settled ones: neither is given again.
        over = at.settled | at.dead_passed
        refused = [retry.offset for retry in retries if retry.offset in over]
        for retry in retries:
            if retry.offset not in over:
                before = at.retries.get(retry.offset)
                kept = before.nack if before is not None and retry.nack is None else retry.nack
                at.retries[retry.offset] = replace(retry, nack=kept)
        for offset, key_hash in aside.items():
            if offset not in self.passed(group):
                at.aside[offset] = key_hash
        refused += [offset for offset in dead if offset in at.settled]
        for offset in set(dead) - at.settled:
            at.dead.setdefault(offset, reason)
            if at.aside.pop(offset, None) is not None:
                at.dead_passed.add(offset)
        return refused

    def passed(self, group: str) -> set[int]:
        at = self.groups[group]
        return at.settled | set(at.aside) | at.dead_passed

    def floor(self, group: str) -> int:
        floor = 0
        while floor in self.passed(group):
            floor += 1
        return floor

    def trim(self, *, now: float, retention_s: float, keep_all: bool) -> None:
        if keep_all and not self.groups:
            return
        self.records = [
            (first, messages, published)
            for first, messages, published in self.records
            if published > now - retention_s
            or any(
                offset not in group.settled
                for group in self.groups.values()
                for offset in range(first, first + len(messages))
            )
        ]

    def start(self) -> int:
        return self.records[0][0] if self.records else self.next_offset
