"""Programs that use the SDK as its users do, and record its results: producers, consumers of a
group with handlers, readers."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, Final

import tocsin

from loadtests.checker.sdk_history import Reading, SdkHistory

QUEUE: Final = "trial"
GROUP: Final = "workers"
GROUP_PLACE: Final = f"{QUEUE}/{GROUP}"
KEYS: Final = 600
TICK_S: Final = 0.02
UNANSWERED_MAX: Final = 3_000
"""The most unanswered messages of one producer. Messages that are due beyond them are left out."""
CONFIRM_CHANCE: Final = 0.05
PUBLISH_TIMEOUT_S: Final = 300.0

Handler = Callable[[tocsin.Message], Awaitable[None]]


class ProgramFailed(RuntimeError):
    """The SDK raised what it never should; the trial ends as failed."""


class Program:
    """A task around a client of its own."""

    def __init__(self, name: str, client: tocsin.Client) -> None:
        self.name = name
        self.client = client
        self.failure: BaseException | None = None
        self.ready = asyncio.Event()
        """Set when the program is connected, and has joined what it wanted to join; a `Saying` has
        published, too."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the program."""
        self._task = asyncio.create_task(self._guarded(), name=self.name)

    async def _guarded(self) -> None:
        try:
            async with self.client:
                await self.run()
        except (tocsin.TocsinError, OSError, ValueError, BaseExceptionGroup) as error:
            self.failure = error

    async def run(self) -> None:
        """Do the program's work, while its client is connected."""
        raise AssertionError

    def check(self) -> None:
        """Raise ProgramFailed for an error that the program does not expect."""
        error = self.failure
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if error is not None:
            raise ProgramFailed(f"{self.name}: {error!r}") from error

    async def leave(self) -> None:
        """Close the client, which ends the program's work."""
        if self._task is not None:
            with contextlib.suppress(tocsin.TocsinError, OSError):
                await self.client.close()
            self._task.cancel()
            await asyncio.wait((self._task,))


class Producing(Program):
    """A producer of `rate_per_s` messages of KEYS keys. It publishes those that are due in one
    call, or sometimes each in a call of its own."""

    def __init__(
        self,
        name: str,
        client: tocsin.Client,
        book: SdkHistory,
        *,
        rate_per_s: float,
        random: Random,
    ) -> None:
        super().__init__(name, client)
        self._book = book
        self._rate_per_s = rate_per_s
        self._random = random
        self._next = 0
        self._calls: set[asyncio.Task[None]] = set()
        self.unanswered = 0
        self.stopping = False
        self.done = asyncio.Event()
        """Set when the producer was stopped and every publish has returned or raised an error."""

    async def run(self) -> None:
        """Publish until `stopping`, then wait until all is answered."""
        self.ready.set()
        began, sent = time.monotonic(), 0
        while not self.stopping:
            due = int((time.monotonic() - began) * self._rate_per_s) - sent
            sent += due  # messages left out because too many are unanswered are not made up for
            count = min(due, UNANSWERED_MAX - self.unanswered)
            if count > 0:
                self._call(self._messages(count))
            await asyncio.sleep(TICK_S)
        if self._calls:
            await asyncio.wait(self._calls)
        self.done.set()
        await asyncio.Event().wait()

    def _messages(self, count: int) -> list[dict[str, Any]]:
        found = []
        for _ in range(count):
            body, key = f"{self.name}-{self._next}", f"k{self._random.randrange(KEYS)}"
            self._next += 1
            self._book.publishes(body, key)
            found.append({"body": body, "key": key})
        return found

    def _call(self, messages: list[dict[str, Any]]) -> None:
        self.unanswered += len(messages)
        one_by_one = self._random.random() < 0.25
        call = self._singly(messages) if one_by_one else self._together(messages)
        task = asyncio.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _together(self, messages: list[dict[str, Any]]) -> None:
        try:
            outcomes: Sequence[object] = await self.client.publish_many(
                QUEUE, messages, timeout_s=PUBLISH_TIMEOUT_S
            )
        except tocsin.PublishManyFailed as error:
            outcomes = error.outcomes
        except Exception as error:  # `_answered` fails the program for any such error
            outcomes = [error] * len(messages)
        self._answered(messages, outcomes)

    async def _singly(self, messages: list[dict[str, Any]]) -> None:
        calls = [
            self.client.publish(QUEUE, one["body"], key=one["key"], timeout_s=PUBLISH_TIMEOUT_S)
            for one in messages
        ]
        self._answered(messages, await asyncio.gather(*calls, return_exceptions=True))

    def _answered(
        self,
        messages: list[dict[str, Any]],
        outcomes: Sequence[object],
    ) -> None:
        self.unanswered -= len(messages)
        for one, outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, tocsin.Receipt) and outcome.offset is not None:
                self._book.returned(one["body"], outcome.partition, outcome.offset)
                continue
            self._book.failed(one["body"])
            if not isinstance(outcome, tocsin.PublishTimeout | tocsin.ClientClosed):
                self.failure = self.failure or ProgramFailed(f"{one['body']}: {outcome!r}")


class Saying(Program):
    """A producer that publishes these (body, key), in order, once."""

    def __init__(
        self,
        name: str,
        client: tocsin.Client,
        book: SdkHistory,
        *,
        messages: Sequence[tuple[str, str]],
    ) -> None:
        super().__init__(name, client)
        self._book = book
        self._messages = messages

    async def run(self) -> None:
        """Publish; the program is `ready` when all have returned."""
        for body, key in self._messages:
            self._book.publishes(body, key)
        wanted = [{"body": body, "key": key} for body, key in self._messages]
        receipts = await self.client.publish_many(QUEUE, wanted, timeout_s=PUBLISH_TIMEOUT_S)
        for (body, _), receipt in zip(self._messages, receipts, strict=True):
            assert receipt.offset is not None
            self._book.returned(body, receipt.partition, receipt.offset)
        self.ready.set()
        await asyncio.Event().wait()


class Consuming(Program):
    """A member of the group. Its handler does `work`, and then acks the message by returning, or
    sometimes with confirmation."""

    def __init__(
        self, name: str, client: tocsin.Client, book: SdkHistory, *, work: Handler,
        concurrency: int, random: Random, acks: bool = True, **subscribing: Any,
    ) -> None:  # fmt: skip
        """`acks` False: handlers do not return after their work, so nothing is acked; the negative
        control. `subscribing`: further arguments of `Client.subscribe`."""
        super().__init__(name, client)
        self._book = book
        self._work = work
        self._concurrency = concurrency
        self._random = random
        self._acks = acks
        self._subscribing = subscribing
        self.confirmed = 0
        """Number of acks for whose confirmation a handler has waited."""

    async def run(self) -> None:
        """Consume until the client is closed."""
        joining = self.client.subscribe(QUEUE, group=GROUP, **self._subscribing)
        async with joining as subscription:
            self.ready.set()
            await subscription.run(self._handle, concurrency=self._concurrency)

    async def _handle(self, message: tocsin.Message) -> None:
        place, body = (message.partition, message.offset), str(message.body)
        self._book.starts(body, message.key, place)
        try:
            await self._work(message)
        finally:
            self._book.ends(body, place)
        if not self._acks:
            await asyncio.Event().wait()
        if self._random.random() < CONFIRM_CHANCE:
            with contextlib.suppress(tocsin.OutcomeUnknown, tocsin.StaleDelivery):
                await message.ack(confirm=True)
                self.confirmed += 1


def sleeping(random: Random, from_s: float, to_s: float) -> Handler:
    """Return a handler that sleeps for a random time from `from_s` to `to_s` seconds."""

    async def work(_: tocsin.Message) -> None:
        await asyncio.sleep(random.uniform(from_s, to_s))

    return work


class Following(Program):
    """A reader of the queue from its earliest message, of the given keys, or of all if `keys` is
    empty."""

    def __init__(
        self, name: str, client: tocsin.Client, book: SdkHistory, *, keys: Sequence[str] = ()
    ) -> None:
        super().__init__(name, client)
        self._book = book
        self._keys = list(keys) or None
        self.reading = Reading(frozenset(keys))
        book.readings.append(self.reading)

    async def run(self) -> None:
        """Read until the client is closed. A gap is an exception, and so a failure."""
        async with self.client.read(QUEUE, self._keys, start="earliest") as reader:
            self.ready.set()
            async for message in reader:
                place = (message.partition, message.offset)
                self._book.reads(self.reading, str(message.body), message.key, place)
