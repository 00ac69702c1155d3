"""Requests to the owner of a partition at another gateway, and their answers (R24).

`OwnerClient` puts a request into the inbox of the (group, partition), again and again under one id,
until it is answered, because a notification may be lost, and so may an answer.

`OwnerServer` takes the letters to owners at this gateway. `judge` and `unpark` decide about them as
if the request had come to this gateway, and they are answered once the effect is durable. A letter
that names an epoch which has ended here is stale; one that names an epoch of another gateway is
left to that one.

A letter is judged once, and answered the same each time under its id. This holds also if its answer
did not arrive, was lost with the store's primary, or came while the inbox was being read.

    [m, m+1 have expired, and an ack of m+1, m comes: m+1 is stale, m settled. The letter is seen
    once more: m+1 is settled, its consumer has the contrary answer, and waits for it in vain.]
"""

import asyncio
import logging
import os
from collections import OrderedDict
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateway.delivery.group import GroupRuntime
from gateway.delivery.groups import Groups
from gateway.delivery.owned_partition import AckWaiter, OwnedPartition
from push import limits
from push.delivery import Judged
from push.errors import Fenced, Refused, TocsinError, Unknown
from push.letters import (
    ASKER_CHARS,
    PERHAPS,
    SETTLED,
    STALE,
    UNREADABLE,
    AnyLetter,
    Inbox,
    Letter,
    Unpark,
    Verb,
    letter_of,
)
from push.places import CursorPlace
from push.storage_port import Storage


class OwnerAnswer(NamedTuple):
    """The answer to one letter."""

    verdicts: str | None
    """Verdicts, a character for each delivery or key that the letter names, or UNREADABLE. None:
    the letter's epoch has ended."""
    may_have_been_read: bool = True
    """Whether the letter may have been in the inbox, so that the owner of its epoch may have acted
    on it."""


class OwnerClient:
    """Sender of this gateway's letters to owners at other gateways. It waits for their answers."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._name = os.urandom(ASKER_CHARS // 2).hex()
        self._waits: dict[str, asyncio.Event] = {}
        inbox.on_answer(self._name, self._answered)

    def _answered(self, letter_id: str) -> None:
        wait = self._waits.get(letter_id)
        if wait is not None:
            wait.set()

    def new_id(self) -> str:
        """Return a random id for a letter. It begins with the name under which this OwnerClient is
        notified of the answer."""
        return self._name + os.urandom(8).hex()

    async def ask(self, place: CursorPlace, letter: Letter) -> str:
        """Return the owner's verdicts about the deliveries that a letter names, SETTLED or STALE
        for each, once their effect is durable. If the letter's epoch has ended, all are STALE.

        Raises:
            Unknown: no answer came in time, the owner could not read the letter, or its epoch ended
                and an ack may have been taken up before. Asking anew, under another id, is safe.
            Refused: as for `put`.
        """
        said = await self.put(place, letter, self.new_id(), limits.LETTER_DEADLINE_S)
        is_open = said.verdicts is None and said.may_have_been_read and letter.verb == "ack"
        if is_open or PERHAPS in (said.verdicts or ""):
            raise Unknown("the owner at another gateway ended before it could say")
        if said.verdicts is None:
            return STALE * letter.count
        if len(said.verdicts) != letter.count:
            raise Unknown("the owner at another gateway could not read what it was asked")
        return said.verdicts

    async def put(
        self, place: CursorPlace, letter: AnyLetter, letter_id: str, within_s: float
    ) -> OwnerAnswer:
        """Put a letter into the inbox of `place`, again and again, until it is answered. Returns
        the owner's answer, once its effect is durable, or that the letter's epoch has ended.

        Raises:
            Unknown: no answer came within `within_s` seconds; asking again under this id is safe.
            Refused: nothing happened: overloaded, group_not_found, storage_unavailable.
        """
        if len(self._waits) >= limits.LETTERS_UNDER_WAY_MAX:
            raise Refused("overloaded", "too much waits for other gateways", 1.0)
        self._waits[letter_id] = asyncio.Event()
        try:
            return await self._answer(place, letter_id, letter, within_s)
        finally:
            del self._waits[letter_id]

    async def _answer(
        self, place: CursorPlace, letter_id: str, letter: AnyLetter, within_s: float
    ) -> OwnerAnswer:
        may_be_there = False
        why = "has not answered"
        try:
            async with asyncio.timeout(within_s):
                while True:
                    self._waits[letter_id].clear()
                    try:
                        answer = await self._inbox.post(place, letter_id, letter)
                        if answer is not None:
                            return OwnerAnswer(answer)
                        may_be_there = True
                    except Fenced:
                        return OwnerAnswer(None, may_be_there)
                    except TocsinError as error:
                        may_be_there = may_be_there or isinstance(error, Unknown)
                        if not may_be_there or error.code.name == "group_not_found":
                            raise
                        why = f"cannot be asked: {error.detail}"
                    with suppress(TimeoutError):
                        async with asyncio.timeout(limits.LETTER_AGAIN_S):
                            await self._waits[letter_id].wait()
        except TimeoutError:
            raise Unknown(
                f"the owner of partition {place.partition.number} is at another gateway, and {why}"
            ) from None


def owned_of(runtime: GroupRuntime | None, number: int, epoch: int) -> OwnedPartition | None:
    """Return this gateway's owned partition `number` if it is owned under `epoch` now; else
    None."""
    owned = runtime.owned_partitions.get(number) if runtime is not None else None
    return (
        owned if owned is not None and not owned.ended and owned.delivery.epoch == epoch else None
    )


def newest_here(runtime: GroupRuntime | None, number: int) -> int:
    """Return the newest epoch under which this gateway owns, or has owned, partition `number`; 0:
    it has not owned it."""
    if runtime is None:
        return 0
    owned = runtime.owned_partitions.get(number)
    return max(runtime.ended.get(number, 0), owned.delivery.epoch if owned is not None else 0)


def has_ended(runtime: GroupRuntime | None, number: int, epoch: int) -> bool:
    """Whether this gateway knows that `epoch` of partition `number` has ended. It knows that if it
    has owned the partition under this epoch or a newer one, and does not own it under this one
    now."""
    is_live = owned_of(runtime, number, epoch) is not None
    return not is_live and epoch <= newest_here(runtime, number)


def judge(
    owned: OwnedPartition,
    verb: Verb,
    delivery: tuple[int, int],
    seconds: float | None,
    now: float,
    *,
    reason: str | None = None,
    reject: bool = False,
) -> bool:
    """Settle, return or extend the delivery (push, offset), as `verb` says. Returns whether it took
    effect, or an ack had settled it before; False: the delivery has ended. `seconds`, `reason` and
    `reject` are those of a Letter."""
    push, offset = delivery
    judged: Judged
    if verb == "ack":
        judged = owned.ack(push, offset, offset, now)
    elif verb == "nack":
        judged = owned.nack(
            push, offset, offset, now, delay_s=seconds, reason=reason, reject=reject
        )
    else:
        lease_s = seconds or owned.delivery.lease_s
        judged = owned.delivery.extend(push, offset, offset, lease_s=lease_s, now=now)
    return bool(judged.settled)


class _Durable(AckWaiter):
    """A waiter with a future: True when the settlements waited for are durable, False if that will
    never be known here."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        super().__init__()
        self.future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def answer(self) -> None:
        """Resolve the future, unless the coroutine that awaits it has gone."""
        if not self.future.done():
            self.future.set_result(self.durable)


async def durable(owned_partitions: Collection[OwnedPartition], now: float) -> bool:
    """Wait until the changes made in these owned partitions so far are durable. False: for one of
    them that will never be known here, because its epoch has ended."""
    waiter = _Durable()
    waiter.write(owned_partitions, now)
    return await waiter.future


async def unpark(storage: Storage, owned: OwnedPartition, letter: Unpark) -> str:
    """Carry out a letter's decision about parked keys. Returns a verdict for each key once all
    outcomes are known. SETTLED: the decision is durable. PERHAPS: the epoch ended before that, or
    the key has another head by now. STALE: the key is not parked as the letter says, or has a
    decision already. Raises TocsinError if the parked keys cannot be read; then nothing
    happened."""
    parked = {
        (f"{line.key_hash:016x}", line.since_unix_ms, line.head): line
        for line in await storage.parked(owned.place)
    }
    taken_up = [
        owned.unpark(letter.verb, line) if (line := parked.get(key)) else None
        for key in letter.keys
    ]
    said = ""
    for decided in taken_up:
        if decided is None:
            said += STALE
        else:
            said += SETTLED if await decided else PERHAPS
    return said


_LOG = logging.getLogger("tocsin.inbox")


class OwnerServer:
    """Reader of the inboxes of partitions that this gateway owns or has owned. It judges the
    letters and answers them."""

    def __init__(self, inbox: Inbox, storage: Storage, groups: Groups) -> None:
        self._inbox = inbox
        self._storage = storage
        self._groups = groups
        self.unreadable_total = 0
        """Number of texts in inboxes that were no letters, and were passed over with the answer
        UNREADABLE."""
        self._taking: dict[CursorPlace, bool] = {}
        """Place of an inbox that is being read → whether another notice of a letter came
        meanwhile."""
        self._answering: set[tuple[CursorPlace, str]] = set()
        """(place, letter id) of letters whose verdicts are being found out, made durable, or
        written."""
        self._in_doubt: OrderedDict[tuple[CursorPlace, str], None] = OrderedDict()
        """(place, letter id) of the latest letters that were judged, and whose epoch ended before
        the effect was known to be durable."""
        self._said: OrderedDict[tuple[CursorPlace, str], _Verdicts] = OrderedDict()
        """(place, letter id) → verdicts of the latest letters that were judged here, durably."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._looker: asyncio.TimerHandle | None = None
        self._closed = False
        inbox.on_letter(self.came)
        self._look_later()

    def close(self) -> None:
        """Take no more letters. Those that were taken are answered while the storage is open."""
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

    # --- Looking without a notice (R10) ---------------------------------------------------------

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._looker = loop.call_later(limits.LETTERS_LOOK_S, self._look)

    def _look(self) -> None:
        self._go(self._look_at_all(), "inboxes")

    async def _look_at_all(self) -> None:
        queues = {
            owned.partition.queue_id
            for runtime in self._groups.runtimes.values()
            for owned in runtime.owned_partitions.values()
            if _may_be_written_to(owned)
        }
        for queue_id in queues:
            with suppress(TocsinError):  # the next time
                for place in await self._inbox.places(queue_id):
                    self.came(place)
        if not self._closed:
            self._look_later()

    # --- Taking letters ------------------------------------------------------------------------

    def came(self, place: CursorPlace) -> None:
        """Read the inbox of this place, in which a letter may be, if this gateway owns or has owned
        the partition."""
        runtime = self._groups.runtimes.get(place.group_id)
        if self._closed or not newest_here(runtime, place.partition.number):
            return
        if place in self._taking:
            self._taking[place] = True
            return
        self._taking[place] = False
        self._go(self._take(place), "inbox")

    async def _take(self, place: CursorPlace) -> None:
        try:
            while True:
                self._taking[place] = False
                letters = await self._inbox.letters(place)
                self._judge(place, letters)
                if not self._taking[place]:
                    break
        except TocsinError as error:
            _LOG.info("an inbox cannot be read now: %s", error)  # the asking gateway asks again
        finally:
            del self._taking[place]

    def _judge(self, place: CursorPlace, letters: Sequence[tuple[str, bytes]]) -> None:
        """Judge the letters of an inbox that are new, and answer those that were judged before with
        the same verdicts. If LETTERS_UNDER_WAY_MAX are under way, the rest waits."""
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

    # enforces: R24
    def _verdicts(
        self, batch: "_Batch", letter_id: str, letter: Letter, now: float
    ) -> "_Verdicts | None":
        """Judge a letter's deliveries. None: another gateway has to judge the letter, or its
        messages are being looked up, and `_look_up` answers it."""
        place = batch.place
        runtime, number = self._groups.runtimes.get(place.group_id), place.partition.number
        owned = owned_of(runtime, number, letter.epoch)
        if owned is not None:
            batch.touched[number] = owned
            counted = [
                judge(
                    owned,
                    letter.verb,
                    one,
                    letter.seconds,
                    now,
                    reason=letter.reason,
                    reject=letter.reject,
                )
                for one in letter.deliveries()
            ]
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

    async def _look_up(self, place: CursorPlace, letter_id: str, letter: Letter) -> None:
        """Look up the messages of an ack whose epoch has ended, usually at another gateway, and
        write the answer. A message that is settled now may have been settled by this ack, and only
        the owner's answer was lost: PERHAPS. One that is not settled, or was settled without any
        ack, was not settled by this ack and will not be, because a newer epoch exists: STALE."""
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

    def _passed_over(self, place: CursorPlace, letter_id: str, text: bytes) -> "_Verdicts | None":
        """Return the verdicts for a text that is no letter. None: this gateway does not own the
        partition at the moment, and the next owner may be able to read the text."""
        runtime, number = self._groups.runtimes.get(place.group_id), place.partition.number
        epoch = newest_here(runtime, number)
        if owned_of(runtime, number, epoch) is None:
            return None
        self._report(place, letter_id, text)
        return _Verdicts(UNREADABLE, epoch)

    def _report(self, place: CursorPlace, letter_id: str, text: bytes) -> None:
        self.unreadable_total += 1
        _LOG.warning(
            "the inbox of group %s, queue %s, partition %d had something that is no letter, of the "
            "id %.64r and %d bytes: it was passed over",
            place.group_id,
            place.partition.queue_id,
            place.partition.number,
            letter_id,
            len(text),
        )

    async def _answer(self, batch: "_Batch", now: float) -> None:
        place = batch.place
        try:
            # If it is not durable, a newer epoch has ended this one, and answers a repeated
            # request.
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

    def _take_up(self, place: CursorPlace, letter_id: str, letter: Unpark) -> None:
        runtime, number = self._groups.runtimes.get(place.group_id), place.partition.number
        before = self._said.get((place, letter_id))
        said = before.said if before is not None else None
        owned = owned_of(runtime, number, letter.epoch)
        if said is None and owned is None:
            if not has_ended(runtime, number, letter.epoch):
                return  # another gateway has to answer
            said = STALE * letter.count
        self._answering.add((place, letter_id))
        self._go(self._decide(place, letter_id, letter, owned, said), "decide by a letter")

    async def _decide(
        self,
        place: CursorPlace,
        letter_id: str,
        letter: Unpark,
        owned: OwnedPartition | None,
        said: str | None,
    ) -> None:
        """Carry out a letter's decision about parked keys, and answer the letter. `said`: the
        verdicts, if they are known already."""
        try:
            if said is None and owned is not None:
                said = await unpark(self._storage, owned, letter)
                self._remember(_Batch(place, {letter_id: _Verdicts(said, None)}))
            await self._inbox.answer(place, {letter_id: said or ""}, None)
        except TocsinError as error:
            _LOG.info("a letter is answered when it is asked again: %s", error)
        finally:
            self._answering.discard((place, letter_id))


def _may_be_written_to(owned: OwnedPartition) -> bool:
    """Whether letters may come for this owned partition: pulled messages are in flight, or its keys
    are parked when exhausted, and some keys wait."""
    delivery = owned.delivery
    if delivery.settings.pulls and delivery.pushes:
        return True
    return delivery.settings.park and bool(delivery.lines)


class _Verdicts(NamedTuple):
    said: str
    epoch: int | None
    """The epoch that the place must have for the verdicts to be true; None: any."""


@dataclass(slots=True)
class _Batch:
    """Letters of one inbox that are answered together."""

    place: CursorPlace
    verdicts: dict[str, _Verdicts] = field(default_factory=dict)
    touched: dict[int, OwnedPartition] = field(default_factory=dict)

    def keys(self) -> set[tuple[CursorPlace, str]]:
        """Return each letter's place and id."""
        return {(self.place, letter_id) for letter_id in self.verdicts}

    def answers(self, epoch: int | None) -> dict[str, str]:
        """Return letter id → verdicts, of the letters whose verdicts need this epoch."""
        return {
            letter_id: one.said for letter_id, one in self.verdicts.items() if one.epoch == epoch
        }
