"""The inboxes of what is owned here: settlements and decisions that came through other gateways
(R24).

They are judged by the slot that has the partition, as if they had come here, and answered once that
is durable. What names an epoch that has ended here is stale; what names one that others own, or
nobody yet, is left to them.

What was judged once is not judged again, and under its id answered the same: also where its answer
did not arrive, was lost with the store's primary, or came while the inbox was being read.

    [m, m+1 have expired, and an ack of m+1, m comes: m+1 is stale, m settled. The letter is seen
    once more: m+1 is settled, its consumer has heard the contrary, and waits for it in vain.]
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateway.delivery.groups import Groups
from gateway.delivery.judging import durable, has_ended, judge, newest_here, slot_of, unpark
from gateway.delivery.slot import Slot
from push import limits
from push.errors import TocsinError
from push.letters import PERHAPS, SETTLED, STALE, UNREADABLE, Inbox, Letter, Unpark, letter_of
from push.places import GroupPartition
from push.ports import Storage

_LOG = logging.getLogger("tocsin.inbox")


class Inboxes:
    """See the module."""

    def __init__(self, inbox: Inbox, storage: Storage, groups: Groups) -> None:
        self._inbox = inbox
        self._storage = storage
        self._groups = groups
        self.unreadable_total = 0
        """Letters that nobody here could read: passed over."""
        self._taking: dict[GroupPartition, bool] = {}
        """Inboxes that are being read, and whether something came meanwhile."""
        self._answering: set[tuple[GroupPartition, str]] = set()
        """Letters that were judged, and wait for that to be durable."""
        self._in_doubt: OrderedDict[tuple[GroupPartition, str], None] = OrderedDict()
        """The latest letters that were judged, and whose epoch ended before that was durable."""
        self._said: OrderedDict[tuple[GroupPartition, str], _Verdicts] = OrderedDict()
        """The answers to the latest letters."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._looker: asyncio.TimerHandle | None = None
        self._closed = False
        inbox.on_letter(self.came)
        self._look_later()

    def close(self) -> None:
        """Take no more; what was taken is answered as long as the storage is open."""
        self._closed = True
        if self._looker is not None:
            self._looker.cancel()

    def _go(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._gone)

    def _gone(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()

    # --- Looking without having been told (R10) ------------------------------------------------

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._looker = loop.call_later(limits.LETTERS_LOOK_S, self._look)

    def _look(self) -> None:
        self._go(self._look_at_all(), "inboxes")

    async def _look_at_all(self) -> None:
        queues = {
            slot.partition.queue_id
            for runtime in self._groups.runtimes.values()
            for slot in runtime.slots.values()
            if _may_be_written_to(slot)
        }
        for queue_id in queues:
            with suppress(TocsinError):  # the next time
                for place in await self._inbox.places(queue_id):
                    self.came(place)
        if not self._closed:
            self._look_later()

    # --- Taking letters ------------------------------------------------------------------------

    def came(self, place: GroupPartition) -> None:
        """A letter may be there."""
        runtime = self._groups.runtimes.get(place.group_id)
        if self._closed or not newest_here(runtime, place.partition.number):
            return
        if place in self._taking:
            self._taking[place] = True
            return
        self._taking[place] = False
        self._go(self._take(place), "inbox")

    async def _take(self, place: GroupPartition) -> None:
        try:
            while True:
                self._taking[place] = False
                letters = await self._inbox.letters(place)
                self._judge(place, letters)
                if not self._taking[place]:
                    break
        except TocsinError as error:
            _LOG.info("an inbox cannot be read now: %s", error)  # who waits asks again
        finally:
            del self._taking[place]

    def _judge(self, place: GroupPartition, letters: Sequence[tuple[str, bytes]]) -> None:
        """Judge those that are new; what was said to the others is said again."""
        now = asyncio.get_running_loop().time()
        batch = _Batch(place)
        for letter_id, text in letters:
            if (place, letter_id) in self._answering:
                continue
            if len(self._answering) + len(batch.verdicts) >= limits.LETTERS_UNDER_WAY_MAX:
                break
            letter = letter_of(text)
            if isinstance(letter, Unpark):
                self._take_up(place, letter_id, letter)
                continue
            verdicts = self._said.get((place, letter_id))
            if verdicts is None and letter is None:
                verdicts = self._passed_over(place, letter_id, text)
            elif verdicts is None and letter is not None:
                verdicts = self._verdicts(batch, letter_id, letter, now)
            if verdicts is not None:
                batch.verdicts[letter_id] = verdicts
        if batch.verdicts:
            self._answering |= batch.keys()
            self._go(self._answer(batch, now), "answer letters")

    def _verdicts(
        self, batch: "_Batch", letter_id: str, letter: Letter, now: float
    ) -> "_Verdicts | None":
        """What becomes of a letter's deliveries; None: that is for somebody else to say, or has to
        be looked up."""
        place = batch.place
        runtime, number = self._groups.runtimes.get(place.group_id), place.partition.number
        slot = slot_of(runtime, number, letter.epoch)
        if slot is not None:
            batch.touched[number] = slot
            counted = [
                judge(
                    slot, letter.verb, one, letter.seconds, now,
                    reason=letter.reason, reject=letter.reject,
                )
                for one in letter.deliveries()
            ]  # fmt: skip
            said = "".join(SETTLED if one else STALE for one in counted)
            return _Verdicts(said, letter.epoch if letter.verb == "extend" else None)
        if not has_ended(runtime, number, letter.epoch):
            return None
        if letter.verb == "ack" and (place, letter_id) in self._in_doubt:
            return _Verdicts(PERHAPS * letter.count, None)
        was_here = runtime is not None and letter.epoch == runtime.ended.get(number)
        if letter.verb == "ack" and not was_here:
            self._answering.add((place, letter_id))
            self._go(self._look_up(place, letter_id, letter), "look up a letter")
            return None
        return _Verdicts(STALE * letter.count, None)

    async def _look_up(self, place: GroupPartition, letter_id: str, letter: Letter) -> None:
        """An ack for an owner of before, elsewhere: it may have counted there, and the answer was
        lost with that owner. Of what is not settled now, or by no ack, it has not, for a newer
        epoch stands."""
        said = ""
        try:
            for _, first, last in letter.runs:
                found = await self._storage.standings(place, first, last)
                said += "".join(
                    PERHAPS if one.state == "settled" and not one.ended else STALE for one in found
                )
            if len(said) == letter.count:
                await self._inbox.answer(place, {letter_id: said}, None)
        except TocsinError as error:
            _LOG.info("a letter is answered when it is asked again: %s", error)
        finally:
            self._answering.discard((place, letter_id))

    def _passed_over(
        self, place: GroupPartition, letter_id: str, text: bytes
    ) -> "_Verdicts | None":
        """This is no letter; None: the next owner may be able to read it."""
        runtime, number = self._groups.runtimes.get(place.group_id), place.partition.number
        epoch = newest_here(runtime, number)
        if slot_of(runtime, number, epoch) is None:
            return None
        self._report(place, letter_id, text)
        return _Verdicts(UNREADABLE, epoch)

    def _report(self, place: GroupPartition, letter_id: str, text: bytes) -> None:
        self.unreadable_total += 1
        _LOG.warning(
            "the inbox of group %s, queue %s, partition %d had something that is no letter, of the "
            "id %.64r and %d bytes: it was passed over",
            place.group_id, place.partition.queue_id, place.partition.number, letter_id, len(text),
        )  # fmt: skip

    async def _answer(self, batch: "_Batch", now: float) -> None:
        place = batch.place
        try:
            # Not durable: a newer epoch has ended this one, and says so to whoever asks again.
            if await durable(batch.touched.values(), now):
                self._remember(batch)
                for epoch in {one.epoch for one in batch.verdicts.values()}:
                    await self._inbox.answer(place, batch.answers(epoch), epoch)
            else:
                self._in_doubt.update(dict.fromkeys(batch.keys()))
                while len(self._in_doubt) > limits.ANSWERS_KEPT_MAX:
                    self._in_doubt.popitem(last=False)
        except TocsinError as error:
            _LOG.info("letters are answered when they are asked again: %s", error)
        finally:
            self._answering -= batch.keys()

    def _remember(self, batch: "_Batch") -> None:
        for letter_id, verdicts in batch.verdicts.items():
            self._said[batch.place, letter_id] = verdicts
        while len(self._said) > limits.ANSWERS_KNOWN_MAX:
            self._said.popitem(last=False)

    # --- Decisions about parked keys -----------------------------------------------------------

    def _take_up(self, place: GroupPartition, letter_id: str, letter: Unpark) -> None:
        runtime, number = self._groups.runtimes.get(place.group_id), place.partition.number
        before = self._said.get((place, letter_id))
        said = before.said if before is not None else None
        slot = slot_of(runtime, number, letter.epoch)
        if said is None and slot is None:
            if not has_ended(runtime, number, letter.epoch):
                return  # for somebody else to say
            said = STALE * letter.count
        self._answering.add((place, letter_id))
        self._go(self._decide(place, letter_id, letter, slot, said), "decide by a letter")

    async def _decide(
        self, place: GroupPartition, letter_id: str, letter: Unpark, slot: Slot | None,
        said: str | None,
    ) -> None:  # fmt: skip
        """`said`: what is known already."""
        try:
            if said is None and slot is not None:
                said = await unpark(self._storage, slot, letter)
                self._remember(_Batch(place, {letter_id: _Verdicts(said, None)}))
            await self._inbox.answer(place, {letter_id: said or ""}, None)
        except TocsinError as error:
            _LOG.info("a letter is answered when it is asked again: %s", error)
        finally:
            self._answering.discard((place, letter_id))


def _may_be_written_to(slot: Slot) -> bool:
    """Whether there is something that letters may be about."""
    delivery = slot.delivery
    if delivery.settings.pulls and delivery.leases.open_count:
        return True
    return delivery.settings.park and bool(delivery.waiting.lines.by_key)


class _Verdicts(NamedTuple):
    said: str
    epoch: int | None
    """See Inbox.answer."""


@dataclass(slots=True)
class _Batch:
    """Letters of one inbox that are answered together."""

    place: GroupPartition
    verdicts: dict[str, _Verdicts] = field(default_factory=dict)
    touched: dict[int, Slot] = field(default_factory=dict)

    def keys(self) -> set[tuple[GroupPartition, str]]:
        """Each letter's place and id."""
        return {(self.place, letter_id) for letter_id in self.verdicts}

    def answers(self, epoch: int | None) -> dict[str, str]:
        """By the letters' ids, of those that need this epoch."""
        return {
            letter_id: one.said for letter_id, one in self.verdicts.items() if one.epoch == epoch
        }
