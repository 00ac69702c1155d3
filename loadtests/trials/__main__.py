"""`python -m loadtests.trials NAME`: promises, each held to on a bad day; --help lists the names.

Each trial starts a broker of its own on an empty folder, prints what it measured and under which
conditions, and ends with 1 when the promise is broken.
"""

import asyncio
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import uvloop

from loadtests.checker.history import Unreadable
from loadtests.clients.load import LoadFailed
from loadtests.server import ServerFailed
from loadtests.trials import bulk as trial_bulk
from loadtests.trials import calm as trial_calm
from loadtests.trials import churn as trial_churn
from loadtests.trials import console as trial_console
from loadtests.trials import counted as trial_counted
from loadtests.trials import expiry as trial_expiry
from loadtests.trials import guard as trial_guard
from loadtests.trials import overflow as trial_overflow
from loadtests.trials import page as trial_page
from loadtests.trials import seal as trial_seal
from loadtests.trials.credentials import guesses as trial_guesses
from loadtests.trials.credentials import revoke as trial_credentials
from loadtests.trials.fuzz import schema as trial_schema
from loadtests.trials.fuzz import trial as trial_fuzz
from loadtests.trials.hostile import trial as trial_hostile
from loadtests.trials.noisy import trial as trial_noisy
from loadtests.trials.sdk import kills as trial_kills
from loadtests.trials.sdk import proxy as trial_proxy
from loadtests.trials.sdk import slow as trial_slow
from loadtests.trials.sdk import switch as trial_switch
from loadtests.trials.sdk.programs import ActorFailed
from loadtests.trials.stalled import trial as trial_stalled
from loadtests.trials.stuck import handlers as hung_handlers
from loadtests.trials.stuck import keys as stuck_keys
from loadtests.trials.stuck import trial as trial_stuck
from loadtests.trials.trial import Finding
from loadtests.trials.visitors import trial as trial_visitors

_Command = TypeVar("_Command", bound=Callable[..., Any])
_json: Final = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def _seconds(default: float, text: str) -> Callable[[_Command], _Command]:
    return click.option(
        "--seconds", type=click.FloatRange(1, 3600), default=default, show_default=True, help=text
    )


_seed: Final = click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True,
    help="What chance is drawn from; the same seed draws the same faults.",
)  # fmt: skip


@click.group()
def trials() -> None:
    """Hold the broker, and the SDK, to a promise on a bad day.

    Each trial starts a broker of its own, tells how it gets on, prints what it measured and which
    promises were kept, and ends with 1 when one was broken. All of them: make trials.
    """


@trials.command()
@_seconds(trial_churn.SECONDS, "How long consumers come and go.")
@click.option(
    "--rate", type=click.IntRange(100, 50_000), default=trial_churn.RATE, show_default=True,
    help="Messages a second.",
)  # fmt: skip
@_json
def churn(seconds: float, rate: int, as_json: bool) -> None:
    """Consumers join and leave every second; partitions that do not move must not notice."""
    _try(trial_churn.churn(seconds, rate, _progress), as_json)


@trials.command()
@click.option(
    "--count", "counts", type=click.IntRange(100, 20_000), multiple=True,
    default=trial_visitors.COUNTS, show_default=True,
    help="How many come and go; given several times, each in turn.",
)  # fmt: skip
@click.option(
    "--rate", type=click.IntRange(10, 5_000), default=trial_visitors.RATE, show_default=True,
    help="Messages a second meanwhile.",
)  # fmt: skip
@_json
def visitors(counts: tuple[int, ...], rate: int, as_json: bool) -> None:
    """Consumers connect, say hello, subscribe, and are reset, by the thousand.

    Reports the worst gap of the consumer that stays, the longest that a message waited for it, what
    a visitor costs the broker, and how many consumers the group counts two seconds later: for
    visitors that come one after the other, and for a crowd that comes and goes together.
    """
    _try(trial_visitors.visitors(counts, rate, _progress), as_json)


@trials.command()
@click.option(
    "--messages", type=click.IntRange(40_000), default=trial_stuck.MESSAGES, show_default=True,
    help="How many wait.",
)  # fmt: skip
@click.option(
    "--keys", type=click.Choice(["10000", "30000"]), default=str(stuck_keys.KEYS),
    show_default=True, help="Of them 300 are stuck: 3 % or 1 %.",
)  # fmt: skip
@_seconds(trial_stuck.TURN_S, "How long each turn of a group is.")
@click.option(
    "--handlers", is_flag=True,
    help="Through the SDKs and by pull, with handlers that hang and are prolonged, in place of "
    "all that.",
)  # fmt: skip
@_json
def stuck(messages: int, keys: str, seconds: float, handlers: bool, as_json: bool) -> None:
    """Stuck keys with a backlog behind them; the healthy ones must not pay for them."""
    if handlers:
        _try(hung_handlers.hung_handlers(_progress), as_json)
        return
    _try(trial_stuck.stuck(messages, seconds, _progress, keys=int(keys)), as_json)


@trials.command()
@_seconds(trial_stalled.SECONDS, "How long with stalled sockets, and as long without.")
@click.option(
    "--sockets", type=click.IntRange(10, 20_000), default=trial_stalled.SOCKETS,
    show_default=True, help="How many stop reading.",
)  # fmt: skip
@_json
def stalled(seconds: float, sockets: int, as_json: bool) -> None:
    """Sockets stop reading; memory stays, and the others keep their rate."""
    _try(trial_stalled.stalled(seconds, sockets, _progress), as_json)


@trials.command()
@click.option(
    "--switches", type=click.IntRange(1, 1000), default=trial_switch.SWITCHES, show_default=True,
    help="How often, alternately to long poll and to WebSocket.",
)  # fmt: skip
@click.option(
    "--rate", type=click.IntRange(1_000, 20_000), default=trial_switch.RATE, show_default=True,
    help="Messages a second.",
)  # fmt: skip
@_seed
@_json
def switch(switches: int, rate: int, seed: int, as_json: bool) -> None:
    """A session of the SDK moves between WebSocket and long poll in mid-stream.

    A proxy keeps WebSockets out (refused, stripped, swallowed) and lets them in again, while more
    than a hundred deliveries are unacked. Nothing twice, nothing missing, in order: from the raw
    frames, and from what handlers and readers saw. About two minutes.
    """
    plan = trial_switch.Plan(switches=switches, rate=rate, seed=seed)
    _try(trial_switch.switch(plan, _progress), as_json)


@trials.command()
@_seconds(trial_proxy.SECONDS, "How long the network is bad.")
@_seed
@_json
def proxy(seconds: float, seed: int, as_json: bool) -> None:
    """Programs with the SDK behind a proxy that cuts, holds, swallows and delays at random.

    Three producers, a group of four consumers, three readers. Nothing twice to a handler, nothing
    missing, each key in order: from the raw frames, and from what the programs saw.
    """
    _try(trial_proxy.proxied(trial_proxy.Plan(seconds=seconds, seed=seed), _progress), as_json)


@trials.command()
@click.option(
    "--kills", "count", type=click.IntRange(1, 10_000), default=trial_kills.KILLS,
    show_default=True, help="How often the broker is killed.",
)  # fmt: skip
@_seed
@_json
def kills(count: int, seed: int, as_json: bool) -> None:
    """kill -9 of the broker under twenty programs whose effects must happen once.

    Every publish that returned is delivered, and has its effect in the handlers' own database
    exactly once. About three minutes.
    """
    _try(trial_kills.kills(trial_kills.Plan(kills=count, seed=seed), _progress), as_json)


@trials.command()
@click.option(
    "--lease", "lease_s", type=click.FloatRange(1, 600), default=trial_slow.LEASE_S,
    show_default=True, help="The lease in seconds; all else is as long as it says.",
)  # fmt: skip
@_json
def slow(lease_s: float, as_json: bool) -> None:
    """Handlers of three leases, handlers that hang, and a hundred messages of one key.

    No message runs twice that had not been taken back, and no other key stalls. About four leases.
    """
    _try(trial_slow.slow(trial_slow.Plan(lease_s=lease_s), _progress), as_json)


@trials.command()
@_seconds(trial_calm.SECONDS, "How long the metadata stalls.")
@click.option(
    "--rate", type=click.IntRange(10, 10_000), default=trial_calm.RATE, show_default=True,
    help="Messages a second.",
)  # fmt: skip
@_json
def calm(seconds: float, rate: int, as_json: bool) -> None:
    """The metadata stalls under load: known queues and groups go on without an error.

    Consumers leave and join, a script pulls, a reader reads. A new queue is refused in time. Needs
    a checkout: the broker that stalls is one of the tests.
    """
    _try(trial_calm.calm(trial_calm.Plan(seconds, rate), _progress), as_json)


@trials.command()
@click.option(
    "--lines", type=click.IntRange(1_000), default=trial_bulk.LINES, show_default=True,
    help="Of the file that is loaded.",
)  # fmt: skip
@click.option(
    "--rate", type=click.IntRange(1, 1_000), default=trial_bulk.RATE, show_default=True,
    help="Messages a second of the trickle.",
)  # fmt: skip
@click.option(
    "--rounds", type=click.IntRange(1, 100), default=trial_bulk.ROUNDS, show_default=True,
    help="Of the trickle alone, the load alone, and both.",
)  # fmt: skip
@_json
def bulk(lines: int, rate: int, rounds: int, as_json: bool) -> None:
    """A file is loaded by the command beside a trickle to another queue.

    The load keeps its rate and the trickle its latency, each compared with itself alone in the
    same run. About three minutes.
    """
    _try(trial_bulk.bulk(trial_bulk.Plan(lines, rate, rounds), _progress), as_json)


@trials.command()
@_seconds(trial_noisy.SECONDS, "How long each stretch is, calm or flooded.")
@click.option(
    "--rounds", type=click.IntRange(1, 100), default=trial_noisy.ROUNDS, show_default=True,
    help="Of a calm stretch and a flooded one, for each kind of flooder.",
)  # fmt: skip
@_json
def noisy(seconds: float, rounds: int, as_json: bool) -> None:
    """One queue is flooded at three times its capacity; another one must not pay for it.

    Its p99 is compared with that of the calm stretches of the same run. About seven minutes.
    """
    _try(trial_noisy.noisy(trial_noisy.Plan(seconds, rounds), _progress), as_json)


@trials.command()
@_seconds(trial_page.SECONDS, "How long messages come; the heap is measured first after 60 s.")
@click.option(
    "--rate", type=click.IntRange(1, 10_000), default=trial_page.RATE, show_default=True,
    help="Messages a second.",
)  # fmt: skip
@_json
def page(seconds: float, rate: int, as_json: bool) -> None:
    """Messages stream into the demo page for ten minutes: its heap and its frames.

    The heap at the end is compared with that after the first minute (a fifth of a shorter run), the
    intervals between frames with those of the idle page. Needs Chromium.
    """
    plan = trial_page.Plan(seconds=seconds, rate=rate, first_s=min(60.0, seconds / 5))
    _try(trial_page.page(plan, _progress), as_json)


@trials.command()
@click.option(
    "--pairs", type=click.IntRange(1, 1000), default=trial_console.PAIRS, show_default=True,
    help="Turns with the console, and as many without.",
)  # fmt: skip
@_seconds(trial_console.TURN_S, "How long each turn is.")
@_json
def console(pairs: int, seconds: float, as_json: bool) -> None:
    """What an open console costs batch100, in turns with and without it. Needs Chromium."""
    _try(trial_console.console(trial_console.Plan(pairs, seconds), _progress), as_json)


@trials.command()
@click.option(
    "--pairs", type=click.IntRange(1, 1000), default=trial_guard.PAIRS, show_default=True,
    help="Turns with the guard on, and as many without, of each load.",
)  # fmt: skip
@_seconds(trial_guard.TURN_S, "How long each turn is.")
@_json
def guard(pairs: int, seconds: float, as_json: bool) -> None:
    """What credentials, rights, encryption, limits and usage lines cost, in turns with and
    without."""
    _try(trial_guard.guard(trial_guard.Plan(pairs, seconds), _progress), as_json)


@trials.command()
@click.option(
    "--rotations", type=click.IntRange(1, 1000), default=trial_seal.ROTATIONS, show_default=True,
    help="Of the master key, under load.",
)  # fmt: skip
@click.option(
    "--flips", type=click.IntRange(1, 1_000_000), default=trial_seal.FLIPS, show_default=True,
    help="Bits that are flipped in copies of the store.",
)  # fmt: skip
@_seed
@_json
def seal(rotations: int, flips: int, seed: int, as_json: bool) -> None:
    """Master keys are rotated under load and kills, bits flipped, a canary looked for.

    Everything decrypts, no nonce comes twice, a bit costs its record and is reported, and what
    messages hold is in no file, log or error. About three minutes.
    """
    plan = trial_seal.Plan(rotations=rotations, flips=flips, seed=seed)
    _try(trial_seal.seal(plan, _progress), as_json)


@trials.command()
@click.option(
    "--cases", type=click.IntRange(1), default=trial_schema.CASES, show_default=True,
    help="Requests made from the document.",
)  # fmt: skip
@_seed
@_json
def schema(cases: int, seed: int, as_json: bool) -> None:
    """Requests made from /openapi.json, good and bad; each answer is as the document says."""
    _try(trial_schema.schema(trial_schema.Plan(cases, seed), _progress), as_json)


@trials.command()
@click.option(
    "--sessions", type=click.IntRange(2, 10_000), default=trial_credentials.SESSIONS,
    show_default=True, help="How many are to end, each of four times.",
)  # fmt: skip
@_json
def revoke(sessions: int, as_json: bool) -> None:
    """Tokens are revoked and run out, keys leave: their sessions, over WebSocket and by long poll,
    must end within 5 s, and nobody else's. About a minute."""
    with tempfile.TemporaryDirectory(prefix="tocsin-revoke-") as folder:
        _try(trial_credentials.revoke(sessions, Path(folder), _progress), as_json)


@trials.command()
@click.option(
    "--frames", type=click.IntRange(100), default=trial_fuzz.FRAMES, show_default=True,
    help="Mutated frames and requests.",
)  # fmt: skip
@_seed
@_json
def fuzz(frames: int, seed: int, as_json: bool) -> None:
    """Mutated frames and requests over every way in; a witness beside them loses nothing.

    No 5xx, no traceback, no session that is stuck, no ref without an answer. Some minutes.
    """
    _try(trial_fuzz.fuzz(trial_fuzz.Plan(frames, seed), _progress), as_json)


@trials.command()
@_seconds(trial_hostile.SECONDS, "How long under attack; half as long before, and afterwards.")
@click.option(
    "--rounds", type=click.IntRange(1, 100), default=trial_hostile.ROUNDS, show_default=True,
    help="Of peace and attack; the median of their ratios is judged.",
)  # fmt: skip
@_json
def hostile(seconds: float, rounds: int, as_json: bool) -> None:
    """Everybody who means harm, at once; memory stays, and who behaves hardly notices.

    1,000 sockets that send byte by byte, 64 MiB of headers, frames of 16 MiB, compression bombs,
    1,000 readers that never read, floods of subscribes, credit and tickets.
    """
    plan = trial_hostile.Plan(seconds, rounds, seconds / 2)
    _try(trial_hostile.hostile(plan, _progress), as_json)


@trials.command()
@click.option(
    "--tries", type=click.IntRange(1, 100_000), default=trial_guesses.TRIES, show_default=True,
    help="Of each kind, over each way in.",
)  # fmt: skip
@_seed
@_json
def guesses(tries: int, seed: int, as_json: bool) -> None:
    """Wrong credentials of every kind over every way in: of each way the medians of the times until
    the answer must be within 1 ms of one another, and the answers the same. About four minutes."""
    with tempfile.TemporaryDirectory(prefix="tocsin-guesses-") as folder:
        _try(trial_guesses.guesses(tries, Path(folder), _progress, seed=seed), as_json)


@trials.command()
@click.option(
    "--messages", type=click.IntRange(10_000), default=trial_counted.MESSAGES, show_default=True,
    help="How many in each run, at least.",
)  # fmt: skip
@click.option(
    "--end", "ends", multiple=True, type=click.Choice(trial_counted.ENDS),
    help="Only the run that ends so; may be given several times. Without: all three.",
)  # fmt: skip
@_json
def counted(messages: int, ends: tuple[trial_counted.End, ...], as_json: bool) -> None:
    """Every message of a long run is in every book: the clients', the broker's, the delivery log's
    and the usage log's.

    stop: after a clean stop all counts are the same. kill: after kill -9 in mid load the log lacks
    what it says it lacks. step: the wall clock passes a month's end and is stepped by 24 hours; the
    days of the rollup are those of the lines. About four minutes each, and 4 GB; needs Java and
    PySpark.
    """
    plan = trial_counted.Plan(messages, ends or trial_counted.ENDS)
    _try(trial_counted.counted(plan, _progress), as_json)


@trials.command()
@click.option(
    "--rounds", type=click.IntRange(1, 100_000), default=trial_overflow.ROUNDS, show_default=True,
    help="Of each kind.",
)  # fmt: skip
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(trial_overflow.KINDS),
    help="Only rounds of this kind; may be given several times. Without: both.",
)  # fmt: skip
@_seed
@_json
def overflow(rounds: int, kinds: tuple[trial_overflow.Kind, ...], seed: int, as_json: bool) -> None:
    """Queues overflow into their dead letters while consumers hand over, and join: first
    deliveries are in order, and nothing is both acked and dead-lettered. About ten minutes."""
    plan = trial_overflow.Plan(rounds, seed, kinds or trial_overflow.KINDS)
    _try(trial_overflow.overflow(plan, _progress), as_json)


@trials.command()
@click.option(
    "--messages", type=click.IntRange(1000, 10_000_000), default=trial_expiry.MESSAGES,
    show_default=True, help="Of the backlog.",
)  # fmt: skip
@_json
def expiry(messages: int, as_json: bool) -> None:
    """A backlog expires, and a fresh message stands behind it: how soon it is given, and how fast
    the backlog moves to the dead letters."""
    _try(trial_expiry.expiry(trial_expiry.Plan(messages), _progress), as_json)


def _progress(text: str) -> None:
    click.echo(f"  {text}", err=True)


def _try(trial: Coroutine[Any, Any, Finding], as_json: bool) -> None:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            finding = runner.run(trial)
    except (ActorFailed, LoadFailed, ServerFailed, Unreadable, RuntimeError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        raise click.Abort from None
    click.echo(json.dumps(finding.fields()) if as_json else str(finding))
    sys.exit(0 if finding.ok else 1)


if __name__ == "__main__":
    # What the SDK says of lost connections and failed handlers is meant to be: it is counted.
    logging.getLogger("tocsin").setLevel(logging.CRITICAL)
    trials()
