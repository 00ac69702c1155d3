"""Consumers that join and leave every second: partitions that do not move must not notice.

Messages are published on a fixed schedule. Four consumers stay, a fifth comes and goes. A partition
whose epoch does not change between two pushes did not move between them. These gaps are compared
with the gaps of stretches without churn. All frames are logged, and the judge of the kill tests
checks that nothing was lost, given twice, or given out of order.
"""

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from loadtests.checker.history import read_lines
from loadtests.checker.judge import judge
from loadtests.checker.verdict import Verdict
from loadtests.clients import wire
from loadtests.clients.load import Client, LoadFailed, Producer, Reply, Shape, stamp
from loadtests.clients.recorder import Recorder
from loadtests.clients.rest import Rest
from loadtests.histogram import Histogram
from loadtests.trials import options
from loadtests.trials.trial import Finding, Progress, broker, failed, uncollected, until

SECONDS: Final = 120.0
RATE: Final = 5_000
"""Messages a second, one a frame."""
PARTITIONS: Final = 16
STEADY: Final = 4
PERIOD_S: Final = 1.0
"""Within one period the fifth consumer joins, stays for half of it, and leaves."""
STRETCH_S: Final = 30.0
"""About the length of a stretch of churn, in seconds. The duration is divided into equal stretches,
and a calm one of half the length precedes each."""
GAP_RATIO_MAX: Final = 3.0
_PRODUCERS: Final = 2
_CREDIT: Final = 2_000
_TICK_S: Final = 0.001
_WARM_UP_S: Final = 1.0
_DRAIN_S: Final = 45.0
_ENCODE: Final = msgspec.json.Encoder().encode


@dataclass
class Gaps:
    """The time between two pushes of a partition, in nanoseconds, by whether the partition moved
    between them."""

    stayed: Histogram = field(default_factory=Histogram)
    moved: Histogram = field(default_factory=Histogram)
    _last: dict[int, tuple[int, int]] = field(default_factory=dict)

    def push(self, partition: int, epoch: int, at_ns: int) -> None:
        """Note a push and its time; its gap is the time since the last push of the same
        partition."""
        last_epoch, last_ns = self._last.get(partition, (0, 0))
        if last_epoch:
            gaps = self.stayed if epoch == last_epoch else self.moved
            gaps.record(at_ns - last_ns)
        self._last[partition] = (epoch, at_ns)

    def clear(self) -> None:
        """Drop the gaps, but keep the last push of each partition."""
        self.stayed.clear()
        self.moved.clear()


class _Logged(Client):
    """A client whose frames, both sent and received, are logged until it is `deaf`: it has left
    then, and ignores frames that still arrive."""

    log: Recorder
    socket = 0
    deaf = False

    async def join(self, log: Recorder, socket: int, url: str, producer: str | None) -> None:
        """Connect and say hello, logging the frames to `log` under the number `socket`."""
        self.log, self.socket = log, socket
        self._note(_ENCODE({"type": "hello", "producer": producer}))
        await self.open(url, None, producer)

    def _note(self, frame: bytes) -> None:
        self.log.ws(1, self.socket, b"out", frame)

    async def ask(self, **fields: object) -> bytes:
        self._note(_ENCODE({**fields, "ref": self._ref + 1}))
        return await super().ask(**fields)

    def _message(self, message: bytes) -> None:
        if not self.deaf:
            self.log.ws(1, self.socket, b"in", message)
            super()._message(message)


class _Producer(_Logged, Producer):
    def flush(self) -> None:
        for frame in self._out:
            self._note(frame)
        super().flush()


class _Member(_Logged):
    """A consumer that acks each message, and asks for confirmation."""

    def __init__(self, name: str, shape: Shape, gaps: Gaps) -> None:
        super().__init__(name)
        self._stride = shape.message_bytes + 1
        self._gaps = gaps
        self._due: list[list[int]] = []
        self._granted = _CREDIT
        self._taken = 0
        self._acking: set[int] = set()

    def _push(self, data: bytes) -> None:
        head, start, end = wire.open_push(data)
        count = (end - start + 1) // self._stride
        self._gaps.push(head.partition, head.epoch, time.monotonic_ns())
        last = head.offset + count - 1
        self._due.append([head.partition, head.epoch, head.push, head.offset, last])
        self._taken += count

    def _turn(self) -> None:
        if self.deaf or not self._due:
            return
        ref = self._next_ref()
        ack = {"type": "ack", "subscription": 1, "deliveries": self._due, "ref": ref}
        frames = [_ENCODE(ack)]
        self._due = []
        self._acking.add(ref)
        if self._taken > _CREDIT // 8:
            self._granted += self._taken
            self._taken = 0
            frames.append(b'{"type":"credit","subscription":1,"granted":%d}' % self._granted)
        for frame in frames:
            self._note(frame)
        self.wire.send_all(frames)

    def _answered(self, ref: int, reply: Reply, data: bytes) -> None:
        if ref not in self._acking:
            super()._answered(ref, reply, data)
        self._acking.discard(ref)  # the judge reads the answer in the log

    def leave(self, *, rudely: bool) -> None:
        """Unsubscribe and close the socket, or (rudely) only abort the socket, with everything
        unsettled."""
        self.deaf = True
        if rudely:
            self._leaving = True
            self.wire.abort()
            return
        self.wire.send(_ENCODE({"type": "unsubscribe", "subscription": 1, "ref": 0}))
        self.close()


class _Stretch:
    """A queue under load, with or without churn, from its creation to the judge's verdict."""

    def __init__(self, url: str, name: str, log: Path, rate: int, random: Random) -> None:
        self._url = url
        self._queue = name
        self._path = log
        self._rate = rate
        self._shape = Shape()
        self._log = Recorder(log)
        self._sockets = 0
        self.gaps = Gaps()
        self.joins = 0
        self.published = 0
        self._producers = [
            _Producer(f"{name}-{i}", name, self._shape, 1, random) for i in range(_PRODUCERS)
        ]
        self._steady: list[_Member] = []
        self._guest: _Member | None = None

    async def run(self, seconds: float, *, churn: bool) -> Verdict:
        """Load the queue for `seconds`, drain it, judge it. Raises LoadFailed,
        history.Unreadable."""
        rest = Rest(self._url)
        try:
            await rest.call("PUT", f"/v1/queues/{self._queue}", {"partitions": PARTITIONS})
            await rest.call("PUT", f"/v1/queues/{self._queue}/groups/workers", {})
            for producer in self._producers:
                await producer.join(self._log, self._socket(), self._url, producer.name)
            for _ in range(STEADY):
                self._steady.append(await self._member())
            with uncollected():
                await self._offer(_WARM_UP_S)
                self.gaps.clear()
                coming = asyncio.create_task(self._come_and_go(seconds if churn else 0.0))
                try:
                    await self._offer(seconds)
                    await coming
                finally:
                    coming.cancel()
                await self._drain(rest)
        finally:
            rest.close()
            for client in self._clients():
                client.close()
            self._log.close()
        with self._path.open("rb") as lines:
            return judge(read_lines(lines), [f"{self._queue}/workers"], drained=True)

    def _socket(self) -> int:
        self._sockets += 1
        return self._sockets

    def _clients(self) -> list[Client]:
        clients: list[Client] = [*self._producers, *self._steady]
        return [c for c in (*clients, self._guest) if c is not None and hasattr(c, "wire")]

    async def _member(self) -> _Member:
        member = _Member(f"member-{self._sockets}", self._shape, self.gaps)
        await member.join(self._log, self._socket(), self._url, None)
        await member.ask(
            type="subscribe", subscription=1, queue=self._queue, group="workers", credit=_CREDIT
        )
        return member

    async def _come_and_go(self, seconds: float) -> None:
        """In each period, let a new fifth consumer join and leave. Every second one only aborts its
        socket."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._guest = await self._member()
            self.joins += 1
            await asyncio.sleep(PERIOD_S / 2)
            failed([self._guest])
            guest, self._guest = self._guest, None
            guest.leave(rudely=self.joins % 2 == 0)
            await asyncio.sleep(PERIOD_S / 2)

    async def _offer(self, seconds: float) -> None:
        began_ns, offset = time.monotonic_ns(), self.published
        until_count = offset + int(seconds * self._rate)
        while self.published < until_count:
            failed(self._clients())
            due = offset + (time.monotonic_ns() - began_ns) * self._rate // 1_000_000_000
            while self.published < min(due, until_count):
                at = began_ns + (self.published - offset) * 1_000_000_000 // self._rate
                self._producers[self.published % _PRODUCERS].publish(stamp(at))
                self.published += 1
            for producer in self._producers:
                producer.flush()
            await asyncio.sleep(_TICK_S)

    async def _drain(self, rest: Rest) -> None:
        """Wait until all publishes are answered and the broker reports no lag of the group. The
        judge flags a message that is missing then. Raises LoadFailed after _DRAIN_S."""
        await until(
            lambda: sum(p.answered for p in self._producers) >= self.published,
            "answering the producers", _DRAIN_S, self._clients,
        )  # fmt: skip
        deadline = time.monotonic() + _DRAIN_S
        rest.close()  # the broker has closed it, because it was idle under load
        place = f"/v1/queues/{self._queue}/groups/workers"
        while (group := await rest.call("GET", place))["lag"]:
            failed(self._clients())
            if time.monotonic() > deadline:
                raise LoadFailed(f"the group still lags after {_DRAIN_S:.0f} s: {group}")
            await asyncio.sleep(0.1)


@dataclass(frozen=True)
class Plan:
    """Let consumers join and leave every second. Partitions that do not move must not notice."""

    seconds: float = options.seconds(SECONDS, "How long consumers come and go.")
    rate: int = options.whole(RATE, "Messages a second.", 100, 50_000)


async def churn(plan: Plan, progress: Progress) -> Finding:
    """Run calm and churning stretches in turn, for `plan.seconds` of churn in total.

    Raises LoadFailed or ServerFailed if the trial cannot end normally.
    """
    seconds, rate = plan.seconds, plan.rate
    finding = Finding("churn")
    calm, churning = Gaps(), Gaps()
    joins = published = 0
    violations: list[str] = []
    random = Random(1)
    async with broker("churn") as server:
        folder = server.data_dir.parent
        rounds = max(1, round(seconds / STRETCH_S))
        for number in range(2 * rounds):
            busy = bool(number % 2)
            length = seconds / rounds / (1 if busy else 2)
            log = folder / f"{number}.jsonl"
            stretch = _Stretch(server.url, f"churn{number}", log, rate, random)
            verdict = await stretch.run(length, churn=busy)
            log.unlink()
            gaps = churning if busy else calm
            gaps.stayed.add(stretch.gaps.stayed)
            gaps.moved.add(stretch.gaps.moved)
            joins += stretch.joins
            published += stretch.published
            if not verdict.ok:
                violations.append(str(verdict))
            progress(
                f"churn: {'churning' if busy else 'calm'} {length:.1f} s, {stretch.joins} joins, "
                f"p99 gap {stretch.gaps.stayed.percentile(99) / 1e6:.1f} ms, judged "
                f"{'ok' if verdict.ok else 'VIOLATED'}"
            )
    finding.figures = _figures(calm, churning) | {"joins": joins, "published": published}
    finding.conditions = {
        "messages_per_s": rate, "partitions": PARTITIONS, "consumers": STEADY,
        "period_s": PERIOD_S, "seconds_of_churn": seconds, "stretches": 2 * rounds,
        "body_bytes": Shape().body_bytes,
    }  # fmt: skip
    finding.check(
        "P1 P3 P5 P7: nothing lost, nothing out of order, nothing given after its ack",
        not violations, violations or "the judge found nothing",
    )  # fmt: skip
    finding.check(
        "churn happened: partitions moved, and moved back",
        churning.moved.count >= joins > 0,
        f"{joins} joins, {churning.moved.count} partitions moved",
    )
    ratio = churning.stayed.percentile(99) / max(1, calm.stayed.percentile(99))
    finding.check(
        f"partitions that do not move: the p99 gap is at most {GAP_RATIO_MAX:.0f} x the calm one",
        ratio <= GAP_RATIO_MAX, f"{ratio:.2f} x", timed=True,
    )  # fmt: skip
    return finding


def _figures(calm: Gaps, churning: Gaps) -> dict[str, object]:
    figures: dict[str, object] = {}
    for name, gaps in (
        ("calm", calm.stayed), ("churning", churning.stayed), ("moving", churning.moved),
    ):  # fmt: skip
        for percent in (50, 99, 99.9):
            short = f"{percent}".replace(".", "")
            figures[f"{name}_gap_p{short}_ms"] = round(gaps.percentile(percent) / 1e6, 2)
        figures[f"{name}_gap_max_ms"] = round(gaps.maximum / 1e6, 2)
        figures[f"{name}_gaps"] = gaps.count
    return figures
