"""The inbox in memory: the verified fake of `push.letters.Inbox`, for all gateways of a test."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from push import limits
from push.errors import Fenced, Refused
from push.letters import ASKER_CHARS, AnyLetter
from push.places import CursorPlace

EpochOf = Callable[[CursorPlace], int | None]


@dataclass(slots=True)
class _Box:
    """The inbox of one place."""

    letters: dict[str, bytes] = field(default_factory=dict)
    answers: OrderedDict[str, str] = field(default_factory=OrderedDict)
    until: float = 0.0


class MemoryInbox:
    """`push.letters.Inbox` in memory. `epoch_of` returns the newest epoch of a place; None: it does
    not exist."""

    def __init__(self, epoch_of: EpochOf) -> None:
        self._epoch_of = epoch_of
        self._boxes: dict[CursorPlace, _Box] = {}
        self._letter_came: list[Callable[[CursorPlace], None]] = []
        self._answer_came: list[tuple[str, Callable[[str], None]]] = []

    def _clear(self) -> float:
        """Delete inboxes whose time is up, or whose place does not exist. Returns the time."""
        now = asyncio.get_running_loop().time()
        for place, box in list(self._boxes.items()):
            if box.until < now or self._epoch_of(place) is None:
                del self._boxes[place]
        return now

    async def post(self, place: CursorPlace, letter_id: str, letter: AnyLetter) -> str | None:
        epoch, now = self._epoch_of(place), self._clear()
        if epoch is None:
            raise Refused("group_not_found", f"the storage has no group {place.group_id} here")
        box = self._boxes.setdefault(place, _Box())
        if letter_id in box.answers:
            return box.answers[letter_id]
        if epoch > letter.epoch:
            box.letters.pop(letter_id, None)
            raise Fenced(f"epoch {letter.epoch} has ended here, it is {epoch}")
        if letter_id not in box.letters:
            text = letter.encode()
            size = len(text) + sum(map(len, box.letters.values()))
            if len(box.letters) >= limits.INBOX_LETTERS_MAX or size > limits.INBOX_BYTES_MAX:
                raise Refused("overloaded", "too much waits for the owner of this partition")
            box.letters[letter_id] = text
        box.until = now + limits.LETTERS_KEPT_S
        for came in self._letter_came:
            asyncio.get_running_loop().call_soon(came, place)
        await asyncio.sleep(0)
        return None

    async def letters(self, place: CursorPlace) -> list[tuple[str, bytes]]:
        self._clear()
        await asyncio.sleep(0)
        box = self._boxes.get(place)
        return list(box.letters.items()) if box is not None else []

    async def places(self, queue_id: str) -> list[CursorPlace]:
        self._clear()
        await asyncio.sleep(0)
        return [
            place
            for place, box in self._boxes.items()
            if place.partition.queue_id == queue_id and box.letters
        ]

    async def answer(
        self, place: CursorPlace, answers: Mapping[str, str], epoch: int | None
    ) -> bool:
        now, newest = self._clear(), self._epoch_of(place)
        if newest is None or epoch not in (None, newest):
            return False
        box = self._boxes.setdefault(place, _Box())
        for letter_id, said in answers.items():
            box.letters.pop(letter_id, None)
            box.answers.setdefault(letter_id, said)
            for asker, came in self._answer_came:
                if asker == letter_id[:ASKER_CHARS]:
                    asyncio.get_running_loop().call_soon(came, letter_id)
        while len(box.answers) > limits.ANSWERS_KEPT_MAX:
            box.answers.popitem(last=False)
        box.until = now + limits.LETTERS_KEPT_S
        await asyncio.sleep(0)
        return True

    def on_letter(self, came: Callable[[CursorPlace], None]) -> None:
        self._letter_came.append(came)

    def on_answer(self, asker: str, came: Callable[[str], None]) -> None:
        self._answer_came.append((asker, came))
