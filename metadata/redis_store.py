"""The catalog's rows in Redis or Valkey, where several gateways share them.

Each change is one atomic compare-and-set on the version of the whole catalog, on every copy that
could be elected when it returns (the level `all`). Changes are rare; what changes often, the
members of groups, has rows of its own (`metadata.redis_memberships`). Who else changes something
says so on a channel, which may lose it: so all gateways ask every POLL_S, too.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from metadata.catalog import Group, Queue
from metadata.data_keys import DataKey
from metadata.redis_memberships import RedisMemberships
from metadata.redis_reading import NOWHERE, Lost, Place, Reading, read_since
from metadata.redis_rows import (
    CHANGED,
    KEYS,
    NUMBERS,
    Damaged,
    key_of,
    pack,
    pack_struct,
    read_rows,
    unpack,
)
from metadata.shards import Arg, Shard
from metadata.store import columns_of, random_id
from metadata.stores import Alone, Contents, MembershipRows, News, Stale, other_generation
from metadata.tokens import TokenRecord
from push.errors import Refused, TocsinError

POLL_S: Final = 0.5
"""A change is known everywhere within a second, also when its notice was lost."""
CHANGES_KEPT: Final = 1000
"""A gateway that has missed more reads everything again."""
_LOG: Final = logging.getLogger(__name__)
Write = tuple[str, str, bytes]
"""Kind, id, value; b"": no longer there."""


class RedisStore:
    """`metadata.stores.Store` on a shard; made by `open`."""

    is_shared = True
    """See Store."""

    def __init__(
        self, shard: Shard, on_fatal: Callable[[str], None] | None, draw_id: Callable[[], str]
    ) -> None:
        self.root_secret = b""
        """See Store."""
        self.broken: str | None = None
        """See Store."""
        self._shard = shard
        self._on_fatal = on_fatal
        self._draw_id = draw_id
        self._seen = NOWHERE
        self._queues: set[str] = set()
        self._groups: dict[str, str] = {}
        """Id → queue id, as of what was dropped."""
        self._dropped: dict[str, str] = {}
        self._tokens: set[str] = set()
        self._rang = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        shard: Shard,
        *,
        found: bool = False,
        on_fatal: Callable[[str], None] | None = None,
        draw_id: Callable[[], str] = random_id,
    ) -> "tuple[RedisStore, Contents]":
        """Read the catalog of this shard; with `found`, make it where there is none.

        `on_fatal` is called on the event loop, once, with a sentence, when the catalog is no longer
        the one that was read, or an older copy of it, or damaged (R30): what is in this gateway's
        memory is then about queues that may not exist, and it must end.

        Raises:
            Refused: storage_unavailable: there is no catalog, it is damaged, or nobody answers.
            Unknown: too few copies answer in time.
        """
        store = cls(shard, on_fatal, draw_id)
        shard.on_message(CHANGED, store._heard)  # first: what changes from now on is not missed
        if found:
            await found_catalog(shard)
        try:
            reading = await read_since(shard, NOWHERE)
            assert reading is not None  # a catalog has a first version: that is news
            contents = read_rows(reading.raw)
            store.root_secret = unpack("catalog", "secret", reading.secret)
        except (Lost, Damaged) as error:
            raise Refused("storage_unavailable", f"the catalog cannot be used: {error}") from None
        store._learn(reading, contents)
        return store, contents

    # --- Following what others change ------------------------------------------------------------

    def _heard(self, _channel: bytes, message: bytes) -> None:
        if not message.isdigit() or int(message) > self._seen.version:
            self._rang.set()

    def follow(self, read: Callable[[], Awaitable[None]]) -> None:
        """See Store: when a channel says so, and every POLL_S."""
        self._following = asyncio.get_running_loop().create_task(self._follow(read))

    async def _follow(self, read: Callable[[], Awaitable[None]]) -> None:
        is_well = True
        while self.broken is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._rang.wait()
            self._rang.clear()
            try:
                await read()
                is_well = True
            except TocsinError as error:
                if is_well:
                    _LOG.warning("what others change in the catalog is not known here: %s", error)
                is_well = False

    async def news(self) -> News | None:
        """See Store."""
        self._check_well()
        try:
            reading = await read_since(self._shard, self._seen)
            if reading is None:
                return None
            contents = read_rows(reading.raw)
        except (Lost, Damaged) as error:
            raise self._stop(str(error)) from None
        return self._learn(reading, contents)

    def _learn(self, reading: Reading, contents: Contents) -> News:
        def gone(kind: str, known: Iterable[str], there: Iterable[str]) -> list[str]:
            rows = reading.raw.get(kind, {})
            told = set(known) if reading.is_all else set(rows)
            return sorted(told - set(there))

        there = {one.token_id for one in contents.tokens}
        rows = reading.raw.get("tokens", {})
        damaged = [one for one, value in rows.items() if value is not None and one not in there]
        if damaged:
            _LOG.error("damaged tokens, which admit nobody: %s", damaged)
        dropped = {group_id or queue_id: queue_id for queue_id, group_id in contents.dropped}
        news = News(
            contents,
            queues_gone=gone("queues", self._queues, [one.queue_id for one in contents.queues]),
            groups_gone=gone("groups", self._groups, [one.group_id for one in contents.groups]),
            tokens_gone=gone("tokens", self._tokens, there),
            forgotten=gone("dropped", {*self._dropped, *self._queues, *self._groups}, dropped),
        )
        self._queues = (self._queues - set(news.queues_gone)) | {
            one.queue_id for one in contents.queues
        }
        self._tokens = (self._tokens - set(news.tokens_gone)) | there
        self._groups |= {one.group_id: one.queue_id for one in contents.groups}
        self._dropped |= dropped
        for group_id in news.groups_gone:
            self._groups.pop(group_id, None)
        for any_id in news.forgotten:
            self._dropped.pop(any_id, None)
        self._seen = reading.place
        return news

    def _stop(self, why: str) -> Refused:
        self.broken = f"the catalog must not be followed any more: {why}"
        _LOG.critical("%s", self.broken)
        if self._on_fatal is not None:
            self._on_fatal(self.broken)
        return Refused("storage_unavailable", self.broken)

    def _check_well(self) -> None:
        if self.broken is not None:
            raise Refused("storage_unavailable", self.broken)

    # --- Changing --------------------------------------------------------------------------------

    async def _change(self, writes: Sequence[Write], row: tuple[str, int] = ("", 0)) -> None:
        """All of these or none, if nobody has changed the catalog since its news were read. `row`:
        a group whose row must be of this generation; Fenced: it is not."""
        self._check_well()
        seen, stamp = self._seen, secrets.token_hex(8)
        args: list[Arg] = [
            seen.incarnation, seen.version, seen.stamp, stamp, CHANGES_KEPT, CHANGED,
            NUMBERS["memberships"], *row,
        ]  # fmt: skip
        for kind, row_id, value in writes:
            args += [NUMBERS[kind], row_id, value]
        answer = await self._shard.act("catalog_change", KEYS, args, level="all")
        if answer == -1:
            raise other_generation(row[0])
        if answer != 1:
            raise Stale
        self._seen = Place(seen.incarnation, seen.version + 1, stamp)

    def memberships(self, alone: Alone) -> MembershipRows:
        """See Store."""
        return RedisMemberships(self._shard)

    async def fresh_id(self) -> str:
        """See Store."""
        while True:
            drawn = self._draw_id()
            if await self._shard.look("catalog_row", [key_of("ids")], [drawn]) is None:
                return drawn

    async def create(self, rows: Sequence[Queue | Group]) -> None:
        """See Store."""
        writes: list[Write] = []
        for row in rows:
            kind, row_id = _place_of(row)
            writes.append(("ids", row_id, row.queue_id.encode()))
            writes.append((kind, row_id, pack_struct(kind, row_id, row)))
        await self._change(writes)
        self._queues |= {row.queue_id for row in rows if isinstance(row, Queue)}
        self._groups |= {row.group_id: row.queue_id for row in rows if isinstance(row, Group)}

    async def change(self, row: Queue | Group) -> None:
        """See Store."""
        kind, row_id = _place_of(row)
        await self._change([(kind, row_id, pack_struct(kind, row_id, row))])

    async def drop_queue(self, queue_id: str) -> None:
        """See Store."""
        groups = [one for one, owner in self._groups.items() if owner == queue_id]
        before = [one for one, owner in self._dropped.items() if owner == queue_id]
        await self._change(
            [
                ("queues", queue_id, b""),
                *(("groups", group_id, b"") for group_id in groups),
                *(("memberships", group_id, b"") for group_id in groups),
                *(("dropped", group_id, b"") for group_id in before),
                _dropped(queue_id, queue_id),
            ]
        )
        self._queues.discard(queue_id)
        for group_id in groups:
            del self._groups[group_id]
        for group_id in before:
            del self._dropped[group_id]
        self._dropped[queue_id] = queue_id

    async def drop_group(self, group_id: str, generation: int | None) -> None:
        """See Store."""
        queue_id = self._groups[group_id]
        await self._change(
            [
                ("groups", group_id, b""),
                ("memberships", group_id, b""),
                _dropped(group_id, queue_id),
            ],
            ("", 0) if generation is None else (group_id, generation),
        )
        del self._groups[group_id]
        self._dropped[group_id] = queue_id

    async def forget(self, any_id: str) -> None:
        """See Store."""
        await self._change([("dropped", any_id, b"")])
        self._dropped.pop(any_id, None)

    async def put_token(self, record: TokenRecord) -> None:
        """See Store."""
        row_id = record.token_id
        await self._change([("tokens", row_id, pack_struct("tokens", row_id, record))])
        self._tokens.add(row_id)

    async def drop_token(self, token_id: str) -> None:
        """See Store."""
        await self._change([("tokens", token_id, b"")])
        self._tokens.discard(token_id)

    async def put_data_keys(self, rows: Sequence[DataKey]) -> None:
        """See Store."""
        named = [(row.key_id.hex(), row) for row in rows]
        await self._change(
            [("data_keys", row_id, pack_struct("data_keys", row_id, row)) for row_id, row in named]
        )

    async def set_mark(self, name: str, value: str) -> None:
        """See Store."""
        await self._change([("marks", name, pack("marks", name, value.encode()))])

    async def copy_to(self, path: Path) -> None:
        """See Store. Raises Refused(storage_unavailable) always: servers copy what they hold."""
        raise Refused(
            "storage_unavailable", "this catalog is on Redis: copy the files of its servers"
        )

    async def close(self) -> None:
        """See Store. The shard stays open."""
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following


async def found_catalog(shard: Shard) -> None:
    """Make an empty catalog where there is none; else nothing happens. Raises Refused, Unknown."""
    secret = pack("catalog", "secret", secrets.token_bytes(32))
    args: list[Arg] = [secrets.token_hex(8), secrets.token_hex(8), secret]
    await shard.act("catalog_found", KEYS, args, level="all")


def _place_of(row: Queue | Group) -> tuple[str, str]:
    return "queues" if isinstance(row, Queue) else "groups", columns_of(row)[0]


def _dropped(any_id: str, queue_id: str) -> Write:
    return "dropped", any_id, pack("dropped", any_id, queue_id.encode())
