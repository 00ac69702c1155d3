"""The price of the guard: `batch100` and `single` against two brokers in turns, one with everything
on (credentials, rights, encryption, limits, usage lines), one with all of it off.

Both run all the time, one idle while the other one works, so that both turns of a pair meet the
same state of the machine.
"""

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from loadtests.bench.load_run import Bench, LoadRun, quiet
from loadtests.server import Process, Server
from loadtests.trials import options
from loadtests.trials.trial import Finding, Progress, admin, broker

RATIO_MIN: Final = 0.85
PAIRS: Final = 6
TURN_S: Final = 5.0
SETTLE_S: Final = 1.0
OFF: Final[Mapping[str, str]] = {"TOCSIN_ENCRYPTION": "no", "TOCSIN_USAGE": "no"}
ON: Final[Mapping[str, str]] = {
    "TOCSIN_TOKEN": "the-operator-of-a-trial",
    "TOCSIN_LIMIT_PRINCIPAL": "messages=10000000/s,bytes=10000000000/s,requests=1000000/s",
    "TOCSIN_LIMIT_QUEUE": "messages=10000000/s,bytes=10000000000/s",
    "TOCSIN_LIMIT_ADDRESS": "connections=100000/s",
}
"""Settings of the broker with the guard: a token, and limits that are checked but never reached."""


class Load(NamedTuple):
    """A load of the benchmark. `window`: the most messages published and not yet settled."""

    messages_per_frame: int
    window: int


LOADS: Final = {"batch100": Load(100, 20_000), "single": Load(1, 8_000)}


class Side(NamedTuple):
    """A broker with the guard (`name` is "on") or without it ("off"), and its clients' token, if
    any."""

    name: str
    server: Server
    token: str | None


@dataclass(frozen=True)
class Plan:
    """Measure the cost of credentials, rights, encryption, limits and usage lines, in turns with
    and without them."""

    pairs: int = options.whole(
        PAIRS, "Number of turns with the guard, and of turns without it, for each load.", 1, 1000
    )
    turn_s: float = options.seconds(TURN_S, "Duration of each turn.")


@dataclass
class Turns:
    """The results of one side's turns: messages a second, and microseconds of CPU a message."""

    rates: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)


async def _token_of(server: Server) -> str:
    """Create an API token with exactly the rights that the load needs, and return it. Raises
    LoadFailed."""
    right = ("--right", "publish,consume,manage:*")
    made = await admin(server, "token", "create", "load", *right)
    return str(made["token"])


async def guard(plan: Plan, progress: Progress) -> Finding:
    """Run both loads against a broker with the guard and one without, in turns. Raises LoadFailed
    or ServerFailed if the trial cannot end normally."""
    finding = Finding("guard")
    settings = {"on": dict(ON), "off": dict(OFF)}
    finding.conditions = {"pairs": plan.pairs, "turn_s": plan.turn_s, **settings}
    async with AsyncExitStack() as stack:
        on = await stack.enter_async_context(broker("guard-on", settings=ON))
        off = await stack.enter_async_context(broker("guard-off", settings=OFF))
        sides = (Side("on", on, await _token_of(on)), Side("off", off, None))
        for name, load in LOADS.items():
            turns = await _compare(name, load, sides, plan, progress)
            _judge(name, turns, finding, plan.pairs)
    return finding


async def _compare(
    name: str, load: Load, sides: Sequence[Side], plan: Plan, progress: Progress
) -> dict[str, Turns]:
    turns = {side.name: Turns() for side in sides}
    async with AsyncExitStack() as stack:
        lines: dict[str, LoadRun] = {}
        for side in sides:
            process = Process(side.server.pid)
            bench = Bench(side.server.url, side.token, process, plan.turn_s, 0, 0, progress)
            line = LoadRun(bench, name, load.messages_per_frame, load.window)
            lines[side.name] = await stack.enter_async_context(quiet(line))
            await line.open()
        for number in range(plan.pairs):
            for side in sides if number % 2 else reversed(sides):
                await asyncio.sleep(SETTLE_S)
                line = lines[side.name]
                settled, elapsed, cpu_us = await line.run(plan.turn_s, f"{name}, guard {side.name}")
                turns[side.name].rates.append(settled / elapsed)
                turns[side.name].costs.append(cpu_us or 0.0)
                await line.drain()
    return turns


def _judge(name: str, turns: dict[str, Turns], finding: Finding, pairs: int) -> None:
    for side, found in turns.items():
        finding.figures |= {
            f"{name}_{side}_per_s": round(statistics.median(found.rates)),
            f"{name}_{side}_cpu_us": round(statistics.median(found.costs), 2),
        }
    ratios = [a / b for a, b in zip(turns["on"].rates, turns["off"].rates, strict=True)]
    ratio = statistics.median(ratios)
    finding.check(
        f"{name} with the guard on reaches {RATIO_MIN:.0%} of what it is without",
        ratio >= RATIO_MIN, f"{ratio:.2%} (median of {pairs} pairs)", timed=True,
    )  # fmt: skip
