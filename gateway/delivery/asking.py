"""Asking owners at other gateways: what becomes of a delivery, or of a parked key, is theirs to say
(R24).

The request is put into the inbox of the (group, partition), again and again under one id, until it
is answered: who is told of it may not have heard, and who answered may not have been heard.
"""

import asyncio
import os
from contextlib import suppress
from typing import NamedTuple

from push import limits
from push.errors import Fenced, Refused, TocsinError, Unknown
from push.letters import ASKER_CHARS, PERHAPS, STALE, AnyLetter, Inbox, Letter
from push.places import GroupPartition


class Said(NamedTuple):
    """What came of asking."""

    verdicts: str | None
    """One character for each delivery or key, or UNREADABLE. None: the letter's epoch has ended."""
    may_have_been_read: bool = True
    """Whether the owner of that epoch may have acted on it."""


class Asking:
    """See the module."""

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
        """For one letter."""
        return self._name + os.urandom(8).hex()

    async def ask(self, place: GroupPartition, letter: Letter) -> str:
        """The owner's verdicts about deliveries, once they are durable; those of an epoch that has
        ended are stale, unless its owner may have taken an ack up. Raises as `put`, and Unknown for
        that; asking anew, under another id, is safe."""
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
        self, place: GroupPartition, letter: AnyLetter, letter_id: str, within_s: float
    ) -> Said:
        """What the owner says, once it is durable.

        Raises:
            Unknown: nobody has answered within this time; asking again under this id is safe.
            Refused: nothing came of it: overloaded, group_not_found, storage_unavailable.
        """
        if len(self._waits) >= limits.LETTERS_UNDER_WAY_MAX:
            raise Refused("overloaded", "too much waits for other gateways", 1.0)
        self._waits[letter_id] = asyncio.Event()
        try:
            return await self._answer(place, letter_id, letter, within_s)
        finally:
            del self._waits[letter_id]

    async def _answer(
        self, place: GroupPartition, letter_id: str, letter: AnyLetter, within_s: float
    ) -> Said:
        may_be_there = False
        why = "has not answered"
        try:
            async with asyncio.timeout(within_s):
                while True:
                    self._waits[letter_id].clear()
                    try:
                        answer = await self._inbox.post(place, letter_id, letter)
                        if answer is not None:
                            return Said(answer)
                        may_be_there = True
                    except Fenced:
                        return Said(None, may_be_there)
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
