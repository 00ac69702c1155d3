"""What all users of one process share: plan, ledger, chance, and whom they tell what they do."""

import itertools
import time
from collections.abc import Callable
from random import Random
from typing import Final, Protocol

from loadtests.mix import queues
from loadtests.mix.calls import Gone, Http
from loadtests.mix.ledger import Ledger
from loadtests.mix.phases import Phase, Progress
from loadtests.mix.plan import Plan

NS: Final = 1_000_000_000


class Told(Protocol):
    """Who counts what the users do, for a live display: Locust's own statistics.

    A call is one message that was published, delivered, settled or returned, or one session that
    was opened or lost, so that the counts are those of the broker.
    """

    def __call__(
        self, kind: str, name: str, took_ns: int | None, size: int, error: str = ""
    ) -> None:
        """Count one of `kind` of the role `name`: how long it took (None: that says nothing of the
        broker), its bytes, and why it failed, in words that are the same each time."""


def nobody(kind: str, name: str, took_ns: int | None, size: int, error: str = "") -> None:
    """Count nothing."""


class Desk:
    """Of one process. All times are monotonic nanoseconds."""

    def __init__(
        self, plan: Plan, process: int, token: str | None = None, *, told: Told = nobody,
        now_ns: Callable[[], int] = time.monotonic_ns, sleep: Callable[[float], None] = time.sleep,
        makes_queues: bool = False,
    ) -> None:  # fmt: skip
        """`process`: which one of the plan's this is, from 0. `now_ns`: the clock that all
        processes of the run share; `sleep`: for so many seconds, this user alone. `makes_queues`:
        nobody has made the queues of the plan before."""
        self.plan = plan
        """May be replaced by one with other counts while users come and go."""
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
        """When a user here was given something, or worked on it, last."""
        self.error = ""
        """The first thing that ended a user here, in words."""
        self._numbers = itertools.count()
        self._by_role: dict[str, itertools.count[int]] = {}
        self._makes_queues = makes_queues
        self._made: set[str] = set()
        self._joined_ns: dict[str, int] = {}

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
        found = self.plan.queues(role) or [self.plan.queue(role, 0)]
        numbers = self._by_role.setdefault(role, itertools.count(self.process))
        return found[next(numbers) % len(found)]

    def need(self, queue: str) -> None:
        """Make a queue before its first use here, where nobody else does. Raises Gone."""
        if not self._makes_queues or queue in self._made:
            return
        http = Http(self.url(), self.token)
        try:
            queues.make(http, self.plan, queue)
        except RuntimeError as error:
            raise Gone(str(error), str(error).partition(": ")[0].replace(queue, "…")) from None
        finally:
            http.close()
        self._made.add(queue)

    def joined(self, queue: str) -> int:
        """When the first consumer of this process had joined the queue's group: what was due before
        has waited for consumers, and says nothing of the broker's latency."""
        return self._joined_ns.setdefault(queue, self.now_ns())

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
