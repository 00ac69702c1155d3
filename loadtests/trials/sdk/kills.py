"""Repeated `kill -9` of the broker, under twenty programs that use the SDK.

Ten publish and keep their receipts. Ten consume, and their handlers have an effect that must happen
once, by `tocsin.effects`: the effect and its message's place are stored in one transaction of the
handlers' own database, so that a repeated message is recognized. Nothing acknowledged may be lost,
and the effects are counted.
"""

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import tocsin
from tocsin.effects import SqliteEffects

from loadtests.clients.load import LoadFailed
from loadtests.server import SERVE, Server
from loadtests.trials import options
from loadtests.trials.sdk.programs import GROUP, Consuming, Handler, Producing
from loadtests.trials.sdk.trial import SdkTrial, examine
from loadtests.trials.trial import Finding, Progress, broker

KILLS: Final = 50
RATE: Final = 400
"""Messages a second, of all publishers."""
PRODUCERS: Final = 10
CONSUMERS: Final = 10
STORES: Final = 2
LEASE_S: Final = 20.0
LIFE_S: Final = (0.05, 1.5)
"""Bounds of the time that the broker lives after messages flow again, drawn uniformly."""
FLOWING_MESSAGES: Final = 50
FLOWING_TIMEOUT_S: Final = 60.0
MEETING_TURNS_MAX: Final = 10_000
"""The most turns of the event loop that a kill waits for unanswered publishes."""
FAIL_CHANCE: Final = 0.01
"""Probability that a handler fails after its effect. Its message is nacked and comes again."""
EXAMPLES_MAX: Final = 10
_WORK_S: Final = (0.0, 0.1)
_CONCURRENCY: Final = 50


@dataclass(frozen=True)
class Plan:
    """Kill the broker with kill -9 under twenty programs whose effects must happen once.

    Every publish that returned must be delivered, and have its effect in the handlers' own database
    exactly once. Takes about three minutes.
    """

    kills: int = options.whole(KILLS, "Number of kills.", 1, 10_000, "--kills count")
    seed: int = options.seed()
    rate: int = RATE
    once: bool = True
    """False: handlers do not check whether they had a message before, the negative control."""
    command: Sequence[str] = field(default=SERVE)
    """The program that runs as the broker; another one is a negative control, too."""


class Effects:
    """The handlers' database, through two stores of the SDK's helper, like two processes. `once`
    False: a repeated message has its effect again."""

    def __init__(self, path: Path, *, once: bool) -> None:
        self._once = once
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.executescript("PRAGMA journal_mode = WAL; CREATE TABLE effects (body TEXT)")
        self._stores = [SqliteEffects(path, group=GROUP) for _ in range(STORES)]
        self.again = 0
        """Number of deliveries that were recognized as repeated, or with `once` False should have
        been."""
        self._seen: set[str] = set()

    def work(self, random: Random, number: int) -> Handler:
        """Return the handler of consumer `number`, which takes its time, has its effect, and
        sometimes fails after it."""
        store = self._stores[number % STORES]

        async def handle(message: tocsin.Message) -> None:
            await asyncio.sleep(random.uniform(*_WORK_S))
            body = str(message.body)
            if self._once:
                async with store.once(message) as database:
                    if database is not None:
                        database.execute("INSERT INTO effects VALUES (?)", (body,))
                    self.again += database is None
            else:
                self._db.execute("INSERT INTO effects VALUES (?)", (body,))
                self.again += body in self._seen
                self._seen.add(body)
            if random.random() < FAIL_CHANCE:
                raise RuntimeError("something behind the effect fails")

        return handle

    def counts(self) -> Counter[str]:
        """Return how often each body had its effect."""
        return Counter(body for (body,) in self._db.execute("SELECT body FROM effects"))

    def close(self) -> None:
        """Close the stores and the database."""
        for store in self._stores:
            store.close()
        self._db.close()


async def kills(plan: Plan, progress: Progress) -> Finding:
    """Run the kills under load, then drain, judge, and count the effects. Raises ProgramFailed,
    LoadFailed or ServerFailed if the trial cannot end normally."""
    random = Random(plan.seed)
    async with broker("kills", command=plan.command) as server:
        folder = server.data_dir.parent
        trial = SdkTrial(server.url, folder / "frames.jsonl", progress, LEASE_S)
        effects = Effects(folder / "effects.db", once=plan.once)
        trial.book.is_alone = False  # after a kill two may run one message
        try:
            await trial.prepare(partitions=16, backoff_s=0.01, backoff_max_s=0.1)
            await _cast(trial, effects, plan)
            began = time.monotonic()
            under_way = await _kill(trial, server, random, plan)
            rate = len(trial.book.stored) / (time.monotonic() - began)
            drained = await trial.drain()
        finally:
            await trial.leave()
        evidence = await asyncio.to_thread(trial.evidence, drained=drained)
        happened = effects.counts()
        effects.close()
    finding, counts = Finding("kills"), trial.clients.counts
    finding.figures = {
        "kills": plan.kills,
        "kills_with_publishes_under_way": under_way,
        "messages_per_s": round(rate),
        "effects": sum(happened.values()),
        "recognised": effects.again,
        **{name: counts[name] for name in sorted(counts)},
    }
    examine(finding, evidence, again_allowed=True)
    missing = [body for body in trial.book.stored if not happened[body]]
    finding.check(
        "every publish that returned has had its effect", not missing,
        f"{len(trial.book.stored):,} returned, {len(missing)} without {missing[:EXAMPLES_MAX]}",
    )  # fmt: skip
    doubled = [body for body, times in happened.items() if times > 1]
    finding.check(
        "every effect happened once", not doubled,
        f"{len(happened):,} effects, {len(doubled)} more than once {doubled[:EXAMPLES_MAX]}",
    )  # fmt: skip
    finding.check(
        "it was hard: publishes were under way at a kill, and messages came again",
        under_way > 0 and effects.again > 0, f"{under_way} kills, {effects.again} messages",
    )  # fmt: skip
    finding.conditions = {
        "seed": plan.seed, "offered_per_s": plan.rate, "producers": PRODUCERS,
        "consumers": CONSUMERS, "lease_s": LEASE_S, "life_s": LIFE_S,
    }  # fmt: skip
    return finding


async def _cast(trial: SdkTrial, effects: Effects, plan: Plan) -> None:
    book, connect = trial.book, trial.clients.connect
    for number in range(CONSUMERS):
        random = Random(plan.seed + 10 + number)
        trial.add(
            Consuming(
                f"consumer-{number}", connect(trial.url), book,
                work=effects.work(random, number),
                concurrency=_CONCURRENCY, random=random,
            )
        )  # fmt: skip
    await trial.ready()
    for number in range(PRODUCERS):
        rate, random = plan.rate / PRODUCERS, Random(plan.seed + 100 + number)
        client = connect(trial.url)
        trial.add(Producing(f"p{number}", client, book, rate_per_s=rate, random=random))
    await trial.ready()


async def _kill(trial: SdkTrial, server: Server, random: Random, plan: Plan) -> int:
    """Kill the broker and start it again, `plan.kills` times. Return the number of kills at which
    publishes were unanswered."""
    producers = [program for program in trial.programs if isinstance(program, Producing)]
    under_way = 0
    for number in range(1, plan.kills + 1):
        await _flowing(trial)
        await trial.wait(random.uniform(*LIFE_S))
        under_way += await _met(producers)
        server.kill()
        trial.start += 1
        server.spawn()
        await asyncio.to_thread(server.wait_ready)
        if number % 5 == 0 or number == plan.kills:
            counts = trial.clients.counts
            trial.progress(
                f"kills: {number} of {plan.kills}, {len(trial.book.stored):,} published, "
                f"{trial.book.left:,} to run, {counts['reconnects']} reconnects"
            )
    await _flowing(trial)
    return under_way


async def _met(producers: Sequence[Producing]) -> bool:
    """Wait at most MEETING_TURNS_MAX turns of the loop for an unanswered publish; return whether
    there is one."""
    for _ in range(MEETING_TURNS_MAX):
        if any(producer.unanswered for producer in producers):
            return True
        await asyncio.sleep(0)
    return False


async def _flowing(trial: SdkTrial) -> None:
    """Wait until FLOWING_MESSAGES more messages are stored, and a handler has finished another
    message. Raises LoadFailed after FLOWING_TIMEOUT_S."""
    book, deadline = trial.book, time.monotonic() + FLOWING_TIMEOUT_S
    stored, ran = len(book.stored), len(book.finished)
    while len(book.stored) - stored < FLOWING_MESSAGES or len(book.finished) == ran:
        await trial.wait(0.01)
        if time.monotonic() > deadline:
            raise LoadFailed(f"nothing flows {FLOWING_TIMEOUT_S:.0f} s after a start")
