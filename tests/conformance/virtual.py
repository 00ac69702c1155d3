"""An event loop whose clock stands still while there is something to do, and jumps when not."""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")
START_S = 1000.0
REAL_S_MAX = 300.0
"""Real time after which a test that waits for what never comes has failed."""
WORKING_S = 0.01
"""Real time to wait at once for a thread that is at work."""


class _Selector(selectors.DefaultSelector):
    """Moves the loop's clock instead of waiting."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if time.monotonic() > self.loop.until:
            raise RuntimeError("it waits for something that never comes")
        if found or timeout == 0:
            return found
        if self.loop.working:
            return super().select(WORKING_S)
        if timeout is None:
            raise RuntimeError("everything waits, and nothing will ever happen")
        self.loop.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Seconds of its clock cost nothing. Threads of its executors are waited for in real time."""

    def __init__(self) -> None:
        self.now = START_S
        self.until = time.monotonic() + REAL_S_MAX
        self.working = 0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Seconds since an hour that nobody knows."""
        return self.now

    async def shutdown_default_executor(self, *args: Any) -> None:
        """As in any loop; a thread of it does that."""
        self.working += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self.working -= 1

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """As in any loop; time stands still until it is done."""
        self.working += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._done)
        return future

    def _done(self, _: object) -> None:
        self.working -= 1


def run(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run it in virtual time. What the loop is told of as unexpected fails the test."""
    unexpected: list[dict[str, Any]] = []

    async def watched() -> ResultT:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unexpected.append(context))
        return await main

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        result = runner.run(watched())
    assert not unexpected, unexpected
    return result
