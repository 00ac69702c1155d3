"""Letters: what reached another gateway than the owner's (R24): settlements of pulled messages, and
operators' decisions about parked keys. Values, and the port.

    asking gateway ── post ──▶ inbox of the (group, partition) ── letters ──▶ owner's gateway
          ◀── post again: the verdicts ── answers ◀── answer, once they are durable ──┘

An inbox lies where the cursor lies, so that what is put in or answered is compared with the epoch
there in the same act. Deciding stays with the owner: only it knows its leases and the key's gate.
Asking again under the same id is always safe, and is what makes up for messages that are lost: a
delivery is named by epoch, push and offset, and one that is settled is settled again (R21); a
parked key is named with the moment of its parking, so that no decision is about a later one.

Pursuing one decision about parked keys of one partition, through whichever owners there are.

    left ──an owner says: durable──▶ decided
      │ ◀─it ended, and the key is parked as it was: nothing happened──┐
      ├──an owner took it up, or may have ─────────────────────────────┤
      └──the key is not parked as it was: not known, if an owner took it up for this or was asked,
         and never said that it is durable; else it was somebody else's

That an owner took it up does not say that it decided: it may have ended before, and the next one
carried out what somebody else wanted. [A skip is answered as done, and the key was retried.]

A key is meant as it was parked when the operator decided: with the moment of its parking. What was
parked anew since is another one. So a decision counts at most once, however often it is asked for.
Its head may change meanwhile: an owner that is asked about another one decides nothing, and is
asked again about the one there is.

The headers of dead letters: where each comes from and why, and how it was before. Pure.

A letter says in headers of its own (HEADER …) in which queue it died last. Where it was a dead
letter there already, what it said then goes into one more header, EARLIER, and stands there again
when the letter is sent back: so who looks from the first queue finds it as before.
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

    async def post(self, place: CursorPlace, letter_id: str, letter: AnyLetter) -> str | None:
        """Put it in, unless it is there, and tell whoever owns the place; or the verdicts, one
        character for each delivery or key, if it has been answered. None: it waits.

        Raises:
            Fenced: the place has a newer epoch than the letter's: what it names has ended.
            Refused: overloaded: too much waits there, it was not put in; group_not_found: there is
                no such place; storage_unavailable.
            Unknown: it may be there.
        """

    async def letters(self, place: CursorPlace) -> list[tuple[str, bytes]]:
        """(id, encoded letter) of those that wait, in no order. Raises Refused."""

    async def places(self, queue_id: str) -> list[CursorPlace]:
        """Where in this queue letters wait, and perhaps some where none does. Raises Refused."""

    async def answer(
        self, place: CursorPlace, answers: Mapping[str, str], epoch: int | None
    ) -> bool:
        """Take these letters (by their ids) out, with the verdicts, and tell who asked. The first
        answer to a letter stands. With an `epoch` they are true only while the place has it: an
        extend is nowhere but in its owner's memory. False: it has another one by now, or is gone,
        and nothing happened. Raises Refused or Unknown: answering again is safe."""

    def on_letter(self, came: Callable[[CursorPlace], None]) -> None:
        """Register: called on the event loop when a letter was put in, through whichever gateway.
        Some are not told of: it is a hint to look."""

    def on_answer(self, asker: str, came: Callable[[str], None]) -> None:
        """Register for ids of letters that begin with this name of ASKER_CHARS characters; called
        on the event loop when one is answered. A hint as well."""


class Pursuit:
    """See the module. Keys are named by their hashes."""

    def __init__(self, lines: Iterable[ParkedLine]) -> None:
        """`lines`: what is decided about, as it is parked."""
        self.left = {line.key_hash: line for line in lines}
        """Of which nothing is known to be durable."""
        self.decided: dict[int, ParkedLine] = {}
        """By this decision, durably; each as it was then."""
        self.unknown: set[int] = set()
        """Not parked any more, perhaps by this decision."""
        self.others = 0
        """How many somebody else has decided about meanwhile."""
        self._taken_up: set[int] = set()
        self._asked: dict[int, int] = {}
        """Key → the epoch whose owner may have taken it up, and has not said so."""

    def asked(self, keys: Iterable[int], epoch: int) -> None:
        """The owner of this epoch may have taken these up, or may do so yet."""
        self._asked.update(dict.fromkeys(keys, epoch))

    def took_up(self, key: int) -> None:
        """An owner has taken it up; what came of it is not known."""
        self._taken_up.add(key)

    def is_durable(self, key: int) -> None:
        """Its owner says so."""
        line = self.left.pop(key, None)
        if line is not None:
            self.decided[key] = line

    def answered(self, keys: Sequence[int], verdicts: str) -> None:
        """The owner that was asked about these said this; see push.letters."""
        for key, verdict in zip(keys, verdicts, strict=True):
            self._asked.pop(key, None)
            if verdict == SETTLED:
                self.is_durable(key)
            elif verdict == PERHAPS:
                self.took_up(key)

    def look(self, lines: Iterable[ParkedLine], *, epoch: int) -> None:
        """What the storage has parked now. `epoch`: the newest one there was before it was read;
        no owner here works under an older one."""
        found = {line.key_hash: line for line in lines}
        for key, line in list(self.left.items()):
            now = found.get(key)
            if now is not None and now.since_unix_ms == line.since_unix_ms:
                self.left[key] = now
                self._taken_up.discard(key)
                if self._asked.get(key, epoch) < epoch:
                    del self._asked[key]  # that owner can write nothing any more
                continue
            del self.left[key]
            if key in self._taken_up or key in self._asked:
                self.unknown.add(key)
            else:
                self.others += 1

    def give_up(self) -> None:
        """Nobody is asked any more: of what an owner may have taken up nothing will be known."""
        for key in self._taken_up.union(self._asked).intersection(self.left):
            del self.left[key]
            self.unknown.add(key)


HEADER: Final = "tocsin-dead-letter-"
"""What the names of these headers begin with."""
EARLIER: Final = HEADER + "earlier"
"""JSON: what the other headers said each time before, without HEADER; the first death first."""
EARLIER_MAX: Final = 8
"""So many earlier deaths are kept: the first one, and the latest. [Two queues are made each other's
dead-letter queues at the same moment, and a message goes round for ever.]"""
_ENCODE: Final = msgspec.json.Encoder().encode
_EARLIER: Final = msgspec.json.Decoder(list[dict[str, str]])
Headers = Mapping[str, str] | None


def letter_headers(headers: Headers, **said: str | None) -> dict[str, str]:
    """The headers of a message that dies: its own, and what is `said` of this death; None is left
    out. What it said as a dead letter of before is kept as such."""
    own = {name: text for name, text in (headers or {}).items() if not name.startswith(HEADER)}
    earlier, last = earlier_deaths(headers), said_of(headers)
    if last:
        earlier.append(last)
    if len(earlier) > EARLIER_MAX:
        earlier = [earlier[0], *earlier[1 - EARLIER_MAX :]]
    own |= {HEADER + name: text for name, text in said.items() if text is not None}
    return {**own, EARLIER: _ENCODE(earlier).decode()} if earlier else own


def revived_headers(headers: Headers) -> dict[str, str] | None:
    """The headers that a letter had before it died last; None: it had none."""
    own = {name: text for name, text in (headers or {}).items() if not name.startswith(HEADER)}
    earlier = earlier_deaths(headers)
    if earlier:
        own |= {HEADER + name: text for name, text in earlier.pop().items()}
    if earlier:
        own[EARLIER] = _ENCODE(earlier).decode()
    return own or None


def headers_without_groups(headers: Headers) -> dict[str, str] | None:
    """Headers for somebody whose rights show no groups: without the group of a death, its words
    and those of earlier deaths. None: there are no others."""
    hidden = {HEADER + "group", HEADER + "nack", EARLIER}
    return {name: text for name, text in (headers or {}).items() if name not in hidden} or None


def earlier_deaths(headers: Headers) -> list[dict[str, str]]:
    """What a letter said each time that it died before the last one, the first death first."""
    text = (headers or {}).get(EARLIER)
    if text is None:
        return []
    try:
        return _EARLIER.decode(text)
    except msgspec.MsgspecError:  # somebody else wrote this
        return []


def said_of(headers: Headers) -> dict[str, str]:
    """What a letter says of its last death, without HEADER; empty: it is none."""
    return {
        name[len(HEADER) :]: text
        for name, text in (headers or {}).items()
        if name.startswith(HEADER) and name != EARLIER
    }
