"""A metadata and a storage that stall, fail and lie, each around a real one."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from metadata.catalog import Principal, Queue
from metadata.data_keys import DataKeys
from push.errors import TocsinError
from push.places import Partition
from push.storage_port import Append, Appended, Lane, Read


class Mad:
    """A wrapper of a real object. Each asynchronous call waits while `stall` is set, then happens;
    its answer is held back while `late` is set. `fail` may raise an error instead of the call,
    `lose` an error instead of the answer."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.calls: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        """Asynchronous calls that have happened, whether or not the caller got an answer."""
        self.under_way: Counter[str] = Counter()
        """Calls that wait."""
        self.fail: Callable[[str], Exception | None] = lambda name: None
        self.lose: Callable[[str, Any, Any], Exception | None] = _nothing_is_lost
        """Called with name, arguments and named arguments of a call that has happened."""
        self.only: set[str] | None = None
        """Calls that stall; None: all."""
        self._goes = asyncio.Event()
        self._tells = asyncio.Event()
        self.well()

    def well(self) -> None:
        """Answer at once and truly from now on; waiting calls go on."""
        self._goes.set()
        self._tells.set()
        self.fail, self.lose = lambda name: None, _nothing_is_lost

    def stall(self, *only: str) -> None:
        """Let no call begin any more."""
        self.only = set(only) or None
        self._goes.clear()

    def late(self, *only: str) -> None:
        """Let every call happen, but give no answers."""
        self.only = set(only) or None
        self._tells.clear()

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.real, name)
        if not asyncio.iscoroutinefunction(real):
            if not callable(real):
                return real
            return self._counted(name, real)
        return lambda *args, **kwargs: self._run(name, real, args, kwargs)

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            error = self.fail(name)
            if error is not None:
                raise error
            return real(*args, **kwargs)

        return call

    async def _run(
        self, name: str, real: Callable[..., Awaitable[Any]], args: Any, kwargs: Any
    ) -> Any:
        self.calls[name] += 1
        is_meant = self.only is None or name in self.only
        if is_meant:
            self.under_way[name] += 1
            try:
                await self._goes.wait()
            finally:
                self.under_way[name] -= 1
        error = self.fail(name)
        if error is not None:
            raise error
        answer = await real(*args, **kwargs)
        self.answered[name] += 1
        if is_meant:
            await self._tells.wait()
        error = self.lose(name, args, kwargs)
        if error is not None:
            raise error
        return answer


def _nothing_is_lost(name: str, args: Any, kwargs: Any) -> None:
    """Lose no answer."""


class MadMetadata(Mad):
    """A metadata that may also answer for another name (`swapped`), or know queues that were not
    created through it (`elsewhere`)."""

    swapped: dict[str, str] = {}
    elsewhere: dict[str, Queue] = {}

    @property
    def data_keys(self) -> DataKeys:
        """The real data keys, whose writing stalls."""
        real = self.real.data_keys
        return DataKeys(real.all(), lambda *what: self._run("put_data_keys", real.put, what, {}))

    def find_queue(self, principal: Principal, name: str) -> Queue:
        """Return the queue with this name, or with the name that replaces it."""
        self.calls["find_queue"] += 1
        error = self.fail("find_queue")
        if error is not None:
            raise error
        if name in self.elsewhere:
            return self.elsewhere[name]
        found: Queue = self.real.find_queue(principal, self.swapped.get(name, name))
        return found


class MadStorage(Mad):
    """A storage that stalls, fails and lies."""

    async def append(
        self, appends: Sequence[Append], *, lane: Lane | None = None
    ) -> list[Appended]:
        """Append in the real storage, unless it stalls."""
        self.appends.append([append.partition for append in appends])
        answers: list[Appended] = await self._run(
            "append", self.real.append, (appends,), {"lane": lane}
        )
        return answers

    async def read(self, partition: Partition, *args: Any, **kwargs: Any) -> Read:
        """Read from the real storage. Reads of partitions in `stuck` stall."""
        if partition in self.stuck:
            self.calls["stuck"] += 1
            await self.unstuck.wait()
        read: Read = await self._run("read", self.real.read, (partition, *args), kwargs)
        return read

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.appends: list[list[Partition]] = []
        """The partitions of each call."""
        self.stuck: set[Partition] = set()
        self.unstuck = asyncio.Event()


async def code_of(call: Coroutine[Any, Any, Any]) -> str:
    """Return the code of the error that a call ends with; "" for none."""
    try:
        await call
    except TocsinError as error:
        return error.code.name
    return ""


def renamed(queue: Queue, name: str) -> Queue:
    """Return the same queue under another name."""
    return msgspec.structs.replace(queue, name=name)
