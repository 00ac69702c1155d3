"""Letters: what reached another gateway than the owner's (R24): settlements of pulled messages, and
operators' decisions about parked keys. Values, and the port.

    asking gateway ── post ──▶ inbox of the (group, partition) ── letters ──▶ owner's gateway
          ◀── post again: the verdicts ── answers ◀── answer, once they are durable ──┘

An inbox lies where the cursor lies, so that what is put in or answered is compared with the epoch
there in the same act. Deciding stays with the owner: only it knows its leases and the key's gate.
Asking again under the same id is always safe, and is what makes up for messages that are lost: a
delivery is named by epoch, push and offset, and one that is settled is settled again (R21); a
parked key is named with the moment of its parking, so that no decision is about a later one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, Literal, Protocol

import msgspec

from push import limits
from push.places import GroupPartition
from push.places import Verb as Decision

Verb = Literal["ack", "nack", "extend"]
Run = tuple[int, int, int]
"""(push, first, last): deliveries of one push, one after another."""

ASKER_CHARS: Final = 16
"""A letter's id begins with so many characters that name the gateway which asks."""
SETTLED: Final = "1"
STALE: Final = "0"
"""Of a decision: nothing came of it, the key is not parked (any more) as it says."""
PERHAPS: Final = "2"
"""Of a decision: it was taken up, and the epoch ended before it was known to be durable."""
UNREADABLE: Final = ""
"""Instead of verdicts: this letter says nothing that the owner knows."""
_Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_KeyHash = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """An ack, nack or extend of deliveries of one epoch."""

    verb: Verb
    epoch: _Number
    runs: list[tuple[_Number, _Number, _Number]]
    """In the order of the request: the verdict about one may depend on those before it."""
    seconds: float | None = None
    """A nack's delay or an extend's lease; None: the group's."""
    reason: str | None = None
    """Of a nack."""
    reject: bool = False
    """Of a nack: no further attempt can help."""
    version: Literal[1] = 1

    def deliveries(self) -> list[tuple[int, int]]:
        """(push, offset) of each, in order."""
        return [
            (push, offset) for push, first, last in self.runs for offset in range(first, last + 1)
        ]

    @property
    def count(self) -> int:
        """How many verdicts answer it."""
        return sum(last - first + 1 for _, first, last in self.runs)

    def encode(self) -> bytes:
        """As it lies in an inbox."""
        return _ENCODER.encode(self)


class Unpark(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's decision about parked keys (push.delivery.waiting), for the owner of one
    epoch."""

    verb: Decision
    epoch: _Number
    keys: list[tuple[_KeyHash, _Number, _Number | None]]
    """(hash, since when it is parked in unix milliseconds, its head): what was parked anew since
    then, or has another head, is not what the operator has seen."""
    version: Literal[1] = 1

    @property
    def count(self) -> int:
        """How many verdicts answer it."""
        return len(self.keys)

    def encode(self) -> bytes:
        """As it lies in an inbox."""
        return _ENCODER.encode(self)


AnyLetter = Letter | Unpark
_ENCODER: Final = msgspec.json.Encoder()
_LETTER: Final = msgspec.json.Decoder(Letter)
_UNPARK: Final = msgspec.json.Decoder(Unpark)


def runs_of(deliveries: Sequence[tuple[int, int]]) -> list[Run]:
    """These (push, offset), in this order: neighbours of one push become one run."""
    runs: list[Run] = []
    for push, offset in deliveries:
        if runs and runs[-1][0] == push and runs[-1][2] == offset - 1:
            runs[-1] = (push, runs[-1][1], offset)
        else:
            runs.append((push, offset, offset))
    return runs


def letter_of(text: bytes) -> AnyLetter | None:
    """What lies in an inbox; None: nobody here has written this, or a version to come."""
    try:
        letter = _LETTER.decode(text)
    except msgspec.MsgspecError:
        return _unpark_of(text)
    left = limits.PULL_MESSAGES_MAX
    for _, first, last in letter.runs:
        left -= last - first + 1
        if last < first or left < 0:
            return None
    return letter


def _unpark_of(text: bytes) -> Unpark | None:
    try:
        letter = _UNPARK.decode(text)
    except msgspec.MsgspecError:
        return None
    return letter if letter.count <= limits.PARKED_PER_CALL_MAX else None


class Inbox(Protocol):
    """The inboxes of a storage that several gateways work on.

    They are no part of what is durable: a failover may empty them. Who asks learns nothing then,
    and asks again. What nobody takes goes after `limits.LETTERS_KEPT_S`.
    """

    async def post(self, place: GroupPartition, letter_id: str, letter: AnyLetter) -> str | None:
        """Put it in, unless it is there, and tell whoever owns the place; or the verdicts, one
        character for each delivery or key, if it has been answered. None: it waits.

        Raises:
            Fenced: the place has a newer epoch than the letter's: what it names has ended.
            Refused: overloaded: too much waits there, it was not put in; group_not_found: there is
                no such place; storage_unavailable.
            Unknown: it may be there.
        """

    async def letters(self, place: GroupPartition) -> list[tuple[str, bytes]]:
        """(id, encoded letter) of those that wait, in no order. Raises Refused."""

    async def places(self, queue_id: str) -> list[GroupPartition]:
        """Where in this queue letters wait, and perhaps some where none does. Raises Refused."""

    async def answer(
        self, place: GroupPartition, answers: Mapping[str, str], epoch: int | None
    ) -> bool:
        """Take these letters (by their ids) out, with the verdicts, and tell who asked. The first
        answer to a letter stands. With an `epoch` they are true only while the place has it: an
        extend is nowhere but in its owner's memory. False: it has another one by now, or is gone,
        and nothing happened. Raises Refused or Unknown: answering again is safe."""

    def on_letter(self, came: Callable[[GroupPartition], None]) -> None:
        """Register: called on the event loop when a letter was put in, through whichever gateway.
        Some are not told of: it is a hint to look."""

    def on_answer(self, asker: str, came: Callable[[str], None]) -> None:
        """Register for ids of letters that begin with this name of ASKER_CHARS characters; called
        on the event loop when one is answered. A hint as well."""
