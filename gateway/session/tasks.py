"""The tasks of one session."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

logger = logging.getLogger("tocsin.session")


class Tasks:
    """Runs what takes a while; true as long as something does. `ended` is called after each."""

    __slots__ = ("_ended", "_running", "_session_id")

    def __init__(self, session_id: str, ended: Callable[[], None]) -> None:
        self._session_id = session_id
        self._ended = ended
        # The loop keeps only a weak reference to a task.
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many run."""
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it. What it raises unexpectedly is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error(
                "session %s: a task ended in an unexpected error",
                self._session_id,
                exc_info=task.exception(),
            )
        self._ended()
