"""What a client knows of its scheduled messages, and the judge of what became of them.

A client has answers only: what it has published, changed and cancelled, and when it heard so.
Beside them the judge has the log at the end, as anybody can read it over HTTP. All times are unix
milliseconds of one machine. Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from loadtests.checker.verdict import Violations

KINDS: Final = {
    "lost": "P1: stored, due, not cancelled, and not in the log",
    "invented": "P2: in the log, never published",
    "altered": "P2: in the log with another body than it may have",
    "twice": "R32: more than once in the log",
    "early": "R32: in the log before it was due",
    "order": "R32: two messages of a key are in another order than that of (due, publishing)",
    "cancelled": "R32: cancelled, and in the log all the same",
    "unlisted": "R32: it waits, and the list of its key does not have it",
    "listed": "R32: the list of a key has what was cancelled, or nobody published",
    "list_order": "R32: a list is not in the order of times",
    "answer": "an answer that cannot be, by what was answered before",
}


@dataclass(slots=True)
class Scheduled:
    """A scheduled message as its publisher knows it. `dues` and `bodies`: what it may have; several
    if a change was not answered before the message was due."""

    name: str
    key: str
    dues: list[int]
    bodies: list[int]
    ticket: int | None = None
    """Its number in its partition; None: it is not known whether it is stored."""
    known_unix_ms: float = 0.0
    """When the answer to its publish, or to its last change, was read."""
    is_cancelled: bool = False

    @property
    def is_sure(self) -> bool:
        """Whether it is stored, and when it is due is known."""
        return self.ticket is not None and len(self.dues) == 1


@dataclass(frozen=True, slots=True)
class Found:
    """A message in the log. `moved_unix_ms`: when its record was made."""

    name: str
    key: str
    partition: int
    offset: int
    moved_unix_ms: int
    body: int


@dataclass(slots=True)
class Books:
    """All that a run has published, by id."""

    messages: dict[str, Scheduled] = field(default_factory=dict)
    keys: dict[str, list[Scheduled]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[tuple[str, str]] = field(default_factory=list)
    """(kind, what was seen) of violations that were found in answers."""

    def add(self, message: Scheduled) -> Scheduled:
        """Note a message that is about to be published. Returns it."""
        self.messages[message.name] = message
        self.keys[message.key].append(message)
        return message

    def flag(self, kind: str, text: str) -> None:
        """Note a violation."""
        self.wrong.append((kind, text))

    def check_list(
        self,
        key: str,
        names: Iterable[str],
        listed_dues: Iterable[int],
        *,
        until_unix_ms: float,
    ) -> None:
        """Compare the list of a key with what is known of it. Nobody else has changed anything of
        the key meanwhile. `until_unix_ms`: when the answer was read."""
        listed, dues = [*names], [*listed_dues]
        if any(one > following for one, following in pairwise(dues)):
            self.flag("list_order", f"{key}: {dues}")
        there = set(listed)
        for name, due in zip(listed, dues, strict=True):
            known = self.messages.get(name)
            if known is None or known.is_cancelled or known.key != key or due not in known.dues:
                self.flag("listed", f"{key}: {name}, due {due}: {known}")
        for known in self.keys[key]:
            if (
                known.is_sure and not known.is_cancelled
                and known.dues[0] > until_unix_ms and known.name not in there
            ):  # fmt: skip
                self.flag("unlisted", f"{known}; listed were {len(listed)} until {until_unix_ms}")


def judge(books: Books, log: Iterable[Found]) -> Violations:
    """Judge the log after everything was due, moved and read."""
    verdict = Violations(KINDS)
    for kind, text in books.wrong:
        verdict.flag(kind, text)
    found = [*log]
    for name, times in Counter(one.name for one in found).items():
        if times > 1:
            places = [(one.partition, one.offset) for one in found if one.name == name]
            verdict.flag("twice", f"{name}: {places}")
    by_name: dict[str, Found] = {}
    for one in found:
        by_name.setdefault(one.name, one)
    for one in by_name.values():
        _judge_one(books.messages, one, verdict)
    for known in books.messages.values():
        if known.ticket is not None and not known.is_cancelled and known.name not in by_name:
            verdict.flag("lost", str(known))
    for some in books.keys.values():
        sure = [one for one in some if one.is_sure and not one.is_cancelled]
        _judge_order([one for one in sure if one.name in by_name], by_name, verdict)
    return verdict


def _judge_one(messages: Mapping[str, Scheduled], one: Found, verdict: Violations) -> None:
    known = messages.get(one.name)
    if known is None or known.key != one.key:
        verdict.flag("invented", str(one))
        return
    if known.is_cancelled:
        verdict.flag("cancelled", f"{known}: {one}")
    if one.body not in known.bodies:
        verdict.flag("altered", f"{known}: {one}")
    if one.moved_unix_ms < min(known.dues):
        verdict.flag("early", f"{min(known.dues) - one.moved_unix_ms} ms: {known}: {one}")


def _judge_order(some: list[Scheduled], log: Mapping[str, Found], verdict: Violations) -> None:
    """Judge the messages of a key. An order is promised to two of them that were both known to be
    stored before the earlier one was due."""
    some.sort(key=lambda one: (one.dues[0], one.ticket))
    for at, first in enumerate(some):
        if first.known_unix_ms >= first.dues[0]:
            continue
        for second in some[at + 1 :]:
            if second.known_unix_ms >= first.dues[0]:
                continue
            before, after = log[first.name], log[second.name]
            if (before.partition, before.offset) > (after.partition, after.offset):
                verdict.flag("order", f"{first}: {before}; {second}: {after}")
