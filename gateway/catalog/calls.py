"""Calls to a service that may be slow, gone or wrong, with deadlines, a bound on their number, and
a breaker.

A caller is answered within the deadline. A call that changes something goes on to its end even
after that, so that no change is left half done, and its late answer is not lost (`Late`).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Final, TypeVar

from push import limits
from push.errors import Refused, TocsinError, Unavailable
from push.retry import Breaker

logger = logging.getLogger("tocsin.metadata")
ResultT = TypeVar("ResultT")
FAILURES: Final = frozenset({"metadata_unavailable", "storage_unavailable", "unknown", "internal"})
"""Codes of errors that are due to the service, and not to the request."""


class Late(Unavailable):
    """Error: no answer came within the deadline. The call goes on, and `outcome` will have its
    result."""

    def __init__(self, detail: str, outcome: "asyncio.Future[Any]") -> None:
        super().__init__("metadata_unavailable", detail, limits.BREAKER_OPEN_S)
        self.outcome = outcome


class GuardedCalls:
    """Calls to one service, with deadlines, a bound on the calls under way, and a breaker.
    Everything happens on one event loop."""

    def __init__(self, name: str) -> None:
        """Begin without a call. `name`: the service, as error texts and the log name it."""
        self._name = name
        self._breaker = Breaker(
            failures_max=limits.BREAKER_FAILURES,
            open_s=limits.BREAKER_OPEN_S,
            trial_s=limits.METADATA_DEADLINE_S + 1,
        )
        self._timely: Counter[str] = Counter()
        """Kind → number of calls under way that are still within their deadline."""
        self._under_way: set[asyncio.Task[Any]] = set()
        self._late = 0
        self._shared: dict[Hashable, asyncio.Task[Any]] = {}
        self._was_open = False
        self.counts: Counter[str] = Counter()

    async def run(
        self,
        kind: str,
        begin: Callable[[], Coroutine[Any, Any, ResultT]],
        deadline_s: float,
    ) -> ResultT:
        """Make one call, which may change something, and return its answer.

        Raises:
            Late: no answer came within `deadline_s` seconds; the call goes on.
            Refused: metadata_unavailable, if the bound or the breaker forbids the call.
            TocsinError: the error of the call.
        """
        task = self._begin(kind, begin, deadline_s, is_change=True)
        return await self._await(task, deadline_s)

    async def run_shared(
        self,
        kind: str,
        question: Hashable,
        begin: Callable[[], Coroutine[Any, Any, ResultT]],
        deadline_s: float,
        *,
        is_change: bool,
    ) -> tuple[ResultT, bool]:
        """Make a call, or wait for an equal one that is under way. Returns (the answer, whether the
        call was made for this caller). Raises like `run`. Unless `is_change`, the call is cancelled
        at its deadline, and then Unavailable is raised instead of Late."""
        task = self._shared.get((kind, question))
        if task is not None and not task.cancelling():
            self.counts["shared"] += 1
            return await self._await(task, deadline_s), False
        task = self._begin(kind, begin, deadline_s, is_change=is_change)
        self._shared[kind, question] = task
        task.add_done_callback(lambda task: self._unshare((kind, question), task))
        return await self._await(task, deadline_s), True

    def _unshare(self, question: Hashable, task: "asyncio.Task[Any]") -> None:
        if self._shared.get(question) is task:
            del self._shared[question]

    def _begin(
        self,
        kind: str,
        begin: Callable[[], Coroutine[Any, Any, ResultT]],
        deadline_s: float,
        *,
        is_change: bool,
    ) -> "asyncio.Task[ResultT]":
        loop = asyncio.get_running_loop()
        now = loop.time()
        is_full = (
            self._timely[kind] >= limits.METADATA_CALLS_MAX
            or self._late >= limits.METADATA_LATE_MAX
        )
        if is_full and self._breaker.state(now=now) == "closed":
            self.counts["refused_full"] += 1
            raise Refused(
                "metadata_unavailable", f"too many calls wait for {self._name}: try again", 1.0
            )
        ticket = self._breaker.admit(now=now)
        if ticket is None:
            self.counts["refused_open"] += 1
            after_s = max(0.1, self._breaker.retry_after_s(now=now))
            raise Refused(
                "metadata_unavailable", f"{self._name} does not answer: try again", after_s
            )
        self.counts["calls"] += 1
        task = loop.create_task(begin(), name=f"metadata {kind}")
        self._under_way.add(task)
        self._timely[kind] += 1
        is_late = False

        def on_deadline() -> None:
            nonlocal is_late
            is_late = True
            self.counts["timeouts"] += 1
            self._timely[kind] -= 1
            self._late += 1
            self._breaker.failed(ticket, now=loop.time())
            self._log_state()
            if not is_change:
                task.cancel()

        timer = loop.call_later(deadline_s, on_deadline)

        def on_end(task: "asyncio.Task[ResultT]") -> None:
            timer.cancel()
            self._under_way.discard(task)
            if is_late:
                self._late -= 1
                self.counts["late"] += 1
            else:
                self._timely[kind] -= 1
            if not task.cancelled():
                self._judge(ticket, task.exception(), is_late=is_late)

        task.add_done_callback(on_end)
        return task

    def _judge(self, ticket: int, error: BaseException | None, *, is_late: bool) -> None:
        is_failure = error is not None and (
            not isinstance(error, TocsinError) or error.code.name in FAILURES
        )
        if is_failure:
            self.counts["failures"] += 1
        if not is_late:
            if is_failure:
                self._breaker.failed(ticket, now=asyncio.get_running_loop().time())
            else:
                self._breaker.succeeded(ticket)
        self._log_state()

    async def _await(self, task: "asyncio.Task[ResultT]", deadline_s: float) -> ResultT:
        await asyncio.wait((task,), timeout=deadline_s)  # a cancelled caller does not cancel it
        if task.cancelled():
            detail = f"{self._name} did not answer within {deadline_s:g} s"
            raise Unavailable("metadata_unavailable", detail, limits.BREAKER_OPEN_S)
        if not task.done():
            raise Late(
                f"{self._name} did not answer within {deadline_s:g} s. The change may still be "
                "made; it is safe to try again",
                task,
            )
        try:
            return task.result()
        except TocsinError:
            raise
        except Exception as error:
            logger.exception("%s failed", self._name)
            detail = f"{self._name} failed: {type(error).__name__}"
            raise Unavailable("metadata_unavailable", detail, 1.0) from error

    def _log_state(self) -> None:
        is_open = self._breaker.state(now=asyncio.get_running_loop().time()) != "closed"
        if is_open != self._was_open:
            self._was_open = is_open
            if is_open:
                logger.warning(
                    "%s does not answer; known queues and groups stay in use", self._name
                )
            else:
                logger.info("%s answers again", self._name)

    async def finish(self, seconds: float) -> None:
        """Wait until the calls under way have ended, at most this many seconds."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=seconds)

    def facts(self) -> dict[str, object]:
        """Return counts of calls and the state of the breaker, for operators."""
        now = asyncio.get_running_loop().time()
        return {
            "breaker": self._breaker.state(now=now),
            "opened": self._breaker.opened_total,
            "under_way": len(self._under_way),
            **{
                name: self.counts[name]
                for name in (
                    "calls",
                    "shared",
                    "failures",
                    "timeouts",
                    "late",
                    "refused_full",
                    "refused_open",
                )
            },
        }
