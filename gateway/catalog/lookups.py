"""Look up names. An answer counts for a moment, and longer while the catalog does not answer.

    fresh     it was looked up less than METADATA_FRESH_S ago, and is the answer
    missing   it was unknown less than METADATA_FRESH_S ago, and is refused without asking again
    stale     the catalog does not answer, so the last answer counts for METADATA_STALE_S

A change that is notified is put or dropped, and counts at once.

Before a name that is not known here is refused, `CatchUp` reads what other gateways have just
changed in the catalog. The same client may have made it a moment ago, through another gateway. A
caller that comes while the catalog is being read waits for the next read, because this one may have
begun too early. There is one read at a time, and at most one in CATCH_UP_EVERY_S, however many
unknown names are requested.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import asdict, dataclass
from typing import Final, Generic, TypeVar

from gateway.counters import HitRate
from metadata.catalog import Principal, Queue
from metadata.port import Metadata
from push import limits
from push.errors import Refused, TocsinError

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


@dataclass(slots=True)
class Oddities:
    """Counts of answers that were no plain hit or miss, since this gateway began."""

    unknown_hits: int = 0
    """Number of refusals from memory, because the name was refused a moment ago. They count as hits
    too."""
    stale: int = 0
    """Number of old answers that were used because the catalog did not answer."""
    lies: int = 0
    """Number of answers of the metadata about something else than was requested, which were not
    used."""


@dataclass(slots=True)
class _Known(Generic[ValueT]):
    value: ValueT
    stale_at: float


class Lookups(Generic[KeyT, ValueT]):
    """Answers of the catalog about names of one kind, queues or groups: each for a moment, and
    longer while the catalog does not answer. Times are those of the loop's clock."""

    def __init__(self, unknown: str, *, known_max: int) -> None:
        """Begin without names. `unknown`: the code with which the catalog refuses an unknown name.
        `known_max`: the largest number of names that are remembered."""
        self._unknown = unknown
        self._known_max = known_max
        self.fresh: dict[KeyT, ValueT] = {}
        """Name → answer, for answers of the last METADATA_FRESH_S. A caller looks here first,
        before `find`, and counts a hit if it finds its answer. A timer clears the whole map, so
        that a look-up need not compare times, because it is on the path of every publish."""
        self._clearing: asyncio.TimerHandle | None = None
        self._known: dict[KeyT, _Known[ValueT]] = {}
        self._missing: dict[KeyT, tuple[float, str, str]] = {}
        """Name → (time until which it is refused from memory, code, detail)."""
        self.hit_rate = HitRate()
        self.oddities = Oddities()

    def find(
        self,
        key: KeyT,
        now: float,
        ask: Callable[[], ValueT],
        is_answer: Callable[[ValueT], bool],
    ) -> ValueT:
        """Return the value of a name that is not in `fresh`. `ask` looks it up; `is_answer` says
        whether an answer is one to this question.

        Raises:
            TocsinError: the error of `ask`, because the name is unknown, or because the catalog
                does not answer and the name was not known in the last METADATA_STALE_S.
        """
        missing = self._missing.get(key)
        if missing is not None and now < missing[0]:
            self.oddities.unknown_hits += 1
            self.hit_rate.hits += 1
            raise Refused(missing[1], missing[2])
        self.hit_rate.misses += 1
        known = self._known.get(key)
        try:
            value = ask()
            if not is_answer(value):
                self.oddities.lies += 1
                raise Refused(
                    "metadata_unavailable",
                    "the metadata answered another question: try again",
                    1.0,
                )
        except TocsinError as error:
            if error.code.name == self._unknown:
                self.drop(key)
            elif known is not None and now < known.stale_at:
                self.oddities.stale += 1
                self._freshen(key, known.value)  # so that it is not looked up each time
                return known.value
            self._miss(key, now, error)
            raise
        self.put(key, value, now)
        return value

    def _miss(self, key: KeyT, now: float, error: TocsinError) -> None:
        self._missing.pop(key, None)
        while len(self._missing) >= limits.NAMES_UNKNOWN_MAX:
            del self._missing[next(iter(self._missing))]
        self._missing[key] = (now + limits.METADATA_FRESH_S, error.code.name, error.detail)

    def put(self, key: KeyT, value: ValueT, now: float) -> None:
        """Use this value for the name from now on."""
        self._missing.pop(key, None)
        self._known.pop(key, None)
        while len(self._known) >= self._known_max:
            del self._known[next(iter(self._known))]
        self._known[key] = _Known(value, now + limits.METADATA_STALE_S)
        self._freshen(key, value)

    def _freshen(self, key: KeyT, value: ValueT) -> None:
        self.fresh[key] = value
        if self._clearing is None:
            loop = asyncio.get_running_loop()
            self._clearing = loop.call_later(limits.METADATA_FRESH_S, self._clear)

    def _clear(self) -> None:
        self._clearing = None
        self.fresh.clear()

    def close(self) -> None:
        """Cancel the timer."""
        if self._clearing is not None:
            self._clearing.cancel()

    def drop(self, key: KeyT) -> None:
        """Forget the answer about a name that no longer exists. If there is none, nothing
        happens."""
        self._known.pop(key, None)
        self.fresh.pop(key, None)

    def facts(self) -> dict[str, object]:
        """Return the counts, for operators."""
        return {**self.hit_rate.shown(), **asdict(self.oddities), "known": len(self._known)}


CATCH_UP_EVERY_S: Final = 0.02


class CatchUp:
    """Reads of what other gateways have changed. `read` raises TocsinError if the catalog does not
    answer."""

    def __init__(self, read: Callable[[], Awaitable[None]]) -> None:
        self._read = read
        self._next: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._began = float("-inf")

    async def __call__(self) -> None:
        """Wait until every change that was made before this call is known. Raises like `read`."""
        if self._next is None:
            self._next = asyncio.create_task(self._in_turn())
        await asyncio.shield(self._next)

    async def _in_turn(self) -> None:
        if self._reading is not None:
            await asyncio.wait([self._reading])  # its own callers get its error, if any
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._began + CATCH_UP_EVERY_S - loop.time()))
        self._began = loop.time()
        self._reading, self._next = self._next, None
        await self._read()


async def find_queue(metadata: Metadata, principal: Principal, name: str) -> Queue:
    """Return the queue of this name, even if it has just been made through another gateway. Raises
    Refused (queue_not_found, metadata_unavailable)."""
    try:
        return metadata.find_queue(principal, name)
    except Refused as error:
        if not metadata.is_shared or error.code.name != "queue_not_found":
            raise
    await metadata.catch_up()
    return metadata.find_queue(principal, name)
