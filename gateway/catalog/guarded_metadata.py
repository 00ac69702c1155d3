"""A client of any metadata that keeps the broker calm when the metadata is slow, gone or mad.

    looking up a name        from memory (`gateway.catalog.lookups`), for METADATA_STALE_S also
                             when nobody answers: publishing and pushing on known queues go on
    who is in a group        one gateway: what it knows, which alone changes it; what could not be
                             told the metadata is told when it answers again. Several: what the
                             metadata says, each time; a change that it did not take did not happen
    changes                  within METADATA_DEADLINE_S, or `metadata_unavailable`; one that has
                             begun is finished, and its late answer is in `Late.outcome`
    being there              several gateways: whether anything else fails has no bearing on it. It
                             waits for every copy, or for a service that is away; a gateway that may
                             not beat gives nothing out (R14)

Where one gateway works on a catalog, which the lock on its data folder sees to, its own view of a
group's members is the newest there is, and may go on alone (R14). Where several do, none may.
"""

import asyncio
import logging
from typing import Final

from gateway.catalog.catching_up import CatchingUp
from gateway.catalog.guarded_calls import GuardedCalls
from gateway.catalog.guarded_memberships import GuardedMemberships, Guards
from gateway.catalog.guarded_tokens import GuardedTokens
from gateway.catalog.lookups import Lookups
from gateway.hit_rate import HitRate
from metadata.catalog import (
    Group,
    GroupSettings,
    GroupStart,
    Membership,
    Principal,
    Queue,
    QueueSettings,
)
from metadata.client import Metadata, QueueListener, Tokens
from metadata.data_keys import DataKey, DataKeys, Outdated, Still
from metadata.settings import Named
from push import limits
from push.errors import Refused, TocsinError

logger = logging.getLogger("tocsin.metadata")
GROUPS_KNOWN_MAX: Final = 200_000
"""Twice as many groups as there may be queues: beyond it those looked up longest ago are looked up
again."""


class GuardedMetadata:
    """`metadata.client.Metadata` around another one; see the module."""

    def __init__(self, inner: Metadata) -> None:
        self.inner = inner
        """What is guarded."""
        self.is_shared = inner.is_shared
        """See Metadata."""
        self._calls = GuardedCalls("the metadata")
        self._looks = self._glances = self._beats = self._calls
        if inner.is_shared:  # a copy that is away holds up the first two, a service all but beats
            self._calls = GuardedCalls("the metadata, where it is changed,")
            self._looks = GuardedCalls("the metadata, where groups are read,")
            self._glances = GuardedCalls("the metadata, where groups are looked at,")
            self._beats = GuardedCalls("whoever is told that this gateway is there,")
        self.tokens: Tokens = GuardedTokens(inner, self._calls)
        """See Metadata."""
        refresh = self._refresh_data_keys if inner.data_keys.refresh is not None else None
        self.data_keys = DataKeys(inner.data_keys.all(), self._put_data_keys, refresh)
        """See Metadata. Here are those that were told to be durable: one whose answer came late is
        put again by whoever made it."""
        inner.data_keys.on_learned(self.data_keys.learn)
        self._queues: Lookups[tuple[str, str], Queue] = Lookups(
            "queue_not_found", known_max=limits.QUEUES_MAX
        )
        self._groups: Lookups[tuple[str, str], Group] = Lookups(
            "group_not_found", known_max=GROUPS_KNOWN_MAX
        )
        guards = Guards(self._calls, self._looks, self._glances, self._beats)
        rows = GuardedMemberships(inner, guards, self._groups.counted)
        self._memberships = rows
        self.membership, self.glance = rows.membership, rows.glance
        self.change_membership, self.beat, self.said = rows.change_membership, rows.beat, rows.said
        """See Metadata, and there."""
        self._catching_up = CatchingUp(
            lambda: self._calls.run("catch up", inner.catch_up, limits.METADATA_DEADLINE_S)
        )
        self.on_membership_changed = inner.on_membership_changed
        inner.on_queue_changed(self._changed)

    @property
    def hit_rates(self) -> dict[str, HitRate]:
        """Of what is looked up here."""
        return {"queues": self._queues.hit_rate, "groups": self._groups.hit_rate}

    # --- Looking up ------------------------------------------------------------------------------

    def find_queue(self, principal: Principal, name: str) -> Queue:
        """See Metadata. Raises Refused(metadata_unavailable) too: it is not known here, and nobody
        can be asked."""
        tenant, queues = principal.tenant, self._queues
        fresh = queues.fresh.get((tenant, name))
        if fresh is not None:
            queues.hit_rate.hits += 1
            return fresh
        return queues.find(
            (tenant, name),
            asyncio.get_running_loop().time(),
            lambda: self.inner.find_queue(principal, name),
            lambda queue: queue.name == name and queue.tenant == tenant,
        )

    def find_group(self, principal: Principal, queue: Queue, name: str) -> Group:
        """See Metadata, and find_queue."""
        if queue.tenant != principal.tenant:
            raise Refused("group_not_found", f"no group {name!r} of queue {queue.name!r}")
        groups = self._groups
        fresh = groups.fresh.get((queue.queue_id, name))
        if fresh is not None:
            groups.hit_rate.hits += 1
            return fresh
        return groups.find(
            (queue.queue_id, name),
            asyncio.get_running_loop().time(),
            lambda: self.inner.find_group(principal, queue, name),
            lambda group: group.name == name and group.queue_id == queue.queue_id,
        )

    async def catch_up(self) -> None:
        """See Metadata."""
        if self.is_shared:
            await self._catching_up()

    def queue_by_id(self, queue_id: str) -> Queue | None:
        """See Metadata."""
        return self.inner.queue_by_id(queue_id)

    def list_queues(self, principal: Principal) -> list[Queue]:
        """See Metadata."""
        return self.inner.list_queues(principal)

    def list_all_queues(self) -> list[Queue]:
        """See Metadata."""
        return self.inner.list_all_queues()

    def list_groups(self, principal: Principal, queue: Queue) -> list[Group]:
        """See Metadata."""
        return self.inner.list_groups(principal, queue)

    def dropped(self) -> list[tuple[str, str | None]]:
        """See Metadata."""
        return self.inner.dropped()

    def secret(self, name: str) -> bytes:
        """See Metadata."""
        return self.inner.secret(name)

    def mark(self, name: str) -> str | None:
        """See Metadata."""
        return self.inner.mark(name)

    def on_queue_changed(self, listener: QueueListener) -> None:
        """See Metadata. What is known here is right before the listener is called."""
        self.inner.on_queue_changed(listener)

    def _changed(self, queue: Queue, group: Group | None, *, deleted: bool) -> None:
        now = asyncio.get_running_loop().time()
        if group is not None:
            place = (queue.queue_id, group.name)
            if deleted:
                self._groups.drop(place)
                self._memberships.deleted(group.group_id)
            else:
                self._groups.put(place, group, now)
        elif deleted:
            self._queues.drop((queue.tenant, queue.name))
        else:
            self._queues.put((queue.tenant, queue.name), queue, now)

    # --- Changing --------------------------------------------------------------------------------

    async def put_queue(
        self,
        principal: Principal,
        name: str,
        settings: QueueSettings,
        named: frozenset[str] = frozenset(),
    ) -> tuple[Queue, bool]:
        """See Metadata. Raises Unavailable or Refused: metadata_unavailable."""
        (queue, created), is_first = await self._calls.run_shared(
            "change", (principal, name, settings, named),
            lambda: self.inner.put_queue(principal, name, settings, named),
            limits.METADATA_DEADLINE_S, is_change=True,
        )  # fmt: skip
        return queue, created and is_first

    async def change_queue(
        self, principal: Principal, name: str, named: Named, *, was: Queue | None = None
    ) -> tuple[QueueSettings, Queue] | None:
        """See Metadata, and put_queue."""
        return await self._calls.run(
            "change",
            lambda: self.inner.change_queue(principal, name, named, was=was),
            limits.METADATA_DEADLINE_S,
        )

    async def pause_queue(self, principal: Principal, name: str, *, paused: bool) -> Queue:
        """See Metadata, and put_queue."""
        return await self._calls.run(
            "change",
            lambda: self.inner.pause_queue(principal, name, paused=paused),
            limits.METADATA_DEADLINE_S,
        )

    async def delete_queue(self, principal: Principal, name: str) -> Queue:
        """See Metadata, and put_queue."""
        return await self._calls.run(
            "change",
            lambda: self.inner.delete_queue(principal, name),
            limits.METADATA_DEADLINE_S,
        )

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
        """See Metadata, and put_queue."""
        (group, created), is_first = await self._calls.run_shared(
            "change", (principal, queue.queue_id, name, settings, start, named),
            lambda: self.inner.put_group(
                principal, queue, name, settings, start, named=named
            ),
            limits.METADATA_DEADLINE_S, is_change=True,
        )  # fmt: skip
        return group, created and is_first

    async def change_group(
        self,
        principal: Principal,
        queue: Queue,
        name: str,
        named: Named,
        *,
        was: Group | None = None,
    ) -> tuple[GroupSettings, Group] | None:
        """See Metadata, and put_queue."""
        return await self._calls.run(
            "change",
            lambda: self.inner.change_group(principal, queue, name, named, was=was),
            limits.METADATA_DEADLINE_S,
        )

    async def delete_group(
        self, principal: Principal, queue: Queue, name: str, *, row: Membership | None = None
    ) -> Group:
        """See Metadata, and put_queue."""

        async def delete() -> Group:
            with self._memberships.ending(row):
                return await self.inner.delete_group(principal, queue, name, row=row)

        return await self._calls.run("change", delete, limits.METADATA_DEADLINE_S)

    async def forget(self, queue_id: str, group_id: str | None) -> None:
        """See Metadata, and put_queue."""
        await self._calls.run(
            "change", lambda: self.inner.forget(queue_id, group_id), limits.METADATA_DEADLINE_S
        )

    async def set_mark(self, name: str, value: str) -> None:
        """See Metadata, and put_queue."""
        await self._calls.run(
            "change", lambda: self.inner.set_mark(name, value), limits.METADATA_DEADLINE_S
        )

    async def _put_data_keys(self, rows: list[DataKey], still: Still) -> None:
        async def put() -> Outdated | None:
            try:
                await self.inner.data_keys.put(rows, still)
            except Outdated as error:  # an answer like another one
                return error
            return None

        outdated = await self._calls.run("data keys", put, limits.METADATA_DEADLINE_S)
        if outdated is not None:
            raise outdated

    async def _refresh_data_keys(self) -> None:
        if self.inner.data_keys.refresh is not None:
            await self._calls.run(
                "data keys", self.inner.data_keys.refresh, limits.METADATA_DEADLINE_S
            )

    # --- The rest --------------------------------------------------------------------------------

    @property
    def age_s(self) -> float:
        """See Metadata."""
        return self.inner.age_s

    async def state(self) -> tuple[bool, str]:
        """See Metadata. Who does not answer does not make this gateway unready: what is known here
        goes on, and `facts` tells."""
        try:
            state, _ = await self._calls.run_shared(
                "state", None, self.inner.state, limits.MEMBERSHIP_DEADLINE_S, is_change=False
            )
        except TocsinError:
            return True, ""
        return state

    def facts(self) -> dict[str, object]:
        """For looking at: how calls went, and what was answered from here."""
        return {
            **self._calls.facts(),
            **(
                {
                    "looks": self._looks.facts(),
                    "glances": self._glances.facts(),
                    "beats": self._beats.facts(),
                }
                if self.is_shared
                else {}
            ),
            "queues": self._queues.facts(),
            "groups": self._groups.facts(),
            "memberships_ahead": len(self._memberships),
            "age_s": round(self.age_s, 1),
        }

    async def close(self) -> None:
        """See Metadata. What is under way is waited for, for METADATA_DEADLINE_S at most."""
        self._memberships.close()
        self._queues.close()
        self._groups.close()
        guards = {self._calls, self._looks, self._glances, self._beats}
        await asyncio.gather(*(calls.finish(limits.METADATA_DEADLINE_S) for calls in guards))
        try:
            async with asyncio.timeout(limits.METADATA_DEADLINE_S):
                await self.inner.close()
        except TimeoutError:
            logger.warning("the metadata could not be closed in time")
