"""The common part of trials by programs that use the SDK, from queue to verdict."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from loadtests.checker.history import Interpreter, read_lines
from loadtests.checker.judge import Judge
from loadtests.checker.sdk_history import SdkHistory
from loadtests.checker.sessions import Sessions
from loadtests.checker.verdict import Verdict
from loadtests.clients.load import LoadFailed
from loadtests.clients.recorder import Recorder
from loadtests.clients.rest import Rest
from loadtests.trials.sdk.clients import Clients
from loadtests.trials.sdk.programs import (
    GROUP,
    GROUP_PLACE,
    QUEUE,
    Consuming,
    Following,
    Producing,
    Program,
)
from loadtests.trials.trial import Finding, Progress

STALL_TIMEOUT_S: Final = 60.0
"""The longest time without progress while draining, and for anything else that is waited for."""
REST_S: Final = 0.5
"""Wait after everything is done, for deliveries that should not come any more."""
_POLL_S: Final = 0.1
ActorT = TypeVar("ActorT", bound=Program)


@dataclass(frozen=True)
class Evidence:
    """The verdicts on the raw frames, and what the programs saw."""

    verdict: Verdict
    sessions: Sessions
    book: SdkHistory


@dataclass
class SdkTrial:
    """A trial by programs that use the SDK. `url`: the broker's own address, past all proxies;
    `start`: how many times the broker has been started."""

    url: str
    log: Path
    progress: Progress
    lease_s: float
    linger_s: float = 30.0
    """The time that the SDK's sessions outlive their transport, in seconds."""
    start: int = 1
    programs: list[Program] = field(default_factory=list)
    book: SdkHistory = field(default_factory=SdkHistory)

    def __post_init__(self) -> None:
        self.clients = Clients(Recorder(self.log), lambda: self.start)

    def add(self, program: ActorT) -> ActorT:
        """Add a program and start it."""
        self.programs.append(program)
        program.start()
        return program

    async def prepare(self, **settings: object) -> None:
        """Create the queue, with `settings`, and the group, so that P1 counts from the first
        message on (R11)."""
        rest = Rest(self.url)
        try:
            queue = {"lease_s": self.lease_s, "retention_s": 3600, "attempts_max": 0} | settings
            await rest.call("PUT", f"/v1/queues/{QUEUE}", queue)
            await rest.call("PUT", f"/v1/queues/{QUEUE}/groups/{GROUP}", {})
        finally:
            rest.close()

    # --- while it runs

    def check(self) -> None:
        """Raise ProgramFailed if any program has failed."""
        for program in self.programs:
            program.check()

    async def wait(self, seconds: float) -> None:
        """Sleep, while watching the programs."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _POLL_S))
            self.check()

    async def ready(self, timeout_s: float = STALL_TIMEOUT_S) -> None:
        """Wait until all programs are ready. Raises LoadFailed."""
        deadline = time.monotonic() + timeout_s
        while missing := [program.name for program in self.programs if not program.ready.is_set()]:
            await self.wait(_POLL_S)
            if time.monotonic() > deadline:
                raise LoadFailed(f"not connected within {timeout_s:.0f} s: {', '.join(missing)}")

    async def shared(self, consumers: int, timeout_s: float = STALL_TIMEOUT_S) -> None:
        """Wait until this many consumers own partitions, and each partition has an owner. A
        partition that moved later would wait for its former owner's unacked messages, which is no
        fault. Raises LoadFailed."""
        rest, deadline = Rest(self.url), time.monotonic() + timeout_s
        try:
            while True:
                group = await rest.call("GET", f"/v1/queues/{QUEUE}/groups/{GROUP}")
                owners = [
                    one["owner"]["session"] for one in group["partitions"] if one.get("owner")
                ]
                if len(owners) == len(group["partitions"]) and len(set(owners)) == consumers:
                    return
                if time.monotonic() > deadline:
                    raise LoadFailed(f"{consumers} consumers of {GROUP} share no partitions")
                await self.wait(_POLL_S)
        finally:
            rest.close()

    # --- the end

    async def drain(self) -> bool:
        """Stop the producers, and let the other programs go on until all messages are handled, read
        and settled; return True then. Return False if something is left and there is no progress
        for STALL_TIMEOUT_S; the evidence says what is left."""
        producers = [program for program in self.programs if isinstance(program, Producing)]
        readings = [program.reading for program in self.programs if isinstance(program, Following)]
        for producer in producers:
            producer.stopping = True
        best, deadline = 1 << 60, time.monotonic() + STALL_TIMEOUT_S
        while left := (
            sum(producer.unanswered for producer in producers)
            + self.book.left
            + sum(self.book.unread(reading) for reading in readings)
        ):
            if left < best:
                best, deadline = left, time.monotonic() + STALL_TIMEOUT_S
            elif time.monotonic() > deadline:
                self.progress(f"drain: {left:,} left, and nothing happens any more")
                return False
            await self.wait(2 * _POLL_S)
        return await self._settled()

    async def _settled(self) -> bool:
        rest, deadline = Rest(self.url), time.monotonic() + STALL_TIMEOUT_S
        try:
            while lag := await self._lag(rest):
                if time.monotonic() > deadline:
                    self.progress(f"drain: all has run, and the group still lags by {lag}")
                    return False
                await self.wait(_POLL_S)
        finally:
            rest.close()
        await self.wait(REST_S)
        return True

    @staticmethod
    async def _lag(rest: Rest) -> int:
        said = await rest.call("GET", f"/v1/queues/{QUEUE}/groups/{GROUP}")
        lag: int = said["lag"]
        return lag

    async def leave(self) -> None:
        """Stop all programs and close the log."""
        await asyncio.gather(*(program.leave() for program in self.programs))
        self.clients.log.close()

    def evidence(self, *, drained: bool, moments: Sequence[int] = ()) -> Evidence:
        """Read the log and close the history. `drained`: whether `drain` returned True. `moments`:
        monotonic times in nanoseconds at which to count unacked deliveries."""
        self.progress(f"judging {self.log.stat().st_size / 1e6:,.0f} MB of frames")
        verdict, sessions = read_log(
            self.log, drained=drained, lease_s=self.lease_s, linger_s=self.linger_s,
            moments=moments,
        )  # fmt: skip
        again = sessions.excused_places.items()
        self.book.close(Counter({(place[1], place[2]): count for place, count in again}))
        return Evidence(verdict, sessions, self.book)

    @property
    def confirmed(self) -> int:
        """Number of acks for whose confirmation a handler has waited, over all consumers."""
        return sum(program.confirmed for program in self.programs if isinstance(program, Consuming))


def read_log(
    log: Path, *, drained: bool, lease_s: float, linger_s: float, moments: Sequence[int] = ()
) -> tuple[Verdict, Sessions]:
    """Return the verdicts of the judge and of the sessions' rules on a log. Raises
    history.Unreadable."""
    judge, interpreter = Judge([GROUP_PLACE]), Interpreter()
    sessions = Sessions(lease_s=lease_s, linger_s=linger_s, moments=list(moments))
    with log.open("rb") as lines:
        for line in read_lines(lines):
            for event in interpreter.events(line):
                judge.see(event)
                sessions.see(event)
    return judge.verdict(drained=drained), sessions


def examine(finding: Finding, evidence: Evidence, *, again_allowed: bool) -> None:
    """Add the promises and figures of every such trial to `finding`. `again_allowed`: leases may
    have ended, so messages may have run again, but only after their delivery had ended."""
    verdict, sessions, book = evidence.verdict, evidence.sessions, evidence.book
    finding.check(
        "P1-P5, P7: nothing lost, invented, out of order, or given after its ack (raw frames)",
        verdict.ok, "the judge found nothing" if verdict.ok else str(verdict),
    )  # fmt: skip
    finding.check(
        "R21, R22, R25: nothing given or acked twice, and all that clients said of it was true",
        sessions.ok, sessions,
    )  # fmt: skip
    finding.check(
        "handlers and readers: nothing missing, nothing twice, each key in order, one at a time",
        book.ok, book,
    )  # fmt: skip
    if not again_allowed:
        finding.check(
            "no delivery ended and came again: nothing went twice to a handler",
            not sessions.excused and not book.ran_again,
            f"{book.ran_again} ran again, {dict(sessions.excused)}",
        )
    finding.figures |= {
        "published": len(book.stored),
        "outcome_unknown": len(book.unknown),
        "runs": sum(book.runs.values()),
        "ran_again": book.ran_again,
        "given_again": dict(sessions.excused),
        "read": sum(len(reading.bodies) for reading in book.readings),
    }
