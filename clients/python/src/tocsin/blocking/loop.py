"""An event loop in a thread, and how other threads have something done there."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Final, TypeVar

from tocsin.errors import ClientClosed

T = TypeVar("T")
STOP_TIMEOUT_S: Final = 5.0


class LoopThread:
    """A thread that runs an event loop until `stop`. It is a daemon: it keeps no program alive."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="tocsin", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None = None) -> T:
        """Have this done there, and wait for it. A Ctrl-C while it waits ends the work too.

        Raises:
            TimeoutError: it was not done within `timeout_s` seconds; it has been ended.
            ClientClosed: the loop has been stopped.
            What the work raises.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call in the client's own thread would wait for itself")
        with self._lock:
            if self._stopped:
                raise ClientClosed
            future: Future[T] = asyncio.run_coroutine_threadsafe(
                _within(work, timeout_s), self._loop
            )
        try:
            return future.result()
        except CancelledError:
            raise ClientClosed from None
        except BaseException:
            future.cancel()
            raise

    def run(self, act: Callable[[], T]) -> T:
        """Have something short done there, and wait for it. Raises as `call`."""

        async def work() -> T:
            return act()

        return self.call(work)

    def stop(self, last: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Do this last, for up to STOP_TIMEOUT_S, then end the thread. Whoever still waits in
        `call` gets ClientClosed. Calling it again does nothing. Raises what `last` raises."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            future = asyncio.run_coroutine_threadsafe(_within(last, STOP_TIMEOUT_S), self._loop)
        if threading.current_thread() is self._thread:  # the collector runs where it likes
            future.add_done_callback(lambda _: self._loop.stop())
            return
        try:
            with suppress(TimeoutError, CancelledError):
                future.result(STOP_TIMEOUT_S + 1)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(STOP_TIMEOUT_S)


async def _within(work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None) -> T:
    async with asyncio.timeout(timeout_s):
        return await work()
