"""What all users of one process share: plan, ledger, chance, and whom they tell what they do."""

import itertools
import time
from collections.abc import Callable
from random import Random
from typing import Final, Protocol

from loadtests.mix.ledger import Ledger
from loadtests.mix.phases import Phase, Progress
from loadtests.mix.plan import Plan

NS: Final = 1_000_000_000


class Told(Protocol):
    """Who wants to know of each exchange, for a live display: Locust's own statistics."""

    def __call__(self, kind: str, name: str, took_ns: int, size: int, error: str = "") -> None:
        """It took so long and moved so many bytes; `error`: in words, where it failed."""


def nobody(kind: str, name: str, took_ns: int, size: int, error: str = "") -> None:
    """Told that does not want to know."""


class Desk:
    """Of one process. All times are monotonic nanoseconds."""

    def __init__(
        self, plan: Plan, process: int, token: str | None = None, *, told: Told = nobody,
        now_ns: Callable[[], int] = time.monotonic_ns, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        """`process`: which one of the plan's this is, from 0. `now_ns`: the clock that all
        processes of this machine share; `sleep`: for so many seconds, this user alone."""
        self.plan = plan
        self.process = process
        self.token = token
        self.now_ns = now_ns
        self.sleep = sleep
        self.told = told
        self.ledger = Ledger(plan.began_ns)
        self.random = Random(plan.seed * 1_000_003 + process)
        self.phase = Phase()
        self.unanswered = 0
        """Publishes of all users here that have no last answer yet."""
        self.given_at_ns = 0
        self.error = ""
        """The first thing that ended a user here, in words."""
        self._numbers = itertools.count()
        self._by_role: dict[str, itertools.count[int]] = {}

    def enter(self, phase: Phase) -> None:
        """The run is there now."""
        if phase.name != "ramp":
            self.ledger.since_ns = phase.since_ns
        self.phase = phase

    @property
    def is_publishing(self) -> bool:
        """Whether anything new is published."""
        return self.phase.name in {"ramp", "measure"}

    @property
    def is_over(self) -> bool:
        """Whether nothing counts any more."""
        return self.phase.name == "over"

    def name(self, role: str) -> str:
        """A new user's name, that no other user of the run has."""
        return f"{role}-{self.process}.{next(self._numbers)}"

    def queue(self, role: str) -> str:
        """The one for the next user of this role here: they are dealt out evenly."""
        queues = self.plan.queues(role)
        numbers = self._by_role.setdefault(role, itertools.count(self.process))
        return queues[next(numbers) % len(queues)]

    def url(self) -> str:
        """A broker's address, by chance."""
        return self.random.choice(self.plan.urls)

    def progress(self, users: dict[str, int]) -> Progress:
        """How far this process is, with so many users of each of Locust's classes."""
        counts, worst = self.ledger.counts, 0.0
        delivery = self.ledger.latencies.get("delivery worker")
        if delivery is not None:
            worst = delivery.percentile(99) / 1e6
        return Progress(
            users, counts["certified"], counts["given"], self.unanswered,
            self.ledger.violations.total(), worst, self.given_at_ns, self.error,
        )  # fmt: skip
