"""A run of a job: alone in its lake, with its own Spark and log file, ending in one sentence.

    0    fine                                3    the job failed; stderr says why
    1    a promise was not kept              4    with --strict: something could not be judged
    2    the command line was not understood 130  Ctrl-C (128 + the number of the signal)

The log of a run has the output of Java and Spark, and the whole trace of a failure. It is in the
lake's folder `logs`, which keeps the last ten. If nothing can be written there, it is in the folder
for temporary files. Spark spills into the lake's folder `scratch`: /tmp may be in memory, and the
disk of the lake has to hold the data anyway. SPARK_LOCAL_DIRS names another folder. Nothing is
written into the folder in which a job is started.
"""

import contextlib
import datetime
import itertools
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

from spark.failures import explain
from spark.progress import Progress
from spark.session import LITTLE_BYTES_MAX, Unreachable, java_process, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.lake import Lake

Result = TypeVar("Result")

EXIT_BROKEN: Final = 1
EXIT_FAILED: Final = 3
EXIT_UNJUDGED: Final = 4
LOGS: Final = "logs"
SCRATCH: Final = "scratch"
LOGS_MAX: Final = 10
JAVA_ENDS_S_MAX: Final = 5.0
"""The time for Java to remove its files before it is killed, in seconds."""
_JAVA_DIES_S_MAX: Final = 2.0
"""The time for Java to end after a call to it has failed because it is ending, in seconds."""
_LOG_NAME: Final = re.compile(r"[a-z-]+-\d{8}T\d{6}Z-\d+\.log")
_TAIL_BYTES: Final = 64 * 1024
_PY4J: Final = "py4j"
"""The logger of the connection between Python and Java."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class JobFailed(Exception):
    """Error: a run did not come to its end. The text is a sentence for stderr."""

    def __init__(
        self, sentence: str, exit_code: int = EXIT_FAILED, stderr: TextIO | None = None
    ) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
        self._stderr = stderr

    def tell(self) -> None:
        """Write the sentence to the process's own stderr. After a run that failed, `sys.stderr` is
        the log of the run."""
        stderr = self._stderr or sys.stderr
        stderr.write(f"Error: {self}\n")
        stderr.flush()


def run_job(
    name: str,
    lake: Path,
    work: Callable[["SparkSession", "Lake", Progress], Result],
    *,
    logs: Sequence[str],
    master: str | None = None,
    memory: str | None = None,
) -> Result:
    """Do `work` in its own session; stderr shows its progress.

    After a failure the threads of PySpark still write their traces. So `sys.stderr` is the log
    then, until the process ends.

    Args:
        logs: the folders, and patterns of folders, that it reads beside the lake. Their size
            decides how Java runs.

    Raises:
        JobFailed: the run did not come to its end, for whatever reason.
    """
    from spark.lake import Lake, LakeError

    if not logs and not lake.is_dir():
        raise JobFailed(f"there is no lake in {lake}; ingest makes one.")
    place = Lake(lake)
    progress = Progress(sys.stderr)
    try:
        with place.alone(), _Run(name, place.root, progress) as run:
            with progress.step("start") as step:
                spark = open_session(
                    f"tocsin {name}", master=master, memory=memory,
                    scratch=run.scratch, log=run.log, is_little=_is_little([*logs, str(lake)]),
                )  # fmt: skip
                # PySpark's own handler calls Java in the midst of another call.
                run.handle_signals()
                step.say(f"Spark {spark.version}, {spark.sparkContext.master}")
            progress.watch(spark.sparkContext)
            result = work(spark, place, progress)
            spark.stop()
            return result
    except (LakeError, Unreachable) as problem:
        raise JobFailed(f"{problem}.") from None
    except OSError as problem:
        raise JobFailed(f"{explain(problem)}.") from None


def _is_little(places: Sequence[str]) -> bool:
    """Whether everything below these folders, or patterns of folders, is little to read. Data on
    other machines is not."""
    size = 0
    for place in places:
        if "://" in place:
            return False
        for path in itertools.chain.from_iterable(Path(one).rglob("*") for one in glob(place)):
            with contextlib.suppress(OSError):
                size += path.stat().st_size if path.is_file() else 0
            if size > LITTLE_BYTES_MAX:
                return False
    return True


def check_place(out: Path) -> None:
    """Check before the work that a page can be written there.

    Raises:
        JobFailed: it cannot be written.
    """
    folder = next(parent for parent in out.absolute().parents if parent.exists())
    try:
        if out.is_dir():
            raise IsADirectoryError
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        raise JobFailed(
            f"the page {out.absolute()} cannot be written; --out names another place."
        ) from None


def check_logs(places: Sequence[str]) -> None:
    """Check before Spark starts that these logs exist on this machine.

    Raises:
        JobFailed: a folder does not exist, or a pattern matches nothing.
    """
    for place in places:
        is_elsewhere = "://" in place or place.startswith("file:")
        # Hadoop knows alternatives in braces, and glob does not. Spark will report those.
        if is_elsewhere or "{" in place or os.path.lexists(place) or glob(place):
            continue
        what = "nothing matches" if set("*?[") & set(place) else "there is no folder"
        raise JobFailed(f"{what} {place}; name one that has a delivery log.")


def exit_code(done: dict[str, Any], *, is_strict: bool) -> int:
    """Return the exit code of a run that came to its end.

    `done` is the result of all jobs, or of one. With `is_strict`, results that could not be judged
    have their own code.
    """
    audit = done.get("order_audit", done)
    if any(audit.get("faults", {}).values()):
        return EXIT_BROKEN
    is_unsure = any(audit.get(name) for name in ("unjudged", "holes", "losses", "quarantined"))
    return EXIT_UNJUDGED if is_strict and is_unsure else 0


class _Run:
    """The files, the Java and the signals of one run."""

    def __init__(self, name: str, lake: Path, progress: Progress) -> None:
        self._name = name
        self._progress = progress
        self._signal: signal.Signals | None = None
        self._former: dict[signal.Signals, Any] = {}
        self._stderr = sys.stderr
        self._log_handlers = logging.getLogger().handlers[:]
        self.scratch = lake / SCRATCH
        shutil.rmtree(self.scratch, ignore_errors=True)  # of a run that was killed
        self.scratch.mkdir()
        self.log = open_log(name, lake / LOGS)

    def __enter__(self) -> "_Run":
        sys.stderr = self.log
        logging.getLogger().handlers[:] = [logging.StreamHandler(self.log)]
        logging.getLogger(_PY4J).propagate = True
        self.handle_signals()
        return self

    def handle_signals(self) -> None:
        """Let Ctrl-C, SIGTERM and the end of the terminal end the run, from now on."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:  # nohup, or a shell's background
                self._former.setdefault(number, before)
                signal.signal(number, self._stop)

    def _stop(self, number: int, _frame: object) -> None:
        java = java_process()
        if self._signal is not None:
            if java is not None:
                java.kill()
            os._exit(128 + self._signal)
        self._signal = signal.Signals(number)
        # While Java lives, cleaning up may wait for it as long as a job takes.
        _end(java)
        raise KeyboardInterrupt

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from spark.lake import LakeError

        if isinstance(error, KeyboardInterrupt) and self._signal is None:
            self._signal = signal.SIGINT  # before our handler was set, or after PySpark's was
        failed: JobFailed | None = None
        try:
            java = java_process()
            if self._signal is not None:
                failed = JobFailed(
                    f"{self._name} was stopped by {_NAMES.get(self._signal, self._signal.name)}; "
                    "what it has done stays, and the next run goes on from there.",
                    128 + self._signal,
                    self._stderr,
                )
            elif isinstance(error, Exception) and not isinstance(error, (LakeError, Unreachable)):
                failed = JobFailed(
                    self._sentence(error, _ended_by_itself(java)), stderr=self._stderr
                )
            _end(java)
            if java is not None:
                java.wait()
        finally:
            if failed is None:
                sys.stderr = self._stderr
                # PySpark's threads may still report that Java has ended, and some are writing now.
                # So the log stays open, and their later output is dropped.
                logging.getLogger().handlers[:] = self._log_handlers
                logging.getLogger(_PY4J).addHandler(logging.NullHandler())
                logging.getLogger(_PY4J).propagate = False
            shutil.rmtree(self.scratch, ignore_errors=True)
            for number, before in self._former.items():
                signal.signal(number, before)
        if failed is not None:
            raise failed from None

    def _sentence(self, error: Exception, java_ended: int | None) -> str:
        said = _tail(Path(self.log.name))
        step = self._progress.failed or self._name
        place = _keep_trace(error, self.log)
        return (
            f"{step} failed: {explain(error, log=said, java_ended=java_ended)}; "
            f"the log of it is {place}"
        )


_NAMES: Final = {signal.SIGINT: "Ctrl-C"}


def open_log(name: str, folder: Path) -> TextIO:
    """Open a new file for the output of Java and Python, and remove the oldest ones."""
    now = datetime.datetime.now(datetime.UTC)
    file = f"{name}-{now:%Y%m%dT%H%M%SZ}-{os.getpid()}.log"
    try:
        folder.mkdir(exist_ok=True)
        log = (folder / file).open("a", buffering=1, encoding="utf-8", errors="replace")
    except OSError:
        folder = Path(tempfile.gettempdir())
        file = f"tocsin-{file}"
        log = (folder / file).open("a", buffering=1, encoding="utf-8", errors="replace")
    old = [path for path in folder.iterdir() if _LOG_NAME.fullmatch(path.name)]
    with contextlib.suppress(OSError):
        for path in sorted(old, key=lambda path: path.stat().st_mtime)[:-LOGS_MAX]:
            path.unlink(missing_ok=True)
    return log


def _tail(path: Path) -> str:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return file.read().decode(errors="replace")
    return ""


def _keep_trace(error: Exception, log: TextIO) -> Path:
    """Write the trace into the log, and return the log's path. If the disk is full, writes a copy
    in the folder for temporary files."""
    text = "".join(traceback.format_exception(error))
    try:
        log.write(text)
        return Path(log.name)
    except OSError:
        path = Path(tempfile.gettempdir()) / f"tocsin-{Path(log.name).name}"
        path.write_text(f"{_tail(Path(log.name))}\n{text}", encoding="utf-8")
        return path


def _ended_by_itself(java: "subprocess.Popen[bytes] | None") -> int | None:
    """Return the exit code of a Java that has ended, or is about to; None if it works, or is not
    ours."""
    if java is None:
        return None
    try:
        return java.wait(_JAVA_DIES_S_MAX)
    except subprocess.TimeoutExpired:
        return None


def _end(java: "subprocess.Popen[bytes] | None") -> None:
    """Let Java remove its files and end. It is killed if that takes too long."""
    if java is None or java.poll() is not None:
        return
    java.terminate()
    killer = threading.Timer(JAVA_ENDS_S_MAX, java.kill)
    killer.daemon = True
    killer.start()
