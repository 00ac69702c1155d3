"""Every message of a long run is in every account: the clients', the broker's own counters, the
delivery log's and the usage log's. The job that audits order finds nothing.

    stop   the broker is stopped: all counts are equal
    kill   it is killed (kill -9) in the middle of the load and started again: what the log lacks
           equals what it says that it lacks (`unlogged`)
    step   its wall clock passes a month's end by itself and is then stepped by 24 hours: each day
           of the rollup equals the lines of that day, and no latency has a step in it

A message that was stored, but whose answer the kill prevented, is known to no client. The accounts
of a killed broker may have it or not, and all other messages exactly once.
"""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final, Literal

from loadtests.bench.adapter import GROUP
from loadtests.bench.load_run import Bench, LoadRun, quiet
from loadtests.clients.load import LoadFailed
from loadtests.clients.rest import Rest
from loadtests.server import SERVE, Process, Server, tocsin
from loadtests.trials import options
from loadtests.trials.trial import Finding, Progress, broker
from spark.command import LAKE

End = Literal["stop", "kill", "step"]
ENDS: Final[tuple[End, ...]] = ("stop", "kill", "step")
MESSAGES: Final = 10_000_000
QUEUE: Final = "counted"
MESSAGES_PER_FRAME: Final = 100
WINDOW: Final = 20_000
RATE_MIN: Final = 5_000
PATIENCE_S: Final = 60.0
"""The most seconds that a load takes to be published, and again to be settled, beyond its time at
RATE_MIN messages a second. The trial fails then."""
LOG_BYTES_MAX: Final = 64 << 30
LOG_AGE_S: Final = 366 * 86_400
"""The setting for the age of the delivery log. Its files' own times are from the machine's clock,
so they look old to a broker on another clock."""
STEP_S: Final = 86_400
MONTH_ENDS_AT: Final = datetime(2027, 1, 1, tzinfo=UTC).timestamp()
BEFORE_MONTH_ENDS_S: Final = 10.0
"""Time from the broker's start to the month's end by the broker's clock, in seconds."""
STEPPED: Final = (
    "-c",
    "import signal, sys, time\n"
    "wall, wall_ns, ahead = time.time, time.time_ns, [float(sys.argv[1]) - time.time()]\n"
    "time.time = lambda: wall() + ahead[0]\n"
    "time.time_ns = lambda: wall_ns() + int(ahead[0] * 1e9)\n"
    f"def step(*_): ahead[0] += {STEP_S}\n"
    "signal.signal(signal.SIGUSR1, step)\n"
    "sys.argv[1:] = []\n"
    "from gateway.cli.serve import serve\n"
    "serve()",
)
"""Arguments of Python that run the shipped broker on a wall clock. The clock begins at the time in
the next argument (unix seconds), and each SIGUSR1 advances it by STEP_S."""
KINDS: Final = ("certified", "dispatched", "settled")
LATENCY_SPARE_US: Final = 1_000_000


@dataclass(frozen=True)
class Plan:
    """Check that every message of a long run is counted by the clients, the broker, the delivery
    log and the usage log.

    stop: after a clean stop all counts are the same. kill: after a kill -9 under load the log lacks
    exactly the messages that it reports as missing. step: the wall clock passes a month's end and
    is stepped by 24 hours; each day of the rollup equals the lines of that day. Each takes about
    four minutes and 4 GB. Needs Java and PySpark.
    """

    messages: int = options.whole(MESSAGES, "Least number of messages in each run.", 10_000)
    ends: Sequence[End] = options.some_of(
        ENDS, "Run only with this end; repeatable. [all three]",
        "--end ends",
    )  # fmt: skip


@dataclass
class _Told:
    """The counts of a run's clients."""

    published: int = 0
    answered: int = 0
    delivered: int = 0
    settled: int = 0
    latency_max_us: float = 0.0

    def add(self, line: LoadRun) -> None:
        """Add the counts of a load's clients."""
        self.published += line.published
        self.answered += sum(producer.answered for producer in line.producers)
        self.delivered += sum(consumer.delivered for consumer in line.consumers)
        self.settled += line.settled
        self.latency_max_us = max(self.latency_max_us, line.latency.percentile(100) / 1000)


@dataclass
class _Books:
    """The counts after the load: the broker's, and those of `tocsin report`."""

    stored: int
    lag: int
    counters: dict[str, Any]
    group: dict[str, Any]
    report: dict[str, Any]

    def logged(self, kind: str) -> int:
        """Return the number of messages in the delivery log's lines of a kind."""
        return int(self.report["ingest"]["messages"].get(kind, 0))

    def unlogged(self, kind: str) -> int:
        """Return the number of messages of a kind that the delivery log reports as missing in
        it."""
        return int(self.report["order_audit"]["unlogged"][kind])


async def counted(plan: Plan, progress: Progress) -> Finding:
    """Run the load once for each of `plan.ends`, and compare all counts. Raises ServerFailed or
    LoadFailed if the trial cannot end normally."""
    finding = Finding("counted")
    finding.conditions = {"messages": plan.messages, "window": WINDOW, "runs": ", ".join(plan.ends)}
    for end in plan.ends:
        await _run(end, plan, finding, progress)
    return finding


async def _run(end: End, plan: Plan, finding: Finding, progress: Progress) -> None:
    at = MONTH_ENDS_AT - BEFORE_MONTH_ENDS_S
    command = (*STEPPED, str(at)) if end == "step" else SERVE
    settings = {
        "TOCSIN_DELIVERY_LOG_BYTES_MAX": str(LOG_BYTES_MAX),
        "TOCSIN_DELIVERY_LOG_AGE_S": str(LOG_AGE_S),
    }
    async with broker(f"counted-{end}", command=command, settings=settings) as server:
        began = time.monotonic()
        told = await _load(end, server, plan.messages, progress)
        took_s = time.monotonic() - began
        progress(f"{end}: {told.published:,} messages in {took_s:.0f} s; the report begins")
        books = await _books(server, progress)
        finding.figures |= {
            f"{end}_published": told.published,
            f"{end}_stored": books.stored,
            f"{end}_seconds": round(took_s, 1),
            **{f"{end}_log_{kind}": books.logged(kind) for kind in KINDS},
            **{f"{end}_unlogged_{kind}": books.unlogged(kind) for kind in KINDS},
        }
        _judge(end, told, books, finding)
        if end == "step":
            await asyncio.to_thread(_judge_days, server, told, books, finding)


# --- The load ------------------------------------------------------------------------------------


async def _load(end: End, server: Server, messages: int, progress: Progress) -> _Told:
    told, half = _Told(), messages // 2
    if end == "stop":
        await _pass(server, messages, told, progress)
        return told
    if end == "kill":
        async with _loaded(server, half, told, progress):
            server.kill()
        await asyncio.to_thread(server.start)
    else:
        passed_s = BEFORE_MONTH_ENDS_S + 1
        async with _loaded(server, half, told, progress, at_least_s=passed_s) as line:
            os.kill(server.pid, signal.SIGUSR1)
            await _drain(server, line, half)
    await _pass(server, messages - half, told, progress)
    return told


async def _pass(server: Server, messages: int, told: _Told, progress: Progress) -> None:
    async with _loaded(server, messages, told, progress) as line:
        await _drain(server, line, messages)


@asynccontextmanager
async def _loaded(
    server: Server, messages: int, told: _Told, progress: Progress, *, at_least_s: float = 0
) -> AsyncIterator[LoadRun]:
    """Yield a load after it has published `messages` and run for at least `at_least_s`. The load
    goes on publishing during the block, and its counts are added at the end of the block."""
    bench = Bench(server.url, None, Process(server.pid), 0.0, 0, 0, progress)
    line = LoadRun(bench, QUEUE, MESSAGES_PER_FRAME, WINDOW)
    await line.open()
    async with quiet(line):
        line.publishing = True
        line.fill()
        goes_on_until = time.monotonic() + at_least_s
        await line.until(
            lambda: line.published >= messages and time.monotonic() >= goes_on_until,
            "publishing", _patience_s(messages),
        )  # fmt: skip
        yield line
        told.add(line)


async def _drain(server: Server, line: LoadRun, messages: int) -> None:
    """Stop publishing, and wait until all messages are settled, those of earlier loads included."""
    line.publishing = False
    await line.until(lambda: line.settled >= line.published, "draining", _patience_s(messages))
    with closing(Rest(server.url)) as rest:
        async with asyncio.timeout(PATIENCE_S):
            while (await _group(rest))["lag"]:  # noqa: ASYNC110 - it must be polled
                await asyncio.sleep(0.1)
    line.check()


def _patience_s(messages: int) -> float:
    return PATIENCE_S + messages / RATE_MIN


async def _group(rest: Rest) -> dict[str, Any]:
    said: dict[str, Any] = await rest.call("GET", f"/v1/queues/{QUEUE}/groups/{GROUP}")
    return said


# --- The books -----------------------------------------------------------------------------------


async def _books(server: Server, progress: Progress) -> _Books:
    with closing(Rest(server.url)) as rest:
        queue = await rest.call("GET", f"/v1/queues/{QUEUE}")
        group = await _group(rest)
    await asyncio.to_thread(server.stop)
    began = time.monotonic()
    page = server.data_dir.with_name("report.html")
    process = await asyncio.create_subprocess_exec(
        *tocsin("report", "--data-dir", str(server.data_dir), "--out", str(page), "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await process.communicate()
    if not out:
        raise LoadFailed(f"tocsin report: {error.decode(errors='replace')}")
    progress(f"the report took {time.monotonic() - began:.0f} s")
    stored = sum(partition["end"] for partition in queue["partitions"])
    return _Books(stored, group["lag"], queue["counters"], group["counters"], json.loads(out))


def _judge(end: End, told: _Told, books: _Books, finding: Finding) -> None:
    if end == "kill":
        _judge_killed(told, books, finding)
    else:
        _judge_stopped(end, told, books, finding)
    audit, quarantined = books.report["order_audit"], books.report["ingest"]["quarantined"]
    wrong = {name: count for name, count in audit["faults"].items() if count} | quarantined
    finding.check(
        f"{end}: the audit finds no fault, and no line is damaged",
        not (wrong or audit["missing_files"]), wrong or "none",
    )  # fmt: skip
    finding.check(f"{end}: nothing is left in the queue", not books.lag, books.lag)


def _judge_stopped(end: End, told: _Told, books: _Books, finding: Finding) -> None:
    usage = books.report["usage"]
    counts = {
        "published": told.published, "answered": told.answered, "delivered": told.delivered,
        "settled": told.settled, "stored": books.stored,
        "broker published": books.counters["published"],
        "group given": books.group["given"], "group settled": books.group["settled"],
        **{f"log {kind}": books.logged(kind) for kind in KINDS},
        **{name: usage[name] for name in sorted(usage) if "messages" in name},
    }  # fmt: skip
    finding.check(
        f"{end}: all {len(counts)} counts are the same", len(set(counts.values())) == 1, counts
    )
    left = {name: usage[name] for name in ("left_in", "left_out")}
    finding.check(
        f"{end}: the usage log has what the delivery log has", not any(left.values()), left
    )
    unlogged = {kind: books.unlogged(kind) for kind in KINDS}
    finding.check(f"{end}: everything is in the log", not any(unlogged.values()), unlogged)


def _judge_killed(told: _Told, books: _Books, finding: Finding) -> None:
    """Check for each kind the number of messages in the log's lines plus those that the log reports
    as missing. The sum is at least what the clients know of. It is at most, for certified messages,
    what is stored; for dispatched ones, WINDOW more than the clients know of; for settled ones,
    what was dispatched. An ack that had taken effect and was not yet durable is undone by the kill,
    and its message is given again. So settled messages are compared with dispatched ones, not with
    stored ones."""
    happened = {kind: books.logged(kind) + books.unlogged(kind) for kind in KINDS}
    bounds = {
        "certified": (told.answered, books.stored, "stored"),
        "dispatched": (told.delivered, told.delivered + WINDOW, "given, or on their way"),
        "settled": (told.settled, happened["dispatched"], "given"),
    }
    for kind, (least, most, what) in bounds.items():
        finding.check(
            f"kill: what the log lacks of {kind} is what it says that it lacks",
            least <= happened[kind] <= most,
            f"{books.logged(kind):,} in lines + {books.unlogged(kind):,} unlogged = "
            f"{happened[kind]:,}; clients know of {least:,}, {what} are at most {most:,}",
        )


def _judge_days(server: Server, told: _Told, books: _Books, finding: Finding) -> None:
    """Compare each day of the rollup with a count of the log's lines, and check that no latency
    contains the clock's step."""
    wanted = _days_of_lines(server.data_dir)
    found, longest_us, least_us = _days_of_lake(server.data_dir)
    finding.figures["step_days"] = {f"{day} {kind}": n for (day, kind), n in sorted(found.items())}
    finding.check(
        "step: each day of the rollup has what the lines of that day say, on three days",
        found == wanted and len({day for day, _ in found}) == 3, f"{len(found)} figures",
    )  # fmt: skip
    finding.check(
        "step: no latency has a step in it", least_us >= 0
        and longest_us <= told.latency_max_us + LATENCY_SPARE_US,
        f"{least_us:,} to {longest_us:,} us; the clients' longest {told.latency_max_us:,.0f} us",
    )  # fmt: skip
    days = sum(count for (_, kind), count in found.items() if kind == "certified")
    finding.check("step: the days add up", days == books.stored, f"{days:,}")


Days = Counter[tuple[date, str]]
"""Number of messages by (day in UTC, kind)."""
_TIMES: Final = {"certified": "certified_unix_us", "dispatched": "dispatched_unix_us",
                 "settled": "settled_unix_us"}  # fmt: skip


def _days_of_lines(data_dir: Path) -> Days:
    days: Days = Counter()
    for line in _lines(data_dir):
        if line["kind"] in _TIMES:
            at = line[_TIMES[line["kind"]]]
            day = datetime.fromtimestamp(at / 1_000_000, UTC).date()
            days[day, line["kind"]] += _messages(line)
    return days


def _lines(data_dir: Path) -> Iterator[dict[str, Any]]:
    for path in sorted((data_dir / "delivery").glob("*.jsonl")):
        with path.open("rb") as lines:
            yield from map(json.loads, lines)


def _messages(line: dict[str, Any]) -> int:
    if "runs" in line:
        runs: list[list[int]] = line["runs"]
        return sum(run[2] for run in runs) * int(line.get("recipients", 1))
    return sum(map(_settled, line["pushes"]))


def _settled(push: list[Any]) -> int:
    if isinstance(push[3], str):
        return int(push[3], 16).bit_count()
    return sum(last - first + 1 for first, last in zip(push[2::2], push[3::2], strict=True))


def _days_of_lake(data_dir: Path) -> tuple[Days, int, int]:
    """Return the days of the lake's rollup, and the longest and the shortest latency of any stage,
    in microseconds."""
    from pyspark.sql import functions as sql

    from spark.lake import Lake
    from spark.periods import SCHEMAS
    from spark.session import open_session

    lake = Lake(data_dir / LAKE)
    spark = open_session("counted")
    try:
        rows = lake.read_rollup(spark, "count_day", SCHEMAS["count_day"])
        days: Days = Counter()
        for row in rows.groupBy("date", "kind").agg(sql.sum("messages").alias("n")).collect():
            days[row["date"], row["kind"]] = row["n"]
        latency = lake.read_rollup(spark, "latency_day", SCHEMAS["latency_day"])
        (most,) = latency.agg(
            sql.max("max_us").alias("most"), sql.min("min_us").alias("least")
        ).collect()
    finally:
        spark.stop()
    return days, int(most["most"]), int(most["least"])
