"""The inboxes of several storage clusters: each lies beside its cursor (`push.letters.Inbox`)."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from push.errors import TocsinError
from push.letters import AnyLetter, Inbox
from push.places import GroupPartition
from storage.places import Places


class PlacedInbox:
    """See the module."""

    def __init__(self, places: Places, inboxes: Sequence[Inbox]) -> None:
        """`inboxes`: of every lane."""
        self._places = places
        self._inboxes = inboxes

    def _at(self, place: GroupPartition) -> Inbox:
        return self._inboxes[self._places.lane(place.partition)]

    async def post(self, place: GroupPartition, letter_id: str, letter: AnyLetter) -> str | None:
        """As Inbox.post."""
        return await self._at(place).post(place, letter_id, letter)

    async def letters(self, place: GroupPartition) -> list[tuple[str, bytes]]:
        """As Inbox.letters."""
        return await self._at(place).letters(place)

    async def places(self, queue_id: str) -> list[GroupPartition]:
        """As Inbox.places; of the clusters that answer. Raises Refused: none does."""
        inboxes = [self._inboxes[lane] for lane in self._places.lanes_of(queue_id)]
        found = await asyncio.gather(
            *(inbox.places(queue_id) for inbox in inboxes), return_exceptions=True
        )
        answers = [one for one in found if not isinstance(one, BaseException)]
        errors = [one for one in found if isinstance(one, BaseException)]
        for error in errors:
            if not answers or not isinstance(error, TocsinError):
                raise error
        return [place for some in answers for place in some]

    async def answer(
        self, place: GroupPartition, answers: Mapping[str, str], epoch: int | None
    ) -> bool:
        """As Inbox.answer."""
        return await self._at(place).answer(place, answers, epoch)

    def on_letter(self, came: Callable[[GroupPartition], None]) -> None:
        """As Inbox.on_letter."""
        for inbox in self._inboxes:
            inbox.on_letter(came)

    def on_answer(self, asker: str, came: Callable[[str], None]) -> None:
        """As Inbox.on_answer."""
        for inbox in self._inboxes:
            inbox.on_answer(asker, came)
