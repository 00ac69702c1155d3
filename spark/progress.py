"""The progress of a job, for a person who waits and for the log of a cron job.

On a terminal one line changes as the work continues. Elsewhere a long step writes a line every ten
seconds, which ends with `…`. In the end every step is a line.
"""

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker

LIVE_EVERY_S: Final = 0.25
LINE_EVERY_S: Final = 10.0
"""The interval without a terminal, in seconds."""


class Step:
    """A step that is under way. `text` names its present work, and in the end its result."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = ""
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Set the text."""
        self.text = text

    def line(self, *more: str) -> str:
        """Return everything known about the step, in one line."""
        text = "  ".join(filter(None, (self.text, *more)))
        return f"{self.name:<12} {text:<48} {time.monotonic() - self._began:6.1f} s"


class Progress:
    """Steps, one after the other or several at once, each in its own thread. A `context` of None
    means that Spark's progress within them is unknown."""

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
        self._steps: list[Step] = []
        self._width = 0
        self._writing = threading.Lock()
        self.failed = ""
        """The first step that has failed; empty if none has."""

    def watch(self, context: "SparkContext") -> None:
        """Show from now on the progress of this Spark's tasks."""
        self._context = context

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Run a step, inside this block. In the end it is a line; a step that fails leaves none."""
        one = Step(name)
        if self._context is not None:
            self._context.setJobGroup(name, name)  # of this thread's jobs
        self._steps.append(one)
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(one, done), daemon=True)
        watcher.start()
        is_done = False
        try:
            yield one
            is_done = True
        finally:
            if not is_done:
                self.failed = self.failed or name
            self._steps.remove(one)
            done.set()
            watcher.join()
            self._write(self._blank() + (f"{one.line()}\n" if is_done else ""))

    def note(self, sentence: str) -> None:
        """Write a separate line, above the changing one."""
        self._write(f"{self._blank()}{sentence}\n")

    def _blank(self) -> str:
        """Return the characters that wipe the changing line."""
        if not self._is_live:
            return ""
        width = min(self._width, shutil.get_terminal_size().columns - 1)
        return f"\r{'':<{width}}\r"

    def _watch(self, one: Step, done: threading.Event) -> None:
        while not done.wait(self._every_s):
            if self._is_live:
                self._show()
            else:
                self._write(f"{one.line(self._tasks(one))} …\n")

    def _shown(self, columns: int) -> str:
        """Return all running steps within this number of columns. A single step looks as in the
        end; several have a share each, without the blanks between their parts."""
        lines = [step.line(self._tasks(step)) for step in self._steps[:]]
        if len(lines) == 1:
            return lines[0][:columns]
        share = (columns - 3 * (len(lines) - 1)) // max(1, len(lines))
        return "   ".join(" ".join(line.split())[: max(0, share)] for line in lines)[:columns]

    def _show(self) -> None:
        """Rewrite the changing line."""
        columns = shutil.get_terminal_size().columns - 1
        line = self._shown(columns)
        self._write(f"\r{line:<{min(self._width, columns)}}")
        self._width = len(line)

    def _write(self, text: str) -> None:
        with self._writing:
            self._stream.write(text)
            self._stream.flush()

    def _tasks(self, step: Step) -> str:
        """Return how many tasks of the stages that Spark runs for a step are done."""
        if self._context is None:
            return ""
        try:
            tracker = self._context.statusTracker()
            stages = [tracker.getStageInfo(one) for one in self._stages(tracker, step)]
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

    def _stages(self, tracker: "StatusTracker", step: Step) -> list[int]:
        active: list[int] = list(tracker.getActiveStageIds())
        if self._steps == [step]:  # also those of its own threads
            return active
        jobs = set(tracker.getJobIdsForGroup(step.name)) & set(tracker.getActiveJobsIds())
        infos = [tracker.getJobInfo(job) for job in jobs]
        mine = {stage for info in infos if info is not None for stage in info.stageIds}
        return [stage for stage in active if stage in mine]
