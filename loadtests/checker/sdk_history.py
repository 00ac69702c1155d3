"""The results that producers got from the SDK, and the messages that handlers and readers saw.
Pure.

The raw frames are judged elsewhere; this is what the user's own code received, whatever the frames
said.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from loadtests.checker.verdict import Violations

KINDS: Final = {
    "lost": "a publish returned, and no handler ever ran its message",
    "unknown": "a handler or reader was given what nobody published, or at another place",
    "stored_twice": "a message ran at two places",
    "ran_twice": "a handler ran twice for a message that had not been given again",
    "run_order": "the first runs of a key are not in the order of its messages",
    "overlapping": "two messages of a key ran at the same time",
    "not_read": "a publish returned, and a reader was never given its message",
    "read_order": "a reader was given a message twice, out of order, or after a gap",
}

Place = tuple[int, int]
"""(partition, offset)."""


@dataclass
class Reading:
    """The messages that one reader saw. If `keys` is empty, the reader reads all keys, so the
    offsets that it sees must have no gaps."""

    keys: frozenset[str]
    next_offsets: dict[int, int] = field(default_factory=dict)
    bodies: set[str] = field(default_factory=set)


class SdkHistory(Violations):
    """The history of programs that use the SDK. Bodies are unique texts, so a body names its
    message."""

    def __init__(self) -> None:
        super().__init__(KINDS)
        self.sent: dict[str, str] = {}
        """Body → key of each message handed to the SDK."""
        self.stored: dict[str, Place] = {}
        """Body → place of each message that the SDK returned a receipt for."""
        self.unknown: set[str] = set()
        """Bodies of the messages whose publish raised an error that leaves open whether they are
        stored."""
        self.runs: Counter[Place] = Counter()
        """Number of handler starts by place."""
        self.running: dict[Place, str] = {}
        """Place → key of each running handler's message, or its body if it has no key."""
        self.finished: set[str] = set()
        """Bodies of the messages whose handler has ended at least once."""
        self.readings: list[Reading] = []
        self.is_alone = True
        """Whether two running handlers of one key are a violation."""
        self._place_of: dict[str, Place] = {}
        self._last_first: dict[str, int] = {}
        self._busy: dict[str, Place] = {}

    @property
    def left(self) -> int:
        """Number of messages with a receipt that no handler has finished."""
        return len(self.stored.keys() - self.finished)

    def unread(self, reading: Reading) -> int:
        """Return the number of messages with a receipt that this reader has not received yet."""
        return sum(
            body not in reading.bodies
            for body in self.stored
            if not reading.keys or self.sent[body] in reading.keys
        )

    # --- producers

    def publishes(self, body: str, key: str) -> None:
        """Note that a message is handed to the SDK."""
        assert body not in self.sent
        self.sent[body] = key

    def returned(self, body: str, partition: int, offset: int) -> None:
        """Note that a publish returned a receipt with this place."""
        self.stored[body] = (partition, offset)
        self._at(body, (partition, offset), "its receipt")

    def failed(self, body: str) -> None:
        """Note that a publish raised an error that leaves the outcome open."""
        self.unknown.add(body)

    # --- handlers

    def starts(self, body: str, key: str | None, place: Place) -> None:
        """Note that a handler begins."""
        self._known(body, key, place, "a handler")
        self.runs[place] += 1
        name = key or body
        if self.runs[place] == 1:
            if place[1] < self._last_first.get(name, -1):
                self.flag("run_order", f"{body} of {key} at {place}")
            self._last_first[name] = place[1]
        if name in self._busy and self.is_alone:
            self.flag("overlapping", f"{body} of {key} at {place} while {self._busy[name]}")
        self._busy[name] = place
        self.running[place] = name

    def ends(self, body: str, place: Place) -> None:
        """Note that a handler has ended."""
        name = self.running.pop(place, None)
        if name is not None and self._busy.get(name) == place:
            del self._busy[name]
        self.finished.add(body)

    # --- readers

    def reads(self, reading: Reading, body: str, key: str | None, place: Place) -> None:
        """Note that a reader received a message. If it reads all keys, the offsets must be
        consecutive from 0."""
        self._known(body, key, place, "a reader")
        partition, offset = place
        expected = reading.next_offsets.get(partition, 0)
        is_next = offset >= expected if reading.keys else offset == expected
        if not is_next or (reading.keys and key not in reading.keys):
            self.flag("read_order", f"{body} of {key} at {place}, expected {expected}")
        reading.next_offsets[partition] = offset + 1
        reading.bodies.add(body)

    def _known(self, body: str, key: str | None, place: Place, who: str) -> None:
        if body not in self.sent or self.sent[body] != key:
            self.flag("unknown", f"{who}: {body!r} of {key} at {place}")
        self._at(body, place, who)

    def _at(self, body: str, place: Place, who: str) -> None:
        known = self._place_of.setdefault(body, place)
        if known != place:
            self.flag("stored_twice", f"{body}: {known}, and {place} says {who}")

    # --- the end

    def close(self, excused: Counter[Place]) -> None:
        """End the history. A message with a receipt that no handler has run is lost now. `excused`:
        how often each message was given again after its delivery had ended, by the raw frames. A
        message may have run that many more times."""
        for body, place in self.stored.items():
            if not self.runs[place]:
                self.flag("lost", f"{body} at {place}")
        for place, count in self.runs.items():
            if count - 1 > excused[place]:
                self.flag("ran_twice", f"{place}: {count} runs, {excused[place]} redeliveries")
        for number, reading in enumerate(self.readings):
            for body, place in self.stored.items():
                if body not in reading.bodies and (
                    not reading.keys or self.sent[body] in reading.keys
                ):
                    self.flag("not_read", f"reader {number}: {body} at {place}")

    @property
    def ran_again(self) -> int:
        """Return the number of runs that were not their message's first."""
        return sum(self.runs.values()) - len(self.runs)
