"""Letters to owners: requests that reached another gateway than the owner's (R24). Pure.

For example, a client settles a pulled message at gateway A, and gateway B owns its partition. A
posts a letter into the inbox of the (group, partition); B takes it out, decides, and answers it.

    asking gateway ── post ──▶ inbox of the (group, partition) ── letters ──▶ owner's gateway
          ◀── post again: the verdicts ── answers ◀── answer, once they are durable ──┘

An inbox is where the cursor is, so that letters and answers are compared with its epoch in the same
act. The owner alone decides, because only it knows its leases and the key's gate. Asking again
under the same id is always safe, and makes up for lost messages. A delivery is named by epoch,
push and offset, and one that is settled is settled again (R21). A parked key is named with the
moment of its parking, so that no decision is about a later one.

A letter settles deliveries (`Letter`) or decides about parked keys (`Unpark`). Settling has a
verdict of its owner. A decision about a parked key is followed from owner to owner
(`DecisionTracker`):

    pending ──an owner says: durable──▶ decided
      │ ◀─it ended, and the key is parked as it was: nothing happened──┐
      ├──an owner took it up, or may have ─────────────────────────────┤
      └──the key is not parked as it was: unknown, if an owner took it up for this or was asked,
         and never said that it is durable; else another decision was carried out

That an owner took it up does not mean that it decided: it may have ended before, and the next one
carried out another decision. [A skip is answered as done, and the key was retried.]

A decision is about the key as it was parked when the operator decided, named with the moment of its
parking; a key that was parked anew since is another one. So a decision counts at most once, however
often it is asked for. The key's head may change meanwhile. An owner that is asked about another
head decides nothing, and is asked again about the present one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal, Protocol

import msgspec

from push import limits
from push.places import CursorPlace, ParkedLine
from push.places import Verb as Decision

Verb = Literal["ack", "nack", "extend"]
Run = tuple[int, int, int]
"""(push, first, last): deliveries of one push, one after another."""

ASKER_CHARS: Final = 16
"""Number of characters at the begin of a letter's id that name the asking gateway."""
SETTLED: Final = "1"
STALE: Final = "0"
"""Verdict on a delivery: it has ended, and nothing changed (R21). On a decision: nothing came of
it, because the key is not parked (any more) as it says, or its epoch has ended."""
PERHAPS: Final = "2"
"""Verdict on an ack or a decision that an owner has taken up, or may have: it is not known whether
it took effect."""
UNREADABLE: Final = ""
"""Answer in place of verdicts: the owner cannot read this letter."""
_Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_KeyHash = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """An ack, nack or extend of deliveries of one epoch."""

    verb: Verb
    epoch: _Number
    runs: list[tuple[_Number, _Number, _Number]]
    """In the order of the request: the verdict about one may depend on those before it."""
    seconds: float | None = None
    """A nack's delay or an extend's lease, in seconds; None: the group's backoff or lease."""
    reason: str | None = None
    """A nack's reason."""
    reject: bool = False
    """Whether a nack says that no further attempt can help."""
    version: Literal[1] = 1

    def deliveries(self) -> list[tuple[int, int]]:
        """Return (push, offset) of each delivery that the letter names, in order."""
        return [
            (push, offset) for push, first, last in self.runs for offset in range(first, last + 1)
        ]

    @property
    def count(self) -> int:
        """Number of deliveries that the letter names. Its answer has one character for each."""
        return sum(last - first + 1 for _, first, last in self.runs)

    def encode(self) -> bytes:
        """Return the form that is stored in an inbox."""
        return _ENCODER.encode(self)


class Unpark(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's decision about parked keys (push.delivery.waiting), for the owner of one
    epoch."""

    verb: Decision
    epoch: _Number
    keys: list[tuple[_KeyHash, _Number, _Number | None]]
    """(hash, time of its parking in unix milliseconds, its head) of each key, as the operator has
    seen it. The owner does not decide about a key that was parked anew since then, or has another
    head."""
    version: Literal[1] = 1

    @property
    def count(self) -> int:
        """Number of parked keys that the decision names. Its answer has one character for each."""
        return len(self.keys)

    def encode(self) -> bytes:
        """Return the form that is stored in an inbox."""
        return _ENCODER.encode(self)


AnyLetter = Letter | Unpark
_ENCODER: Final = msgspec.json.Encoder()
_LETTER: Final = msgspec.json.Decoder(Letter)
_UNPARK: Final = msgspec.json.Decoder(Unpark)


def runs_of(deliveries: Sequence[tuple[int, int]]) -> list[Run]:
    """Return these (push, offset) as runs, in this order: neighbors of one push are one run."""
    runs: list[Run] = []
    for push, offset in deliveries:
        if runs and runs[-1][0] == push and runs[-1][2] == offset - 1:
            runs[-1] = (push, runs[-1][1], offset)
        else:
            runs.append((push, offset, offset))
    return runs


def letter_of(text: bytes) -> AnyLetter | None:
    """Decode one letter of an inbox. None: a foreign writer or a later version wrote it, or it
    names more than a request may."""
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

    They are not durable: a failover may empty them. The asking gateway learns nothing then, and
    asks again. Letters go `limits.LETTERS_KEPT_S` after the last request to their inbox or answer
    from it, even if nobody took them out.
    """

    async def post(self, place: CursorPlace, letter_id: str, letter: AnyLetter) -> str | None:
        """Put a letter in, unless it is in already, and notify the owner of the place. Returns the
        verdicts, one character for each delivery or key, if it has been answered; None: it waits.

        Raises:
            Fenced: the place has a newer epoch than the letter's, so its deliveries have ended.
            Refused: overloaded if too much waits there, and it was not put in; group_not_found if
                there is no such place; storage_unavailable.
            Unknown: it may have been put in.
        """

    async def letters(self, place: CursorPlace) -> list[tuple[str, bytes]]:
        """Return (id, encoded letter) of those that wait, in no order. Raises Refused."""

    async def places(self, queue_id: str) -> list[CursorPlace]:
        """Return the places of this queue where letters wait, and perhaps some where none does.
        Raises Refused."""

    async def answer(
        self, place: CursorPlace, answers: Mapping[str, str], epoch: int | None
    ) -> bool:
        """Take these letters (by their ids) out, keep the verdicts as their answers, and notify the
        asking gateways. The first answer to a letter is kept. With an `epoch` the verdicts are true
        only while the place has it, because an extend is nowhere but in its owner's memory. Returns
        False, and does nothing, if the place has another epoch by now, or does not exist. Raises
        Refused or Unknown; answering again is safe."""

    def on_letter(self, came: Callable[[CursorPlace], None]) -> None:
        """Register a listener, called on the event loop when a letter was put in through any
        gateway. The call is a hint to look; some letters are not notified."""

    def on_answer(self, asker: str, came: Callable[[str], None]) -> None:
        """Register a listener for ids of letters that begin with this name of ASKER_CHARS
        characters, called on the event loop when one is answered. It is a hint as well."""


class DecisionTracker:
    """The progress of one decision about parked keys of one partition. Keys are named by their
    hashes."""

    def __init__(self, lines: Iterable[ParkedLine]) -> None:
        """`lines`: the keys that are decided about, as they are parked."""
        self.pending = {line.key_hash: line for line in lines}
        """Keys of which it is not known yet what became of the decision, by hash; each as it is
        parked."""
        self.decided: dict[int, ParkedLine] = {}
        """Keys that this decision was durably carried out for, by hash; each as it was parked
        then."""
        self.unknown: set[int] = set()
        """Keys that this decision may have been carried out for: they are not parked any more as
        they were, or `give_up` ended the wait."""
        self.others = 0
        """Number of keys that are not parked any more as they were, but not by this decision."""
        self._taken_up: set[int] = set()
        self._asked: dict[int, int] = {}
        """Key → the epoch whose owner may have taken it up, and has not said so."""

    def on_asked(self, keys: Iterable[int], epoch: int) -> None:
        """Note that the owner of this epoch may have taken these up, or may do so yet."""
        self._asked.update(dict.fromkeys(keys, epoch))

    def on_taken_up(self, key: int) -> None:
        """Note that an owner has taken a key up; the outcome is not known."""
        self._taken_up.add(key)

    def on_durable(self, key: int) -> None:
        """Note that the owner made the decision about a key durable."""
        line = self.pending.pop(key, None)
        if line is not None:
            self.decided[key] = line

    def on_answer(self, keys: Sequence[int], verdicts: str) -> None:
        """Note an owner's verdicts about these keys (by hash), one character for each."""
        for key, verdict in zip(keys, verdicts, strict=True):
            self._asked.pop(key, None)
            if verdict == SETTLED:
                self.on_durable(key)
            elif verdict == PERHAPS:
                self.on_taken_up(key)

    def compare(self, lines: Iterable[ParkedLine], *, epoch: int) -> None:
        """Compare with the keys that the storage has parked now. `epoch`: the newest one before
        they were read; no owner here works under an older one."""
        found = {line.key_hash: line for line in lines}
        for key, line in list(self.pending.items()):
            now = found.get(key)
            if now is not None and now.since_unix_ms == line.since_unix_ms:
                self.pending[key] = now
                self._taken_up.discard(key)
                if self._asked.get(key, epoch) < epoch:
                    del self._asked[key]  # that owner can write nothing any more
                continue
            del self.pending[key]
            if key in self._taken_up or key in self._asked:
                self.unknown.add(key)
            else:
                self.others += 1

    def give_up(self) -> None:
        """Stop asking. Keys that an owner may have taken up are `unknown` then; others stay
        `pending`."""
        for key in self._taken_up.union(self._asked).intersection(self.pending):
            del self.pending[key]
            self.unknown.add(key)
