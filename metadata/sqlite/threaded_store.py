"""The catalog's file behind the interface of all stores: each act in the one thread of the file."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from metadata.catalog import Group, Membership, Queue
from metadata.data_keys import DataKey
from metadata.memberships import KeptMemberships
from metadata.sqlite.store import CatalogStore
from metadata.stores import Alone, Contents, MembershipRows, News
from metadata.tokens import TokenRecord
from push.errors import Unknown

_LOG: Final = logging.getLogger("metadata.inprocess")
ResultT = TypeVar("ResultT")
ParamsT = ParamSpec("ParamsT")


class ThreadedStore:
    """`metadata.stores.Store` over one SQLite file, which nobody else changes; made by `open`."""

    is_shared = False
    """See Store."""

    def __init__(
        self,
        file: CatalogStore,
        contents: Contents,
        thread: ThreadPoolExecutor,
        on_fatal: Callable[[str], None] | None,
    ) -> None:
        self.file = file
        """What the thread works on."""
        self._before: list[Membership] = contents.memberships
        self._rows: KeptMemberships | None = None
        self._thread = thread
        self._on_fatal = on_fatal

    @classmethod
    async def open(
        cls, path: Path, *, on_fatal: Callable[[str], None] | None = None
    ) -> "tuple[ThreadedStore, Contents]":
        """Open the file, or make it, and hold it alone until `close`; what is in it.

        `on_fatal` is called on the event loop, once, with a sentence, when the outcome of a commit
        is unknown: the process must end and start again from the file (R31). Until it does, every
        change is refused and what is looked up is what was known to be durable.

        Raises:
            Refused: storage_unavailable, with a sentence for the operator: in use by another
                process, of a newer version, damaged, not readable or writable.
        """

        def start() -> tuple[CatalogStore, Contents]:
            file = CatalogStore(path)
            try:
                return file, file.load()
            except BaseException:
                file.close()
                raise

        thread = ThreadPoolExecutor(1, thread_name_prefix="catalog")
        try:
            file, contents = await asyncio.get_running_loop().run_in_executor(thread, start)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(file, contents, thread, on_fatal), contents

    @property
    def root_secret(self) -> bytes:
        """See Store."""
        return self.file.root_secret

    @property
    def broken(self) -> str | None:
        """See Store."""
        return self.file.broken

    @property
    def age_s(self) -> float:
        """See Store."""
        return 0.0

    def follow(self, read: Callable[[], Awaitable[None]], cut_off: Callable[[], None]) -> None:
        """See Store: nobody else changes it."""

    async def news(self) -> News | None:
        """See Store: there are none."""
        return None

    def memberships(self, alone: Alone) -> MembershipRows:
        """See Store."""
        self._rows = KeptMemberships(self.file.boot, self._before, self._put_memberships, alone)
        return self._rows

    async def _put_memberships(self, rows: list[Membership]) -> None:
        await self._run(self.file.put_memberships, rows)

    async def fresh_id(self) -> str:
        """See Store."""
        return await self._run(self.file.fresh_id)

    async def create(self, rows: Sequence[Queue | Group]) -> None:
        """See Store."""
        await self._run(self.file.create, rows)

    async def change(self, row: Queue | Group) -> None:
        """See Store."""
        await self._run(self.file.change, row)

    async def drop_queue(self, queue_id: str) -> None:
        """See Store."""
        await self._run(self.file.drop_queue, queue_id)

    async def drop_group(self, group_id: str, generation: int | None) -> None:
        """See Store."""
        if generation is None or self._rows is None:
            await self._run(self.file.drop_group, group_id)
        else:
            drop = partial(self._run, self.file.drop_group, group_id)
            await self._rows.end(group_id, generation, drop)

    async def forget(self, any_id: str) -> None:
        """See Store."""
        await self._run(self.file.forget, any_id)

    async def put_token(self, record: TokenRecord) -> None:
        """See Store."""
        await self._run(self.file.put_token, record)

    async def drop_token(self, token_id: str) -> None:
        """See Store."""
        await self._run(self.file.drop_token, token_id)

    async def put_data_keys(self, rows: Sequence[DataKey]) -> None:
        """See Store."""
        await self._run(self.file.put_data_keys, rows)

    async def set_mark(self, name: str, value: str) -> None:
        """See Store."""
        await self._run(self.file.set_mark, name, value)

    async def copy_to(self, path: Path) -> None:
        """See CatalogStore."""
        await self._run(self.file.copy_to, path)

    async def close(self) -> None:
        """See Store."""
        await self._run(self.file.close)
        self._thread.shutdown()

    async def _run(
        self, act: Callable[ParamsT, ResultT], *args: ParamsT.args, **kwargs: ParamsT.kwargs
    ) -> ResultT:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, lambda: act(*args, **kwargs))
        except Unknown as error:
            _LOG.critical("%s", error.detail)
            if self._on_fatal is not None:
                self._on_fatal(error.detail)
            raise
