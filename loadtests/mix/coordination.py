"""Communication between the launcher and the processes of a run, over files in the run's folder.

Locust's own messages end with its users. But consumers must go on draining when publishing is over,
and a ledger must be complete before anything is torn down. A file is replaced atomically.

`Locusts` are Locust's processes of one run: a master that assigns users, and workers that run them.
Each worker writes its ledger into a file in the end. The launcher reads and judges them.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Literal

import msgspec

from loadtests.histogram import Histogram
from loadtests.mix.ledger import KINDS, Ledger, Sent, Series, Spans, Subscriber, Taken
from loadtests.mix.plan import Plan
from loadtests.server import free_port

PLAN: Final = "plan.json"
_PHASE: Final = "phase.json"
LEDGER: Final = "ledger-{}.json"
_PROGRESS: Final = "progress-{}.json"

Name = Literal["ramp", "measure", "drain", "over"]


class Phase(msgspec.Struct, frozen=True):
    """The phase of the run. From `drain` on nothing new is published, from `over` on nothing
    counts."""

    name: Name = "ramp"
    since_ns: int = 0
    """The time at which measuring began."""
    is_drained: bool = False
    """In `over`: whether no message was left unsettled."""


class Progress(msgspec.Struct, frozen=True):
    """The progress of one process."""

    users: dict[str, int]
    """Number of users of each of Locust's classes."""
    certified: int
    given: int
    unanswered: int
    """Number of publishes that have no last answer yet."""
    violations: int
    p99_ms: float
    given_at_ns: int
    """The last time at which a user of the process received a message, worked on one, or had an ack
    or nack answered; in nanoseconds."""
    error: str = ""
    """The first error that ended one of the process's users, in words; empty if none."""

    @property
    def standing(self) -> int:
        """Number of users of all classes."""
        return sum(self.users.values())


def _put(path: Path, what: msgspec.Struct) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(msgspec.json.encode(what))
    os.replace(part, path)


def tell(folder: Path, phase: Phase) -> None:
    """Write the run's phase for all processes to read. Only the launcher calls this."""
    _put(folder / _PHASE, phase)


def phase(folder: Path) -> Phase:
    """Read the run's phase; the ramp before any was written."""
    try:
        return msgspec.json.decode((folder / _PHASE).read_bytes(), type=Phase)
    except FileNotFoundError:
        return Phase()


def report(folder: Path, process: int, progress: Progress) -> None:
    """Write the progress of a process."""
    _put(folder / _PROGRESS.format(process), progress)


def progress(folder: Path, processes: int) -> list[Progress]:
    """Return the latest progress of each process; processes that have written none are left out."""
    found = []
    for process in range(processes):
        try:
            data = (folder / _PROGRESS.format(process)).read_bytes()
        except FileNotFoundError:
            continue
        found.append(msgspec.json.decode(data, type=Progress))
    return found


FOLDER: Final = "TOCSIN_LOAD_FOLDER"
PROCESS: Final = "TOCSIN_LOAD_PROCESS"
"""Environment variables with a worker's folder and its number. The locustfile and `run_process`
read them."""
CLASSES: Final = {
    "websocket": "WebSocketPublisher",
    "rest": "RestPublisher",
    "worker": "GroupWorker",
    "reader": "KeyReader",
    "poller": "LongPoller",
    "slow": "SlowConsumer",
    "storm": "ReconnectStorm",
    "day": "MixedDay",
}
"""The locustfile's class for each role."""
_ROOT: Final = Path(__file__).parent.parent.parent
_LOCUSTFILE: Final = Path(__file__).with_name("locustfile.py")
_END_S: Final = 15.0
_LOG_LINES: Final = 20


class LoadBroke(RuntimeError):
    """The load itself could not be made, or ended. The run says nothing about the broker."""


class Locusts:
    """A master and the plan's workers, on this machine. Leaving its context ends them all."""

    def __init__(self, plan: Plan, folder: Path, token: str | None) -> None:
        """`folder`: the run's folder, which holds the plan's file. Logs are written there too."""
        self._plan = plan
        self._folder = folder
        self._environment = os.environ | {
            FOLDER: str(folder),
            "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
            "PYTHONUNBUFFERED": "1",
        }
        if token is not None:
            self._environment["TOCSIN_TOKEN"] = token
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Locusts":
        """Start the processes; the users begin when all workers have connected."""
        plan, port = self._plan, free_port()
        per_s = max(1.0, plan.users / max(plan.ramp_s, 0.1))
        try:
            self._spawn(
                "master", "--master", "--headless", "--only-summary",
                "--master-bind-host", "127.0.0.1", "--master-bind-port", str(port),
                "--expect-workers", str(plan.processes),
                "--users", str(plan.users), "--spawn-rate", f"{per_s:.3f}",
            )  # fmt: skip
            for number in range(plan.processes):
                self._environment[PROCESS] = str(number)
                self._spawn(
                    f"worker-{number}", "--worker",
                    "--master-host", "127.0.0.1", "--master-port", str(port),
                )  # fmt: skip
        except BaseException:
            self.stop()
            raise
        return self

    def _spawn(self, name: str, *arguments: str) -> None:
        names = [CLASSES[role] for role, many in self._plan.counts.items() if many]
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [
                    sys.executable, "-m", "locust", "--locustfile", str(_LOCUSTFILE),
                    "--loglevel", "WARNING", *arguments, *names,
                ],
                env=self._environment, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # a Ctrl-C is for this process, which stops them
            )  # fmt: skip

    def check(self) -> None:
        """Raise LoadBroke, with the end of its log, if any process has ended."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                log = (self._folder / f"{name}.log").read_text(errors="replace")
                tail = "\n".join(log.splitlines()[-_LOG_LINES:])
                raise LoadBroke(f"Locust's {name} ended with {process.returncode}:\n{tail}")

    def ledgers(self) -> list[Path]:
        """Return the ledgers' files of all workers; those not yet written are left out."""
        places = [self._folder / LEDGER.format(number) for number in range(self._plan.processes)]
        return [place for place in places if place.exists()]

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the processes, the master first; kill any that has not ended within _END_S."""
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _END_S
        for process in self._processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


SCHEMA: Final = 1
Pairs = list[tuple[int, int]]


class _Sent(msgspec.Struct, array_like=True):
    offered: int
    certified: Pairs
    refused: Pairs


class _Taken(msgspec.Struct, array_like=True):
    given: Pairs
    settled: Pairs


class _Subscriber(msgspec.Struct):
    queue: str
    keys: list[str] | None
    is_whole: bool
    lines: dict[str, _Taken]


class _Histogram(msgspec.Struct):
    buckets: Pairs
    total: int
    maximum: int


class _Book(msgspec.Struct):
    schema: int
    sent: dict[str, dict[str, _Sent]]
    subscribers: dict[str, _Subscriber]
    counts: dict[str, int]
    violations: dict[str, int]
    examples: dict[str, list[str]]
    latencies: dict[str, _Histogram]
    series: dict[str, dict[int, _Histogram]]


_ENCODE: Final = msgspec.json.Encoder().encode
_DECODE: Final = msgspec.json.Decoder(_Book).decode


def _flat(histogram: Histogram) -> _Histogram:
    return _Histogram(histogram.buckets(), histogram.total, histogram.maximum)


def _full(flat: _Histogram) -> Histogram:
    return Histogram.of(flat.buckets, flat.total, flat.maximum)


def write_ledger(ledger: Ledger, path: Path) -> None:
    """Write a ledger into a file, atomically."""
    book = _Book(
        SCHEMA,
        {
            queue: {
                line: _Sent(row.offered, row.certified.pairs(), row.refused.pairs())
                for line, row in lines.items()
            }
            for queue, lines in ledger.sent.items()
        },
        {
            name: _Subscriber(
                one.queue, one.keys, one.is_whole,
                {
                    line: _Taken(row.given.pairs(), row.settled.pairs())
                    for line, row in one.lines.items()
                },
            )
            for name, one in ledger.subscribers.items()
        },
        dict(ledger.counts),
        dict(ledger.violations),
        ledger.examples,
        {name: _flat(histogram) for name, histogram in ledger.latencies.items()},
        {
            name: {slot: _flat(histogram) for slot, histogram in series.slots.items()}
            for name, series in ledger.series.items()
        },
    )  # fmt: skip
    part = path.with_name(path.name + ".part")
    part.write_bytes(_ENCODE(book))
    os.replace(part, path)


def read_ledger(path: Path) -> Ledger:
    """Read a ledger from a file.

    Raises:
        ValueError: the file is damaged, or of another schema.
        OSError: the file cannot be read.
    """
    try:
        book = _DECODE(path.read_bytes())
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: no ledger: {error}") from None
    if book.schema != SCHEMA or not book.violations.keys() <= KINDS.keys():
        raise ValueError(f"{path}: a ledger of schema {book.schema}, and this reads {SCHEMA}")
    ledger = Ledger(0)
    for queue, lines in book.sent.items():
        ledger.sent[queue] = {
            line: Sent(row.offered, Spans(row.certified), Spans(row.refused))
            for line, row in lines.items()
        }
    for name, one in book.subscribers.items():
        subscriber = Subscriber(one.queue, one.keys, one.is_whole)
        for line, taken in one.lines.items():
            subscriber.lines[line] = Taken(Spans(taken.given), Spans(taken.settled))
        ledger.subscribers[name] = subscriber
    ledger.counts.update(book.counts)
    ledger.violations.update(book.violations)
    ledger.examples = book.examples
    ledger.latencies = {name: _full(flat) for name, flat in book.latencies.items()}
    for name, slots in book.series.items():
        ledger.series[name] = Series()
        ledger.series[name].slots = {slot: _full(flat) for slot, flat in slots.items()}
    return ledger
