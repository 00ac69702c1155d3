"""Redrive dead letters: list them for operators, and send them back to their queue (P1).

A letter goes back as a new message with the key, id, body and headers that it had. It is appended
to its queue under a name made of its place among the dead letters. Then it is settled among the
dead letters for a group of its own, which records how far redriving has come. A crash in between
repeats the append, and deduplication answers it (R8). Letters of a key go back in their order, so
none is stored behind one that is refused (R7).

Two redrives of one queue through this gateway run one after another. Redrives through two gateways
fence each other, and each goes on behind what the other has settled, so a letter counts for only
one of them.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from gateway.delivery.groups import Groups
from gateway.models import (
    FoundDeadLetter,
    FoundDeadLetters,
    Look,
    Origin,
    Redriven,
    whole_number,
)
from gateway.operator.peek import GroupView, QueueWalk, content_of, fields_of
from gateway.publish.batch import (
    PendingPublish,
)
from gateway.publish.publisher import Publisher
from metadata.catalog import Group, Queue, dead_letter_name
from metadata.port import Metadata
from push import limits
from push.errors import Refused, TocsinError, Unknown
from push.message import DEAD_LETTER_HEADER, Message, earlier_deaths, last_death, revived_headers
from push.places import CursorPlace
from push.ranges import RangeSet
from push.record import Record
from push.storage_port import CursorWrite, PartitionState, Storage

GROUP: Final = "tocsin.redrive"
"""The group of a dead-letter queue that has settled what went back."""
BATCH_BYTES_MAX: Final = 1_048_576
"""Largest size in bytes of the letters that go back together; at least one goes."""
FENCED_MAX: Final = 20
"""Number of times that a redrive finds a place owned by one through another gateway, at which it is
refused."""
AGAIN_S: Final = 0.02
"""Seconds that a redrive waits the first time, or up to twice as long, when one through another
gateway owns a place. Each further wait is longer by as much."""


@dataclass(slots=True)
class _Letter:
    """A dead letter in its queue of dead letters."""

    state: PartitionState
    record: Record
    offset: int
    message: Message

    def header(self, name: str) -> str:
        return (self.message.headers or {}).get(DEAD_LETTER_HEADER + name, "")

    @property
    def name(self) -> str:
        """Name of the letter's place among the dead letters, by which deduplication knows it in its
        queue."""
        partition = self.state.partition
        return f"{partition.queue_id}-{self.state.generation}-{partition.number}-{self.offset}"

    @property
    def size(self) -> int:
        return self.record.header.sizes[self.offset - self.record.first]

    def to_message(self) -> Message:
        """Return the message that it was, which may have been a dead letter before."""
        headers = revived_headers(self.message.headers)
        name = self.header("id") or self.message.id
        return msgspec.structs.replace(self.message, id=name, headers=headers)

    def describe(self, queue: Queue) -> FoundDeadLetter:
        """Describe it for an operator."""
        content: dict[str, Any] = {
            **fields_of(queue, self.state, self.record, self.offset),
            **content_of(self.to_message()),
        }
        return FoundDeadLetter(
            **content,
            origin=_origin(last_death(self.message.headers)),
            reason=self.header("reason"),
            attempts=whole_number(self.header("attempts")) or 0,
            nack=self.header("nack") or None,
            earlier=[_origin(said) for said in earlier_deaths(self.message.headers)],
        )


def _origin(said: Mapping[str, str]) -> Origin:
    return Origin(
        queue=said.get("queue", ""),
        group=said.get("group", ""),
        partition=whole_number(said.get("partition", "")) or 0,
        offset=whole_number(said.get("offset", "")) or 0,
    )


class Redriver:
    """Lists of dead letters, and redrives."""

    def __init__(
        self, storage: Storage, publisher: Publisher, groups: Groups, metadata: Metadata
    ) -> None:
        self._storage = storage
        self._publisher = publisher
        self._groups = groups
        self._metadata = metadata
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._producer = os.urandom(16)
        self._sequence = 0

    async def list_letters(
        self, queue: Queue, dead: Queue | None, group: Group | None, look: Look
    ) -> FoundDeadLetters:
        """Return up to `look.limit` letters that have not gone back."""
        name = dead_letter_name(queue)
        if dead is None:
            return FoundDeadLetters(queue=name, messages=[])
        walk = await self._walk(dead, group, look)
        found: list[FoundDeadLetter] = []
        size = 0
        async for letter in self._letters(walk, queue, group, look):
            size += letter.size
            if len(found) == look.limit or (found and size > limits.LOOK_ANSWER_BYTES_MAX):
                walk.stop_at(letter.state, letter.offset)
                break
            found.append(letter.describe(dead))
        after = str(walk.next) if walk.next else None
        return FoundDeadLetters(queue=name, messages=found, next=after)

    async def _walk(self, dead: Queue, group: Group | None, look: Look) -> QueueWalk:
        floors = None
        if group is not None:
            floors = await GroupView(self._storage, self._groups, group).floors(dead)
        return QueueWalk(self._storage, dead, look, floors)

    async def _letters(
        self, walk: QueueWalk, queue: Queue, group: Group | None, look: Look
    ) -> AsyncIterator[_Letter]:
        """Return the letters of this queue that `look` asks for and that have not gone back."""
        view = None
        if group is not None:
            view = GroupView(self._storage, self._groups, group)
        async for state, record, offset in walk.messages():
            if view is not None:
                word, _ = await view.state(state.partition, record, offset)
                if word == "settled":
                    continue
            message = walk.decode(record, offset)
            if message is None:
                continue
            letter = _Letter(state, record, offset, message)
            is_meant = look.reason in (None, letter.header("reason"))
            if letter.header("queue") == queue.name and is_meant:
                yield letter

    # --- Back ----------------------------------------------------------------------------------

    async def redrive(self, queue: Queue, dead: Queue, group: Group, look: Look) -> Redriven:
        """Send up to `look.limit` letters back. When a letter is stored in its queue again, it is
        settled in `group`, which is GROUP of the dead-letter queue.

        Raises:
            Refused: a letter was refused by its queue; the detail says how many went before.
            Unknown: likewise. A letter whose fate is unknown is not doubled by the next call.
        """
        lock = self._locks.setdefault(dead.queue_id, asyncio.Lock())
        async with lock:
            walk = await self._walk(dead, group, look)
            run = _Run(self, queue, group)
            count = 0
            try:
                async for letter in self._letters(walk, queue, group, look):
                    if count == look.limit:
                        walk.stop_at(letter.state, letter.offset)
                        break
                    if run.is_full(letter):
                        await run.send()
                    run.letters.append(letter)
                    count += 1
                await run.send()
            except TocsinError as error:
                if not run.done:
                    raise
                detail = f"{run.done} messages went back, and then: {error.detail}"
                if isinstance(error, Unknown):
                    raise Unknown(detail) from error
                raise Refused(error.code.name, detail, error.retry_after_s) from error
        return Redriven(messages=run.done, next=str(walk.next) if walk.next else None)

    async def own(self, place: CursorPlace) -> "_Ownership":
        """Own a place, to settle letters there. Returns which letters are settled already. Raises
        Refused(invalid_request) if GROUP has consumers."""
        runtime = self._groups.runtimes.get(place.group_id)
        row = await self._metadata.membership(place.group_id)
        if (runtime is not None and runtime.members) or self._groups.others(row):
            raise Refused(
                "invalid_request",
                f"the group {GROUP} has consumers, and what they settle counts as sent back: "
                "disconnect them first",
            )
        token = os.urandom(16)
        owned = await self._storage.own(place, token=token, assignment=row.generation)
        return _Ownership(owned.epoch, token, owned.cursor.floor, RangeSet(owned.cursor.passed))

    async def publish(self, queue: Queue, letters: Sequence[_Letter]) -> PendingPublish:
        """Append letters in their order (R7), each under the name of its place (R8)."""
        done: asyncio.Future[PendingPublish] = asyncio.get_running_loop().create_future()

        def on_answer(answer: PendingPublish) -> None:
            if not done.done():
                done.set_result(answer)

        names = [letter.name for letter in letters]
        first, self._sequence = self._sequence, self._sequence + len(letters)
        self._publisher.submit(
            PendingPublish(
                queue,
                [letter.to_message() for letter in letters],
                on_answer,
                producer=self._producer,
                sequence=first,
                resolved=first,
                is_checked=True,
                names=names,
            )
        )
        return await done

    async def settle(self, writes: Sequence[CursorWrite]) -> list[CursorPlace]:
        """Settle durably. Returns the places that another redrive owns now, where nothing was
        settled."""
        written = await self._storage.write_cursors(writes)
        return [write.place for write, one in zip(writes, written, strict=True) if one.fenced]

    async def make_room(self, tries: int) -> None:
        """Wait because a redrive through another gateway owns a place. Each redrive waits for a
        different time. Raises Refused(too_many) after FENCED_MAX tries."""
        if tries >= FENCED_MAX:
            raise Refused(
                "too_many",
                f"other redrives take the group {GROUP} again and again: call this again later; no "
                "letter goes back twice",
                1.0,
            )
        await asyncio.sleep(AGAIN_S * tries * (1 + self._producer[0] / 255))


class _Ownership(NamedTuple):
    """State of a place that a redrive owns, until another one owns it."""

    epoch: int
    token: bytes
    floor: int
    passed: RangeSet

    def is_settled(self, offset: int) -> bool:
        """Whether a letter had gone back when the place was owned. While this is the owner, nobody
        else settles it."""
        return offset < self.floor or offset in self.passed


class _Run:
    """A redrive under way: letters that wait to go back, and the number that went."""

    def __init__(self, redriver: Redriver, queue: Queue, group: Group) -> None:
        self._redriver = redriver
        self._queue = queue
        self._group = group
        self._owned: dict[CursorPlace, _Ownership] = {}
        self.letters: list[_Letter] = []
        self.done = 0

    def is_full(self, letter: _Letter) -> bool:
        """Whether the waiting letters have to go before this one joins them."""
        size = sum(waiting.size for waiting in self.letters) + letter.size
        return bool(self.letters) and size > BATCH_BYTES_MAX

    async def send(self) -> None:
        """Send back the waiting letters. Raises the error of the first letter that was refused."""
        letters, self.letters = self.letters, []
        for place in dict.fromkeys(map(self._place, letters)):
            if place not in self._owned:
                self._owned[place] = await self._redriver.own(place)
        letters = [one for one in letters if not self._is_settled(self._place(one), one.offset)]
        if not letters:
            return
        answer = await self._redriver.publish(self._queue, letters)
        failure: TocsinError | None = None
        back: dict[CursorPlace, list[int]] = {}
        for letter, outcome in zip(letters, answer.outcomes, strict=True):
            if isinstance(outcome, TocsinError):
                if failure is None or failure.code.name == "out_of_sequence":
                    failure = outcome
            else:
                back.setdefault(self._place(letter), []).append(letter.offset)
        await self._settle(back)
        if failure is not None:
            raise failure

    def _place(self, letter: _Letter) -> CursorPlace:
        return CursorPlace(self._group.group_id, letter.state.partition)

    def _is_settled(self, place: CursorPlace, offset: int) -> bool:
        return self._owned[place].is_settled(offset)

    async def _settle(self, back: dict[CursorPlace, list[int]]) -> None:
        """Settle the letters that are stored in their queue again, and count those that nobody else
        has settled meanwhile."""
        tries = 0
        while back:
            writes = [
                CursorWrite(
                    place,
                    self._owned[place].epoch,
                    self._owned[place].token,
                    settled=tuple((offset, offset) for offset in offsets),
                )
                for place, offsets in back.items()
            ]
            fenced = await self._redriver.settle(writes)
            self.done += sum(len(back[place]) for place in back if place not in fenced)
            if fenced:
                tries += 1
                await self._redriver.make_room(tries)
            left: dict[CursorPlace, list[int]] = {}
            for place in fenced:
                self._owned[place] = await self._redriver.own(place)
                others = [one for one in back[place] if not self._is_settled(place, one)]
                if others:
                    left[place] = others
            back = left
