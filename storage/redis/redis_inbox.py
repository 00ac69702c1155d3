"""Inboxes on Redis: `push.letters.Inbox` over one shard (redis/inbox.lua).

Their acts wait for no copies: nothing that counts is in them, and who is not answered asks again.
"""

from collections.abc import Callable, Mapping
from typing import Any

from push import limits
from push.letters import AnyLetter
from push.places import GroupPartition, Partition
from storage.redis.redis_keys import ANSWER_CHANNELS, LETTER_CHANNELS, place_of, queue_key
from storage.redis.redis_ports import Arg, Shard

_WAITS = b"-"
_ID = "latin-1"
"""Also what is no id of ours is taken out by the bytes that it has."""


class RedisInbox:
    """See the module."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    async def _act(self, name: str, place: GroupPartition, *args: Arg) -> Any:
        key, at = queue_key(place.partition.queue_id), (place.partition.number, place.group_id)
        return await self._shard.act(name, [key], [*at, *args], level="local")

    async def post(self, place: GroupPartition, letter_id: str, letter: AnyLetter) -> str | None:
        """As Inbox.post."""
        answer: bytes = await self._act(
            "post_letter", place, letter_id, letter.encode(), letter.epoch,
            limits.INBOX_LETTERS_MAX, limits.INBOX_BYTES_MAX, _kept_ms(),
        )  # fmt: skip
        return None if answer == _WAITS else answer.decode()

    async def letters(self, place: GroupPartition) -> list[tuple[str, bytes]]:
        """As Inbox.letters."""
        key = queue_key(place.partition.queue_id)
        args: list[Arg] = [place.partition.number, place.group_id]
        flat = await self._shard.look("letters", [key], args)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return [(letter_id.decode(_ID), letter) for letter_id, letter in pairs]

    async def places(self, queue_id: str) -> list[GroupPartition]:
        """As Inbox.places."""
        found = []
        for name in await self._shard.look("letter_places", [queue_key(queue_id)], []):
            number, _, group = name.decode("utf-8", "replace").partition(":")
            if number.isdecimal():
                found.append(GroupPartition(group, Partition(queue_id, int(number))))
        return found

    async def answer(
        self, place: GroupPartition, answers: Mapping[str, str], epoch: int | None
    ) -> bool:
        """As Inbox.answer."""
        pairs = [text.encode(_ID) for pair in answers.items() for text in pair]
        terms: list[Arg] = [epoch if epoch is not None else "", limits.ANSWERS_KEPT_MAX, _kept_ms()]
        return bool(await self._act("answer_letters", place, *terms, *pairs))

    def on_letter(self, came: Callable[[GroupPartition], None]) -> None:
        """As Inbox.on_letter."""

        def heard(channel: bytes, _message: bytes) -> None:
            place = place_of(channel)
            if place is not None:
                came(place)

        self._shard.on_message(LETTER_CHANNELS, heard)

    def on_answer(self, asker: str, came: Callable[[str], None]) -> None:
        """As Inbox.on_answer."""

        def heard(_channel: bytes, message: bytes) -> None:
            came(message.decode(_ID))

        self._shard.on_message(ANSWER_CHANNELS + asker, heard)


def _kept_ms() -> int:
    return int(limits.LETTERS_KEPT_S * 1000)
