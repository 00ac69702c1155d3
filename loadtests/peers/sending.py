"""What a producer for any peer does alike: write blocks of messages, and count confirmations."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import Final

from loadtests.peers.bodies import Bodies

BLOCKS_MIN: Final = 16
MESSAGES_MADE_MIN: Final = 2048


class Sending(ABC):
    """The part of Producing that no protocol touches. Goes before the protocol's client among the
    bases: `_turn` is what that one calls after all that one read brought."""

    def __init__(
        self,
        bodies: Bodies,
        messages: int,
        random: Random,
        around: Callable[[bytes], tuple[bytes, bytes]],
    ) -> None:
        """`messages`: so many go out together. `around`: what stands before and behind the body
        of a message with this key."""
        self.messages_per_frame = messages
        self.unanswered = 0
        self.answered = 0
        self.on_answers: Callable[[], None] | None = None
        self.durability: object = None
        count = max(BLOCKS_MIN, MESSAGES_MADE_MIN // messages)
        self._blocks = itertools.cycle(
            [bodies.block(messages, random, around) for _ in range(count)]
        )
        self._out: list[bytes] = []

    def publish(self, due: bytes) -> None:
        """As Producing says."""
        self.unanswered += self.messages_per_frame
        self._out.append(due.join(next(self._blocks)))

    def flush(self) -> None:
        """As Producing says."""
        if self._out:
            out, self._out = self._out, []
            self._send(out)

    @abstractmethod
    def _send(self, blocks: list[bytes]) -> None:
        """Write these."""

    def _confirmed(self) -> None:
        self.unanswered -= 1
        self.answered += 1

    def _turn(self) -> None:
        if self.on_answers is not None:
            self.on_answers()
