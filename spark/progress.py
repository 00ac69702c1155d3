"""What a job is doing, for a person who waits and for the log of a cron job.

On a terminal one line changes as the work goes on. Elsewhere a step that takes long writes a line
every ten seconds, which ends with `…`. In the end every step is a line.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from pyspark import SparkContext

LIVE_EVERY_S: Final = 0.25
LINE_EVERY_S: Final = 10.0
"""Without a terminal."""


class Progress:
    """Steps one after the other. `context` None: how far Spark is within one is not known."""

    def __init__(
        self,
        stream: TextIO,
        context: "SparkContext | None" = None,
        *,
        line_every_s: float = LINE_EVERY_S,
    ) -> None:
        self._stream = stream
        self._context = context
        self._is_live = stream.isatty()
        self._every_s = LIVE_EVERY_S if self._is_live else line_every_s
        self._text = ""
        self._width = 0
        self.step_name = ""
        """The step that is under way or has failed; empty before the first."""

    def watch(self, context: "SparkContext") -> None:
        """Show from now on how far the tasks of this Spark are."""
        self._context = context

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator["Progress"]:
        """Do one step. In the end its name, the last text of `say`, and the seconds are a line; a
        step that fails leaves none."""
        self._text = ""
        self.step_name = name
        began = time.monotonic()
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(name, began, done), daemon=True)
        watcher.start()
        try:
            yield self
        finally:
            done.set()
            watcher.join()
            if self._is_live:
                self._write("\r" + " " * self._width + "\r")
        self._write(f"{line(name, self._text, time.monotonic() - began)}\n")

    def say(self, text: str) -> None:
        """Set the text of the step: what it works at, in the end what it has done."""
        self._text = text

    def _watch(self, name: str, began: float, done: threading.Event) -> None:
        while not done.wait(self._every_s):
            tasks = self._tasks()
            text = "  ".join(filter(None, (self._text, tasks)))
            shown = line(name, text, time.monotonic() - began)
            if self._is_live:
                self._write("\r" + shown.ljust(self._width))
                self._width = max(self._width, len(shown))
            else:
                self._write(f"{shown} …\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def _tasks(self) -> str:
        """Return how many tasks of the stages that Spark works at are done."""
        if self._context is None:
            return ""
        try:
            tracker = self._context.statusTracker()
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except Exception:  # Spark has ended; the job itself says why
            return ""
        known = [stage for stage in stages if stage is not None]
        if not known:
            return ""
        total = sum(stage.numTasks for stage in known)
        completed = sum(stage.numCompletedTasks for stage in known)
        is_idle = not completed and not any(stage.numActiveTasks for stage in known)
        is_elsewhere = not str(self._context.master).startswith("local")
        waits = ", none has a worker yet" if is_idle and is_elsewhere else ""
        return f"{completed:,}/{total:,} tasks{waits}"


def line(name: str, text: str, seconds: float) -> str:
    """`rollup       3 hours                                    4.2 s`"""
    return f"{name:<12} {text:<48} {seconds:6.1f} s"
