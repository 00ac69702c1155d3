"""What a consumer for any peer has alike: its counts, and its acknowledgements in random order."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import Generic, TypeVar

from loadtests.histogram import Histogram
from loadtests.peers.bodies import Acks, Bodies

Ack = TypeVar("Ack")
"""What a protocol names a delivery by when it is acknowledged."""


class Settling(ABC, Generic[Ack]):
    """The part of Consuming that no protocol touches. Goes before the protocol's client among the
    bases."""

    def __init__(self, bodies: Bodies, histogram: Histogram, random: Random) -> None:
        self.delivered = 0
        self.settled = 0
        self.redelivered = 0
        self.on_settled: Callable[[], None] | None = None
        self._bodies = bodies
        self._histogram = histogram
        self._acks: Acks[Ack] = Acks(random, self._acknowledge)

    @abstractmethod
    def _acknowledge(self, due: list[Ack]) -> None:
        """Acknowledge these, and ask for a word on it."""

    def _told(self) -> None:
        if self.on_settled is not None:
            self.on_settled()
