"""Guard around any metadata, which keeps the broker working while the metadata is slow or gone.

    look up a name           from memory (`gateway.catalog.lookups`). If the metadata does not
                             answer, memory counts for METADATA_STALE_S, so that publishing and
                             pushing on known queues go on
    members of a group       with one gateway: its own rows, which it alone changes. A change that
                             the metadata has not taken is written when it answers again.
                             With several: the row of the metadata, each time. A change that it did
                             not take did not happen
    change                   within METADATA_DEADLINE_S, or `metadata_unavailable`. A change that
                             has begun is finished, and its late answer is in `Late.outcome`
    token                    looked up in memory; created and revoked within the deadline
    beat                     with several gateways: apart from all other calls, so that their
                             failures do not delay it. It waits for every copy, or for a service
                             that is away. A gateway that may not beat gives nothing out (R14)

If one gateway alone uses a catalog, which the lock on its data folder ensures, its own view of a
group's members is the newest, and it may go on alone (R14). If several gateways use it, none may.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from gateway.catalog.calls import FAILURES, GuardedCalls
from gateway.catalog.lookups import CatchUp, Lookups, Oddities
from gateway.counters import HitRate
from metadata.catalog import (
    Group,
    GroupSettings,
    GroupStart,
    Membership,
    Principal,
    Queue,
    QueueSettings,
)
from metadata.data_keys import DataKey, DataKeys, Outdated, Still
from metadata.port import Metadata, QueueListener, Tokens
from metadata.settings import Named
from metadata.tokens import TokenRecord
from push import limits
from push.errors import Refused, TocsinError, Unavailable

logger = logging.getLogger("tocsin.metadata")
GROUPS_KNOWN_MAX: Final = 200_000
"""Largest number of groups that are remembered, twice as many as there may be queues. Beyond it,
groups whose look-up is longest ago are forgotten."""


@dataclass(frozen=True, slots=True)
class Guards:
    """Guards of the kinds of calls: changes; reads of rows, on every copy; glances at rows, which
    one copy answers; and beats. If one kind cannot be answered, the others are not refused."""

    calls: GuardedCalls
    looks: GuardedCalls
    glances: GuardedCalls
    beats: GuardedCalls


class GuardedMemberships:
    """Rows of groups' members. If this is the only gateway on the catalog, it changes a row even
    while the metadata does not answer, and writes the row later. If the catalog is shared, no row
    changes without the metadata (R14). `oddities`: counts; an answer with the row of another group
    is added to its `lies`."""

    def __init__(self, inner: Metadata, guards: Guards, oddities: Oddities) -> None:
        self._inner = inner
        self._is_shared = inner.is_shared
        self._calls, self._looks = guards.calls, guards.looks
        self._glances, self._beats = guards.glances, guards.beats
        self._oddities = oddities
        self._rows: dict[str, Membership] = {}
        """Group → the newest row that this gateway has read or written; empty if the catalog is
        shared."""
        self._ahead: dict[str, None] = {}
        """Groups whose row in `_rows` the metadata has not taken yet."""
        self._deleting: set[str] = set()
        """Groups that are being deleted unless their row changes. A change of such a row holds only
        if the metadata has taken it."""
        self._deletions = 0
        self._writer: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        """Return the number of rows that the metadata has not taken yet."""
        return len(self._ahead)

    def on_delete(self, group_id: str) -> None:
        """Forget the row of a group that is deleted."""
        self._forget_row(group_id)
        self._deletions += 1

    @contextmanager
    def deleting(self, row: Membership | None) -> Iterator[None]:
        """Mark the group of this row as being deleted, unless its row changes, for the time of the
        block. None: it is deleted in any case, and nothing is marked."""
        if row is not None:
            self._deleting.add(row.group_id)
        try:
            yield
        finally:
            if row is not None:
                self._deleting.discard(row.group_id)

    def close(self) -> None:
        """Stop writing rows."""
        self._closed = True
        if self._writer is not None:
            self._writer.cancel()

    async def membership(self, group_id: str) -> Membership:
        """Return the row that is known here, if no other gateway can change it; else that of the
        metadata. Raises Unavailable if no answer came in time, or Refused if the metadata refuses
        (both metadata_unavailable)."""
        if self._is_shared:
            return await self._read_membership(group_id)
        row = self._rows.get(group_id)
        if row is None:
            deletions = self._deletions
            row = await self._read_membership(group_id)
            newer = self._rows.get(group_id)
            if newer is not None and newer.generation >= row.generation:
                return newer
            if deletions == self._deletions:  # else it may be gone, without a further notice
                self._rows[group_id] = row
        return row

    async def _read_membership(self, group_id: str) -> Membership:
        if self._is_shared:  # an equal call that is under way may have read too early
            row = await self._looks.run(
                "membership", lambda: self._inner.membership(group_id), limits.MEMBERSHIP_DEADLINE_S
            )
        else:
            row, _ = await self._calls.run_shared(
                "membership",
                group_id,
                lambda: self._inner.membership(group_id),
                limits.MEMBERSHIP_DEADLINE_S,
                is_change=False,
            )
        return self._check_answer(group_id, row)

    async def glance(self, group_id: str) -> Membership:
        """Return a row from one copy, like `Metadata.glance`. Also raises Unavailable or Refused
        (metadata_unavailable)."""
        row = await self._glances.run(
            "glance", lambda: self._inner.glance(group_id), limits.MEMBERSHIP_DEADLINE_S
        )
        return self._check_answer(group_id, row)

    def _check_answer(self, group_id: str, row: Membership) -> Membership:
        if row.group_id != group_id:
            self._oddities.lies += 1
            raise Unavailable(
                "metadata_unavailable", "the metadata answered another question: try again", 1.0
            )
        return row

    async def change_membership(self, new: Membership, *, expected_generation: int) -> bool:
        """Change a row, like `Metadata.change_membership`. If the metadata does not answer and this
        gateway is the only one, a new row in place of one that is known here is in effect, and is
        written later. With several gateways the call raises, and the row may or may not have been
        changed."""
        if self._is_shared:
            return await self._write_membership(new, expected_generation)
        known = self._rows.get(new.group_id)
        if known is not None and known.generation != expected_generation:
            return False
        if new.generation <= expected_generation:
            raise Refused(
                "invalid_request",
                f"generation {new.generation} does not follow {expected_generation}",
            )
        if new.group_id not in self._ahead:
            try:
                is_changed = await self._write_membership(new, expected_generation)
            except TocsinError as error:
                if known is None or error.code.name not in FAILURES:
                    raise
                if new.group_id in self._deleting:
                    raise
            else:
                if is_changed:
                    self._rows[new.group_id] = new
                else:
                    self._forget_row(new.group_id)  # it was changed elsewhere
                return is_changed
        if self._rows.get(new.group_id) is not known:
            return False
        self._rows[new.group_id] = new
        self._ahead[new.group_id] = None
        if self._writer is None and not self._closed:
            self._writer = asyncio.get_running_loop().create_task(self._write_later())
        return True

    async def beat(
        self, gateway: str, number: int, forget: Mapping[str, int], says: str = ""
    ) -> dict[str, int]:
        """Beat, like `Metadata.beat`. Also raises Unavailable or Refused
        (metadata_unavailable)."""
        return await self._beats.run(
            "beat",
            lambda: self._inner.beat(gateway, number, forget, says),
            limits.MEMBERSHIP_DEADLINE_S,
        )

    async def said(self) -> dict[str, str]:
        """Return what gateways say with their beats, like `Metadata.said`. Raises like `beat`."""
        return await self._beats.run("said", self._inner.said, limits.MEMBERSHIP_DEADLINE_S)

    def on_membership_changed(self, listener: Callable[[str, int], None]) -> None:
        self._inner.on_membership_changed(listener)

    async def _write_membership(self, new: Membership, expected_generation: int) -> bool:
        return await self._calls.run(
            "membership",
            lambda: self._inner.change_membership(new, expected_generation=expected_generation),
            limits.MEMBERSHIP_DEADLINE_S,
        )

    def _forget_row(self, group_id: str) -> None:
        self._rows.pop(group_id, None)
        self._ahead.pop(group_id, None)

    async def _write_later(self) -> None:
        """Write the rows that the metadata has not taken yet, until it has taken them."""
        try:
            while self._ahead:
                await asyncio.sleep(limits.BREAKER_OPEN_S)
                for group_id in list(self._ahead):
                    try:
                        await self._write_row(group_id)
                    except TocsinError as error:
                        if error.code.name in FAILURES:
                            break
                        self._forget_row(group_id)  # the group is gone
        finally:
            self._writer = None

    async def _write_row(self, group_id: str) -> None:
        new = self._rows.get(group_id)
        there = await self._read_membership(group_id)
        if new is None or new is not self._rows.get(group_id):
            return
        # A change that timed out may have been written late. It is ours too, and older.
        if there.generation < new.generation and not await self._write_membership(
            new, there.generation
        ):
            return
        if self._rows.get(group_id) is new:
            self._ahead.pop(group_id, None)


class GuardedTokens:
    """`metadata.port.Tokens` around those of another metadata. Changes are guarded; look-ups are
    passed on, because they are answered from memory there."""

    def __init__(self, inner: Metadata, calls: GuardedCalls) -> None:
        self._inner = inner
        self._calls = calls

    @property
    def is_known(self) -> bool:
        return self._inner.tokens.is_known

    def find(self, token_id: str) -> TokenRecord | None:
        return self._inner.tokens.find(token_id)

    def of_certificate(self, certificate: str) -> list[TokenRecord]:
        return self._inner.tokens.of_certificate(certificate)

    def listed(self) -> list[TokenRecord]:
        return self._inner.tokens.listed()

    async def create(self, record: TokenRecord) -> None:
        """Create a token, like `Tokens.create`. Also raises Unavailable or Refused
        (metadata_unavailable)."""
        await self._calls.run(
            "change", lambda: self._inner.tokens.create(record), limits.METADATA_DEADLINE_S
        )

    async def revoke(self, token_id: str) -> TokenRecord:
        return await self._calls.run(
            "change", lambda: self._inner.tokens.revoke(token_id), limits.METADATA_DEADLINE_S
        )

    def note_used(self, token_id: str, *, unix_ms: int) -> None:
        self._inner.tokens.note_used(token_id, unix_ms=unix_ms)

    def on_revoked(self, listener: Callable[[TokenRecord], None]) -> None:
        self._inner.tokens.on_revoked(listener)


class GuardedMetadata:
    """`metadata.port.Metadata` around another one, which may be slow or away. Known names are
    answered from memory, and changes within METADATA_DEADLINE_S or not at all."""

    def __init__(self, inner: Metadata) -> None:
        self.inner = inner
        """The metadata that is guarded."""
        self.is_shared = inner.is_shared
        self._calls = GuardedCalls("the metadata")
        self._looks = self._glances = self._beats = self._calls
        if inner.is_shared:  # a copy that is away holds up the first two, a service all but beats
            self._calls = GuardedCalls("the metadata (changes)")
            self._looks = GuardedCalls("the metadata (reads of groups)")
            self._glances = GuardedCalls("the metadata (glances at groups)")
            self._beats = GuardedCalls("the metadata (heartbeats)")
        self.tokens: Tokens = GuardedTokens(inner, self._calls)
        refresh = self._refresh_data_keys if inner.data_keys.refresh is not None else None
        self.data_keys = DataKeys(inner.data_keys.all(), self._put_data_keys, refresh)
        """Data keys that are known to be durable. If the answer about a new key came late, the key
        is not among them until its maker puts it again."""
        inner.data_keys.on_learned(self.data_keys.learn)
        self._queues: Lookups[tuple[str, str], Queue] = Lookups(
            "queue_not_found", known_max=limits.QUEUES_MAX
        )
        self._groups: Lookups[tuple[str, str], Group] = Lookups(
            "group_not_found", known_max=GROUPS_KNOWN_MAX
        )
        guards = Guards(self._calls, self._looks, self._glances, self._beats)
        rows = GuardedMemberships(inner, guards, self._groups.oddities)
        self._memberships = rows
        self.membership, self.glance = rows.membership, rows.glance
        self.change_membership, self.beat, self.said = rows.change_membership, rows.beat, rows.said
        self._catch_up = CatchUp(
            lambda: self._calls.run("catch up", inner.catch_up, limits.METADATA_DEADLINE_S)
        )
        self.on_membership_changed = inner.on_membership_changed
        inner.on_queue_changed(self._on_queue_changed)

    @property
    def hit_rates(self) -> dict[str, HitRate]:
        """Hit rates of look-ups by name: kind ("queues", "groups") → rate."""
        return {"queues": self._queues.hit_rate, "groups": self._groups.hit_rate}

    # --- Looking up ------------------------------------------------------------------------------

    def find_queue(self, principal: Principal, name: str) -> Queue:
        """Find a queue, like `Metadata.find_queue`. If the metadata does not answer, an answer of
        the last METADATA_STALE_S is returned, or the error is raised, such as
        Refused(metadata_unavailable)."""
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
        if self.is_shared:
            await self._catch_up()

    def queue_by_id(self, queue_id: str) -> Queue | None:
        return self.inner.queue_by_id(queue_id)

    def list_queues(self, principal: Principal) -> list[Queue]:
        return self.inner.list_queues(principal)

    def list_all_queues(self) -> list[Queue]:
        return self.inner.list_all_queues()

    def list_groups(self, principal: Principal, queue: Queue) -> list[Group]:
        return self.inner.list_groups(principal, queue)

    def dropped(self) -> list[tuple[str, str | None]]:
        return self.inner.dropped()

    def secret(self, name: str) -> bytes:
        return self.inner.secret(name)

    def mark(self, name: str) -> str | None:
        return self.inner.mark(name)

    def on_queue_changed(self, listener: QueueListener) -> None:
        """Call this listener at each change, like `Metadata.on_queue_changed`, after the names that
        are known here are updated."""
        self.inner.on_queue_changed(listener)

    def _on_queue_changed(self, queue: Queue, group: Group | None, *, deleted: bool) -> None:
        now = asyncio.get_running_loop().time()
        if group is not None:
            place = (queue.queue_id, group.name)
            if deleted:
                self._groups.drop(place)
                self._memberships.on_delete(group.group_id)
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
        """Create or find a queue, like `Metadata.put_queue`. Also raises Unavailable or Refused
        (metadata_unavailable)."""
        (queue, created), is_first = await self._calls.run_shared(
            "change",
            (principal, name, settings, named),
            lambda: self.inner.put_queue(principal, name, settings, named),
            limits.METADATA_DEADLINE_S,
            is_change=True,
        )
        return queue, created and is_first

    async def change_queue(
        self, principal: Principal, name: str, named: Named, *, was: Queue | None = None
    ) -> tuple[QueueSettings, Queue] | None:
        return await self._calls.run(
            "change",
            lambda: self.inner.change_queue(principal, name, named, was=was),
            limits.METADATA_DEADLINE_S,
        )

    async def pause_queue(self, principal: Principal, name: str, *, paused: bool) -> Queue:
        return await self._calls.run(
            "change",
            lambda: self.inner.pause_queue(principal, name, paused=paused),
            limits.METADATA_DEADLINE_S,
        )

    async def delete_queue(self, principal: Principal, name: str) -> Queue:
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
        (group, created), is_first = await self._calls.run_shared(
            "change",
            (principal, queue.queue_id, name, settings, start, named),
            lambda: self.inner.put_group(principal, queue, name, settings, start, named=named),
            limits.METADATA_DEADLINE_S,
            is_change=True,
        )
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
        return await self._calls.run(
            "change",
            lambda: self.inner.change_group(principal, queue, name, named, was=was),
            limits.METADATA_DEADLINE_S,
        )

    async def delete_group(
        self, principal: Principal, queue: Queue, name: str, *, row: Membership | None = None
    ) -> Group:

        async def delete() -> Group:
            with self._memberships.deleting(row):
                return await self.inner.delete_group(principal, queue, name, row=row)

        return await self._calls.run("change", delete, limits.METADATA_DEADLINE_S)

    async def forget(self, queue_id: str, group_id: str | None) -> None:
        await self._calls.run(
            "change", lambda: self.inner.forget(queue_id, group_id), limits.METADATA_DEADLINE_S
        )

    async def set_mark(self, name: str, value: str) -> None:
        await self._calls.run(
            "change", lambda: self.inner.set_mark(name, value), limits.METADATA_DEADLINE_S
        )

    async def _put_data_keys(self, rows: list[DataKey], still: Still) -> None:
        async def put() -> Outdated | None:
            try:
                await self.inner.data_keys.put(rows, still)
            except Outdated as error:  # an ordinary answer, and no failure of the metadata
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
        return self.inner.age_s

    async def state(self) -> tuple[bool, str]:
        """Return the state of the metadata. If it does not answer, this gateway is still ready,
        because known queues and groups stay in use. `facts` shows that it does not answer."""
        try:
            state, _ = await self._calls.run_shared(
                "state", None, self.inner.state, limits.MEMBERSHIP_DEADLINE_S, is_change=False
            )
        except TocsinError:
            return True, ""
        return state

    def facts(self) -> dict[str, object]:
        """Return counts of calls and of look-ups, for operators."""
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
        """Wait for the calls under way, for METADATA_DEADLINE_S at most; then close the metadata,
        for METADATA_DEADLINE_S at most."""
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
