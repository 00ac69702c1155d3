"""A run of the mix, from empty queues to its outcome: ramp, measure, drain, over."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loadtests.mix import coordination, outages, plan
from loadtests.mix.calls import Http
from loadtests.mix.coordination import CLASSES, LoadBroke, Locusts, Phase, Progress
from loadtests.mix.judge import Outcome, judge
from loadtests.mix.outages import Outage, Watch
from loadtests.mix.plan import Plan
from loadtests.mix.process_context import make_queue, queues_lag
from loadtests.server import Process, Server, ServerFailed

START_S: Final = 120.0
"""The longest wait for all users, after the ramp."""
DRAIN_S: Final = 180.0
QUIET_S: Final = 3.0
"""When no delivery has come for this time and no group has anything left, readers have received
everything."""
LEDGER_S: Final = 60.0
_LOOK_S: Final = 0.25
_TELL_S: Final = 5.0
STARTS_MAX: Final = 5
"""The most times that the broker which the run has started is started again."""
Say = Callable[[str], None]


@dataclass
class Found:
    """The results of a run."""

    outcome: Outcome
    conditions: dict[str, object] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    """Figures of the broker, such as CPU time and memory; empty if its process is unknown."""
    outages: list[Outage] = field(default_factory=list)


class OwnBroker:
    """The broker that the run started for itself, and its CPU time and memory over all its starts.
    A broker that ends is started again on its data, and has to keep its promises."""

    def __init__(self, server: Server, watch: Watch) -> None:
        """`server`: the running broker; `watch`: asks it whether it is ready."""
        self._server = server
        self._watch = watch
        self._starts = 0
        self._ended_cpu_s = 0.0
        """CPU time of the processes that have ended."""
        self._cpu_s = 0.0
        self.rss_bytes = 0
        """The largest resident memory that was seen, in bytes."""

    def look(self) -> None:
        """Measure the broker's CPU time and memory, and start it again if it has ended.

        Raises:
            LoadBroke: it has ended too often.
        """
        process = Process(self._server.pid)
        try:
            self._cpu_s = process.cpu_s()
            self.rss_bytes = max(self.rss_bytes, process.rss_bytes())
        except (ServerFailed, OSError):
            pass  # it ends right now
        if self._server.running():
            return
        code = self._server.exit_code()
        if self._starts >= STARTS_MAX:
            tail = self._server.log_tail()
            raise LoadBroke(
                f"the broker ended with {code}, as {self._starts} times before:\n{tail}"
            )
        self._starts += 1
        self._ended_cpu_s += self._cpu_s
        self._cpu_s = 0.0
        why = f"its process ended with {code}, and is started again on its data"
        self._watch.blame(self._server.url, why)
        self._server.spawn()

    @property
    def cpu_s(self) -> float:
        """User and system time so far, of all its processes."""
        return self._ended_cpu_s + self._cpu_s


class Run:
    """A run of the mix. `whole` raises LoadBroke if the load could not be made, and RuntimeError or
    Gone if a queue could not be."""

    def __init__(
        self, plan: Plan, folder: Path, token: str | None, say: Say, server: Server | None
    ) -> None:
        """`folder`: for the run's files; `say`: receives progress, a line at a time, from several
        threads; `server`: the broker, if it was started for the run."""
        self._plan = plan
        self._folder = folder
        self._token = token
        self._say = say
        self._watch = Watch(
            plan.urls, token, lambda change: say(change.text), began_s=plan.began_ns / 1e9
        )
        self._broker = OwnBroker(server, self._watch) if server is not None else None
        self._http = Http(plan.urls[0], token)
        self._told_at = 0.0

    def whole(self) -> Found:
        """Do the whole run: create the queues, start the users, measure, drain, end the users,
        judge."""
        with self._watch:
            self._make_queues()
            plan.write(self._plan, self._folder / coordination.PLAN)
            coordination.tell(self._folder, Phase("ramp"))
            with Locusts(self._plan, self._folder, self._token) as locusts:
                self._ramp(locusts)
                figures = self._measure(locusts)
                drained = self._drain(locusts)
                found = self._watch.outages()
                paths = self._close(locusts, drained=drained)
        outages.write(found, self._folder / outages.FILE)
        outcome = judge((coordination.read_ledger(path) for path in paths), drained=drained)
        self._http.close()
        return Found(outcome, self._conditions(), figures, found)

    def _make_queues(self) -> None:
        for queue in self._plan.all_queues:
            make_queue(self._http, self._plan, queue)

    def _look(self, locusts: Locusts, phase: str, seconds_left: float) -> list[Progress]:
        """Wait for _LOOK_S, then return the progress of the processes, and say it from time to
        time. Starts a broker of the run's own again if it has ended. Raises LoadBroke."""
        time.sleep(_LOOK_S)
        locusts.check()
        if self._broker is not None:
            self._broker.look()
        found = coordination.progress(self._folder, self._plan.processes)
        if time.monotonic() - self._told_at >= _TELL_S:
            self._told_at = time.monotonic()
            line = _line(phase, found, self._plan.users, seconds_left)
            out_s = self._watch.out_s()
            self._say(line if out_s is None else f"{line}   NOT REACHED for {out_s:.0f} s")
        for one in found:
            if one.error:
                raise LoadBroke(f"a user ended: {one.error}")
        return found

    def _ramp(self, locusts: Locusts) -> None:
        deadline = time.monotonic() + self._plan.ramp_s + START_S
        while True:
            found = self._look(locusts, "ramp", deadline - time.monotonic())
            if sum(one.standing for one in found) >= self._plan.users:
                break
            if time.monotonic() > deadline:
                raise LoadBroke(f"not all users began within {self._plan.ramp_s + START_S:.0f} s")
        there = Counter[str]()
        for one in found:
            there.update(one.users)
        wanted = {CLASSES[role]: many for role, many in self._plan.counts.items()}
        if +there != Counter(wanted):
            raise LoadBroke(f"Locust made {dict(there)} of {wanted}")

    def _measure(self, locusts: Locusts) -> dict[str, float]:
        coordination.tell(self._folder, Phase("measure", time.monotonic_ns()))
        began, cpu_s = time.monotonic(), self._broker.cpu_s if self._broker else 0.0
        certified = sum(
            p.certified for p in coordination.progress(self._folder, self._plan.processes)
        )
        while (left_s := began + self._plan.seconds - time.monotonic()) > 0:
            self._look(locusts, "measure", left_s)
        if self._broker is None:
            return {}
        found = coordination.progress(self._folder, self._plan.processes)
        many = max(1, sum(one.certified for one in found) - certified)
        cpu_us = (self._broker.cpu_s - cpu_s) * 1e6
        return {
            "server_cpu_share": cpu_us / 1e6 / (time.monotonic() - began),
            "server_cpu_us_per_certified": cpu_us / many,
            "server_rss_mib": self._broker.rss_bytes / 2**20,
        }

    def _drain(self, locusts: Locusts) -> bool:
        """Stop publishing, and let the consumers drain the queues. Return whether nothing was left
        within DRAIN_S."""
        since_ns = coordination.phase(self._folder).since_ns
        coordination.tell(self._folder, Phase("drain", since_ns))
        began_ns, deadline = time.monotonic_ns(), time.monotonic() + DRAIN_S
        while time.monotonic() < deadline:
            found = self._look(locusts, "drain", deadline - time.monotonic())
            # Quiet counts from the drain's beginning, because the processes' reports may be a
            # second old.
            latest_ns = max([began_ns, *(one.given_at_ns for one in found)])
            quiet = time.monotonic_ns() - latest_ns >= QUIET_S * 1e9
            if (
                quiet
                and not sum(one.unanswered for one in found)
                and not queues_lag(self._http, self._plan)
            ):
                return True
        return False

    def _close(self, locusts: Locusts, *, drained: bool) -> Sequence[Path]:
        since_ns = coordination.phase(self._folder).since_ns
        coordination.tell(self._folder, Phase("over", since_ns, drained))
        deadline = time.monotonic() + LEDGER_S
        while len(paths := locusts.ledgers()) < self._plan.processes:
            locusts.check()
            if time.monotonic() > deadline:
                raise LoadBroke(f"not all ledgers came within {LEDGER_S:.0f} s")
            time.sleep(_LOOK_S)
        return paths

    def _conditions(self) -> dict[str, object]:
        one = self._plan
        return {
            "users": ", ".join(f"{many:,} {role}" for role, many in one.counts.items()),
            "offered messages/s": f"{one.rate:,g} in publishes of 1 to {plan.MESSAGES_MAX}",
            "measured seconds": one.seconds,
            "ramp seconds": one.ramp_s,
            "body bytes": one.body_bytes,
            "queues": len(one.all_queues),
            "keys in each": one.keys,
            "processes": f"{one.processes} of Locust and its master",
            "brokers": ", ".join(one.urls),
            "seed": one.seed,
        }


def _line(phase: str, found: Sequence[Progress], users: int, seconds_left: float) -> str:
    """Return the progress in words."""
    certified, given = sum(p.certified for p in found), sum(p.given for p in found)
    text = (
        f"{phase:<8} {seconds_left:4.0f} s left   {sum(p.standing for p in found):,} of {users:,} "
        f"users   {certified:,} certified   {given:,} given   "
        f"p99 {max((p.p99_ms for p in found), default=0.0):,.1f} ms"
    )
    violations = sum(p.violations for p in found)
    return f"{text}   {violations:,} VIOLATIONS" if violations else text
