"""`python -m loadtests.swarm`: tens of thousands of idle sockets, and a storm of reconnects."""

import asyncio
import contextlib
import json
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import click
import uvloop

from loadtests.clients.load import BODY_BYTES, LoadFailed, Producer, Shape, stamp
from loadtests.clients.rest import Rest
from loadtests.server import Process, Server, ServerFailed, raise_file_limit
from loadtests.swarm.coordination import FILES_SPARE, Order, processes
from loadtests.swarm.fleet import All, Fleet, SwarmBroke
from loadtests.trials.trial import Finding

SETTLES_S: Final = 30.0
OPEN_S: Final = 600.0
_PAUSE_S: Final = 2.0
"""The least pause before memory is measured."""

EXAMPLES: Final = """
\b
Examples:
  python -m loadtests.swarm                                   5,000 sockets, a broker of our own
  python -m loadtests.swarm --sockets 15000 --storm 5000
  python -m loadtests.swarm --sockets 30000 --storm 5000 \\
    --url http://127.0.0.1:8081 --url http://127.0.0.1:8082 --url http://127.0.0.1:8083 \\
    --pid 101 --pid 102 --pid 103                             three gateways over one store
\b
Every socket is a session that reads one queue. They are opened and wait. Then one message is
published, which each of them must receive exactly once. Then --storm of them are cut without a word
and come back as fast as they can, and all must receive another message.
A process usually has at most 20,000 files, and an address some 28,000 ports. So the sockets come
from several processes and from the addresses 127.0.1.1 and following, which on Linux all belong to
this machine. A gateway also has 20,000 files, so 30,000 sockets need several gateways.
The exit code is 0 if every promise was kept, and 1 if not.
"""


@dataclass(frozen=True)
class Plan:
    """The parameters of a run: sockets, how many of them the storm cuts, seconds of waiting,
    brokers, processes."""

    sockets: int
    storm: int
    idle_s: float
    urls: list[str]
    token: str | None
    parts: int
    servers: list[Process] = field(default_factory=list)


async def swarm(plan: Plan, progress: Callable[[str], None]) -> Finding:
    """Open all sockets, let them wait, publish to them, cut and reopen some, publish again. Raises
    SwarmBroke, LoadFailed, OSError."""
    finding = Finding("swarm")
    queue = f"swarm.{secrets.token_hex(4)}"
    rest = Rest(plan.urls[0], plan.token)
    await rest.call("PUT", f"/v1/queues/{queue}", {"partitions": 1, "retention_s": 3600})
    rest.close()
    fleet = Fleet(
        plan.sockets, plan.parts, plan.urls, token=plan.token, queue=queue, body_bytes=BODY_BYTES
    )
    async with fleet:
        before = [server.rss_bytes() for server in plan.servers]
        found = await fleet.all(Order("open", plan.sockets, timeout_s=OPEN_S))
        progress(f"{found.standing:,} of {plan.sockets:,} sockets after {found.took_s:.1f} s")
        finding.check("all sockets stand", found.standing == plan.sockets, _told(found))
        finding.figures["open_per_s"] = round(found.standing / max(found.took_s, 1e-9), 1)
        await _idle(plan, finding, before)
        await _message(plan, fleet, queue, finding, "after waiting")
        if plan.storm:
            await _storm(plan, fleet, finding, progress)
            await _message(plan, fleet, queue, finding, "after the storm")
        ended = await fleet.all(Order("close"))
        finding.check("no socket ended by itself", ended.lost == 0, _told(ended))
    finding.conditions |= {
        "sockets": plan.sockets, "processes": plan.parts, "brokers": ", ".join(plan.urls),
        "idle_s": plan.idle_s,
    }  # fmt: skip
    return finding


def _told(found: All) -> str:
    """Return the evidence for a promise, in words."""
    more = f"; at last: {found.error}" if found.error else ""
    return f"{found.standing:,} stand, {found.lost:,} lost, {found.tries:,} tries again{more}"


async def _idle(plan: Plan, finding: Finding, before: Sequence[int]) -> None:
    cpu_s = [server.cpu_s() for server in plan.servers]
    await asyncio.sleep(max(_PAUSE_S, plan.idle_s))
    grown = sum(server.rss_bytes() - was for server, was in zip(plan.servers, before, strict=True))
    if plan.servers:
        used_s = sum(server.cpu_s() - was for server, was in zip(plan.servers, cpu_s, strict=True))
        finding.figures["kib_per_socket"] = round(grown / plan.sockets / 1024, 2)
        finding.figures["cpu_share_while_idle"] = round(used_s / max(_PAUSE_S, plan.idle_s), 4)


async def _message(plan: Plan, fleet: Fleet, queue: str, finding: Finding, when: str) -> None:
    """Publish one message for all sockets, and check that each gets it once."""
    producer = Producer("swarm", queue, Shape(), 1, Random(1))
    await producer.open(plan.urls[0], plan.token, producer.name)
    producer.publish(stamp(0))
    producer.flush()
    found = await fleet.all(Order("expect", given=1))
    if producer.failure is not None:
        raise producer.failure
    producer.close()
    ok = found.missing == found.repeated == 0 and found.standing == plan.sockets
    told = f"{found.standing:,} stand, {found.missing:,} without it, {found.repeated:,} too many"
    finding.check(f"each socket is given a message, once, {when}", ok, told)
    finding.figures[f"fan_out_s_{when.replace(' ', '_')}"] = round(found.took_s, 3)


async def _storm(
    plan: Plan, fleet: Fleet, finding: Finding, progress: Callable[[str], None]
) -> None:
    at_once = plan.storm  # no socket waits for another one: that is the storm
    found = await fleet.all(Order("cut", plan.storm, at_once=at_once, timeout_s=4 * SETTLES_S))
    progress(f"{plan.storm:,} sockets were cut and back after {found.took_s:.1f} s")
    whole = found.standing == plan.sockets
    finding.figures["storm_settled_s"] = round(found.took_s, 2)
    finding.figures["storm_p50_s"] = round(found.took.percentile(50) / 1e9, 3)
    finding.figures["storm_p99_s"] = round(found.took.percentile(99) / 1e9, 3)
    finding.check("all are back after the storm", whole, _told(found))
    finding.check(
        f"the storm settles within {SETTLES_S:.0f} s", found.took_s <= SETTLES_S,
        f"{found.took_s:.1f} s", timed=True,
    )  # fmt: skip


@click.command(epilog=EXAMPLES)
@click.option("--sockets", type=click.IntRange(2, 1_000_000), default=5_000, show_default=True)
@click.option(
    "--storm", type=click.IntRange(0), default=1_000, show_default=True,
    help="Number of sockets that are cut and come back at once; 0: none.",
)  # fmt: skip
@click.option(
    "--idle", "idle_s", type=click.FloatRange(0, 86_400), default=10.0, show_default=True,
    help="Seconds for which the sockets only wait.",
)  # fmt: skip
@click.option(
    "--processes",
    "parts",
    type=click.IntRange(1, 250),
    help="Number of processes. [as many as needed]",
)
@click.option(
    "--url",
    "urls",
    multiple=True,
    help="A running broker; repeatable, and all share the sockets. [one of its own]",
)
@click.option(
    "--pid",
    "pids",
    type=int,
    multiple=True,
    help="With --url: the broker's process here, for memory figures.",
)
@click.option("--token", envvar="TOCSIN_TOKEN", help="With --url: the bearer token.")
@click.option("--json", "as_json", is_flag=True, help="Print the finding as one JSON object.")
def main(  # noqa: PLR0917 - click passes them by name
    sockets: int, storm: int, idle_s: float, parts: int | None, urls: Sequence[str],
    pids: Sequence[int], token: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Hold tens of thousands of idle sockets open, and break thousands of them at once."""
    if storm > sockets:
        raise click.UsageError(
            "--storm is above --sockets. No more sockets can be cut than there are."
        )
    if pids and not urls:
        raise click.UsageError("--pid needs --url, because the pid of a broker of its own is known")
    many = parts or processes(sockets)
    try:
        raise_file_limit(max(sockets // max(1, len(urls)), sockets // many) + FILES_SPARE)
        with _broker(urls, pids) as (places, servers):
            plan = Plan(sockets, storm, idle_s, places, token if urls else None, many, servers)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                finding = runner.run(swarm(plan, lambda text: click.echo(f"  {text}", err=True)))
    except (SwarmBroke, LoadFailed, ServerFailed, RuntimeError, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        raise click.Abort from None
    click.echo(json.dumps(finding.fields()) if as_json else str(finding))
    sys.exit(0 if finding.ok else 1)


@contextlib.contextmanager
def _broker(urls: Sequence[str], pids: Sequence[int]) -> Iterator[tuple[list[str], list[Process]]]:
    """Yield the addresses and processes of the given brokers, or of one of our own."""
    if urls:
        yield list(urls), [Process(pid) for pid in pids]
        return
    folder = Path(tempfile.mkdtemp(prefix="tocsin-swarm-"))
    server = Server(folder / "data", level="warning")
    try:
        server.start()
        yield [server.url], [Process(server.pid)]
        if not server.running():
            raise ServerFailed(f"the broker ended meanwhile:\n{server.log_tail()}")
    finally:
        server.discard()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
