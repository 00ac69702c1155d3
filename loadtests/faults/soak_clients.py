"""The clients of a soak run, around a broker that is killed and started: three pipelining
producers, and a group that WebSockets and pulls share about 70 to 30."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from loadtests.checker.history import read_lines
from loadtests.checker.judge import judge
from loadtests.checker.verdict import Verdict
from loadtests.clients.pullers import Puller
from loadtests.clients.recorder import GROUP, GROUP_PLACE, QUEUE, ClientFailed, Door, RunState
from loadtests.clients.rest import Rest
from loadtests.clients.surviving_reader import SurvivingReader
from loadtests.clients.survivors import SurvivingConsumer, SurvivingProducer, Survivor

PRODUCERS: Final = 3
CONSUMERS: Final = 2
"""Number of WebSocket consumers. Each gets a third of the partitions, and so do all pulls
together."""
PULLERS: Final = 4
PARTITIONS: Final = 12
LEASE_S: Final = 3
QUEUE_SETTINGS: Final = {
    "partitions": PARTITIONS,
    "lease_s": LEASE_S,
    "attempts_max": 0,  # a message that meets many kills must not become a dead letter
    "backoff_s": 0.01,
    "backoff_max_s": 0.1,
}
KNOWN_TIMEOUT_S: Final = 10.0
TOLD_EVERY_S: Final = 15.0
QUIET_S: Final = 2 * LEASE_S + 2
"""When nothing was delivered for this time, although consumers were connected, nothing more will
come."""
REST_S: Final = 0.5
"""Wait after everything is settled, for deliveries that should not come any more."""
STALL_TIMEOUT_S: Final = 60.0
"""The longest time without an answer or a settlement while draining."""


class SoakClients:
    """The clients of a soak run; the owner starts and kills the broker meanwhile."""

    def __init__(
        self,
        field: RunState,
        *,
        producers: int = PRODUCERS,
        readers: int = 0,
        quiet_s: float = QUIET_S,
    ) -> None:
        """`quiet_s`: time without deliveries after which the run counts as ended."""
        self.field = field
        self._quiet_s = quiet_s
        self.producers = [SurvivingProducer(field, number) for number in range(producers)]
        self.consumers = [SurvivingConsumer(field, number) for number in range(CONSUMERS)]
        self.pullers = [Puller(field, number) for number in range(PULLERS)]
        self.readers = [SurvivingReader(field, number) for number in range(readers)]
        self._tasks: list[asyncio.Task[None]] = []

    async def prepare(self, **settings: object) -> None:
        """Create the queue, with these settings in addition, and the group, so that P1 counts from
        the first message on (R11). Wait until each gateway knows the group, which takes a second.

        Raises ClientFailed if a gateway does not know it within KNOWN_TIMEOUT_S.
        """
        rest = self._rest()
        try:
            await rest.call("PUT", f"/v1/queues/{QUEUE}", QUEUE_SETTINGS | settings)
            await rest.call("PUT", f"/v1/queues/{QUEUE}/groups/{GROUP}", {})
        finally:
            rest.close()
        deadline = time.monotonic() + KNOWN_TIMEOUT_S
        for door in self.field.doors:
            while not await self._is_known(door):
                if time.monotonic() > deadline:
                    raise ClientFailed(f"{door.url} does not know the queue that was made")
                await asyncio.sleep(0.05)

    async def _is_known(self, door: Door) -> bool:
        try:
            await self.description(door)
        except RuntimeError:
            return False
        return True

    def _rest(self, door: Door | None = None) -> Rest:
        return Rest((door or self.field.serving[0]).url, self.field.habits.token)

    def start(self) -> None:
        """Start all clients."""
        survivors: list[Survivor] = [*self.producers, *self.consumers, *self.readers]
        for run in (*(one.run for one in survivors), *(one.run for one in self.pullers)):
            self._tasks.append(asyncio.create_task(run()))

    def check(self) -> None:
        """Raise the failure of any client."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                task.result()

    async def wait(self, seconds: float) -> None:
        """Sleep, while watching the clients."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 0.1))
            self.check()

    async def flowing(self, messages: int, timeout_s: float = 60.0) -> None:
        """Wait until producers have receipts for `messages` more. Raises ClientFailed after
        `timeout_s`."""
        wanted = self.field.acknowledged + messages
        deadline = time.monotonic() + timeout_s
        while self.field.acknowledged < wanted:
            await self.wait(0.01)
            if time.monotonic() > deadline:
                raise ClientFailed(f"no {messages} messages were stored within {timeout_s} s")

    async def all_flowing(self, messages: int, timeout_s: float) -> bool:
        """Wait until each producer has `messages` more receipts; return whether that came in
        time."""
        wanted = [producer.stored + messages for producer in self.producers]
        deadline = time.monotonic() + timeout_s
        while any(one.stored < least for one, least in zip(self.producers, wanted, strict=True)):
            if time.monotonic() > deadline:
                return False
            await self.wait(0.02)
        return True

    def consuming(self, *, goes_on: bool) -> None:
        """Make all consumers and pulling clients leave without a word, or let them return
        (`goes_on`)."""
        for puller in self.pullers:
            puller.is_away = not goes_on
        for consumer in self.consumers:
            consumer.is_away = not goes_on
            if not goes_on and consumer.wire is not None:
                consumer.wire.abort()

    @property
    def in_flight(self) -> int:
        """Number of messages sent to the running broker and not answered."""
        return sum(producer.in_flight for producer in self.producers)

    async def drain(self, progress: Callable[[str], None]) -> None:
        """Let producers finish, and consumers go on until nothing is left or nothing comes any
        more. The judge calls a message that is missing then lost. Raises ClientFailed if it does
        not end."""
        self.field.producing = False
        deadline = time.monotonic() + STALL_TIMEOUT_S
        while sum(producer.unanswered for producer in self.producers):
            await self._until(deadline, "the producers got no answers")
        self.field.delivered_at = time.monotonic()
        left, told_at = len(self.field.missing) + 1, time.monotonic()
        # An ack whose answer a kill swallowed may count; only the broker knows that all is done.
        while self.field.missing and time.monotonic() - self.field.delivered_at < self._quiet_s:
            if time.monotonic() - self.field.delivered_at > REST_S and await self.lag() == 0:
                break
            if len(self.field.missing) < left:
                left, deadline = len(self.field.missing), time.monotonic() + STALL_TIMEOUT_S
            if time.monotonic() - told_at > TOLD_EVERY_S:
                told_at = time.monotonic()
                progress(f"{left:,} messages left")
            await self._until(deadline, "the consumers did not come to an end")
        while time.monotonic() - self.field.delivered_at < REST_S:
            await self._until(deadline, "more and more is delivered")
        deadline = time.monotonic() + QUIET_S  # the judge calls a message that is missing then lost
        while any(reader.given < self.field.acknowledged for reader in self.readers):
            await self.wait(0.05)
            if time.monotonic() > deadline:
                break

    async def lag(self) -> int:
        """Return the number of messages that the group has not settled, as the broker states it."""
        description = await self.description()
        return int(description["lag"])

    async def description(self, door: Door | None = None) -> dict[str, Any]:
        """Return the description of the group by this gateway, or by the first gateway that
        consumers use."""
        rest = self._rest(door)
        try:
            said: dict[str, Any] = await rest.call("GET", f"/v1/queues/{QUEUE}/groups/{GROUP}")
            return said
        finally:
            rest.close()

    async def _until(self, deadline: float, what: str) -> None:
        await self.wait(0.05)
        if time.monotonic() > deadline:
            raise ClientFailed(
                f"{what}: {sum(producer.unanswered for producer in self.producers)} unanswered, "
                f"{len(self.field.missing)} of {self.field.acknowledged} not settled"
            )

    async def leave(self) -> None:
        """Stop all clients and close the log."""
        self.field.stopping, self.field.producing = True, False
        for client in (*self.producers, *self.consumers, *self.readers):
            client.leave()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError, ClientFailed):
                await task
        self._tasks.clear()
        self.field.log.close()


def judge_log(log: Path) -> Verdict:
    """Return the verdict over the whole log of a drained run."""
    with log.open("rb") as lines:
        return judge(read_lines(lines), [GROUP_PLACE], drained=True)
