"""What all users of one process share: plan, ledger, chance, and whom they tell what they do.

`teller` lets Locust's statistics count what they do; `make_queue` and `queues_lag` are about the
queues of a run at its broker.
"""

import itertools
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final, Protocol

from loadtests.mix.calls import Gone, Http
from loadtests.mix.coordination import Phase, Progress
from loadtests.mix.ledger import Ledger
from loadtests.mix.plan import CONSUMING, Plan, role_of

RETENTION_S: Final = 3600
"""Readers begin at the start: what they are to have must be there as long as a run lasts."""


_ASK_S: Final = 5.0
"""For an answer: a broker that hangs must not stop a run from telling so."""


def make_queue(http: Http, plan: Plan, queue: str) -> None:
    """Make a queue of the plan and its group, or leave those that exist as they are.

    Raises:
        RuntimeError: with the broker's words, for anything but success; Gone.
    """
    role = role_of(queue)
    settings = {"partitions": plan.partitions(role), "retention_s": RETENTION_S}
    _put(http, f"/v1/queues/{queue}", settings)
    if plan.queues(role) and role in CONSUMING:
        _put(http, f"/v1/queues/{queue}/groups/{role}", {})


def queues_lag(http: Http, plan: Plan) -> int:
    """Return what all groups have not settled, as durable: it may say more than there is for 20 ms.
    At least 1 where the broker does not answer: there may be something left."""
    found = 0
    for queue in plan.all_queues:
        try:
            described = http.call("GET", f"/v1/queues/{queue}", timeout_s=_ASK_S)
        except (Gone, RuntimeError):
            return 1
        groups = described["groups"]
        assert isinstance(groups, list)
        found += sum(int(group["lag"]) for group in groups)
    return found


def _put(http: Http, path: str, settings: Mapping[str, object]) -> None:
    """Make what another process may have made first: with fewer users in its plan it has asked for
    fewer partitions."""
    status, answer = http.request("PUT", path, settings)
    if status >= 400 and status != 409:
        text = answer.decode(errors="replace")
        raise RuntimeError(f"PUT {path} was answered {status}: {text}")


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


class ProcessContext:
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
            make_queue(http, self.plan, queue)
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


class Failed(Exception):
    """Why a request failed. Shown as the reason alone."""

    def __repr__(self) -> str:
        return str(self)


def teller(environment: Any) -> Told:
    """Return what counts in the statistics of a Locust environment."""
    fire = environment.events.request.fire

    def told(kind: str, name: str, took_ns: int | None, size: int, error: str = "") -> None:
        fire(
            request_type=kind, name=name, response_length=size, context={},
            response_time=None if took_ns is None else took_ns / 1e6,
            exception=Failed(error) if error else None,
        )  # fmt: skip

    return told
