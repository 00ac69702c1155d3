"""What a job is doing, for whoever waits: live on a terminal, else a line when it is done."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from pyspark import SparkContext

LIVE_EVERY_S: Final = 0.25


class Progress:
    """Steps one after the other. `context` None: how far Spark is within one is not asked."""

    def __init__(self, stream: TextIO, context: "SparkContext | None" = None) -> None:
        self._stream = stream
        self._context = context
        self._is_live = stream.isatty()
        self._text = ""
        self._width = 0

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator["Progress"]:
        """Do one; in the end its name, what `say` said last, and the seconds are a line."""
        self._text = ""
        began = time.monotonic()
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(name, began, done), daemon=True)
        if self._is_live:
            watcher.start()
        try:
            yield self
        finally:
            done.set()
            if self._is_live:
                watcher.join()
                self._stream.write("\r" + " " * self._width + "\r")
        self._stream.write(f"{line(name, self._text, time.monotonic() - began)}\n")
        self._stream.flush()

    def say(self, text: str) -> None:
        """What it is at, or what came of it."""
        self._text = text

    def _watch(self, name: str, began: float, done: threading.Event) -> None:
        while not done.wait(LIVE_EVERY_S):
            text = line(name, self._text, time.monotonic() - began) + self._tasks()
            self._stream.write("\r" + text.ljust(self._width))
            self._stream.flush()
            self._width = max(self._width, len(text))

    def _tasks(self) -> str:
        """How many tasks of the stages that Spark works at are done."""
        if self._context is None:
            return ""
        tracker = self._context.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        if not known:
            return ""
        total = sum(stage.numTasks for stage in known)
        return f"  {sum(stage.numCompletedTasks for stage in known)}/{total} tasks"


def line(name: str, text: str, seconds: float) -> str:
    """`rollup       3 hours                                    4.2 s`"""
    return f"{name:<12} {text:<48} {seconds:6.1f} s"
