"""The whole path with and without stuck keys: producers publish, and one of two groups takes the
messages.

A turn is a fixed number of messages, whole decks of keys, so that both groups do the same work. The
other group drains the messages that wait for it before its own turn begins. Before each
measurement, messages use up the credit that the other group still has, so that a turn contains only
its own group's work. Turns are short and many, because the machine's speed varies; each turn is
compared with its neighbor.
"""

import statistics
import time
from random import Random
from typing import Final

from loadtests.clients.load import Producer, stamp
from loadtests.server import Process
from loadtests.trials.stuck.keys import Crew, Deck, Turns
from loadtests.trials.trial import Progress, until

LIVE_MESSAGES: Final = 120_000
"""Number of measured messages of a turn."""
_BEFORE: Final = 40_000
_PRODUCERS: Final = 4
_FRAME_MESSAGES: Final = 100
_WINDOW: Final = 20_000
"""Most healthy messages that are published and not settled yet, as in the benchmark's
batch100."""
_WAIT_S: Final = 120.0


class Live:
    """Producers whose messages two crews take in turns, and the measurements of these turns.
    `turns` are by group."""

    def __init__(
        self,
        url: str,
        queue: str,
        deck: Deck,
        *,
        measured: int,
        server: Process,
        progress: Progress,
    ) -> None:
        """`measured`: number of measured messages of a turn, whole decks. `messages`: number of all
        messages published in a turn."""
        random = Random(2)
        # All producers together send each key once.
        blocks = deck.keys // (_PRODUCERS * _FRAME_MESSAGES)
        self._url = url
        self._deck = deck
        self._measured = measured
        self.messages = _BEFORE + measured
        self._producers = [
            Producer(f"live-{i}", queue, deck, _FRAME_MESSAGES, random, blocks=blocks)
            for i in range(_PRODUCERS)
        ]
        self._server = server
        self._progress = progress
        self._left: dict[Producer, int] = dict.fromkeys(self._producers, 0)
        self._crew: Crew | None = None
        self._publishing = 0
        self._settled_before = 0
        self.turns: dict[str, Turns] = {}
        self.rates: dict[str, list[float]] = {}
        """For each group, the healthy messages a second of each turn."""

    async def open(self) -> None:
        """Connect the producers."""
        for producer in self._producers:
            await producer.open(self._url, None, producer.name)
            producer.on_answers = self._fill

    def _fill(self) -> None:
        """Publish as much as the window of healthy messages allows."""
        if self._crew is None:
            return
        due = stamp(time.monotonic_ns())
        left = self._left
        published = self._deck.healthy(self._publishing - sum(left.values()))
        room = _WINDOW - (published - (self._crew.settled - self._settled_before))
        for producer in self._producers:
            while room > 0 and left[producer] and producer.unanswered < _WINDOW // _PRODUCERS:
                producer.publish(due)
                left[producer] -= _FRAME_MESSAGES
                room -= _FRAME_MESSAGES
            producer.flush()

    async def turn(self, crew: Crew, other: Crew) -> None:
        """Let the crew drain its waiting messages. Then publish, and measure until the crew has
        settled the healthy ones. `other`: the crew whose turn it is not. Raises LoadFailed."""
        await self._drain(crew)
        for handler in crew.handlers:
            handler.on_settled = self._fill
        await self._take(crew, other, _BEFORE)
        settled, cpu_s, began = crew.settled, self._server.cpu_s(), time.monotonic()
        await self._take(crew, other, self._measured)
        elapsed, count = time.monotonic() - began, crew.settled - settled
        turns = self.turns.setdefault(crew.group, Turns())
        turns.messages += count
        turns.seconds += elapsed
        turns.cpu_s += self._server.cpu_s() - cpu_s
        self.rates.setdefault(crew.group, []).append(count / elapsed)
        for handler in crew.handlers:
            handler.on_settled = None
            handler.pause()
        self._progress(f"stuck: {crew.group:<5} {count / elapsed:>9,.0f} messages/s published, too")

    async def _take(self, crew: Crew, other: Crew, messages: int) -> None:
        for each in (crew, other):
            each.total += self._deck.healthy(messages)
        self._settled_before = crew.settled
        self._publishing = messages
        self._left = dict.fromkeys(self._producers, messages // _PRODUCERS)
        self._crew = crew
        self._fill()
        await until(
            lambda: crew.finished, "a live turn", _WAIT_S,
            lambda: [*crew.clients(), *self._producers],
        )  # fmt: skip
        self._crew = None

    @property
    def ratio(self) -> float:
        """Return the ratio of rates with and without stuck keys: the median over pairs of
        neighboring turns."""
        pairs = zip(self.rates["stuck"], self.rates["free"], strict=True)
        return statistics.median(stuck / free for stuck, free in pairs)

    async def drain(self, crew: Crew) -> None:
        """Let the crew drain the messages that the other crew's turns left for it. Raises
        LoadFailed."""
        await self._drain(crew)
        for handler in crew.handlers:
            handler.pause()

    async def _drain(self, crew: Crew) -> None:
        for handler in crew.handlers:
            handler.go()
        await until(lambda: crew.finished, "draining", _WAIT_S, crew.clients)

    def close(self) -> None:
        """Disconnect the producers."""
        for producer in self._producers:
            producer.close()
