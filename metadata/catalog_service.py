"""The metadata in this process: the catalog in memory, each change durable in its store first.

`CatalogService` is a shell. `CatalogIndex` answers look-ups from memory, each by a dictionary, for
any number of queues. `ChangeQueue` makes changes through a `Store`: one after another, each to its
end, each on the store's state at that moment. A change that has begun is finished even when its
caller is cancelled, so that memory and store never differ. Where other gateways change the same
store, their changes come into the memory as news. A change that was decided without them is decided
again.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import msgspec

from metadata.backend import Contents, News, Stale, Store
from metadata.catalog import (
    DELETED_QUEUES_MARK,
    Group,
    GroupSettings,
    GroupStart,
    Membership,
    Principal,
    Queue,
    QueueSettings,
    add_deleted_queue,
    check_circle,
    check_group_settings,
    check_settings,
)
from metadata.data_keys import DataKey, DataKeys, Outdated, Still
from metadata.port import QueueListener
from metadata.settings import (
    Named,
    change_group_settings,
    change_queue_settings,
    differences,
    settings_differ,
)
from metadata.token_store import TokenStore
from push.errors import Refused
from push.limits import GROUPS_PER_QUEUE_MAX, QUEUES_MAX
from push.places import check_name
from push.ring import HASH_KEY_BYTES


class CatalogIndex:
    """Queues by tenant and name and by id, groups by queue and name and by id."""

    def __init__(self, queues: Iterable[Queue] = (), groups: Iterable[Group] = ()) -> None:
        self._by_id: dict[str, Queue] = {}
        self._tenants: dict[str, dict[str, Queue]] = {}
        self._groups: dict[str, dict[str, Group]] = {}
        self._group_by_id: dict[str, Group] = {}
        for queue in queues:
            self.put_queue(queue)
        for group in groups:
            self.put_group(group)

    def __len__(self) -> int:
        """Number of queues, of all tenants."""
        return len(self._by_id)

    def queue(self, queue_id: str) -> Queue | None:
        """Return the queue of this id."""
        return self._by_id.get(queue_id)

    def find_queue(self, tenant: str, name: str) -> Queue | None:
        """Return the tenant's queue of this name."""
        return self._tenants.get(tenant, {}).get(name)

    def queues(self, tenant: str) -> list[Queue]:
        """Return a tenant's queues, sorted by name."""
        return [queue for _, queue in sorted(self._tenants.get(tenant, {}).items())]

    def all_queues(self) -> list[Queue]:
        """Return the queues of all tenants, in no order."""
        return list(self._by_id.values())

    def group(self, group_id: str) -> Group | None:
        """Return the group of this id."""
        return self._group_by_id.get(group_id)

    def find_group(self, queue_id: str, name: str) -> Group | None:
        """Return the queue's group of this name."""
        return self._groups.get(queue_id, {}).get(name)

    def groups(self, queue_id: str) -> list[Group]:
        """Return a queue's groups, sorted by name."""
        return [group for _, group in sorted(self._groups.get(queue_id, {}).items())]

    def put_queue(self, queue: Queue) -> None:
        """Add a queue, or replace the one of its id."""
        self._by_id[queue.queue_id] = queue
        self._tenants.setdefault(queue.tenant, {})[queue.name] = queue

    def put_group(self, group: Group) -> None:
        """Add a group, or replace the one of its id."""
        self._group_by_id[group.group_id] = group
        self._groups.setdefault(group.queue_id, {})[group.name] = group

    def remove_queue(self, queue: Queue) -> list[Group]:
        """Remove a queue and return its groups, which are removed too."""
        groups = self.groups(queue.queue_id)
        for group in groups:
            self.remove_group(group)
        del self._by_id[queue.queue_id]
        tenant = self._tenants[queue.tenant]
        del tenant[queue.name]
        if not tenant:
            del self._tenants[queue.tenant]
        return groups

    def remove_group(self, group: Group) -> None:
        """Remove a group."""
        del self._group_by_id[group.group_id]
        groups = self._groups[group.queue_id]
        del groups[group.name]
        if not groups:
            del self._groups[group.queue_id]


STALE_MAX: Final = 100
"""Number of times that a change is decided, because others change the catalog meanwhile, before it
is refused."""
ResultT = TypeVar("ResultT")
ParamsT = ParamSpec("ParamsT")


class ChangeQueue:
    """Runs changes of the catalog one after another; `learn` receives what others changed
    meanwhile."""

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
        """Run one change after the others, to its end, even when its caller is cancelled. Raises
        what the change raises, and Refused(storage_unavailable) when this is closed, or when others
        change the catalog again and again."""
        if self.is_closed:
            raise Refused("storage_unavailable", "the catalog is closed")

        async def in_turn() -> ResultT:
            async with self._lock:
                for _ in range(STALE_MAX):
                    # A change without effect, too, is decided by the present state, not by the
                    # state known here.
                    news = await self._store.news()
                    if news is not None:
                        self._learn(news)
                    with suppress(Stale):
                        return await change(*args, **kwargs)
            raise Refused("storage_unavailable", "others change the catalog: try again later")

        task = asyncio.create_task(in_turn())
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    async def catch_up(self) -> None:
        """Learn every change that others had made before this call. Returns at once if nobody else
        changes the catalog. Raises Refused like a change, and when the store does not answer."""
        if self._store.is_shared:
            await self(_no_change)

    async def close(self) -> None:
        """Accept no more changes, and wait for those that have begun."""
        self.is_closed = True
        if self._changes:
            await asyncio.wait(self._changes)


async def _no_change() -> None:
    """Change nothing: the run itself has read the news before."""


_LOG: Final = logging.getLogger("metadata.inprocess")
Placing = Callable[[str, QueueSettings], tuple[str, ...]]
"""Returns `Queue.clusters` of a new queue with this id and these settings. Raises Refused."""


class CatalogService:
    """`metadata.port.Metadata` over a store and its contents."""

    def __init__(self, store: Store, contents: Contents) -> None:
        self._store = store
        self._index = CatalogIndex(contents.queues, contents.groups)
        self._dropped, self._marks = contents.dropped, contents.marks
        self._changes = ChangeQueue(store, self._learn)
        self._memberships = store.memberships(self._changes)
        self.is_shared, self.said = store.is_shared, self._memberships.said
        self.catch_up = self._changes.catch_up
        self.data_keys = DataKeys(
            contents.data_keys,
            lambda rows, still: self._changes(self._put_data_keys, rows, still),
            self.catch_up if store.is_shared else None,
        )
        self._placing: Placing | None = None
        self._listeners: list[QueueListener] = []
        self.tokens = TokenStore(store, contents.tokens, run_change=self._changes)
        store.follow(self.catch_up, self.tokens.doubt)

    # --- Looking up, from memory -----------------------------------------------------------------

    def find_queue(self, principal: Principal, name: str) -> Queue:
        queue = self._index.find_queue(principal.tenant, name)
        if queue is None:
            raise Refused("queue_not_found", f"no queue {name!r}")
        return queue

    def find_group(self, principal: Principal, queue: Queue, name: str) -> Group:
        group = self._index.find_group(queue.queue_id, name)
        if group is None or queue.tenant != principal.tenant:
            raise Refused("group_not_found", f"no group {name!r} of queue {queue.name!r}")
        return group

    def queue_by_id(self, queue_id: str) -> Queue | None:
        return self._index.queue(queue_id)

    def list_queues(self, principal: Principal) -> list[Queue]:
        return self._index.queues(principal.tenant)

    def list_all_queues(self) -> list[Queue]:
        return self._index.all_queues()

    def list_groups(self, principal: Principal, queue: Queue) -> list[Group]:
        return self._index.groups(queue.queue_id) if queue.tenant == principal.tenant else []

    def dropped(self) -> list[tuple[str, str | None]]:
        return list(self._dropped)

    def secret(self, name: str) -> bytes:
        """Derive a secret from the one that was made with the catalog."""
        return blake2b(name.encode(), digest_size=32, key=self._store.root_secret).digest()

    def mark(self, name: str) -> str | None:
        return self._marks.get(name)

    def place_queues(self, placing: Placing) -> None:
        """Choose the storage clusters of new queues with `placing` from now on. Before this call,
        rows of new queues name no cluster."""
        self._placing = placing

    # --- Changing --------------------------------------------------------------------------------

    async def put_queue(
        self,
        principal: Principal,
        name: str,
        settings: QueueSettings,
        named: frozenset[str] = frozenset(),
    ) -> tuple[Queue, bool]:
        check_name(name, "queue")
        return await self._changes(self._put_queue, principal, name, settings, named)

    async def _put_queue(
        self, principal: Principal, name: str, settings: QueueSettings, named: frozenset[str]
    ) -> tuple[Queue, bool]:
        old = self._index.find_queue(principal.tenant, name)
        if old is not None and not differences(old.settings, settings, named):
            return old, False
        check_settings(name, settings)
        if old is not None:
            raise settings_differ(f"the queue {name!r}", old.settings, settings, named)
        if len(self._index) >= QUEUES_MAX:
            raise Refused("limit_reached", f"at most {QUEUES_MAX} queues")
        queue_id = await self._store.fresh_id()
        queue = Queue(
            queue_id=queue_id,
            name=name,
            tenant=principal.tenant,
            holder=principal.name,
            created_unix_ms=_unix_ms(),
            settings=settings,
            ring_epoch=1,
            members=tuple(range(settings.partitions)),
            hash_key=secrets.token_bytes(HASH_KEY_BYTES),
            clusters=self._placing(queue_id, settings) if self._placing is not None else (),
        )
        check_circle(queue, partial(self._index.find_queue, principal.tenant))
        await self._store.create([queue])
        self._index.put_queue(queue)
        self._tell(queue, None, deleted=False)
        return queue, True

    async def change_queue(
        self, principal: Principal, name: str, named: Named, *, was: Queue | None = None
    ) -> tuple[QueueSettings, Queue] | None:
        return await self._changes(self._change_queue, principal, name, named, was)

    async def _change_queue(
        self, principal: Principal, name: str, named: Named, was: Queue | None
    ) -> tuple[QueueSettings, Queue] | None:
        old = self.find_queue(principal, name)
        if was is not None and (old.queue_id, old.settings) != (was.queue_id, was.settings):
            return None
        settings = change_queue_settings(name, old.settings, named)
        if settings == old.settings:
            return settings, old
        queue = msgspec.structs.replace(old, settings=settings)
        if settings.dead_letter_queue != old.settings.dead_letter_queue:
            check_circle(queue, partial(self._index.find_queue, principal.tenant))
        await self._store.change(queue)
        self._index.put_queue(queue)
        self._tell(queue, None, deleted=False)
        return old.settings, queue

    async def pause_queue(self, principal: Principal, name: str, *, paused: bool) -> Queue:
        return await self._changes(self._pause_queue, principal, name, paused)

    async def _pause_queue(self, principal: Principal, name: str, paused: bool) -> Queue:
        queue = self.find_queue(principal, name)
        if queue.paused != paused:
            queue = msgspec.structs.replace(queue, paused=paused)
            await self._store.change(queue)
            self._index.put_queue(queue)
            self._tell(queue, None, deleted=False)
        return queue

    async def delete_queue(self, principal: Principal, name: str) -> Queue:
        return await self._changes(self._delete_queue, principal, name)

    async def _delete_queue(self, principal: Principal, name: str) -> Queue:
        queue = self.find_queue(principal, name)
        deleted = add_deleted_queue(self.mark(DELETED_QUEUES_MARK), queue, _unix_ms())
        await self._set_mark(DELETED_QUEUES_MARK, deleted)
        await self._store.drop_queue(queue.queue_id)
        self._take_out(queue)
        return queue

    def _take_out(self, queue: Queue) -> None:
        groups = self._index.remove_queue(queue)
        self._dropped = [one for one in self._dropped if one[0] != queue.queue_id]
        self._dropped.append((queue.queue_id, None))
        for group in groups:
            self._memberships.dropped(group.group_id)
            self._tell(queue, group, deleted=True)
        self._tell(queue, None, deleted=True)

    async def put_group(
        self,
        principal: Principal,
        queue: Queue,
        name: str,
        settings: GroupSettings,
        start: GroupStart | None = None,
        *,
        named: frozenset[str] = frozenset(),
    ) -> tuple[Group, bool]:
        check_name(name, "group")
        return await self._changes(
            self._put_group, principal, queue, name, settings, start, named=named
        )

    async def _put_group(
        self,
        principal: Principal,
        queue: Queue,
        name: str,
        settings: GroupSettings,
        start: GroupStart | None,
        *,
        named: frozenset[str],
    ) -> tuple[Group, bool]:
        current = self._current(principal, queue)
        old = self._index.find_group(queue.queue_id, name)
        if old is not None and not differences(old.settings, settings, named, current.settings):
            return old, False
        check_group_settings(settings)
        if old is not None:
            what = f"the group {name!r} of the queue {current.name!r}"
            raise settings_differ(what, old.settings, settings, named, current.settings)
        if len(self._index.groups(queue.queue_id)) >= GROUPS_PER_QUEUE_MAX:
            raise Refused("limit_reached", f"at most {GROUPS_PER_QUEUE_MAX} groups of a queue")
        group = Group(
            group_id=await self._store.fresh_id(),
            name=name,
            queue_id=queue.queue_id,
            created_unix_ms=_unix_ms(),
            settings=settings,
            start=None if start == settings.start else start,
        )
        await self._store.create([group])
        self._index.put_group(group)
        self._tell(current, group, deleted=False)
        return group, True

    def _current(self, principal: Principal, queue: Queue) -> Queue:
        """Return the present row of the queue. Raises Refused(queue_not_found)."""
        current = self._index.queue(queue.queue_id)
        if current is None or current.tenant != principal.tenant:
            raise Refused("queue_not_found", f"no queue {queue.name!r}")
        return current

    async def change_group(
        self,
        principal: Principal,
        queue: Queue,
        name: str,
        named: Named,
        *,
        was: Group | None = None,
    ) -> tuple[GroupSettings, Group] | None:
        return await self._changes(self._change_group, principal, queue, name, named, was)

    async def _change_group(
        self, principal: Principal, queue: Queue, name: str, named: Named, was: Group | None
    ) -> tuple[GroupSettings, Group] | None:
        current = self._current(principal, queue)
        old = self.find_group(principal, current, name)
        if was is not None and (old.group_id, old.settings) != (was.group_id, was.settings):
            return None
        settings = change_group_settings(old.settings, named)
        if settings == old.settings:
            return settings, old
        group = msgspec.structs.replace(old, settings=settings)
        await self._store.change(group)
        self._index.put_group(group)
        self._tell(current, group, deleted=False)
        return old.settings, group

    async def delete_group(
        self, principal: Principal, queue: Queue, name: str, *, row: Membership | None = None
    ) -> Group:
        return await self._changes(self._delete_group, principal, queue, name, row)

    async def _delete_group(
        self, principal: Principal, queue: Queue, name: str, row: Membership | None
    ) -> Group:
        group = self.find_group(principal, queue, name)
        if row is not None and row.group_id != group.group_id:
            raise Refused("group_not_found", f"the group {name!r} was made anew")
        await self._store.drop_group(group.group_id, row.generation if row is not None else None)
        self._take_group_out(self._index.queue(queue.queue_id) or queue, group)
        return group

    def _take_group_out(self, queue: Queue, group: Group) -> None:
        self._index.remove_group(group)
        self._dropped.append((group.queue_id, group.group_id))
        self._memberships.dropped(group.group_id)
        self._tell(queue, group, deleted=True)

    async def forget(self, queue_id: str, group_id: str | None) -> None:
        await self._changes(self._forget, queue_id, group_id)

    async def _forget(self, queue_id: str, group_id: str | None) -> None:
        if (queue_id, group_id) in self._dropped:
            await self._store.forget(group_id or queue_id)
            self._dropped.remove((queue_id, group_id))

    async def set_mark(self, name: str, value: str) -> None:
        await self._changes(self._set_mark, name, value)

    async def _set_mark(self, name: str, value: str) -> None:
        await self._store.set_mark(name, value)
        self._marks[name] = value

    async def _put_data_keys(self, rows: list[DataKey], still: Still) -> None:
        if not still(known := self.data_keys.all()):
            raise Outdated(known)
        await self._store.put_data_keys(rows)

    async def copy_to(self, path: Path) -> None:
        """Write a copy of the catalog, with its secrets, to a new file, as of one moment between
        two changes. The file is fsynced, and its folder is not. Raises
        Refused(storage_unavailable)."""
        await self._changes(self._store.copy_to, path)

    # --- Membership (R14) ------------------------------------------------------------------------

    async def membership(self, group_id: str) -> Membership:
        self._check_group(group_id)
        return await self._memberships.get(group_id)

    async def glance(self, group_id: str) -> Membership:
        self._check_group(group_id)
        return await self._memberships.glance(group_id)

    def _check_group(self, group_id: str) -> None:
        if self._index.group(group_id) is None:
            raise Refused("group_not_found", f"no group of the id {group_id!r}")

    async def change_membership(self, new: Membership, *, expected_generation: int) -> bool:
        if new.generation <= expected_generation:
            raise Refused(
                "invalid_request",
                f"generation {new.generation} does not follow {expected_generation}",
            )
        self._check_group(new.group_id)
        return await self._memberships.change(new, expected_generation=expected_generation)

    async def beat(
        self, gateway: str, number: int, forget: Mapping[str, int], says: str = ""
    ) -> dict[str, int]:
        return await self._memberships.beat(gateway, number, forget, says)

    def on_membership_changed(self, listener: Callable[[str, int], None]) -> None:
        self._memberships.on_changed(listener)

    # --- What others change ----------------------------------------------------------------------

    def _learn(self, news: News) -> None:
        """Apply news as if the changes were made here: listeners get deletions before creations."""
        for queue in filter(None, map(self._index.queue, news.queues_gone)):
            self._take_out(queue)
        for group in filter(None, map(self._index.group, news.groups_gone)):
            owner = self._index.queue(group.queue_id)
            if owner is not None:
                self._take_group_out(owner, group)
        rows = news.contents
        for queue in rows.queues:
            if queue != self._index.queue(queue.queue_id):
                self._index.put_queue(queue)
                self._tell(queue, None, deleted=False)
        for group in rows.groups:
            owner = self._index.queue(group.queue_id)
            if owner is not None and group != self._index.group(group.group_id):
                self._index.put_group(group)
                self._tell(owner, group, deleted=False)
        there = set(self._dropped) | set(rows.dropped)
        self._dropped = [one for one in there if (one[1] or one[0]) not in news.forgotten]
        self._marks |= rows.marks
        self.data_keys.learn(rows.data_keys)
        self.tokens.learn(rows.tokens, news.tokens_gone)

    # --- The rest --------------------------------------------------------------------------------

    def on_queue_changed(self, listener: QueueListener) -> None:
        """Register a listener. Its exceptions are logged, and the change is kept."""
        self._listeners.append(listener)

    @property
    def age_s(self) -> float:
        return self._store.age_s

    async def state(self) -> tuple[bool, str]:
        if self._changes.is_closed:
            return False, "the catalog is closed"
        return self._store.broken is None, self._store.broken or ""

    async def close(self) -> None:
        """Finish the changes that have begun, then close. A second call does nothing."""
        if self._changes.is_closed:
            return
        await self._changes.close()
        await self._store.close()

    def _tell(self, queue: Queue, group: Group | None, *, deleted: bool) -> None:
        for listener in self._listeners:
            try:
                listener(queue, group, deleted=deleted)
            except Exception:
                _LOG.exception("a listener failed on a change of queue %r", queue.name)


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000
