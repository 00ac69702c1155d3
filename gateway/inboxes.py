"""The inboxes of what is owned here: settlements that came through other gateways (R24).

They are judged by the slot that gave the messages, as if they had come here, and answered once that
is durable. What names an epoch that has ended here is stale; what names one that others own, or
nobody yet, is left to them.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateway.groups import Groups
from gateway.judging import durable, has_ended, judge, newest_here, slot_of
from gateway.slot import Slot
from push import limits
from push.errors import TocsinError
from push.letters import SETTLED, STALE, UNREADABLE, Inbox, letter_of
from push.ports import GroupPartition

_LOG = logging.getLogger("tocsin.inbox")


class Inboxes:
    """See the module."""

    def __init__(self, inbox: Inbox, groups: Groups) -> None:
        self._inbox = inbox
        self._groups = groups
        self.unreadable_total = 0
        """Letters that nobody here could read: passed over."""
        self._taking: dict[GroupPartition, bool] = {}
        """Inboxes that are being read, and whether something came meanwhile."""
        self._answering: set[tuple[GroupPartition, str]] = set()
        """Letters that were judged, and wait for that to be durable."""
        self._unanswered: dict[GroupPartition, dict[str, _Verdicts]] = {}
        """Those whose answers did not reach the inbox: what was judged once is not judged again."""
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
        pulled = {
            slot.partition.queue_id
            for runtime in self._groups.runtimes.values()
            for slot in runtime.slots.values()
            if slot.delivery.settings.pulls and slot.delivery.leases.open_count
        }
        for queue_id in pulled:
            try:
                for place in await self._inbox.places(queue_id):
                    self.came(place)
            except TocsinError:
                break  # the next time
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
        """Judge those that are new; what is known of the others is said again."""
        known = self._unanswered.pop(place, {})
        now = asyncio.get_running_loop().time()
        batch = _Batch(place)
        for letter_id, text in letters:
            if (place, letter_id) in self._answering:
                continue
            if len(self._answering) + len(batch.verdicts) >= limits.LETTERS_UNDER_WAY_MAX:
                break
            verdicts = known.get(letter_id) or self._verdicts(batch, letter_id, text, now)
            if verdicts is not None:
                batch.verdicts[letter_id] = verdicts
        if batch.verdicts:
            self._answering |= batch.keys()
            self._go(self._answer(batch, now), "answer letters")

    def _verdicts(
        self, batch: "_Batch", letter_id: str, text: bytes, now: float
    ) -> "_Verdicts | None":
        """What becomes of a letter's deliveries; None: that is for somebody else to say."""
        place = batch.place
        runtime, number = self._groups.runtimes.get(place.group_id), place.partition.number
        letter = letter_of(text)
        if letter is None:
            epoch = newest_here(runtime, number)
            if slot_of(runtime, number, epoch) is None:
                return None  # the next owner may be able to read it
            self._report(place, letter_id, text)
            return _Verdicts(UNREADABLE, epoch)
        slot = slot_of(runtime, number, letter.epoch)
        if slot is not None:
            batch.touched[number] = slot
            counted = [
                judge(slot, letter.verb, one, letter.seconds, now) for one in letter.deliveries()
            ]
            said = "".join(SETTLED if one else STALE for one in counted)
            return _Verdicts(said, letter.epoch if letter.verb == "extend" else None)
        if has_ended(runtime, number, letter.epoch):
            return _Verdicts(STALE * len(letter.deliveries()), None)
        return None

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
                for epoch in {one.epoch for one in batch.verdicts.values()}:
                    await self._inbox.answer(place, batch.answers(epoch), epoch)
        except TocsinError as error:
            _LOG.info("letters are answered when they are asked again: %s", error)
            self._unanswered.setdefault(place, {}).update(batch.verdicts)
        finally:
            self._answering -= batch.keys()


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
