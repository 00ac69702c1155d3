"""The metadata service as a gateway sees it: a database behind nodes that come and go.

reading    from whichever node answers; what was seen names its place, so that a node which knows
           less than another one did finds that out before it answers
all        shard by shard, from its holders where there are some; then what has changed since the
           oldest of them was read
changing   a change that may have reached the node that failed is asked of another one: that it was
           made already is told by its stamp
watching   a request that a node answers as soon as there is something to read, again and again
lost       what was seen is in no catalog that a node knows: believed when all say so who answer,
           twice; one that says so alone has a wrong database
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from metadata.catalog import Membership
from metadata.databases import NO_ROW, Lost, Place, Raw, Reading, RowHeld, Write
from metadata.service.asking_nodes import (
    CHANGE_TRY_S,
    LOOK_TRY_S,
    NEWS_TRY_S,
    READ_TRY_S,
    AskingNodes,
    Nobody,
    unknown,
)
from metadata.service.service_forms import (
    BeatRequest,
    Changed,
    ChangeRequest,
    MembershipRequest,
    ReadAnswer,
    ReadRequest,
    ShardAnswer,
    Taken,
    WatchAnswer,
)
from metadata.service.shard_ring import SHARDS
from metadata.stores import MembershipRows, other_generation
from push.errors import Refused, TocsinError

WATCH_S: Final = 0.5
"""So long a node waits for something to tell: one that is frozen is noticed within a second."""
SHARDS_AT_ONCE: Final = 4
READ_AGAIN_MAX: Final = 5
LOST_AGAIN_S: Final = 1.0
"""Between the two times that all nodes must say that what was seen is lost."""
BETWEEN_S: Final = 0.1
"""Between two watches at least, where what was told is not read yet, or was no news."""
TOLD_MAX: Final = 10_000
"""Groups of which it is remembered what was told."""
_LOG: Final = logging.getLogger("tocsin.metadata")


class RemoteDatabase:
    """`metadata.databases.Database` over nodes. `beats`: where gateways say that they are there,
    when that is not to be the service."""

    poll_s = 5.0
    """See Database: `watch` tells."""

    def __init__(self, nodes: AskingNodes, *, beats: MembershipRows | None = None) -> None:
        self._nodes = nodes
        self._members = _Memberships(nodes, beats)
        self._version = 0
        """What was read, or changed here."""
        self._heard: Callable[[int], None] = lambda version: None
        self._watching: asyncio.Task[None] | None = None
        self.known_at = float("-inf")
        """See Database."""

    def on_changed(self, heard: Callable[[int], None]) -> None:
        """See Database."""
        self._heard = heard
        if self._watching is None:
            loop = asyncio.get_running_loop()
            self._watching = loop.create_task(self._watch(), name="metadata watch")

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        cursor = ""
        while True:
            asked_at = loop.time()
            query = urlencode({"version": self._version, "cursor": cursor, "wait_s": WATCH_S})
            try:
                answer = await self._nodes.ask(
                    "GET", f"/v1/watch?{query}", None, WatchAnswer, try_s=WATCH_S + LOOK_TRY_S
                )
            except TocsinError:
                await asyncio.sleep(max(BETWEEN_S, asked_at + WATCH_S / 2 - loop.time()))
                continue
            except Exception:
                _LOG.exception("watching the metadata service failed: unexpected")
                await asyncio.sleep(WATCH_S)
                continue
            if answer.version <= self._version:
                self.known_at = asked_at
            cursor = answer.cursor
            self._nodes.choice.learn(answer.nodes)
            is_news = [self._members.tell(*one) for one in answer.members]
            if answer.version > self._version:
                self._heard(answer.version)
                await asyncio.sleep(BETWEEN_S)  # it is read meanwhile
            elif not any(is_news) and loop.time() - asked_at < BETWEEN_S:
                await asyncio.sleep(BETWEEN_S)  # whatever a node thinks that is new

    # --- Reading ---------------------------------------------------------------------------------

    async def read(self, seen: Place) -> Reading | None:
        """See Database."""
        try:
            reading = await self._read(seen)
        except Refused as error:
            if error.code.name != "position_unknown":
                raise
            reading = await self._doubt(seen, error)
        self._version = (reading.place if reading is not None else seen).version
        return reading

    async def _read(self, seen: Place) -> Reading | None:
        answer = await self._ask_read(seen)
        if answer.kind == "same":
            return None
        if answer.kind == "rows":
            return Reading(answer.place, answer.rows, False, answer.secret)
        return await self._read_all()

    async def _ask_read(self, seen: Place, urls: list[str] | None = None) -> ReadAnswer:
        return await self._nodes.ask(
            "POST", "/v1/read", ReadRequest(seen), ReadAnswer, try_s=NEWS_TRY_S,
            urls=None if urls is None else lambda: urls,
        )  # fmt: skip

    async def _doubt(self, seen: Place, error: Refused) -> Reading | None:
        """One node says that what was seen is lost. Raises Lost: all do."""
        for is_again in (False, True):
            if is_again:
                await asyncio.sleep(LOST_AGAIN_S)
            liars: list[str] = []
            for url in self._nodes.choice.to_ask(now=float("inf")):
                try:
                    answer = await self._ask_read(seen, [url])
                except Refused as other:
                    if other.code.name == "position_unknown":
                        liars.append(url)
                    continue
                for liar in liars:
                    self._nodes.choice.failed(liar, now=asyncio.get_running_loop().time())
                _LOG.error("a node of the metadata service has another catalog: %s", error.detail)
                if answer.kind == "same":
                    return None
                if answer.kind == "rows":
                    return Reading(answer.place, answer.rows, False, answer.secret)
            if not liars:
                raise Refused("storage_unavailable", error.detail, 1.0)
        raise Lost(error.detail)

    async def _read_all(self) -> Reading:
        """Every shard, and what has changed since the first of them was read."""
        for _ in range(READ_AGAIN_MAX):
            places = asyncio.Semaphore(SHARDS_AT_ONCE)
            shards = await asyncio.gather(
                *(self._shard(number, places) for number in range(SHARDS))
            )
            if len({one.place.incarnation for one in shards}) != 1:
                raise Refused("storage_unavailable", "nodes of the service have several catalogs")
            oldest = min((one.place for one in shards), key=lambda place: place.version)
            raw: Raw = {}
            for one in shards:
                for kind, rows in one.rows.items():
                    raw.setdefault(kind, {}).update(rows)
            answer = await self._ask_read(oldest)
            if answer.kind == "same":
                return Reading(oldest, raw, True, shards[0].secret)
            if answer.kind == "rows":
                for kind, changed in answer.rows.items():
                    raw[kind] = raw.get(kind, {}) | changed
                return Reading(answer.place, raw, True, answer.secret)
        raise Refused("storage_unavailable", "the catalog changes faster than it can be read", 1.0)

    async def _shard(self, number: int, places: asyncio.Semaphore) -> ShardAnswer:
        loop, choice = asyncio.get_running_loop(), self._nodes.choice
        target = f"/v1/shards/{number}"
        async with places:
            try:
                return await self._nodes.ask(
                    "GET", target, None, ShardAnswer, try_s=READ_TRY_S,
                    urls=lambda: choice.to_ask_for(number, now=loop.time()),
                )  # fmt: skip
            except Nobody:  # its holders have gone, or are others by now
                return await self._nodes.ask(
                    "GET", f"{target}?how=through", None, ShardAnswer, try_s=2 * READ_TRY_S
                )

    # --- Changing --------------------------------------------------------------------------------

    async def change(
        self, seen: Place, stamp: str, writes: Sequence[Write], row: RowHeld = NO_ROW
    ) -> bool:
        """See Database."""
        request = ChangeRequest(seen, stamp, tuple(writes), row)
        is_sent = False
        for url in self._nodes.choice.to_ask(now=asyncio.get_running_loop().time()):
            try:
                answer = await self._nodes.ask_one(
                    url, "POST", "/v1/change", request, Changed, try_s=CHANGE_TRY_S
                )
            except Nobody as error:
                is_sent, last = is_sent or error.is_sent, error
                continue
            if answer.fenced:  # the catalog is as it was seen: who was asked before did not either
                raise other_generation(row[0])
            is_changed = answer.changed
            if not is_changed and is_sent:
                is_changed = await self._is_made(Place(seen.incarnation, seen.version + 1, stamp))
            if is_changed:
                self._version = max(self._version, seen.version + 1)
            return is_changed
        raise unknown(Nobody(last.detail, is_sent=is_sent))

    async def _is_made(self, place: Place) -> bool:
        """Whether a change was made that may have been asked twice. Raises Unknown: nobody can
        tell, or so many have been made since that nobody knows any more."""
        try:
            answer = await self._ask_read(place)
        except Nobody as error:
            raise unknown(Nobody(error.detail, is_sent=True)) from None
        except Refused as error:
            if error.code.name == "position_unknown":
                return False
            raise
        if answer.kind == "all":
            raise unknown(Nobody("too much was changed since", is_sent=True))
        return True

    async def is_taken(self, any_id: str) -> bool:
        """See Database."""
        return (await self._nodes.ask("GET", f"/v1/ids/{any_id}", None, Taken)).taken

    def memberships(self) -> MembershipRows:
        """See Database."""
        return self._members

    async def copy_to(self, path: Path) -> None:
        """See Database. Raises Refused(storage_unavailable) always."""
        raise Refused(
            "storage_unavailable", "this catalog is the metadata service's: copy its database"
        )

    async def close(self) -> None:
        """See Database."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await self._nodes.close()


class _Memberships:
    """`metadata.stores.MembershipRows` over nodes."""

    def __init__(self, nodes: AskingNodes, beats: MembershipRows | None) -> None:
        self._nodes = nodes
        self._beats = beats
        self._listeners: list[Callable[[str, int], None]] = []
        self._told: dict[str, int] = {}
        """Group → the last generation that was told."""

    async def get(self, group_id: str) -> Membership:
        """See MembershipRows."""
        return await self._nodes.ask(
            "GET", f"/v1/memberships/{group_id}", None, Membership, try_s=NEWS_TRY_S
        )

    async def glance(self, group_id: str) -> Membership:
        """See MembershipRows."""
        return await self._nodes.ask("GET", f"/v1/memberships/{group_id}/glance", None, Membership)

    async def change(self, new: Membership, *, expected_generation: int) -> bool:
        """See MembershipRows. Raises Unknown: it may have happened."""
        request = MembershipRequest(new, expected_generation)
        is_sent = False
        for url in self._nodes.choice.to_ask(now=asyncio.get_running_loop().time()):
            try:
                answer = await self._nodes.ask_one(
                    url, "POST", "/v1/memberships", request, Changed, try_s=CHANGE_TRY_S
                )
            except Nobody as error:
                is_sent, last = is_sent or error.is_sent, error
                continue
            if answer.changed or not is_sent:
                return answer.changed
            return await self.get(new.group_id) == new  # the first one may have changed it
        raise unknown(Nobody(last.detail, is_sent=is_sent))

    async def beat(
        self, gateway: str, number: int, forget: Mapping[str, int], says: str = ""
    ) -> dict[str, int]:
        """See MembershipRows."""
        if self._beats is not None:
            return await self._beats.beat(gateway, number, forget, says)
        request = BeatRequest(gateway, number, dict(forget), says)
        return await self._nodes.ask("POST", "/v1/beats", request, dict[str, int])

    async def said(self) -> dict[str, str]:
        """See MembershipRows."""
        if self._beats is not None:
            return await self._beats.said()
        return await self._nodes.ask("GET", "/v1/beats", None, dict[str, str])

    def on_changed(self, listener: Callable[[str, int], None]) -> None:
        """See MembershipRows."""
        self._listeners.append(listener)

    def tell(self, group_id: str, generation: int) -> bool:
        """A row was changed. False: another node has told it already."""
        if generation <= self._told.get(group_id, 0):
            return False
        while len(self._told) >= TOLD_MAX:
            del self._told[next(iter(self._told))]
        self._told[group_id] = generation
        for listener in self._listeners:
            listener(group_id, generation)
        return True

    def dropped(self, group_id: str) -> None:
        """See MembershipRows: it went with the group."""
