"""A bulk load beside a trickle: `tocsin publish --file` keeps its rate, the trickle its latency.

Queue `trickle` gets some messages a second on a schedule, published and handled with the SDK. The
latency of a message counts from its due time to the start of its handler. Queue `bulk` gets the
lines of a file from the command.

Each round has three stretches: the trickle alone, the load alone, and both together. In the latter
two the file is loaded several times in a row, because one load takes little more than a second, in
which the 99th percentile of the trickle would be that of sixty messages, the slowest of them. The
verdict uses the medians of the rounds' ratios.

The broker has cores of its own and all clients share the others. The load gets what the trickle's
clients leave of those (SCHED_IDLE), both alone and beside the trickle, as if it were on a machine
of its own. At the end a load goes to a queue with a bounded rate. It must be stored whole as well,
and the command must report how much of it was deferred, and why.
"""

import asyncio
import json
import os
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

import tocsin

from loadtests.clients.load import LoadFailed
from loadtests.clients.rest import Rest
from loadtests.faults.busy import IDLE, apart, give_way
from loadtests.histogram import Histogram
from loadtests.server import tocsin as command
from loadtests.trials import options
from loadtests.trials.trial import Finding, Progress, broker, uncollected

LINES: Final = 200_000
RATE: Final = 50
ROUNDS: Final = 9
LOADS: Final = 5
"""Number of loads in a row: in each round this many alone, and as many beside the trickle."""
KEPT_MIN: Final = 0.4
"""The least share of its rate alone that the load keeps beside the trickle."""
P99_RATIO_MAX: Final = 2.0
"""The largest factor by which the trickle's p99 grows beside the load."""
_ALONE_S: Final = 10.0
_FOLDERS: Final = 2_000
HELD_LINES: Final = 2_000
HELD_PER_S: Final = 500
"""The rate limit of the queue `held` in messages a second, which holds its publisher back. It is
less than one batch of the command."""
_WAIT_S: Final = 60.0


@dataclass(frozen=True)
class Plan:
    """Load a file with the command beside a trickle to another queue.

    The load must keep its rate and the trickle its latency, each compared with itself alone in the
    same run. Takes about three minutes.
    """

    lines: int = options.whole(LINES, "Number of lines in the loaded file.", 1_000)
    rate: int = options.whole(RATE, "Messages a second of the trickle.", 1, 1_000)
    rounds: int = options.whole(
        ROUNDS, "Rounds of the trickle alone, the load alone, and both.", 1, 100
    )
    loads: int = LOADS
    alone_s: float = _ALONE_S
    seed: int = 1
    nice: int = IDLE
    """The value by which the load's priority is lowered; IDLE means SCHED_IDLE."""


@dataclass
class _Found:
    """Figures of all rounds: the trickle's latency and the load's rate, each alone and beside the
    other."""

    alone: Histogram = field(default_factory=Histogram)
    beside: Histogram = field(default_factory=Histogram)
    p99_ratios: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    rates_alone: list[int] = field(default_factory=list)
    rates_beside: list[int] = field(default_factory=list)
    put_off: Counter[str] = field(default_factory=Counter)
    """Number of messages of the load that the command reported as refused for the moment, by error
    code."""


class _Trickle:
    """A client of the SDK that publishes to the queue `trickle` on a schedule, and handles its
    messages."""

    def __init__(self, url: str, rate: int) -> None:
        self._rate = rate
        self._client = tocsin.connect(url)
        self.latency = Histogram()
        self.published = 0
        self.handled = 0

    async def __aenter__(self) -> "_Trickle":
        await self._client.__aenter__()
        await self._client.create_queue("trickle", partitions=4)
        self._messages = self._client.subscribe("trickle", group="g")
        await self._messages.__aenter__()
        self._handling = asyncio.create_task(self._handle())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._handling.cancel()
        await asyncio.gather(self._handling, return_exceptions=True)
        await self._messages.__aexit__(None, None, None)
        await self._client.__aexit__(None, None, None)

    async def _handle(self) -> None:
        async for message in self._messages:
            self.latency.record(time.monotonic_ns() - message.body["due_ns"])
            self.handled += 1
            await message.ack()

    async def run(self, until: asyncio.Event) -> None:
        """Publish on the schedule until `until` is set; then wait until everything is handled.
        Raises LoadFailed after _WAIT_S."""
        publishing: set[asyncio.Task[Any]] = set()
        began_ns, sent = time.monotonic_ns(), 0
        while not until.is_set():
            due_ns = began_ns + sent * 1_000_000_000 // self._rate
            await asyncio.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
            one = self._client.publish("trickle", {"due_ns": due_ns}, key=f"k{sent % 100}")
            publishing.add(asyncio.create_task(one))
            sent += 1
            self.published += 1
            publishing = {task for task in publishing if not _is_stored(task)}
        await asyncio.gather(*publishing)
        deadline = time.monotonic() + _WAIT_S
        while self.handled < self.published:
            if self._handling.done():
                self._handling.result()
            if time.monotonic() > deadline:
                raise LoadFailed(f"{self.published - self.handled} of the trickle did not come")
            await asyncio.sleep(0.01)

    async def run_for(self, seconds: float) -> None:
        """Publish on the schedule for `seconds`; then wait until everything is handled."""
        until = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, until.set)
        await self.run(until)


def _is_stored(task: asyncio.Task[Any]) -> bool:
    """Whether a publish has ended. Raises its error if it failed."""
    if task.done():
        task.result()
    return task.done()


def write_lines(path: Path, count: int, seed: int) -> None:
    """Write a file of JSON lines with a folder as their key, like a listing of a machine's
    files."""
    random = Random(seed)
    with path.open("w") as file:
        for number in range(count):
            folder = f"/usr/share/folder-{random.randrange(_FOLDERS)}/of/some/depth"
            line = {"folder": folder, "file": f"file-{number}.txt", "bytes": number}
            file.write(json.dumps(line) + "\n")


def _begin(nice: int) -> None:
    """Make this new process the first of a process group, so that it is ended with all that it
    starts, and lower its priority by `nice`. It is no session of its own: on Linux each session has
    an equal part of a core (sched_autogroup_enabled), whatever the priority of its processes."""
    os.setpgid(0, 0)
    give_way(nice)


async def _loads(
    url: str, path: Path, nice: int, queue: str = "bulk", *, count: int = 1
) -> list[dict[str, Any]]:
    """Publish the file `count` times, one after the other; return the command's own summaries.
    Raises LoadFailed. A shell starts the commands, because a fork stops this process for some
    milliseconds, and the trickle with it."""
    environment = {name: text for name, text in os.environ.items() if "TOCSIN" not in name}
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", f'for _ in $(seq {count}); do "$@" || exit; done', "sh",
        *command("--url", url, "publish", queue, "--file", str(path), "--json-lines",
                 "--key-field", "folder", "--timeout", "10m", "--json"),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment,
        preexec_fn=partial(_begin, nice),
    )  # fmt: skip
    try:
        out, errors = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise LoadFailed(f"tocsin publish: {errors.decode()[-400:]}")
    return [json.loads(line) for line in out.splitlines()]


async def bulk(plan: Plan, progress: Progress) -> Finding:
    """Run all rounds, then the load that is held back. Raises LoadFailed or ServerFailed if the
    trial cannot end normally."""
    finding = Finding("bulk")
    found = _Found()
    with tempfile.TemporaryDirectory(prefix="tocsin-bulk-") as folder:
        path = Path(folder) / "lines.jsonl"
        write_lines(path, plan.lines, plan.seed)
        os.sync()  # else it is written half a minute later, and every fsync waits for it
        async with broker("bulk") as server:
            rest = Rest(server.url)
            await rest.call("PUT", "/v1/queues/bulk", {"partitions": 16})
            rest.close()  # before the broker closes it for idleness
            with uncollected(), apart(server.pid) as cores:
                async with _Trickle(server.url, plan.rate) as trickle:
                    await trickle.run_for(min(1.0, plan.alone_s))
                    for _ in range(plan.rounds):
                        await _round(server.url, path, trickle, found, plan=plan, progress=progress)
                    handled, published = trickle.handled, trickle.published
            described = await rest.call("GET", "/v1/queues/bulk")
            await _held_back(finding, rest, server.url, path, plan)
            rest.close()
    counters = described["counters"]
    finding.conditions |= {
        "cores": cores, "lines": plan.lines, "trickle_per_s": plan.rate, "rounds": plan.rounds,
        "loads": plan.loads,
    }  # fmt: skip
    _conclude(finding, found)
    finding.figures["bulk_refused"] = counters["refused"]
    lines = 2 * plan.rounds * plan.loads * plan.lines
    finding.check(
        "every line was stored once", counters["published"] == lines,
        f"{counters['published']:,} of {lines:,}",
    )  # fmt: skip
    finding.check(
        "nothing of the load was refused", not counters["refused"] and not found.put_off,
        f"{counters['refused']:,} by the broker, {dict(found.put_off)} told by the command",
    )  # fmt: skip
    finding.check("every message of the trickle was handled", handled == published, f"{handled:,}")
    return finding


async def _held_back(finding: Finding, rest: Rest, url: str, path: Path, plan: Plan) -> None:
    """Load the queue `held`, whose rate limit is below the load's rate. Check that all is stored
    once, and that the command reports what was deferred."""
    await rest.call(
        "PUT", "/v1/queues/held", {"partitions": 16, "publish_messages_per_s": HELD_PER_S}
    )
    lines = path.with_name("held.jsonl")
    write_lines(lines, HELD_LINES, plan.seed)
    (load,) = await _loads(url, lines, plan.nice, "held")
    counters = (await rest.call("GET", "/v1/queues/held"))["counters"]
    told = load["deferred"]
    put_off = told.get("rate_limited", 0)
    finding.figures["held_back_put_off"] = put_off
    finding.figures["held_back_refused"] = counters["refused"]
    finding.check(
        "a load that is held back is stored once, whole",
        load["published"] == counters["published"] == HELD_LINES,
        f"{counters['published']:,} of {HELD_LINES:,}",
    )  # fmt: skip
    finding.check(
        "the command reports that its load was held back",
        put_off > 0 and counters["refused"] > 0 and "unknown" not in told,
        f"{told} put off, after {counters['refused']:,} refusals",
    )  # fmt: skip


async def _round(
    url: str, path: Path, trickle: _Trickle, found: _Found, *, plan: Plan, progress: Progress
) -> None:
    """Do one round: the trickle alone, the load alone, both."""
    trickle.latency.clear()
    await trickle.run_for(plan.alone_s)
    p99_alone = trickle.latency.percentile(99)
    found.alone.add(trickle.latency)
    alone = await _loads(url, path, plan.nice, count=plan.loads)
    trickle.latency.clear()
    until = asyncio.Event()
    loading = asyncio.create_task(_loads(url, path, plan.nice, count=plan.loads))
    loading.add_done_callback(lambda _: until.set())
    await trickle.run(until)
    beside = await loading
    p99_beside = trickle.latency.percentile(99)
    found.beside.add(trickle.latency)
    for load in (*alone, *beside):
        found.put_off.update(load["deferred"])
    rates = [
        round(median(load["published"] / load["seconds"] for load in loads))
        for loads in (alone, beside)
    ]
    found.rates_alone.append(rates[0])
    found.rates_beside.append(rates[1])
    found.kept.append(round(rates[1] / rates[0], 2))
    found.p99_ratios.append(round(p99_beside / max(1, p99_alone), 2))
    progress(
        f"bulk: {rates[0]:,} lines/s alone, {rates[1]:,} beside the trickle "
        f"({found.kept[-1]:.0%}); the trickle's p99 {p99_alone / 1e6:.1f} ms alone, "
        f"{p99_beside / 1e6:.1f} beside the load ({found.p99_ratios[-1]:.2f} x)"
    )


def _conclude(finding: Finding, found: _Found) -> None:
    finding.figures["bulk_alone_per_s"] = round(median(found.rates_alone))
    finding.figures["bulk_beside_per_s"] = round(median(found.rates_beside))
    finding.figures["bulk_kept"] = found.kept
    for name, latency in (("alone", found.alone), ("beside", found.beside)):
        for percent in (50, 99):
            figure = round(latency.percentile(percent) / 1e6, 2)
            finding.figures[f"trickle_{name}_p{percent}_ms"] = figure
    finding.figures["trickle_p99_ratios"] = found.p99_ratios
    kept, ratio = median(found.kept), median(found.p99_ratios)
    finding.check(
        f"the load keeps at least {KEPT_MIN:.0%} of its rate alone", kept >= KEPT_MIN,
        f"{kept:.0%}, of {found.kept}", timed=True,
    )  # fmt: skip
    finding.check(
        f"the trickle's p99 is at most {P99_RATIO_MAX:g} x its own alone", ratio <= P99_RATIO_MAX,
        f"{ratio:.2f} x, of {found.p99_ratios}", timed=True,
    )  # fmt: skip
