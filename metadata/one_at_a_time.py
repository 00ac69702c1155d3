"""Changes of a catalog: one after another, each to its end, each on what the store holds then."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, ParamSpec, TypeVar

from metadata.stores import News, Stale, Store
from push.errors import Refused

STALE_MAX: Final = 100
"""So often a change is decided again before it is refused."""
ResultT = TypeVar("ResultT")
ParamsT = ParamSpec("ParamsT")


class OneAtATime:
    """Runs them; `learn` is told what others have changed meanwhile."""

    def __init__(self, store: Store, learn: Callable[[News], None]) -> None:
        self._store = store
        self._learn = learn
        self._lock = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()
        self.is_closed = False

    async def __call__(
        self,
        change: Callable[ParamsT, Coroutine[Any, Any, ResultT]],
        *args: ParamsT.args,
        **kwargs: ParamsT.kwargs,
    ) -> ResultT:
        """Run one change after the others, to its end, also when its caller is cancelled. Raises
        what it raises; Refused(storage_unavailable): it is closed, or others change the catalog
        all the time."""
        if self.is_closed:
            raise Refused("storage_unavailable", "the catalog is closed")

        async def in_turn() -> ResultT:
            async with self._lock:
                for _ in range(STALE_MAX):
                    # Also what changes nothing is decided by how it is, not by how it was here.
                    news = await self._store.news()
                    if news is not None:
                        self._learn(news)
                    with suppress(Stale):
                        return await change(*args, **kwargs)
            raise Refused("storage_unavailable", "others change the catalog all the time")

        task = asyncio.create_task(in_turn())
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    async def catch_up(self) -> None:
        """What others had changed before this was called has been learned. Nobody else changes it:
        at once. Raises Refused: as a change; nobody answers."""
        if self._store.is_shared:
            await self(_no_change)

    async def close(self) -> None:
        """Begin no more; those that have begun are finished when this returns."""
        self.is_closed = True
        if self._changes:
            await asyncio.wait(self._changes)


async def _no_change() -> None:
    """Before what is run is run, the news are read: that is all."""
