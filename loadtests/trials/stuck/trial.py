"""Stuck keys with a backlog: the healthy ones must not pay for it (P8), nor memory.

One queue has two groups over the same log. In `free` all keys are healthy. In `stuck` a hundred
keys are always nacked, a hundred are parked, and the handlers of a hundred hang and never extend.
The groups take turns, so that other work on the machine affects both alike. Only the healthy keys
are counted.

Before that, on the first messages, the stuck keys get stuck: a nacked key backs off, a hung one has
lost its lease. (P8 is about keys in that state; until then a handler only takes its time.)
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from loadtests.clients.load import LoadFailed, Producer, Shape, stamp
from loadtests.clients.rest import Rest
from loadtests.server import Process, Server
from loadtests.trials import options
from loadtests.trials.stuck.handlers import hung_handlers
from loadtests.trials.stuck.keys import (
    CREDIT,
    HUNG,
    KEYS,
    NACKED,
    OF_A_KIND,
    PARKED,
    Book,
    Crew,
    Deck,
    Handler,
    Nacker,
)
from loadtests.trials.stuck.live import LIVE_MESSAGES, Live
from loadtests.trials.trial import MIB, Finding, Memory, Progress, broker, uncollected, until

MESSAGES: Final = 10_000_000
TURN_S: Final = 5.0
LIVE_ROUNDS: Final = 40
PARTITIONS: Final = 16
CONSUMERS: Final = 4
LEASE_S: Final = 10.0
RATIO_MIN: Final = 0.95
"""The least ratio of rates, for each per cent of the keys that is stuck (P8)."""
GROWTH_MAX: Final = 64 * MIB
"""The most growth of memory, in bytes, beyond the tail cache. The tail cache stays empty, because
nothing is published while the groups read."""
_QUEUE: Final = "stuck"
_SETTINGS: Final = {
    "partitions": PARTITIONS, "attempts_max": 0, "backoff_s": 0.5, "backoff_max_s": 5,
    "retention_s": 86_400,  # both groups read the whole log, and trimming would cost one of them
}  # fmt: skip
_PRODUCERS: Final = 4
_FRAME_MESSAGES: Final = 625
"""Number of messages of a frame. A producer's ready-made frames together have each key once."""
_UNANSWERED_MAX: Final = 14 * _FRAME_MESSAGES
_WAIT_S: Final = 120.0


class _Trial:
    """A run on a server of its own."""

    def __init__(
        self, server: Server, keys: int, messages: int, turn_s: float, progress: Progress
    ) -> None:
        self._url = server.url
        self._server = Process(server.pid)
        self.memory = Memory(self._server)
        self.messages = -(-messages // (_PRODUCERS * keys)) * _PRODUCERS * keys
        self._turn_s = turn_s
        self._progress = progress
        self.deck = Deck(keys)
        self.rest = Rest(server.url)
        healthy = self.deck.healthy(self.messages)
        self.free = Crew("free", Book(stuck=False), healthy)
        self.stuck = Crew("stuck", Book(stuck=True), healthy)
        self.tenth_at = self.all_at = 0.0
        """The monotonic times at which the stuck group had received a tenth of its healthy
        messages, and at which it had settled all; 0 before."""

    async def prepare(self, lease_s: float) -> None:
        """Create queue, groups and consumers; let the stuck keys get stuck; then publish the
        backlog."""
        await self.rest.call("PUT", f"/v1/queues/{_QUEUE}", _SETTINGS | {"lease_s": lease_s})
        await self.rest.call("PUT", f"{self._place('free')}", {})
        await self._park()
        for crew in (self.free, self.stuck):
            for number in range(CONSUMERS):
                handler = Handler(f"{crew.group}-{number}", self.deck, crew.book)
                await handler.open(self._url, None)
                crew.handlers.append(handler)
                await handler.subscribe(_QUEUE, crew.group)
            await self._shared(crew)
        first = _PRODUCERS * self.deck.keys
        await self._fill(first)
        await self.come_back(lease_s + _WAIT_S)
        for handler in self.stuck.handlers:
            handler.pause()
        await self._quiet(self.stuck)
        await self._fill(self.messages - first)

    def _place(self, group: str) -> str:
        return f"/v1/queues/{_QUEUE}/groups/{group}"

    async def _park(self) -> None:
        """Park the keys to be parked. A group has one setting of attempts, which reaches consumers
        when they join. So the group parks at the first nack while these keys have their first
        message, and not afterwards."""
        settings: dict[str, Any] = {"attempts_max": 1, "on_exhausted": "park"}
        await self.rest.call("PUT", self._place("stuck"), settings)
        names = self.deck.names(PARKED)
        nacker = Nacker("nacker")
        await nacker.open(self._url, None)
        try:
            await nacker.ask(
                type="subscribe", subscription=1, queue=_QUEUE, group="stuck", credit=1000
            )
            body = "x" * (Shape().body_bytes - 2)
            await nacker.ask(
                type="publish", queue=_QUEUE, messages=[{"key": n, "body": body} for n in names]
            )
            deadline = time.monotonic() + _WAIT_S
            while (await self.describe("stuck"))["keys_parked"] < len(names):
                if time.monotonic() > deadline:
                    raise LoadFailed(f"{len(names)} nacked keys were not parked")
                await asyncio.sleep(0.05)
        finally:
            nacker.close()
        await self._left("stuck")
        undone = {"attempts_max": 0, "on_exhausted": None}
        await self.rest.call("PATCH", self._place("stuck"), undone)

    async def _left(self, group: str) -> None:
        deadline = time.monotonic() + _WAIT_S
        while (await self.describe(group))["consumers"]:
            if time.monotonic() > deadline:
                raise LoadFailed(f"the consumers of {group} are gone, and did not leave")
            await asyncio.sleep(0.05)

    async def _shared(self, crew: Crew) -> None:
        """Wait until each consumer of the crew owns partitions. If a partition with hung messages
        moved later, the next owner would give those messages and later ones of their keys, which is
        no fault. Raises LoadFailed."""
        deadline = time.monotonic() + _WAIT_S
        while True:
            partitions = (await self.describe(crew.group))["partitions"]
            owners = [one["owner"]["session"] for one in partitions if one.get("owner")]
            if len(owners) == len(partitions) and len(set(owners)) == CONSUMERS:
                return
            if time.monotonic() > deadline:
                raise LoadFailed(f"{CONSUMERS} consumers of {crew.group} share no partitions")
            await asyncio.sleep(0.05)

    async def describe(self, group: str) -> Any:
        """Return the broker's description of a group."""
        self.rest.close()  # the broker has closed it, because it was idle for a turn
        return await self.rest.call("GET", self._place(group))

    async def _fill(self, messages: int) -> None:
        random, began = Random(1), time.monotonic()
        producers = [
            Producer(
                f"filler-{i}",
                _QUEUE,
                self.deck,
                _FRAME_MESSAGES,
                random,
                blocks=self.deck.keys // _FRAME_MESSAGES,
            )
            for i in range(_PRODUCERS)
        ]
        left = dict.fromkeys(producers, messages // _PRODUCERS)

        def fill() -> None:
            due = stamp(time.monotonic_ns())
            for producer in producers:
                while left[producer] and producer.unanswered < _UNANSWERED_MAX:
                    producer.publish(due)
                    left[producer] -= _FRAME_MESSAGES
                producer.flush()

        for producer in producers:
            await producer.open(self._url, None, producer.name)
            producer.on_answers = fill
        fill()
        await until(
            lambda: sum(p.answered for p in producers) == messages,
            "filling the queue", max(_WAIT_S, messages / 5_000), lambda: [*producers],
        )  # fmt: skip
        for producer in producers:
            producer.close()
        took_s = time.monotonic() - began
        self._progress(f"stuck: {messages:,} messages wait, after {took_s:.1f} s")

    async def run(self) -> None:
        """Run turns of both groups until both have settled their healthy messages. Raises
        LoadFailed."""
        crews = [self.free, self.stuck]
        while not all(crew.finished for crew in crews):
            for crew in crews:
                if not crew.finished:
                    await self._turn(crew)
            crews.reverse()

    async def _turn(self, crew: Crew) -> None:
        began, settled, cpu_s = time.monotonic(), crew.settled, self._server.cpu_s()
        for handler in crew.handlers:
            handler.go()
        await until(lambda: self._turned(crew, began), "a turn", _WAIT_S, crew.clients)
        elapsed, count = time.monotonic() - began, crew.settled - settled
        if not crew.finished or not crew.turns.messages:
            crew.turns.messages += count
            crew.turns.seconds += elapsed
            crew.turns.cpu_s += self._server.cpu_s() - cpu_s
        for handler in crew.handlers:
            handler.pause()
        self._progress(
            f"stuck: {crew.group:<5} {count / elapsed:>9,.0f} messages/s, "
            f"{crew.book.healthy / crew.total:.0%}, {self.memory.now() / MIB:.0f} MiB"
        )
        await self._quiet(crew)

    def _turned(self, crew: Crew, began: float) -> bool:
        if crew is self.stuck:
            if not self.tenth_at and crew.book.healthy * 10 >= crew.total:
                self.tenth_at = time.monotonic()
            if not self.all_at and crew.finished:
                self.all_at = time.monotonic()
        return crew.finished or time.monotonic() > began + self._turn_s

    async def _quiet(self, crew: Crew) -> None:
        """Wait until the credit is used up, or the log, and the last ack is confirmed."""
        before = -1
        while before < crew.settled or any(handler.unanswered for handler in crew.handlers):
            before = crew.settled
            await asyncio.sleep(0.1)

    async def come_back(self, timeout_s: float) -> None:
        """Grant the stuck group credit, and wait until the first message of every nacked or hung
        key was given again. Raises LoadFailed after `timeout_s`."""
        for handler in self.stuck.handlers:
            handler.go()
        await until(
            lambda: len(self.stuck.book.came_back) >= 2 * OF_A_KIND,
            "giving what is stuck again", timeout_s, self.stuck.clients,
        )  # fmt: skip

    async def live(self, rounds: int, measured: int) -> Live:
        """Let each group take published messages in `rounds` turns, in the order free, stuck,
        stuck, free and so on. Return the measurements. Raises LoadFailed."""
        live = Live(
            self._url, _QUEUE, self.deck,
            measured=measured, server=self._server, progress=self._progress,
        )  # fmt: skip
        await live.open()
        try:
            for number in range(rounds):
                pair = [(self.free, self.stuck), (self.stuck, self.free)]
                for crew, other in pair if number % 2 == 0 else reversed(pair):
                    self.messages += live.messages
                    await live.turn(crew, other)
                    await self._quiet(crew)
            for crew in (self.free, self.stuck):
                await live.drain(crew)
                await self._quiet(crew)
        finally:
            live.close()
        return live

    async def let_go(self, timeout_s: float) -> float:
        """Handle the messages of nacked and hung keys; return the seconds until only the parked
        keys are left. Raises LoadFailed after `timeout_s`."""
        began, crew = time.monotonic(), self.stuck
        crew.book.letting_go = True
        wanted = 2 * self.deck.of_a_kind(self.messages)
        for handler in crew.handlers:
            handler.let_go()
            handler.go()
        await until(
            lambda: (
                crew.book.let_go >= wanted
                and not any(h.unanswered for h in crew.handlers)
                and not crew.book.stale - crew.book.repeats
            ),
            f"handling {wanted} messages that had been stuck", timeout_s, crew.clients,
        )  # fmt: skip
        return time.monotonic() - began

    def close(self) -> None:
        """Disconnect."""
        self.rest.close()
        for handler in (*self.free.handlers, *self.stuck.handlers):
            handler.close()


@dataclass(frozen=True)
class Plan:
    """Let keys with a backlog get stuck. The healthy keys must not become slower."""

    messages: int = options.whole(MESSAGES, "Number of messages that wait.", 40_000)
    keys: int = options.number_of(
        KEYS, (10_000, 30_000), "Number of keys, of which 300 (3 % or 1 %) are stuck."
    )
    turn_s: float = options.seconds(TURN_S, "Duration of each turn of a group.")
    handlers: bool = options.option(
        False,
        "Test instead handlers that hang and are prolonged, through the SDKs and by pull.",
        shown=False,
        is_flag=True,
    )
    lease_s: float = LEASE_S
    rounds: int = LIVE_ROUNDS
    live_messages: int = LIVE_MESSAGES


async def stuck(plan: Plan, progress: Progress) -> Finding:
    """Let `messages` (rounded up to whole decks) wait; both groups read them in turns of `turn_s`.
    Then each takes, `rounds` times, `live_messages` that are published meanwhile.

    Raises LoadFailed or ServerFailed if the trial cannot end normally.
    """
    if plan.handlers:
        return await hung_handlers(progress)
    messages, keys, turn_s, lease_s = plan.messages, plan.keys, plan.turn_s, plan.lease_s
    finding = Finding("stuck")
    async with broker("stuck") as server:
        trial = _Trial(server, keys, messages, turn_s, progress)
        try:
            with uncollected():
                await trial.prepare(lease_s)
                async with trial.memory.watched():
                    await trial.run()
                await trial.come_back(lease_s + _WAIT_S)
                live = await trial.live(plan.rounds, plan.live_messages)
                stuck_lag = await trial.describe("stuck")
                free_lag = await trial.describe("free")
                redelivered = trial.stuck.book.redelivered.copy()
                let_go_s = await trial.let_go(max(_WAIT_S, messages / 10_000))
                left = await trial.describe("stuck")
        finally:
            trial.close()
    _judge(finding, trial, redelivered, (stuck_lag, free_lag, left))
    _judge_rates(finding, trial, live)
    finding.figures["let_go_s"] = round(let_go_s, 2)
    finding.conditions = {
        "messages": trial.messages, "keys": keys, "partitions": PARTITIONS,
        "consumers_per_group": CONSUMERS, "credit": CREDIT, "lease_s": lease_s, "turn_s": turn_s,
        "nacked_keys": OF_A_KIND, "parked_keys": OF_A_KIND, "hung_keys": OF_A_KIND,
        "body_bytes": trial.deck.body_bytes,
        "backoff_s": _SETTINGS["backoff_s"], "backoff_max_s": _SETTINGS["backoff_max_s"],
    }  # fmt: skip
    return finding


def _judge(
    finding: Finding, trial: _Trial, redelivered: Counter[int], groups: Sequence[Any]
) -> None:
    """Judge the run. `redelivered` is by kind, before the stuck messages were let go. `groups` are
    the broker's descriptions of `stuck` and `free` before that, and of `stuck` afterwards."""
    book = trial.stuck.book
    growth = _growth(trial)
    finding.figures |= {
        "rss_growth_mib": round(growth / MIB, 1),
        "rss_max_mib": round(trial.memory.highest(0.0) / MIB),
        "nacks": sum(handler.nacked for handler in trial.stuck.handlers),
        "nacked_redelivered": redelivered[NACKED],
        "hung_redelivered": redelivered[HUNG],
        "healthy_given_again": book.again + trial.free.book.again,
        "aside": groups[0]["aside"],
    }
    finding.check(
        "nacked keys came again, and again", redelivered[NACKED] >= OF_A_KIND,
        redelivered[NACKED],
    )  # fmt: skip
    _judge_delivery(finding, trial, groups)
    finding.check(
        f"P9: memory grows by at most {GROWTH_MAX // MIB} MiB from 10 % to 100 % of the backlog",
        growth <= GROWTH_MAX, f"{growth / MIB:.1f} MiB",
    )  # fmt: skip


def _judge_rates(finding: Finding, trial: _Trial, live: Live) -> None:
    """Judge the rates. P8 is about the whole path: published, durable, pushed, acked. The rate at
    which a backlog drains leaves out publishing, so it is only reported."""
    free, stuck = live.turns["free"], live.turns["stuck"]
    finding.figures |= {
        "healthy_per_s_without": round(free.rate),
        "healthy_per_s_with": round(stuck.rate),
        "server_cpu_us_without": round(free.cpu_us, 2),
        "server_cpu_us_with": round(stuck.cpu_us, 2),
        "drained_per_s_without": round(trial.free.turns.rate),
        "drained_per_s_with": round(trial.stuck.turns.rate),
        "drain_cpu_us_without": round(trial.free.turns.cpu_us, 2),
        "drain_cpu_us_with": round(trial.stuck.turns.cpu_us, 2),
    }
    ratio, percent = live.ratio, 100 * trial.deck.stuck_share
    wanted = RATIO_MIN**percent
    finding.check(
        f"P8: {percent:.3g} % of the keys are stuck, each per cent costs the others at most "
        f"{1 - RATIO_MIN:.0%} of their throughput: they keep {wanted:.1%}",
        ratio >= wanted, f"{ratio:.1%}", timed=True,
    )  # fmt: skip


def _judge_delivery(finding: Finding, trial: _Trial, groups: Sequence[Any]) -> None:
    stuck_lag, free_lag, left = groups
    book, share = trial.stuck.book, trial.deck.of_a_kind(trial.messages)
    parked = OF_A_KIND
    finding.check(
        "P1: every healthy message was handled, in both groups",
        all(c.book.healthy == c.total for c in (trial.free, trial.stuck)) and not free_lag["lag"],
        f"{trial.free.book.healthy:,} and {book.healthy:,}; free lags {free_lag['lag']}",
    )
    finding.check(
        "what is stuck, and nothing else, was left",
        stuck_lag["lag"] == 3 * share + parked and stuck_lag["keys_parked"] == parked,
        f"{stuck_lag['lag']:,} of {3 * share + parked:,}; {stuck_lag['keys_parked']} keys parked",
    )
    finding.check(
        "P3 R17: nothing of a key passed its head", not book.violations,
        book.violations or f"{book.redelivered.total():,} redeliveries, each the head's",
    )  # fmt: skip
    finding.check(
        "P1 P3: let go, all of it came, in order; again only what was acked too late; the parked "
        "keys stay",
        book.let_go == 2 * share and book.is_let_go and left["lag"] == share + parked,
        f"{book.let_go:,} of {2 * share:,}; {book.repeats.total()} again, "
        f"{book.stale.total()} acked too late; {left['lag']:,} left of {share + parked:,}",
    )


def _growth(trial: _Trial) -> int:
    """Return the largest growth of memory since the stuck group had received a tenth of the
    backlog, in bytes."""
    start = trial.memory.highest(trial.tenth_at - 1.0, trial.tenth_at + 0.2)
    return max(0, trial.memory.highest(trial.tenth_at, trial.all_at + 1.0) - start)
