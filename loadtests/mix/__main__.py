"""`python -m loadtests.mix`, or `make load`: users of every kind against a broker, judged."""

import contextlib
import json
import os
import secrets
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from loadtests.mix import coordination, outages, plan
from loadtests.mix.coordination import LoadBroke
from loadtests.mix.gates import Judged, NoGate, figures, gates, held
from loadtests.mix.judge import judge
from loadtests.mix.ledger import BODY_BYTES_MIN
from loadtests.mix.report import page
from loadtests.mix.run import Found, Run
from loadtests.server import Server, ServerFailed, raise_file_limit
from loadtests.trials.trial import machine

FILES_SPARE: Final = 1_000
NOT_RUN: Final = 3
REPORT: Final = Path("build/load/report.html")

EXAMPLES: Final = """
\b
Who the users are (--share, of a hundred):
  websocket  publishes over a WebSocket, numbered
  rest       publishes over HTTP, under ids
  worker     consumes in a group, acks in random order, returns one of 200
  reader     reads one key from the start, as a browser tab would
  poller     consumes in a group by long poll
  slow       consumes in a group, and takes its time
  storm      consumes in a group, and loses its socket with all others of its kind
  day        goes through a day: publishes, works, reads, sleeps
\b
Examples:
  make load                                           five minutes of 500 users
  make load ARGS="--users 2000 --rate 500"            more of them, as fast together
  make load ARGS="--seconds 20 --users 40 --ramp 2"   a look, within a minute
  make load ARGS="--share none --share websocket=50 --share worker=50"
  make load ARGS="--gate 'delivery_p99_ms<=20' --gate 'certified_per_s>=400'"
  make load ARGS="--url http://10.0.1.1:8080 --url http://10.0.1.2:8080"
\b
Gates: in every run, nothing may be lost, invented, altered, repeated or out of order, no publish
may be left without an answer, and all groups must be drained. A further --gate is a figure, <=, >=,
<, > or =, and a bound. --json shows all figures. Figures of latency are receipt_ and delivery_ (all
prompt ways together), delivery_worker_, delivery_reader_, delivery_poller_, delivery_slow_,
delivery_storm_, receipt_websocket_, receipt_rest_, open_worker_, comeback_storm_ and the like, each
with p50_ms, p90_ms, p99_ms, p999_ms and max_ms.
\b
Exit code:
  0  all gates are kept
  1  a gate is broken
  2  the command is wrong
  3  there was no run, because the broker or the load itself did not start, or ended
make itself ends with 2 after any error. For the other codes run .venv/bin/python -m loadtests.mix.

The terminal names a broker that cannot be reached within five seconds. The run goes on when the
broker is back. If the process of the load's own broker ends, it is started again on its data. The
report names each outage. The figures outages and outage_s count them, and outages=0 is a gate
unless others are given. Messages that could not be published meanwhile are late, not lost.

To run the same users under Locust alone, with its web page and without judgement:
.venv/bin/locust -f loadtests/mix/locustfile.py --host http://127.0.0.1:8080

A broker of --url keeps the queues of the run, load.<run>.*, until an operator deletes them with
tocsin admin delete-queue.
"""


class NotRun(click.ClickException):
    """The load could not be made, so there is nothing to judge."""

    exit_code = NOT_RUN


@click.command(epilog=EXAMPLES)
@click.option("--users", type=click.IntRange(2, 50_000), default=500, show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(1, 86_400), default=300.0, show_default=True,
    help="How long the run is measured, after the ramp.",
)  # fmt: skip
@click.option(
    "--ramp", type=click.FloatRange(0, 3_600), default=20.0, show_default=True,
    help="Seconds in which the users start. They are not measured.",
)  # fmt: skip
@click.option(
    "--rate", type=click.FloatRange(0.1, 1_000_000), default=300.0, show_default=True,
    help="Messages a second that the publishers offer together.",
)  # fmt: skip
@click.option(
    "--share", "share_texts", multiple=True, metavar="ROLE=N",
    help="Share of a role, such as worker=50; repeatable. `none` before it drops all others.",
)  # fmt: skip
@click.option(
    "--gate", "gate_texts", multiple=True, metavar="FIGURE<=N",
    help="Gate that replaces the usual ones; repeatable.",
)  # fmt: skip
@click.option(
    "--processes", type=click.IntRange(1, 64), default=max(1, (os.cpu_count() or 2) - 1),
    show_default=True, help="Number of processes of users. Locust's master is one more.",
)  # fmt: skip
@click.option(
    "--url", "urls", multiple=True, help="Load this running broker; repeatable. [one of its own]"
)
@click.option("--token", envvar="TOCSIN_TOKEN", help="With --url: the bearer token.")
@click.option("--body-bytes", type=click.IntRange(BODY_BYTES_MIN, 65_536), default=256,
              show_default=True)  # fmt: skip
@click.option(
    "--storm-every", type=click.FloatRange(1, 3_600), default=30.0, show_default=True,
    help="Seconds between two storms, in which users lose their sockets.",
)  # fmt: skip
@click.option("--seed", type=int, help="Seed of all random choices. [a random one]")
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), default=REPORT,
              show_default=True, help="File of the HTML report.")  # fmt: skip
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False),
              help="Empty folder in which to keep plan, ledgers and logs.")  # fmt: skip
@click.option(
    "--judge", "judged", type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Only judge again the run that was kept in this folder.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print figures and gates as a JSON object.")
def load(  # noqa: PLR0917 - click passes them by name
    users: int, seconds: float, ramp: float, rate: float, share_texts: Sequence[str],
    gate_texts: Sequence[str], processes: int, urls: Sequence[str], token: str | None,
    body_bytes: int, storm_every: float, seed: int | None, report: Path, keep: Path | None,
    judged: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Load a broker with users of every kind, and judge it from the users' own records."""
    try:
        wanted = gates(gate_texts)
        counts = plan.counts(users, plan.shares(share_texts))
    except (NoGate, ValueError) as error:
        raise click.UsageError(str(error)) from None
    drawn = plan.Plan(
        run=secrets.token_hex(4), urls=list(urls), counts=counts, processes=processes, rate=rate,
        seconds=seconds, ramp_s=ramp, body_bytes=body_bytes, began_ns=time.monotonic_ns(),
        seed=secrets.randbits(31) if seed is None else seed, storm_every_s=storm_every,
        day_s=min(60.0, max(4.0, seconds / 2)),
    )  # fmt: skip
    try:
        if judged is not None:
            drawn, found = _again(judged)
        else:
            with _folder(keep) as folder, _broker(drawn) as (drawn, server):
                found = Run(drawn, folder, token if urls else None, _say, server).whole()
    except (LoadBroke, ServerFailed, RuntimeError, OSError, ValueError) as error:
        raise NotRun(str(error)) from None
    except KeyboardInterrupt:
        raise click.Abort from None
    result = figures(found.outcome, seconds=drawn.seconds) | found.figures
    result |= outages.figures(found.outages)
    verdicts = held(wanted, result)
    _write(report, found, verdicts)
    _tell(found, result, verdicts, report, as_json=as_json)
    sys.exit(0 if all(one.ok for one in verdicts) else 1)


def _say(text: str) -> None:
    click.echo(f"  {text}", err=True)


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise click.UsageError(
                f"{keep} is not empty. Give --keep an empty folder for each run."
            )
        yield keep.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="tocsin-load-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _broker(drawn: plan.Plan) -> Iterator[tuple[plan.Plan, Server | None]]:
    """Yield the plan with its brokers' addresses, and the broker of our own, if any, which is
    removed in the end."""
    raise_file_limit(drawn.users * 2 + FILES_SPARE)
    if drawn.urls:
        yield drawn, None
        return
    folder = Path(tempfile.mkdtemp(prefix="tocsin-load-broker-"))
    server = Server(folder / "data", level="warning")
    try:
        server.start()
        yield plan.placed(drawn, [server.url]), server
        if not server.running():
            raise ServerFailed(f"the broker ended meanwhile:\n{server.log_tail()}")
    finally:
        server.discard()
        shutil.rmtree(folder, ignore_errors=True)


def _again(folder: Path) -> tuple[plan.Plan, Found]:
    """Judge again the files that a run has kept."""
    drawn = plan.read(folder / coordination.PLAN)
    paths = sorted(folder.glob("ledger-*.json"))
    if len(paths) != drawn.processes:
        raise LoadBroke(
            f"{folder} has {len(paths)} of {drawn.processes} ledgers, so the run cannot be judged"
        )
    drained = coordination.phase(folder).is_drained
    outcome = judge((coordination.read_ledger(path) for path in paths), drained=drained)
    found = outages.read(folder / outages.FILE)
    return drawn, Found(outcome, {"judged again from": str(folder)}, outages=found)


def _write(report: Path, found: Found, verdicts: Sequence[Judged]) -> None:
    report.parent.mkdir(parents=True, exist_ok=True)
    conditions = found.conditions | found.figures | machine()
    command = shlex.join(["python", "-m", "loadtests.mix", *sys.argv[1:]])
    title = "Tocsin under load"
    report.write_text(
        page(
            found.outcome,
            verdicts,
            found.outages,
            title=title,
            conditions=conditions,
            command=command,
        ),
        encoding="utf-8",
    )


def _tell(
    found: Found, result: dict[str, float], verdicts: Sequence[Judged], report: Path,
    *, as_json: bool,
) -> None:  # fmt: skip
    outcome = found.outcome
    ok = all(one.ok for one in verdicts)
    if as_json:
        judged = [{"gate": str(one.gate), "found": one.found, "ok": one.ok} for one in verdicts]
        fields = {"ok": ok, "figures": result, "gates": judged, "examples": outcome.examples,
                  "outages": [msgspec.to_builtins(one) for one in found.outages],
                  "report": str(report), "machine": machine()}  # fmt: skip
        click.echo(json.dumps(fields))
        return
    for what, histogram in sorted(outcome.latencies.items()):
        p50, p99 = histogram.percentile(50) / 1e6, histogram.percentile(99) / 1e6
        click.echo(f"  {what:<22} {histogram.count:>10,}   p50 {p50:9.3f} ms   p99 {p99:9.3f} ms")
    for verdict in verdicts:
        click.echo(f"  {verdict}")
    for line in outcome.lines():
        click.echo(f"  {line}")
    for outage in found.outages:
        click.echo(f"  not reached: {outage}")
    click.echo(f"{'all gates are kept' if ok else 'GATES ARE BROKEN'}; {report}")


if __name__ == "__main__":
    load()
