"""Who is in which group, where the metadata is slow or gone: the part of
`gateway.catalog.guarded_metadata` that one gateway may go on with alone, and several may not
(R14)."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from gateway.catalog.guarded_calls import FAILURES, GuardedCalls
from gateway.catalog.lookups import Oddities
from metadata.catalog import Membership
from metadata.client import Metadata
from push import limits
from push.errors import Refused, TocsinError, Unavailable


@dataclass(frozen=True, slots=True)
class Guards:
    """Through which the calls go: changes; reads of rows, on every copy; glances at them, of which
    one copy answers; and what a gateway that is there must be able to say. What one of them waits
    for may be away without the others being refused for it."""

    calls: GuardedCalls
    looks: GuardedCalls
    glances: GuardedCalls
    beats: GuardedCalls


class GuardedMemberships:
    """See the module. `counted`: where lies are counted."""

    def __init__(self, inner: Metadata, guards: Guards, counted: Oddities) -> None:
        self._inner = inner
        self._is_shared = inner.is_shared
        self._calls, self._looks = guards.calls, guards.looks
        self._glances, self._beats = guards.glances, guards.beats
        self._counted = counted
        self._rows: dict[str, Membership] = {}
        """The newest row of each group that somebody here asked about."""
        self._ahead: dict[str, None] = {}
        """Groups whose row the metadata has not taken yet."""
        self._ending: set[str] = set()
        """Groups that are deleted unless their row changes: no change of it holds here alone."""
        self._deletions = 0
        self._telling: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        """How many rows the metadata has not taken yet."""
        return len(self._ahead)

    def deleted(self, group_id: str) -> None:
        """The group is gone."""
        self._forget_row(group_id)
        self._deletions += 1

    @contextmanager
    def ending(self, row: Membership | None) -> Iterator[None]:
        """Inside, the group of this row is deleted unless its row changes. None: whatever does."""
        if row is not None:
            self._ending.add(row.group_id)
        try:
            yield
        finally:
            if row is not None:
                self._ending.discard(row.group_id)

    def close(self) -> None:
        """Tell nobody any more."""
        self._closed = True
        if self._telling is not None:
            self._telling.cancel()

    async def membership(self, group_id: str) -> Membership:
        """See Metadata. What is known here is the answer, where nobody else could know better; else
        Unavailable or Refused: metadata_unavailable."""
        if self._is_shared:
            return await self._ask_membership(group_id)
        row = self._rows.get(group_id)
        if row is None:
            deletions = self._deletions
            row = await self._ask_membership(group_id)
            newer = self._rows.get(group_id)
            if newer is not None and newer.generation >= row.generation:
                return newer
            if deletions == self._deletions:  # else it may be gone, and nobody would tell again
                self._rows[group_id] = row
        return row

    async def _ask_membership(self, group_id: str) -> Membership:
        if self._is_shared:  # what was asked before is perhaps of before
            row = await self._looks.run(
                "membership", lambda: self._inner.membership(group_id), limits.MEMBERSHIP_DEADLINE_S
            )
        else:
            row, _ = await self._calls.run_shared(
                "membership", group_id, lambda: self._inner.membership(group_id),
                limits.MEMBERSHIP_DEADLINE_S, is_change=False,
            )  # fmt: skip
        return self._of(group_id, row)

    async def glance(self, group_id: str) -> Membership:
        """See Metadata. Raises Unavailable or Refused: metadata_unavailable, too."""
        row = await self._glances.run(
            "glance", lambda: self._inner.glance(group_id), limits.MEMBERSHIP_DEADLINE_S
        )
        return self._of(group_id, row)

    def _of(self, group_id: str, row: Membership) -> Membership:
        if row.group_id != group_id:
            self._counted.lies += 1
            raise Unavailable("metadata_unavailable", "the metadata answered something else", 1.0)
        return row

    async def change_membership(self, new: Membership, *, expected_generation: int) -> bool:
        """See Metadata. When it does not answer, the row holds here, and is told it later; where
        others may change it too, nothing holds, and it may have been changed."""
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
                if new.group_id in self._ending:
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
        if self._telling is None and not self._closed:
            self._telling = asyncio.get_running_loop().create_task(self._tell_later())
        return True

    async def beat(
        self, gateway: str, number: int, forget: Mapping[str, int], says: str = ""
    ) -> dict[str, int]:
        """See Metadata. Raises Unavailable or Refused: metadata_unavailable, too."""
        return await self._beats.run(
            "beat",
            lambda: self._inner.beat(gateway, number, forget, says),
            limits.MEMBERSHIP_DEADLINE_S,
        )

    async def said(self) -> dict[str, str]:
        """See Metadata. Raises as `beat`."""
        return await self._beats.run("said", self._inner.said, limits.MEMBERSHIP_DEADLINE_S)

    def on_membership_changed(self, listener: Callable[[str, int], None]) -> None:
        """See Metadata."""
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

    async def _tell_later(self) -> None:
        """What holds here and was not taken is told until it is."""
        try:
            while self._ahead:
                await asyncio.sleep(limits.BREAKER_OPEN_S)
                for group_id in list(self._ahead):
                    try:
                        await self._tell(group_id)
                    except TocsinError as error:
                        if error.code.name in FAILURES:
                            break
                        self._forget_row(group_id)  # the group is gone
        finally:
            self._telling = None

    async def _tell(self, group_id: str) -> None:
        new = self._rows.get(group_id)
        there = await self._ask_membership(group_id)
        if new is None or new is not self._rows.get(group_id):
            return
        # What came late may have been written after all: it is ours too, and older.
        if there.generation < new.generation and not await self._write_membership(
            new, there.generation
        ):
            return
        if self._rows.get(group_id) is new:
            self._ahead.pop(group_id, None)
