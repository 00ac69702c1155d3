"""The state that all users of one process share: plan, ledger, chance, and a counter of their acts.

`teller` lets Locust's statistics count these acts. `make_queue` and `queues_lag` concern the queues
of a run at its broker.
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
"""Readers begin at the start, so their messages must be retained for a whole run."""


_ASK_S: Final = 5.0
"""Timeout of a request for a queue's lag, in seconds. A broker that hangs must not stop a run from
reporting it."""


def make_queue(http: Http, plan: Plan, queue: str) -> None:
    """Create a queue of the plan, and its group if the plan has users that consume it. What exists
    already is left as it is.

    Raises:
        RuntimeError: with the broker's words, for a status of 400 or above except 409, which means
            that the queue exists with fewer partitions.
        Gone: no answer came.
    """
    role = role_of(queue)
    settings = {"partitions": plan.partitions(role), "retention_s": RETENTION_S}
    _put(http, f"/v1/queues/{queue}", settings)
    if plan.queues(role) and role in CONSUMING:
        _put(http, f"/v1/queues/{queue}/groups/{role}", {})


def queues_lag(http: Http, plan: Plan) -> int:
    """Return the number of messages that the groups have not durably settled. For some 40 ms after
    a settlement it may be too high. Returns 1 when the broker does not answer or refuses, because
    something may be left."""
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
    """Create something that another process may have created first. That process may have asked for
    fewer partitions, with fewer users in its plan, so a 409 is accepted."""
    status, answer = http.request("PUT", path, settings)
    if status >= 400 and status != 409:
        text = answer.decode(errors="replace")
        raise RuntimeError(f"PUT {path} was answered {status}: {text}")


NS: Final = 1_000_000_000


class Told(Protocol):
    """A counter of the users' acts, for a live display: Locust's own statistics.

    A call is one message that was published, delivered, settled or returned, or one session that
    was opened or lost. So the counts equal those of the broker.
    """

    def __call__(
        self, kind: str, name: str, took_ns: int | None, size: int, error: str = ""
    ) -> None:
        """Count one act of `kind` by the role `name`. `took_ns` is None when the time says nothing
        about the broker. `size` is in bytes. `error` is why it failed, in words that are the same
        each time."""


def nobody(kind: str, name: str, took_ns: int | None, size: int, error: str = "") -> None:
    """Count nothing."""


class ProcessContext:
    """The shared state of the users of one process. All times are in nanoseconds of the run's clock
    `now_ns`."""

    def __init__(
        self, plan: Plan, process: int, token: str | None = None, *, told: Told = nobody,
        now_ns: Callable[[], int] = time.monotonic_ns, sleep: Callable[[float], None] = time.sleep,
        makes_queues: bool = False,
    ) -> None:  # fmt: skip
        """`process`: its number in the plan, from 0. `now_ns`: the clock that all processes of the
        run share. `sleep`: waits for some seconds, this user alone. `makes_queues`: whether queues
        must be created before their first use."""
        self.plan = plan
        """May be replaced by a plan with other counts while users come and go."""
        self.process = process
        self.token = token
        self.now_ns = now_ns
        self.sleep = sleep
        self.told = told
        self.ledger = Ledger(plan.began_ns)
        self.random = Random(plan.seed * 1_000_003 + process)
        self.phase = Phase()
        self.unanswered = 0
        """Number of publishes of all users here that have no last answer yet."""
        self.given_at_ns = 0
        """The last time at which a user here received a message, worked on one, or had an ack or
        nack answered."""
        self.error = ""
        """The first error that ended a user here, in words."""
        self._numbers = itertools.count()
        self._by_role: dict[str, itertools.count[int]] = {}
        self._makes_queues = makes_queues
        self._made: set[str] = set()
        self._joined_ns: dict[str, int] = {}

    def enter(self, phase: Phase) -> None:
        """Enter a phase of the run."""
        if phase.name != "ramp":
            self.ledger.since_ns = phase.since_ns
        self.phase = phase

    @property
    def is_publishing(self) -> bool:
        """Whether new messages are published."""
        return self.phase.name in {"ramp", "measure"}

    @property
    def is_over(self) -> bool:
        """Whether the run is over, and nothing counts any more."""
        return self.phase.name == "over"

    def name(self, role: str) -> str:
        """Return a new user's name, unique in the run."""
        return f"{role}-{self.process}.{next(self._numbers)}"

    def queue(self, role: str) -> str:
        """Return the queue for the next user of this role here; queues are assigned evenly."""
        found = self.plan.queues(role) or [self.plan.queue(role, 0)]
        numbers = self._by_role.setdefault(role, itertools.count(self.process))
        return found[next(numbers) % len(found)]

    def need(self, queue: str) -> None:
        """Create a queue before its first use here, unless the launcher has created all. Raises
        Gone."""
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
        """Return when this process's first consumer joined the queue's group; a first call joins
        now. Messages due earlier have waited for consumers, so they say nothing about the broker's
        latency."""
        return self._joined_ns.setdefault(queue, self.now_ns())

    def url(self) -> str:
        """Return the address of a random broker."""
        return self.random.choice(self.plan.urls)

    def progress(self, users: dict[str, int]) -> Progress:
        """Return the progress of this process, with these numbers of users of each of Locust's
        classes."""
        counts, worst = self.ledger.counts, 0.0
        delivery = self.ledger.latencies.get("delivery worker")
        if delivery is not None:
            worst = delivery.percentile(99) / 1e6
        return Progress(
            users, counts["certified"], counts["given"], self.unanswered,
            self.ledger.violations.total(), worst, self.given_at_ns, self.error,
        )  # fmt: skip


class Failed(Exception):
    """The reason why a request failed. Its repr is the reason alone."""

    def __repr__(self) -> str:
        return str(self)


def teller(environment: Any) -> Told:
    """Return a counter that feeds the statistics of a Locust environment."""
    fire = environment.events.request.fire

    def told(kind: str, name: str, took_ns: int | None, size: int, error: str = "") -> None:
        fire(
            request_type=kind, name=name, response_length=size, context={},
            response_time=None if took_ns is None else took_ns / 1e6,
            exception=Failed(error) if error else None,
        )  # fmt: skip

    return told
