"""The cost of a message by hop: `python -m loadtests.bench.hops`.

For each rate and number of partitions, single messages are published on a fixed schedule, as in
`open10k`. There are three runs, each on a new broker:

cost     the CPU time of each thread, from /proc/PID/task/*/schedstat. Nothing observes the broker.
shares   py-spy samples what each thread does, also in the kernel. A sample belongs to the hop of
         its innermost function that is in HOPS. The hop gets its share of the thread's CPU time.
calls    the broker counts the calls of its own functions, and those that cross from one module into
         another. Counting slows it down, so nothing else is taken from this run.

Afterwards three numbers are fitted to all costs, by least squares: what a commit costs, what each
partition in it adds, and what each message adds. They explain the costs of all rates together, or
not: the table has the measured cost beside the explained one.
"""

import asyncio
import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import click
import uvloop

from loadtests.bench.load_run import PARTITIONS, WARM_UP_S, Bench, Figures
from loadtests.bench.scenarios import open_loop
from loadtests.clients.load import LoadFailed
from loadtests.server import SERVE, Process, Server, ServerFailed

RATES: Final = (100, 1_000, 5_000, 10_000)
SECONDS: Final = 6.0
SAMPLES_PER_S: Final = 400
_COUNTED: Final = ("-c", f"from loadtests.bench.hops import count; count(); {SERVE[1]}")
_CALLS_FILE: Final = "TOCSIN_BENCH_CALLS_FILE"
_SPY: Final = str(Path(sys.executable).with_name("py-spy"))
_ROOT: Final = Path(__file__).parent.parent.parent
_SERVER: Final = ("push", "storage", "metadata", "runtime", "services", "gateway")
LOOP: Final = "loop"
WRITER: Final = "writer"
OTHERS: Final = "others"

READ: Final = "read and judge frames"
BEGIN: Final = "begin a commit"
ANSWER: Final = "answer a commit"
PUSH: Final = "push"
CURSOR: Final = "cursors"
LOG: Final = "delivery log"
YIELD: Final = "give way to the writer"
SOCKETS: Final = "write to sockets"
REST: Final = "the rest, waits included"
DECIDE: Final = "decide"
ROWS: Final = "rows (SQL statements)"
COMMIT: Final = "COMMIT and fsync"
CHECKPOINT: Final = "WAL into the file"
HOPS: Final[dict[tuple[str, str], str]] = {
    ("gateway/net/websocket.py", "data_received"): READ,
    ("gateway/net/websocket.py", "process_rest"): READ,
    ("gateway/publish/commits.py", "_commit"): BEGIN,
    ("gateway/publish/commits.py", "_on_stored"): ANSWER,
    ("gateway/publish/commits.py", "_begin_next"): ANSWER,
    ("storage/sqlite/writer.py", "_deliver"): ANSWER,
    ("gateway/delivery/consumer.py", "_pump"): PUSH,
    ("gateway/delivery/consumer.py", "pump"): PUSH,
    ("gateway/delivery/cursor_writer.py", "*"): CURSOR,
    ("gateway/deliverylog/log.py", "*"): LOG,
    ("gateway/deliverylog/deliveries.py", "*"): LOG,
    ("gateway/net/connections.py", "_flush"): SOCKETS,
    ("runtime/loop/fairness.py", "after_read"): YIELD,
    ("storage/sqlite/writer.py", "wait"): YIELD,
    ("storage/sqlite/writer.py", "_commit"): COMMIT,
    ("storage/sqlite/state.py", "append"): DECIDE,
    ("storage/sqlite/cursors.py", "write"): DECIDE,
    ("storage/sqlite/state.py", "flush"): ROWS,
    ("storage/sqlite/checkpoint.py", "*"): CHECKPOINT,
}
"""The functions, as (file, name), in which a hop begins; `*` is every function of the file. Where
functions of several hops call each other, a sample belongs to the innermost one."""


@dataclass
class Place:
    """The results of one rate over one number of partitions."""

    rate: int
    partitions: int
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    messages_per_s: float = 0.0
    more: dict[str, float] = field(default_factory=dict)
    """The figures of `Commits.since`."""
    cpu_us: dict[str, float] = field(default_factory=dict)
    """CPU time of LOOP, WRITER and OTHERS for a message, in microseconds."""
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    """For each thread, the share of each hop."""
    calls: float = 0.0
    """Calls of the broker's functions for a message."""
    crossings: float = 0.0
    """Calls among them that go from one module into another one."""

    @property
    def whole_us(self) -> float:
        """CPU time of all threads for a message, in microseconds."""
        return sum(self.cpu_us.values())

    def by_hop(self) -> dict[str, float]:
        """Return the microseconds of each hop for a message, as "thread: hop"."""
        return {
            f"{thread}: {hop}": share * self.cpu_us.get(thread, 0.0)
            for thread, hops in self.shares.items()
            for hop, share in hops.items()
        }


# --- Threads ----------------------------------------------------------------------------------


class Threads(Process):
    """A broker's threads, in three parts: LOOP, WRITER and OTHERS. Each call of `cpu_s` keeps what
    each part has used so far."""

    def __init__(self, pid: int) -> None:
        """Raises LoadFailed if py-spy may not look at the process."""
        super().__init__(pid)
        self.taken: list[dict[str, float]] = []
        dump = subprocess.run(
            [_SPY, "dump", "--json", "--pid", str(pid)], capture_output=True, text=True, check=False
        )
        if dump.returncode:
            raise LoadFailed(f"py-spy could not look at the broker: {dump.stderr}")
        self._names = {one["os_thread_id"]: one["thread_name"] for one in json.loads(dump.stdout)}

    def cpu_s(self) -> float:
        """Return the CPU time of all threads so far, in seconds, and keep that of each part in
        `taken`."""
        used = dict.fromkeys((LOOP, WRITER, OTHERS), 0.0)
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            spent_s = int((task / "schedstat").read_text().split()[0]) / 1e9
            used[_thread(self._names.get(int(task.name), ""))] += spent_s
        self.taken.append(used)
        return sum(used.values())

    def per_message_us(self, messages: float) -> dict[str, float]:
        """Return the CPU microseconds of each part (LOOP, WRITER, OTHERS) for a message, between
        the last two calls of `cpu_s`."""
        before, after = self.taken[-2:]
        return {name: (after[name] - before[name]) / messages * 1e6 for name in after}


def _thread(name: str) -> str:
    """Return which part of a broker a thread of this name is: LOOP, WRITER or OTHERS."""
    if "MainThread" in name:
        return LOOP
    return WRITER if "tocsin-store-writer" in name else OTHERS


# --- Samples ----------------------------------------------------------------------------------


async def _sampled(pid: int, seconds: float, folder: Path) -> dict[str, dict[str, float]]:
    """Sample a process with py-spy while the load runs. Returns the share of each hop, by
    thread."""
    await asyncio.sleep(2 * WARM_UP_S)
    found = folder / "samples"
    command = [_SPY, "record", "--pid", str(pid), "--duration", str(max(1, int(seconds - 2)))]
    command += ["--rate", str(SAMPLES_PER_S), "--format", "raw", "--output", str(found)]
    command += ["--threads", "--function", "--full-filenames"]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = await process.communicate()
    if process.returncode or not found.exists():
        raise LoadFailed(f"py-spy could not look at the broker: {said.decode(errors='replace')}")
    return shares_of(found.read_text().splitlines())


def shares_of(samples: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the share of each hop, by thread, of lines in py-spy's format `raw`: the thread, then
    its functions from the outermost one on, separated by semicolons, and the number of samples."""
    counts: dict[str, Counter[str]] = {}
    for line in samples:
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        thread = _thread(frames[0])
        counts.setdefault(thread, Counter())[hop_of(frames[1:], thread)] += int(count)
    return {
        thread: {hop: count / hops.total() for hop, count in hops.most_common()}
        for thread, hops in counts.items()
    }


def hop_of(frames: Sequence[str], thread: str) -> str:
    """Return the hop of a sample: that of its innermost function which has one; REST if none has,
    or if the thread is OTHERS. Each frame is "name (file:line)", the outermost one first."""
    if thread == OTHERS:
        return REST
    for frame in reversed(frames):
        name, _, place = frame.partition(" (")
        path = place.rpartition(":")[0]
        file = "/".join(Path(path).parts[-3:])
        for known in (file, "/".join(Path(path).parts[-4:])):
            hop = HOPS.get((known, name.rpartition(".")[2])) or HOPS.get((known, "*"))
            if hop is not None:
                return hop
    return REST


# --- Calls ------------------------------------------------------------------------------------


class CallCounter:
    """A counter of the calls of the broker's own functions, in all threads."""

    def __init__(self) -> None:
        self.calls = 0
        self.crossings = 0
        self._ours: dict[CodeType, str] = {}

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call of one of the broker's functions. Python calls this, as a profile function,
        at each event."""
        if event != "call":
            return
        module = self._module(frame.f_code)
        if module:
            self.calls += 1
            caller = frame.f_back
            if caller is None or self._module(caller.f_code) != module:
                self.crossings += 1

    def _module(self, code: CodeType) -> str:
        module = self._ours.get(code)
        if module is None:
            path = Path(code.co_filename)
            is_ours = path.is_relative_to(_ROOT) and path.relative_to(_ROOT).parts[0] in _SERVER
            module = self._ours[code] = code.co_filename if is_ours else ""
        return module


def count() -> None:
    """Count the calls of this process, a broker, and write them to the file that the environment
    names when it ends."""
    path, counter = Path(os.environ.pop(_CALLS_FILE)), CallCounter()

    def write() -> None:
        sys.setprofile(None)
        path.write_text(json.dumps([counter.calls, counter.crossings]))

    atexit.register(write)
    threading.setprofile(counter.see)
    sys.setprofile(counter.see)


# --- Runs -------------------------------------------------------------------------------------


@contextmanager
def _broker(folder: Path, name: str, **how: Any) -> Iterator[Server]:
    server = Server(folder / name, level="warning", **how)
    try:
        server.start()
        yield server
    finally:
        server.discard()


def measure(rate: int, partitions: int, seconds: float, folder: Path) -> Place:
    """Make the three runs of one rate over one number of partitions, each on a broker of its
    own."""
    place = Place(rate, partitions)
    with _broker(folder, "cost") as server:
        threads = Threads(server.pid)
        figures = open_load(server, threads, rate, partitions, seconds)
        assert figures.messages_per_s is not None
        assert figures.latency is not None
        place.messages_per_s = figures.messages_per_s
        place.p50_ms = figures.latency.percentile(50) / 1e6
        place.p99_ms = figures.latency.percentile(99) / 1e6
        place.cpu_us = threads.per_message_us(rate * seconds)
        place.more = {
            name: value for name, value in figures.more.items() if isinstance(value, float)
        }
    with _broker(folder, "shares") as server:
        place.shares = _look(server, rate, partitions, seconds, folder)
    calls = folder / "calls.json"
    with _broker(folder, "calls", command=_COUNTED, settings={_CALLS_FILE: str(calls)}) as server:
        figures = open_load(server, Threads(server.pid), rate, partitions, seconds)
        messages = int(str(figures.more["messages"]))
        server.stop()
        count, crossings = json.loads(calls.read_text())
        place.calls, place.crossings = count / messages, crossings / messages
    return place


def open_load(
    server: Server, threads: Threads, rate: int, partitions: int, seconds: float
) -> Figures:
    """Publish single messages on a fixed schedule, and return what was measured."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(open_loop(_bench(server, threads, seconds), rate, partitions))


def _look(
    server: Server, rate: int, partitions: int, seconds: float, folder: Path
) -> dict[str, dict[str, float]]:
    """Return the share of each hop, by thread."""

    async def both() -> dict[str, dict[str, float]]:
        bench = _bench(server, Threads(server.pid), seconds)
        _, shares = await asyncio.gather(
            open_loop(bench, rate, partitions), _sampled(server.pid, seconds, folder)
        )
        return shares

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(both())


def _bench(server: Server, threads: Threads, seconds: float) -> Bench:
    return Bench(server.url, None, threads, seconds, 0, 0, lambda _: None)


# --- The model --------------------------------------------------------------------------------


def fitted(places: Sequence[Place]) -> tuple[float, float, float]:
    """Return (microseconds of a commit, of each partition in it, of each message) that explain the
    costs best, none below 0: least squares of the ratios, so that each place weighs the same."""
    rows = []
    for place in places:
        commits = 1 / place.more["messages_per_commit"]
        rows.append((commits, commits * place.more["partitions_per_commit"], 1.0, place.whole_us))
    best, least = (0.0, 0.0, 0.0), float("inf")
    for kept in ((0, 1, 2), (0, 2), (1, 2), (0, 1), (2,), (1,), (0,)):
        solved = _least_squares(rows, kept)
        if solved is None or min(solved) < 0:
            continue
        error = sum(
            (sum(a * x for a, x in zip(solved, row, strict=False)) / row[3] - 1) ** 2
            for row in rows
        )
        if error < least:
            best, least = solved, error
    return best


def _least_squares(
    rows: Sequence[tuple[float, float, float, float]], kept: Sequence[int]
) -> tuple[float, float, float] | None:
    """Return the coefficients of the three columns, with 0 for those that are not kept. None if the
    kept ones depend on each other."""
    size = len(kept)
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    for row in rows:
        scaled = [row[column] / row[3] for column in kept]
        for i in range(size):
            for j in range(size):
                matrix[i][j] += scaled[i] * scaled[j]
            matrix[i][size] += scaled[i]
    for i in range(size):
        pivot = max(range(i, size), key=lambda at: abs(matrix[at][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) < 1e-12:
            return None
        for at in range(size):
            if at != i:
                factor = matrix[at][i] / matrix[i][i]
                matrix[at] = [x - factor * y for x, y in zip(matrix[at], matrix[i], strict=True)]
    found = [0.0, 0.0, 0.0]
    for i, column in enumerate(kept):
        found[column] = matrix[i][size] / matrix[i][i]
    return found[0], found[1], found[2]


# --- The command ------------------------------------------------------------------------------


def tables(places: Sequence[Place]) -> str:
    """Return the figures of all places, the hops and the fitted model, as a table and a sentence in
    Markdown."""
    heads = [f"{place.rate:,}/s, {place.partitions}" for place in places]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---:|" * len(places)]

    def row(name: str, values: Sequence[float], form: str) -> None:
        lines.append(f"| {name} | {' | '.join(format(value, form) for value in values)} |")

    row("p50, ms", [place.p50_ms for place in places], ".2f")
    row("p99, ms", [place.p99_ms for place in places], ".2f")
    for name in ("commits_per_s", "messages_per_commit", "partitions_per_commit"):
        row(name.replace("_", " "), [place.more[name] for place in places], ",.1f")
    row("syncs per message", [place.more["syncs_per_message"] for place in places], ".2f")
    row("calls per message", [place.calls for place in places], ",.0f")
    row("of them into another module", [place.crossings for place in places], ",.0f")
    row("**CPU per message, µs**", [place.whole_us for place in places], ",.0f")
    for thread in (LOOP, WRITER, OTHERS):
        row(f"{thread}, µs", [place.cpu_us[thread] for place in places], ",.1f")
    by_hop = [place.by_hop() for place in places]
    names = dict.fromkeys(name for found in by_hop for name in found)
    order = sorted(names, key=lambda name: -max(found.get(name, 0.0) for found in by_hop))
    for name in order:
        cells = " | ".join(f"{found.get(name, 0.0):,.1f}" for found in by_hop)
        lines.append(f"| {name} | {cells} |")
    a_commit, a_partition, a_message = fitted(places)
    explained = []
    for place in places:
        commits = 1 / place.more["messages_per_commit"]
        partitions = commits * place.more["partitions_per_commit"]
        explained.append(a_commit * commits + a_partition * partitions + a_message)
    lines.append(
        f"| explained by the model, µs | {' | '.join(f'{one:,.0f}' for one in explained)} |"
    )
    lines += [
        "",
        f"The model: a commit costs {a_commit:,.0f} µs, each partition in it {a_partition:,.0f} "
        f"µs, and each message {a_message:,.1f} µs.",
    ]
    return "\n".join(lines)


@click.command()
@click.option(
    "--rate", "rates", multiple=True, type=click.IntRange(10, 50_000), default=RATES,
    show_default=True, help="Messages a second; repeatable.",
)  # fmt: skip
@click.option(
    "--partitions", "counts", multiple=True, type=click.IntRange(1, 256),
    default=(1, PARTITIONS), show_default=True, help="Number of partitions; repeatable.",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(4, 120), default=SECONDS, show_default=True,
    help="How long each run measures, without its preparation.",
)  # fmt: skip
def main(rates: Sequence[int], counts: Sequence[int], seconds: float) -> None:
    """Measure the cost of a message by hop, and print it as a table in Markdown.

    Each rate over each number of partitions takes three runs. All of them take about six minutes.
    py-spy has to be allowed to look at the broker: on most systems that needs root.
    """
    places: list[Place] = []
    try:
        for partitions in counts:
            for rate in rates:
                with tempfile.TemporaryDirectory(prefix="tocsin-hops-") as folder:
                    place = measure(rate, partitions, seconds, Path(folder))
                click.echo(
                    f"  {rate:,}/s over {partitions}: {place.whole_us:,.0f} µs, "
                    f"p50 {place.p50_ms:.2f} ms",
                    err=True,
                )
                places.append(place)
    except (LoadFailed, ServerFailed, RuntimeError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(tables(places))


if __name__ == "__main__":
    main()
