"""An event loop in a thread, and the calls of other threads into it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from tocsin.errors import ClientClosed

T = TypeVar("T")
STOP_TIMEOUT_S: Final = 5.0


def _forget(answer: object) -> None:
    """Drop the result of work for which no caller waits any more."""


class LoopThread:
    """A thread that runs an event loop until `stop`. A daemon thread, so it keeps no program
    alive."""

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

    def call(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        timeout_s: float | None = None,
        unclaimed: Callable[[T], object] = _forget,
    ) -> T:
        """Run `work` in the loop, wait for it, and return its result.

        A Ctrl-C during the wait ends the work, too. If it comes too late for that, `unclaimed`
        receives the result. The work's own exceptions are raised.

        Raises:
            TimeoutError: the work was not done within `timeout_s` seconds, and was ended.
            ClientClosed: the loop has been stopped.
            RuntimeError: this is the client's own thread.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call in the client's own thread would wait for itself")
        future: Future[T] = Future()
        try:
            with self._lock:
                if self._stopped:
                    raise ClientClosed
                self._begin(future, work, timeout_s, unclaimed)
            return future.result()
        except CancelledError:
            raise ClientClosed from None
        except BaseException:
            if not future.cancel():
                future.add_done_callback(lambda done: done.exception() or unclaimed(done.result()))
            raise

    def _begin(
        self,
        future: "Future[T]",
        work: Callable[[], Coroutine[Any, Any, T]],
        timeout_s: float | None,
        unclaimed: Callable[[T], object] = _forget,
    ) -> None:
        """Run `work` in the loop. `future` receives the outcome of the work. Cancelling `future`
        ends the work.

        A Ctrl-C may come between any two lines of the caller. So the future exists before
        everything else, and the coroutine is made in the thread that awaits it.
        """

        def start() -> None:
            if not future.cancelled():
                task = self._loop.create_task(_within(work, timeout_s))
                task.add_done_callback(partial(_tell, future, unclaimed))
                future.add_done_callback(partial(self._end, task))

        self._loop.call_soon_threadsafe(start)

    def _end(self, task: "asyncio.Task[T]", future: "Future[T]") -> None:
        if future.cancelled() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(task.cancel)

    def run(self, act: Callable[[], T]) -> T:
        """Run a short function in the loop, and wait for it. Raises what the function raises,
        ClientClosed if the loop has been stopped, RuntimeError in the client's own thread."""

        async def work() -> T:
            return act()

        return self.call(work)

    def stop(self, last: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run `last` in the loop, for up to STOP_TIMEOUT_S, then end the thread.

        Callers that still wait in `call` get ClientClosed. Stopping again does nothing. Raises the
        exception of `last`, except a timeout.
        """
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            future: Future[object] = Future()
            self._begin(future, last, STOP_TIMEOUT_S)
        if threading.current_thread() is self._thread:  # the garbage collector runs in any thread
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


def _tell(future: Future[T], unclaimed: Callable[[T], object], task: asyncio.Task[T]) -> None:
    """Hand the outcome of a task to its future.

    If a Ctrl-C came between the end of the task and this call, the result is unclaimed.
    """
    if task.cancelled():
        future.cancel()
    error = None if task.cancelled() else task.exception()
    if not future.set_running_or_notify_cancel():
        if not task.cancelled() and error is None:
            unclaimed(task.result())
    elif error is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())
