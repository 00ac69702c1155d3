"""`tocsin bench`: measure a broker and print the figures with their conditions.

Without `--url` it starts a broker of its own for every scenario, on a free port with an empty data
folder, and removes both in the end.
"""

import asyncio
import contextlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import sqlite3
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
import uvloop

from loadtests.bench.load_run import Bench, Figures
from loadtests.bench.scenarios import CONNECTIONS, SCENARIOS
from loadtests.clients.load import LoadFailed
from loadtests.server import Process, Server, ServerFailed, raise_file_limit

SECONDS = 8.0
BACKLOG = 1_000_000
FILES_SPARE = 500
SCENARIO_TIMEOUT_S = 900.0
_VERSIONS = ("tocsin-server", "uvicorn", "websockets", "uvloop", "msgspec")
_COLUMNS = "{:<10} {:>12} {:>9} {:>9} {:>9} {:>8}  {}"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option(
    "--scenario",
    "names",
    multiple=True,
    type=click.Choice([*SCENARIOS, "all"]),
    help="Run only this scenario; repeatable. [all]",
)
@click.option(
    "--seconds", type=click.FloatRange(0.5, 600), default=SECONDS, show_default=True,
    help="How long each scenario measures, without its preparation.",
)  # fmt: skip
@click.option("--url", help="Measure this running broker (http://host:port). [a broker of its own]")
@click.option(
    "--pid", type=int, help="With --url: the broker's process here, for CPU and memory figures."
)
@click.option("--token", envvar="TOCSIN_TOKEN", help="With --url: the bearer token.")
@click.option(
    "--backlog", type=click.IntRange(20_000), default=BACKLOG, show_default=True,
    help="Number of messages that wait in the scenario backlog.",
)  # fmt: skip
@click.option(
    "--connections", type=click.IntRange(1, 50_000), default=CONNECTIONS, show_default=True,
    help="Number of connections in the scenarios fanout5k, idle and polls.",
)  # fmt: skip
def bench(  # noqa: PLR0917 - click passes them by name
    as_json: bool,
    names: Sequence[str],
    seconds: float,
    url: str | None,
    pid: int | None,
    token: str | None,
    backlog: int,
    connections: int,
) -> None:
    """Measure the broker on this machine: speed, latency, CPU, memory.

    \b
    batch100  frames of 100 messages, as many as the broker takes
    sdk100    the same through the Python SDK: await client.publish from tasks, async for
    single    one message a frame, many in flight
    open10k   10,000 messages a second on a fixed schedule; latency from the scheduled time
    open1k    the same with 1,000 a second, and open5k with 5,000
    open10k-1 open10k over one partition instead of 16, and open10k-64 over 64
    fanout5k  5,000 readers of one queue; CPU and rate per recipient
    idle      resident memory per connection that holds one reader
    polls     the same for sessions by long poll, and the CPU time that waiting takes
    backlog   the cost of a message with none and with a million waiting
    queues    the cost of a message over 10 queues, and over 10,000
    keys      the cost of a message of 1,000 keys, and of a million

    Except in fanout5k, idle and polls, every message is published, stored durably, pushed to a
    consumer of a group and acknowledged. Acks come in random order, except in sdk100. Bodies have
    256 bytes, and there are 1,000 keys unless said otherwise. All scenarios take about five
    minutes. The open ones also report how many messages and partitions a commit had.
    """
    if pid is not None and url is None:
        raise click.UsageError("--pid needs --url, because the pid of a broker of its own is known")

    def progress(text: str) -> None:
        click.echo(text if as_json else f"  {text}", err=True)

    if not as_json:
        head = ("scenario", "messages/s", "p50 ms", "p99 ms", "p99.9 ms", "CPU µs", "more")
        click.echo(_COLUMNS.format(*head))
    try:
        raise_file_limit(connections + FILES_SPARE)
        for name in SCENARIOS if not names or "all" in names else names:
            with _broker(url, pid) as (place, process):
                run = Bench(place, token, process, seconds, backlog, connections, progress)
                figures = _run(name, run)
                line = _line(name, figures, run)
            click.echo(json.dumps(line) if as_json else _row(line, figures))
    except (LoadFailed, ServerFailed, RuntimeError, OSError) as error:
        raise click.ClickException(str(error)) from error


@contextlib.contextmanager
def _broker(url: str | None, pid: int | None) -> Iterator[tuple[str, Process | None]]:
    if url is not None:
        yield url, None if pid is None else Process(pid)
        return
    folder = Path(tempfile.mkdtemp(prefix="tocsin-bench-"))
    server = Server(folder / "data", level="warning")
    try:
        server.start()
        yield server.url, Process(server.pid)
        if not server.running():
            raise ServerFailed(f"the broker ended meanwhile:\n{server.log_tail()}")
    finally:
        server.discard()
        shutil.rmtree(folder, ignore_errors=True)


def _run(name: str, run: Bench) -> Figures:
    async def whole() -> Figures:
        try:
            async with asyncio.timeout(SCENARIO_TIMEOUT_S):
                return await SCENARIOS[name](run)
        except TimeoutError:
            raise LoadFailed(f"{name} did not end within {SCENARIO_TIMEOUT_S:.0f} s") from None

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(whole())


def _line(name: str, figures: Figures, run: Bench) -> dict[str, object]:
    """Return the result of a scenario as the fields that --json prints; those that do not apply are
    None."""
    latency = figures.latency

    def percentile_ms(percent: float) -> float | None:
        return round(latency.percentile(percent) / 1e6, 3) if latency and latency.count else None

    rate, cpu_us = figures.messages_per_s, figures.server_cpu_us_per_message
    return {
        "scenario": name,
        "messages_per_s": None if rate is None else round(rate, 1),
        "p50_ms": percentile_ms(50),
        "p99_ms": percentile_ms(99),
        "p999_ms": percentile_ms(99.9),
        "server_cpu_us_per_message": None if cpu_us is None else round(cpu_us, 3),
        **figures.more,
        "conditions": _conditions(figures, run),
    }


def _conditions(figures: Figures, run: Bench) -> dict[str, object]:
    versions = {name: found for name in _VERSIONS if (found := version_of(name))}
    return {
        "python": interpreter(),
        "cpu_count": os.cpu_count(),
        "cpu": cpu_model(),
        "kernel": platform.release(),
        "body_bytes": run.shape.body_bytes,
        "keys": run.shape.keys,
        "seconds": run.seconds,
        **figures.conditions,
        "durability": run.durability,
        "storage": _storage(run),
        "versions": versions | {"sqlite": sqlite3.sqlite_version},
        "load_generator": "same machine",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _storage(run: Bench) -> str:
    if run.server is None:
        return "unknown"
    place = Path(f"/proc/{run.server.pid}/environ").read_bytes().split(b"\0")
    stores = [text.partition(b"=")[2].decode() for text in place if b"TOCSIN_STORAGE=" in text]
    if stores and "://" in stores[0]:
        scheme, _, rest = stores[0].partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}, appendfsync always"
    folders = [text.partition(b"=")[2].decode() for text in place if b"TOCSIN_DATA_DIR=" in text]
    kind = file_system(folders[0]) if folders else "unknown file system"
    return f"sqlite, synchronous=FULL (fsync before every receipt), on {kind}"


def version_of(package: str) -> str:
    """Return the installed version of a package; empty if it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return ""


def interpreter() -> str:
    """Return the version of Python, and whether it was compiled without optimization. A message
    takes more CPU time then (measured: docs/benchmarks/tuning.md). Distributions ship optimized
    builds whose configuration does not mention it."""
    flags = sysconfig.get_config_var("CONFIG_ARGS") or ""
    is_optimised = sys.base_prefix == "/usr" or "--enable-optimizations" in flags
    return platform.python_version() + ("" if is_optimised else ", compiled without optimisation")


def file_system(folder: str) -> str:
    """Return the kind of file system that holds a folder, such as `ext4`."""
    return file_system_in(Path(folder).resolve(), Path("/proc/mounts").read_text())


def file_system_in(folder: Path, mounts: str) -> str:
    """Return the same from the text of /proc/mounts."""
    deepest, found = 0, "unknown file system"
    for line in mounts.splitlines():
        path, kind = line.split()[1:3]
        mount = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), path))
        if folder.is_relative_to(mount) and len(mount.parts) >= deepest:  # a later one is on top
            deepest, found = len(mount.parts), kind
    return found


def cpu_model() -> str:
    """Return the kernel's name for this machine's processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _row(line: dict[str, object], figures: Figures) -> str:
    def number(name: str, form: str) -> str:
        value = line[name]
        return "-" if value is None else format(value, form)

    return _COLUMNS.format(
        line["scenario"],
        number("messages_per_s", ",.0f"),
        number("p50_ms", ".2f"),
        number("p99_ms", ".2f"),
        number("p999_ms", ".2f"),
        number("server_cpu_us_per_message", ".2f"),
        ", ".join(f"{name} {value}" for name, value in figures.more.items()),
    )


if __name__ == "__main__":
    sys.exit(bench())
