"""A node of the metadata service: its view of the catalog and of the other nodes.

    following   it reads the database when a notice of a change came, and every LOOK_S
    fresh       a gateway that decides upon an answer gets one that was read after its request: it
                contains every change that was confirmed to anybody before, through any node
    cut off     a node that has not read its database for CUT_OFF_S says so, and answers nothing
                from its memory
    shards      it keeps all rows of a part of the catalog, by the layout and the ring of all nodes;
                it takes a shard before it announces itself, and keeps one that is now another's for
                KEPT_S more. It asks the holders of other shards for their rows
    nodes       it announces itself in the catalog's database, as gateways do
                (`metadata.heartbeats`), under a name that contains its address and its layout; each
                process has a name of its own

A node decides nothing: gateways have the rules, and the database compares and sets.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from metadata.backend import CHANGES_KEPT, NOWHERE, CatalogPlace, CatalogRows, Lost, NodeDatabase
from metadata.heartbeats import BEAT_S, FORGOTTEN_S, Heartbeats
from metadata.service.client import READ_TRY_S, NodeClient, NoNodeAnswers
from metadata.service.protocol import (
    LAYOUTS,
    ChangeRequest,
    Layout,
    NodeInfo,
    ReadAnswer,
    ShardAnswer,
    WatchAnswer,
)
from metadata.service.shards import SHARDS, NotInMemory, ShardCopy, held, holders, rows_of
from push.errors import Refused, TocsinError


def name_of(boot: str, layout: Layout, url: str) -> str:
    """Return the name of a node's process. `boot` differs at each start, and has no blanks."""
    return f"{boot} {layout} {url}"


def info_of(name: str) -> NodeInfo | None:
    """Return the node of this name; None if it is no node's name, or one of another version."""
    boot, _, rest = name.partition(" ")
    layout, _, url = rest.partition(" ")
    for known in LAYOUTS:
        if layout == known and boot and url:
            return NodeInfo(url, known)
    return None


class NodeNames:
    """The living nodes. Times are seconds of this process's clock."""

    def __init__(self, name: str) -> None:
        """Begin with this node's own name, which is always among them."""
        self.name = name
        self._beats = Heartbeats()

    def saw(self, beats: Mapping[str, int], *, now: float, asked_at: float) -> None:
        """Note all numbers, as the database answered them."""
        self._beats.saw(beats, now=now, asked_at=asked_at)

    def to_forget(self) -> dict[str, int]:
        """Return name → number of the nodes whose number has not changed for FORGOTTEN_S."""
        return self._beats.gone(FORGOTTEN_S)

    def number(self) -> int:
        """Return this node's number as the database answered it last; 0 if it never did."""
        return self._beats.number_of(self.name)

    def nodes(self) -> tuple[NodeInfo, ...]:
        """Return the living nodes and this one, sorted by URL. If several have one URL, only one is
        returned, this node by preference."""
        return _infos([*self._beats.there(), self.name])


def _infos(names: Iterable[str]) -> tuple[NodeInfo, ...]:
    found = {info.url: info for info in map(info_of, names) if info is not None}
    return tuple(found[url] for url in sorted(found))


LOOK_S: Final = 0.4
"""Seconds between reads of the database without a notice, so that a change is known everywhere
within a second."""
CUT_OFF_S: Final = 1.5
"""Age of the newest read of the database, in seconds, from which on a node counts as cut off: about
three failed reads."""
READ_S: Final = 2.0
"""Seconds that a request waits for the read of the database that it needs."""
KEPT_S: Final = 30.0
"""Seconds for which a node keeps a shard that the ring has given to another one, because gateways
with the former ring still look for it here."""
THROUGH_S: Final = 5.0
"""Seconds for which a node keeps a read of everything for `shard_through`. Far fewer than
CHANGES_KEPT changes happen meanwhile, and these are read afterwards."""
NOTICES_KEPT: Final = 1000
"""Number of notices of changed members that are kept. A gateway that has missed more looks by
itself (`gateway.delivery.membership`)."""
OVERLAP_S: Final = 3.0
"""Seconds of earlier notices that a gateway gets when it comes from another node. It was without a
node for less."""
_LOG: Final = logging.getLogger("tocsin.metadata")


class Node:
    """A node of the service, on one event loop; `open` makes it."""

    def __init__(
        self,
        database: NodeDatabase,
        reading: CatalogRows,
        names: NodeNames,
        *,
        url: str,
        layout: Layout,
        on_fatal: Callable[[str], None] | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.database = database
        self.layout: Layout = layout
        self.url = url
        """URL at which others reach it."""
        self.broken: str | None = None
        """Why nothing is answered any more; None while it works."""
        self.is_leaving = False
        """Whether it is going down, so that no gateway should begin to use it."""
        self._names = names
        self._on_fatal = on_fatal
        self.nodes: tuple[NodeInfo, ...] = names.nodes()
        """The living nodes, as this one sees them."""
        self._copy = ShardCopy(reading, self._shards_to_hold())
        self._read_at = loop.time()
        """Time at which the newest read of the database that succeeded was begun."""
        self._readers: list[asyncio.Future[None]] = []
        self._read_wanted = asyncio.Event()
        self._pulse = asyncio.Event()
        """Set, and replaced by a new one, whenever there is news for watchers."""
        self._boot = secrets.token_hex(4)
        self._members: deque[tuple[int, float, str, int]] = deque(maxlen=NOTICES_KEPT)
        """Number of the notice, when it came, group id, generation."""
        self._said = 0
        self._through = asyncio.Lock()
        self._read_through: CatalogRows | None = None
        self._leaves: dict[int, float] = {}
        """Shards that the ring has given to others → until when they are kept."""
        self._number = 0
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls,
        database: NodeDatabase,
        url: str,
        layout: Layout,
        *,
        on_fatal: Callable[[str], None] | None = None,
    ) -> "Node":
        """Read the catalog and this node's shards, follow it, then announce the node. `url`: where
        others reach it. `on_fatal` is called, once, with a sentence, when the catalog is no longer
        the one that was read (R30), and the process must end.

        Raises:
            Refused: storage_unavailable when there is no catalog, it is damaged, or nobody answers.
            Unknown: too few copies answer in time.
        """
        loop = asyncio.get_running_loop()
        names = NodeNames(name_of(secrets.token_hex(4), layout, url))
        asked_at = loop.time()
        names.saw(await database.beat_node("", 0, {}), now=loop.time(), asked_at=asked_at)
        try:
            reading = await database.read(NOWHERE)
        except Lost as error:
            raise Refused("storage_unavailable", f"the catalog cannot be used: {error}") from None
        assert reading is not None  # a catalog has a first version: that is news
        node = cls(database, reading, names, url=url, layout=layout, on_fatal=on_fatal)
        database.on_changed(lambda version: node._read_wanted.set())
        database.memberships().on_changed(node._members_changed)
        node._tasks = [
            loop.create_task(node._follow(), name="metadata follow"),
            loop.create_task(node._beat(), name="metadata beat"),
        ]
        return node

    async def close(self) -> None:
        """Announce that the node is gone, and stop. The database stays open."""
        self.is_leaving = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tell()
        with suppress(TocsinError, TimeoutError):
            async with asyncio.timeout(BEAT_S):
                await self.database.beat_node("", 0, {self._names.name: self._number})

    # --- Following -------------------------------------------------------------------------------

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        is_well = True
        while self.broken is None:
            if not self._readers:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._read_wanted.wait()
            self._read_wanted.clear()
            waiting, self._readers = self._readers, []
            began = loop.time()
            failure: TocsinError | None = None
            try:
                reading = await self.database.read(self._copy.place)
            except Lost as error:
                failure = self._stop(str(error))
            except TocsinError as error:
                failure = error
                if is_well:
                    _LOG.warning("the catalog's database cannot be read: %s", error)
                is_well = False
                await asyncio.sleep(min(LOOK_S, 0.1))
            except Exception as error:
                _LOG.exception("the catalog could not be read: unexpected")
                failure = Refused("storage_unavailable", f"{type(error).__name__}")
                await asyncio.sleep(LOOK_S)
            else:
                is_well = True
                self._read_at = began
                if reading is not None:
                    self._copy.learn(reading)
                    self._tell()
            for one in waiting:
                if not one.done():
                    one.set_exception(failure) if failure else one.set_result(None)

    def _stop(self, why: str) -> Refused:
        self.broken = f"the catalog must not be followed any more: {why}"
        _LOG.critical("%s", self.broken)
        if self._on_fatal is not None:
            self._on_fatal(self.broken)
        return Refused("storage_unavailable", self.broken)

    def _tell(self) -> None:
        pulse, self._pulse = self._pulse, asyncio.Event()
        pulse.set()

    def _members_changed(self, group_id: str, generation: int) -> None:
        self._said += 1
        now = asyncio.get_running_loop().time()
        self._members.append((self._said, now, group_id, generation))
        self._tell()

    @property
    def age_s(self) -> float:
        """Seconds since the newest read of the database that succeeded was begun."""
        return asyncio.get_running_loop().time() - self._read_at

    def not_ready(self) -> list[str]:
        """Return why gateways should not ask this node, a sentence each; [] if they may."""
        reasons = [] if self.broken is None else [self.broken]
        if self.is_leaving:
            reasons.append("this node is going down")
        if self.age_s >= CUT_OFF_S:
            reasons.append(f"the catalog's database has not been read for {self.age_s:.1f} s")
        return reasons

    def _check_connected(self) -> None:
        if self.broken is not None:
            raise Refused("storage_unavailable", self.broken)
        if self.age_s >= CUT_OFF_S:
            raise Refused(
                "storage_unavailable",
                f"this node has not read the catalog's database for {self.age_s:.1f} s",
                1.0,
            )

    async def fresh(self) -> CatalogPlace:
        """Learn every change that was made before this call; return the place that is known then.
        Raises Refused(storage_unavailable)."""
        if self.broken is not None:
            raise Refused("storage_unavailable", self.broken)
        waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readers.append(waits)
        self._read_wanted.set()
        try:
            async with asyncio.timeout(READ_S):
                await waits
        except TimeoutError:
            raise Refused(
                "storage_unavailable", "the catalog's database does not answer", 1.0
            ) from None
        return self._copy.place

    # --- Answering -------------------------------------------------------------------------------

    async def watch(self, version: int, cursor: str, wait_s: float) -> WatchAnswer:
        """Return the news as soon as there are any after `version` and `cursor`, or after `wait_s`.
        Raises Refused when this node is behind, or cut off; draining when it is going down and
        another one is to be asked."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        said, heard = self._said, self._number_of(cursor)
        if heard is not None:
            said = heard
        if self._copy.place.version < version and (await self.fresh()).version < version:
            raise Refused("storage_unavailable", "this node is behind what was seen elsewhere", 0.1)
        while True:
            self._check_connected()
            if self.is_leaving:
                raise Refused("draining", "this node is going down: ask another one")
            pulse = self._pulse
            if self._copy.place.version > version or self._said > said:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(until, loop.time() + LOOK_S)):
                    await pulse.wait()
            if loop.time() >= until and self._pulse is pulse:
                break
        since = loop.time() - wait_s - OVERLAP_S
        members = tuple(
            (group, to)
            for number, at, group, to in self._members
            if (number > heard if heard is not None else at >= since)
        )
        place = self._copy.place
        return WatchAnswer(place.version, f"{self._boot}.{self._said}", members, self.nodes)

    def _number_of(self, cursor: str) -> int | None:
        """Return the number of the last notice that the gateway has received from here. None if its
        cursor is another node's, because a balancer may send it elsewhere each time. It then gets
        recent notices again, after the ordinary wait: otherwise it would hurry from node to
        node."""
        boot, _, number = cursor.partition(".")
        return int(number) if boot == self._boot and number.isdigit() else None

    async def read(self, seen: CatalogPlace) -> ReadAnswer:
        """Return what has changed since `seen`, up to a moment after this request.

        Raises:
            Refused: position_unknown when what was seen is not part of this catalog (any more);
                storage_unavailable when another node is to be asked, or this one again.
        """
        place = await self.fresh()
        copy = self._copy
        try:
            reading = copy.since(seen)
        except NotInMemory:
            is_same_catalog = seen.incarnation == place.incarnation
            if seen == NOWHERE or (is_same_catalog and seen.version < place.version - CHANGES_KEPT):
                return ReadAnswer("all", place, {}, copy.secret)
            try:
                reading = await self.database.read(seen)
            except Lost as error:
                raise Refused("position_unknown", str(error)) from None
        if reading is None:
            return ReadAnswer("same", seen, {}, b"")
        if reading.is_all:
            return ReadAnswer("all", reading.place, {}, reading.secret)
        return ReadAnswer("rows", reading.place, reading.raw, reading.secret)

    def shard(self, number: int) -> ShardAnswer:
        """Return a shard that this node holds. Raises Refused: not_found if it does not;
        storage_unavailable."""
        self._check_connected()
        try:
            rows = self._copy.shard(number)
        except NotInMemory:
            raise Refused("not_found", f"this node does not hold the shard {number}") from None
        return ShardAnswer(self._copy.place, rows, self._copy.secret)

    async def shard_through(self, number: int) -> ShardAnswer:
        """Return any shard from the database, for a gateway that has found none of its holders. It
        will request all shards, so the read is kept for THROUGH_S. Raises
        Refused(storage_unavailable), Unknown."""
        async with self._through:
            if self._read_through is None:
                try:
                    found = await self.database.read(NOWHERE)
                except Lost as error:
                    raise Refused("storage_unavailable", str(error)) from None
                assert found is not None
                self._read_through = found
                asyncio.get_running_loop().call_later(THROUGH_S, self._forget_through)
            reading = self._read_through
        return ShardAnswer(reading.place, rows_of(reading.raw, number), reading.secret)

    def _forget_through(self) -> None:
        self._read_through = None

    async def change(self, request: ChangeRequest) -> bool:
        if self.broken is not None:
            raise Refused("storage_unavailable", self.broken)
        is_changed = await self.database.change(
            request.seen, request.stamp, request.writes, request.row
        )
        self._read_wanted.set()
        return is_changed

    # --- Among the nodes -------------------------------------------------------------------------

    def _shards_to_hold(self) -> frozenset[int]:
        if self.layout == "whole":
            return frozenset(range(SHARDS))
        return held(self.url, [one.url for one in self.nodes if one.layout != "whole"])

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            asked_at = loop.time()
            self._number += 1
            try:
                beats = await self.database.beat_node(
                    self._names.name, self._number, self._names.to_forget()
                )
                self._names.saw(beats, now=loop.time(), asked_at=asked_at)
                await self._take_its_shards()
            except TocsinError as error:
                _LOG.debug("a beat was not heard: %s", error)  # `not_ready` reports it
            except Exception:
                _LOG.exception("a beat failed: unexpected")
            await asyncio.sleep(max(0.0, asked_at + BEAT_S - loop.time()))

    async def _take_its_shards(self) -> None:
        nodes = self._names.nodes()
        if nodes != self.nodes:
            _LOG.info("nodes of the metadata service: %s", ", ".join(one.url for one in nodes))
            self.nodes = nodes
            self._tell()
        now, wanted = asyncio.get_running_loop().time(), self._shards_to_hold()
        if not wanted <= self._copy.shards:
            await self._gain(wanted)
        for shard in self._copy.shards - wanted:
            self._leaves.setdefault(shard, now + KEPT_S)
        for shard, until in list(self._leaves.items()):
            if shard in wanted:
                del self._leaves[shard]
            elif now >= until:
                del self._leaves[shard]
                self._copy.let_go([shard])

    async def _gain(self, shards: frozenset[int]) -> None:
        reading = await self.database.read(NOWHERE)
        if reading is not None:
            await self.fresh()
            self._copy.hold(shards, reading)  # if it is too old by now, the next beat tries again


HERE: Final = "here"
"""Answer from the node itself only; for another node, which searches further by itself."""
THROUGH: Final = "through"
"""Answer from the database, if need be, because none of the shard's holders was found."""


class Shards:
    """Finder of a shard's rows, in this node, at other nodes or in the database. `peers` asks other
    nodes; None if there are none to ask."""

    def __init__(self, node: Node, peers: NodeClient | None) -> None:
        self._node = node
        self._peers = peers

    async def shard(self, number: int, how: str = "") -> ShardAnswer:
        """Return the rows of a shard. Raises Refused: not_found when this node does not hold it and
        a holder is to be asked; storage_unavailable when another node is to be asked."""
        try:
            return self._node.shard(number)
        except Refused as error:
            if error.code.name != "not_found" or how == HERE:
                raise
            if self._node.layout != "forward" and how != THROUGH:
                raise
        if self._node.layout == "forward" and self._peers is not None:
            there = [one.url for one in self._node.nodes if one.layout != "whole"]
            others = [url for url in holders(number, there) if url != self._node.url]
            try:
                return await self._peers.ask(
                    "GET",
                    f"/v1/shards/{number}?how={HERE}",
                    None,
                    ShardAnswer,
                    try_s=READ_TRY_S,
                    urls=lambda: others,
                )
            except NoNodeAnswers:
                pass
        return await self._node.shard_through(number)
