"""Handlers that take longer than a lease, hang, or have a long line of one key before them.

Three brokers run at the same time, each with two consumers and a stream of other messages beside
the slow ones. The cases: a handler of three leases; one that hangs until its delivery cannot be
extended any more; a hundred messages of one key, together longer than three leases.
"""

import asyncio
import time
from dataclasses import dataclass
from random import Random
from typing import Final

import tocsin

from loadtests.trials import options
from loadtests.trials.sdk.programs import Consuming, Producing, Saying
from loadtests.trials.sdk.trial import SdkTrial, examine
from loadtests.trials.trial import Finding, Progress, broker

KINDS: Final = ("slow", "hang", "line")
LEASE_S: Final = 30.0
LEASES: Final = 3
"""Duration of the slow handler, in leases."""
TOTAL_LEASES: Final = 2
"""Number of leases after which the hung handler's delivery is taken back."""
LINE: Final = 100
LINE_LEASES: Final = 1 / 30
"""Duration of each handler of the line, in leases: 1 s of 30."""
RATE: Final = 50
"""Messages a second beside the slow ones."""
STALL_S_MAX: Final = 2.0
MARGIN: Final = 0.8
_CONSUMERS: Final = 2
_CONCURRENCY: Final = 20
_SLOW: Final = "slow"


@dataclass(frozen=True)
class Plan:
    """Run handlers that take three leases, handlers that hang, and a hundred messages of one key.

    A message may run twice only if it was taken back, and no other key may stall. Takes about four
    leases.
    """

    lease_s: float = options.seconds(
        LEASE_S,
        "The lease in seconds. All other durations follow from it.",
        1,
        600,
        "--lease lease_s",
    )
    seed: int = 1
    kinds: tuple[str, ...] = KINDS
    auto_extend: bool = True
    """False: no client extends leases, the negative control."""

    @property
    def slow_s(self) -> float:
        """Duration of the slow handler, in seconds."""
        return LEASES * self.lease_s

    @property
    def line_s(self) -> float:
        """Duration of each handler of the line, in seconds."""
        return LINE_LEASES * self.lease_s

    @property
    def total_s(self) -> float:
        """The setting `lease_total_s` of the queue whose handler hangs."""
        return TOTAL_LEASES * self.lease_s


class _Part:
    """The part of one broker. `kind`: slow, hang or line."""

    def __init__(self, kind: str, plan: Plan, trial: SdkTrial) -> None:
        self.kind = kind
        self.plan = plan
        self.trial = trial
        self.starts: list[tuple[str, int, float]] = []
        """(body, attempt, monotonic time) of each start of a handler for the slow key."""
        self.ended: list[float] = []
        self.done = asyncio.Event()
        self.other_s_max = 0.0
        """The longest that a message of another key waited for its handler, in seconds."""
        self.others_meanwhile = 0
        self._wanted = LINE if kind == "line" else 4

    @property
    def messages(self) -> list[tuple[str, str]]:
        """The slow key's messages: the slow one and three after it, or the line."""
        return [(f"slow-{number}", _SLOW) for number in range(self._wanted)]

    async def work(self, message: tocsin.Message) -> None:
        """Handle a message: one of the slow key as `kind` demands, others at once."""
        if message.key != _SLOW:
            waited_s = time.time() - message.published_unix_ms / 1000
            self.other_s_max = max(self.other_s_max, waited_s)
            self.others_meanwhile += bool(self.starts) and not self.done.is_set()
            return
        body = str(message.body)
        self.starts.append((body, message.attempt, time.monotonic()))
        if self.kind == "line":
            await asyncio.sleep(self.plan.line_s)
        elif self.kind == "slow" and body == "slow-0":
            await asyncio.sleep(self.plan.slow_s)
        elif self.kind == "hang" and body == "slow-0" and message.attempt == 1:
            await asyncio.Event().wait()
        self.ended.append(time.monotonic())
        if body == self.messages[-1][0]:
            self.done.set()

    async def run(self) -> bool:
        """Run until the slow key is handled, or a time is over, and drain; return whether
        everything was handled."""
        plan, trial, connect = self.plan, self.trial, self.trial.clients.connect
        trial.book.is_alone = self.kind != "hang"
        total_s = plan.total_s if self.kind == "hang" else 100 * plan.lease_s
        await trial.prepare(partitions=2, lease_total_s=total_s, backoff_s=0.1, backoff_max_s=0.2)
        for number in range(_CONSUMERS):
            random = Random(plan.seed + number)
            trial.add(
                Consuming(
                    f"consumer-{number}", connect(trial.url), trial.book, work=self.work,
                    concurrency=_CONCURRENCY, random=random, auto_extend=plan.auto_extend,
                )
            )  # fmt: skip
        await trial.ready()
        await trial.shared(_CONSUMERS)
        client = connect(trial.url)
        trial.add(Saying("slow", client, trial.book, messages=self.messages))
        client, random = connect(trial.url), Random(plan.seed + 9)
        trial.add(Producing("p", client, trial.book, rate_per_s=RATE, random=random))
        await trial.ready()
        began, limit_s = time.monotonic(), 2 * (plan.slow_s + plan.lease_s)
        while not self.done.is_set() and time.monotonic() - began < limit_s:
            await trial.wait(0.1)
        return await trial.drain()

    async def conclude(self, finding: Finding, drained: bool) -> None:
        """Judge this part, and add its promises and figures to `finding`."""
        kind, plan = self.kind, self.plan
        evidence = await asyncio.to_thread(self.trial.evidence, drained=drained)
        part = Finding(kind)
        examine(part, evidence, again_allowed=True)
        for check in part.checks:
            finding.check(f"{kind}: {check.promise}", check.ok, check.found)
        ran = [body for body, _, _ in self.starts]
        wanted = [body for body, _ in self.messages]
        if kind == "hang":
            waited = [at - self.starts[0][2] for body, _, at in self.starts[1:2]]
            finding.check(
                "hang: it ran again when its delivery could not be prolonged any more, and only "
                "then; the messages behind it ran once, in order",
                ran == [wanted[0], *wanted] and waited[0] >= MARGIN * plan.total_s,
                f"{ran}, again after {waited} s of {plan.total_s:g}",
            )
        else:
            finding.check(
                f"{kind}: each message of the key ran once, in order, however long it took",
                ran == wanted, f"{len(ran)} runs of {len(wanted)} messages",
            )  # fmt: skip
        took_s = self.ended[-1] - self.starts[0][2] if self.ended else 0.0
        enough = 0.5 * RATE * took_s
        finding.check(
            f"{kind}: other keys went on meanwhile", self.others_meanwhile >= enough > 0,
            f"{self.others_meanwhile} messages in {took_s:.1f} s",
        )  # fmt: skip
        finding.check(
            f"{kind}: no other key waited for more than {STALL_S_MAX:g} s",
            self.other_s_max <= STALL_S_MAX, f"{self.other_s_max:.2f} s", timed=True,
        )  # fmt: skip
        finding.figures |= {
            f"{kind}_took_s": round(took_s, 1),
            f"{kind}_runs": len(ran),
            f"{kind}_others_run": len(self.trial.book.runs) - len(set(ran)),
            f"{kind}_others_waited_s_max": round(self.other_s_max, 3),
            f"{kind}_given_again": part.figures["given_again"],
        }


async def slow(plan: Plan, progress: Progress) -> Finding:
    """Run a part for each of `plan.kinds` at the same time. Raises ProgramFailed, LoadFailed or
    ServerFailed if the trial cannot end normally."""
    finding = Finding("slow")
    finding.conditions = {
        "lease_s": plan.lease_s, "slow_handler_s": plan.slow_s, "lease_total_s": plan.total_s,
        "line": f"{LINE} messages of one key, {plan.line_s:.3g} s each",
    }  # fmt: skip

    async def one(kind: str) -> None:
        async with broker(f"slow-{kind}") as server:
            log = server.data_dir.with_name("frames.jsonl")
            part = _Part(kind, plan, SdkTrial(server.url, log, progress, plan.lease_s))
            try:
                drained = await part.run()
            finally:
                await part.trial.leave()
            progress(f"slow: {kind} is through")
            await part.conclude(finding, drained)

    async with asyncio.TaskGroup() as parts:
        for kind in plan.kinds:
            parts.create_task(one(kind))
    return finding
