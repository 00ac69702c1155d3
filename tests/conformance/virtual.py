"""An event loop whose clock stands still while callbacks are ready, and otherwise jumps to the
next."""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")
START_S = 1000.0
REAL_S_MAX = 300.0
"""Real time after which a test that waits in vain has failed."""
WORKING_S = 0.01
"""Real time of one wait for a thread that works."""


class _Selector(selectors.DefaultSelector):
    """A selector that moves the loop's clock instead of waiting."""

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
    """An event loop whose seconds cost nothing. It waits for threads of its executors in real
    time."""

    def __init__(self) -> None:
        self.now = START_S
        self.until = time.monotonic() + REAL_S_MAX
        self.working = 0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self.now

    async def shutdown_default_executor(self, *args: Any) -> None:
        """Shut down as in any loop; a thread of the loop does that, so time stands still
        meanwhile."""
        self.working += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self.working -= 1

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Run a function as in any loop; virtual time stands still until it is done."""
        self.working += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._done)
        return future

    def _done(self, _: object) -> None:
        self.working -= 1


def run(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a coroutine in virtual time. An exception that reaches the loop's handler fails the
    test."""
    unexpected: list[dict[str, Any]] = []

    async def watched() -> ResultT:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unexpected.append(context))
        return await main

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        result = runner.run(watched())
    assert not unexpected, unexpected
    return result
