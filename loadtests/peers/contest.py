"""The contest: rounds in which each entrant in turn runs each scenario, on servers of its own.
Nothing else runs on the machine, except the generator of the load."""

import asyncio
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import uvloop

from loadtests.bench.command import cpu_model, file_system, interpreter
from loadtests.bench.load_run import CONSUMERS, PARTITIONS, PRODUCERS, WARM_UP_S, Bench, Figures
from loadtests.bench.scenarios import batch100, fanout5k, idle, open_loop, single
from loadtests.clients.load import BODY_BYTES, KEYS, LoadFailed
from loadtests.peers.entrants import ENTRANTS, READING, SHARING, Entrant
from loadtests.peers.medians import (
    OFFERED,
    SCHEMA,
    SPREAD,
    SPREAD_PER_S,
    Known,
    Results,
    Run,
    turns,
)
from loadtests.peers.meter import Meter
from loadtests.server import raise_file_limit

RUN_TIMEOUT_S: Final = 180.0
FILES_SPARE: Final = 1000
MIB: Final = 1 << 20
_SYNCS: Final = 50
_PERCENTILES: Final = {"p50_ms": 50.0, "p99_ms": 99.0, "p999_ms": 99.9}

SCENARIOS: Final[Mapping[str, Callable[[Bench], Awaitable[Figures]]]] = {
    "single": single,
    "batch": batch100,
    **{name: partial(open_loop, rate=rate) for name, rate in OFFERED.items()},
    **{
        name: partial(open_loop, rate=SPREAD_PER_S, partitions=number)
        for name, number in SPREAD.items()
    },
    "fanout": fanout5k,
    "idle": idle,
}
assert {*SHARING, *SPREAD, *READING} == SCENARIOS.keys()


@dataclass(frozen=True)
class Plan:
    """The measurements of a contest, and their duration."""

    rounds: int = 5
    seconds: float = 5.0
    """Measured duration of each scenario, without its preparation."""
    readers: int = 1000
    """Number of readers in `fanout`."""
    connections: int = 1000
    """Number of connections in `idle`."""
    entrants: tuple[str, ...] = tuple(entrant.name for entrant in ENTRANTS)
    scenarios: tuple[str, ...] = tuple(SCENARIOS)
    minutes_max: float = 90.0
    """Minutes after the contest's beginning from which on no measurement begins."""
    command: str = ""


def contest(
    plan: Plan, progress: Callable[[str], None], keep: Callable[[Results], None]
) -> Results:
    """Run the whole contest. `keep` receives the results so far after each measurement, so that an
    interrupted contest keeps them.

    Raises RuntimeError if this machine cannot open enough files.
    """
    raise_file_limit(max(plan.readers, plan.connections) + FILES_SPARE)
    results = Results(
        SCHEMA, plan.command, _now(), _now(), plan.rounds, _conditions(plan), {}, {}, []
    )
    chosen = {entrant.name: entrant for entrant in ENTRANTS if entrant.name in plan.entrants}
    here = [name for name, entrant in chosen.items() if _takes_part(entrant, results, progress)]
    rounds = [
        [
            (scenario, name)
            for scenario in plan.scenarios
            for name in turns(here, number)
            if scenario in chosen[name].scenarios
        ]
        for number in range(1, plan.rounds + 1)
    ]
    began, count = time.monotonic(), sum(map(len, rounds))
    for number, measurements in enumerate(rounds, 1):
        for scenario, name in measurements:
            took_s = time.monotonic() - began
            if took_s > plan.minutes_max * 60:
                results.cut = f"{plan.minutes_max:g} minutes were over in round {number}"
                keep(results)
                return results
            run = measure(chosen[name], scenario, plan, number)
            results.runs.append(run)
            results.ended = _now()
            keep(results)
            place = f"{len(results.runs)} of {count}, round {number} of {plan.rounds}"
            left = _left(time.monotonic() - began, len(results.runs), count)
            progress(f"{place}, {name}, {scenario}: {told(run)}{left}")
    return results


def _left(took_s: float, done: int, count: int) -> str:
    """Return the expected rest of the contest in words; empty at its end."""
    minutes = took_s / done * (count - done) / 60
    return f" (about {minutes:.0f} min left)" if minutes >= 1 else ""


def measure(entrant: Entrant, scenario: str, plan: Plan, number: int) -> Run:
    """Measure one entrant in one scenario, on servers of its own, in round `number`. If anything
    goes wrong, nothing is raised: the run's `failure` says what, and the others go on."""
    try:
        with (
            tempfile.TemporaryDirectory(
                prefix="tocsin-peers-", ignore_cleanup_errors=True
            ) as folder,
            entrant.open(Path(folder)) as running,
        ):
            meter = Meter(running.pids, folder=Path(folder))
            started = meter.rss_bytes()
            connections = plan.readers if scenario == "fanout" else plan.connections
            bench = Bench(
                "", None, meter, plan.seconds, 0, connections, lambda _: None,
                speaks=running.adapter, in_flight_max=entrant.in_flight_max,
            )  # fmt: skip
            found = _run(scenario, bench)
            figures = figures_of(found, meter) | {"started_mib": started / MIB}
    except Exception as error:
        return Run(number, entrant.name, scenario, failure=_why(error))
    return Run(number, entrant.name, scenario, figures)


def _why(error: Exception) -> str:
    """Return the reason of a failure. Only of errors that are meant for people, the text alone."""
    expected = (RuntimeError, OSError, ValueError, subprocess.SubprocessError)
    text = str(error)
    return (
        text if text and isinstance(error, expected) else f"{type(error).__name__} {text}".strip()
    )


def figures_of(found: Figures, meter: Meter) -> dict[str, float]:
    """Return the figures of a scenario, each as a number in one unit; figures that do not apply are
    left out."""
    named: dict[str, object] = {
        "messages_per_s": found.messages_per_s,
        "server_cpu_us": found.server_cpu_us_per_message,
        "redelivered": found.more.get("redelivered"),
        "kib_per_connection": found.more.get("kib_per_connection"),
    }
    if found.latency is not None and found.latency.count:
        for name, percent in _PERCENTILES.items():
            named[name] = found.latency.percentile(percent) / 1e6
    took = meter.measured()
    if took is not None and took.at_s > 0 and found.messages_per_s:
        named["server_cores"] = took.server_s / took.at_s
        named["generator_cores"] = took.generator_s / took.at_s
        messages = found.messages_per_s * took.at_s
        named["generator_cpu_us"] = took.generator_s / messages * 1e6
        if "per" not in found.more:  # one published message has many recipients
            for name, written in (
                ("written_per_byte", took.written_bytes), ("disk_per_byte", took.disk_bytes),
            ):  # fmt: skip
                named[name] = None if written is None else written / messages / BODY_BYTES
    return {n: round(float(v), 4) for n, v in named.items() if isinstance(v, int | float)}


def told(run: Run) -> str:
    """Return the figures of a run, or its failure, in a few words for the terminal."""
    if run.failure:
        return f"FAILED: {run.failure}"
    shown = {
        "messages_per_s": "{:,.0f} messages/s", "p99_ms": "p99 {:.2f} ms",
        "server_cpu_us": "{:.1f} µs of server CPU each",
        "written_per_byte": "{:.2f} bytes written for each",
        "generator_cores": "generator {:.2f} cores",
        "kib_per_connection": "{:.1f} KiB a connection", "started_mib": "{:.0f} MiB at its start",
    }  # fmt: skip
    figures = run.figures
    return ", ".join(text.format(figures[name]) for name, text in shown.items() if name in figures)


def _takes_part(entrant: Entrant, results: Results, progress: Callable[[str], None]) -> bool:
    try:
        version = entrant.version()
    except Exception as error:
        why = _why(error)
        results.skipped[entrant.name] = why
        progress(f"not measured: {entrant.title}, because {why}")
        return False
    results.entrants[entrant.name] = Known(
        entrant.title, version, entrant.transport, entrant.durability, entrant.ordering,
        entrant.batch, entrant.reader,
    )  # fmt: skip
    return True


def _run(scenario: str, bench: Bench) -> Figures:
    async def whole() -> Figures:
        try:
            async with asyncio.timeout(RUN_TIMEOUT_S):
                return await SCENARIOS[scenario](bench)
        except TimeoutError:
            raise LoadFailed(f"it did not end within {RUN_TIMEOUT_S:.0f} s") from None

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(whole())


def _conditions(plan: Plan) -> dict[str, str | int | float]:
    with tempfile.TemporaryDirectory(prefix="tocsin-peers-") as folder:
        sync_ms, kind = _sync_ms(Path(folder)), file_system(folder)
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count() or 0,
        "kernel": platform.release(),
        "python": interpreter(),
        "file_system": kind,
        "sync_ms": round(sync_ms, 3),
        "body_bytes": BODY_BYTES,
        "keys": KEYS,
        "partitions": PARTITIONS,
        "producers": PRODUCERS,
        "consumers": CONSUMERS,
        "seconds": plan.seconds,
        "warm_up_s": WARM_UP_S,
        "readers": plan.readers,
        "connections": plan.connections,
    }


def _sync_ms(folder: Path) -> float:
    """Return the median time that this machine takes to write 4 KiB and sync it to disk."""
    took = []
    with (folder / "synced").open("wb", buffering=0) as file:
        for _ in range(_SYNCS):
            began = time.monotonic()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            took.append(time.monotonic() - began)
    return statistics.median(took) * 1000


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
