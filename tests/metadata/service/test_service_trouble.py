"""The metadata service in trouble: a node that is cut off from its database, that is behind, or
that has another one; a database that was rolled back."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from metadata.backend import CHANGES_KEPT, NOWHERE, CatalogPlace, CatalogRows, Lost, NodeDatabase
from metadata.catalog import Principal
from metadata.service.client import NoNodeAnswers
from metadata.service.node import CUT_OFF_S
from metadata.sqlite.database import FILE, SqliteDatabase
from metadata.tokens import TokenRecord
from push.errors import Refused, Unknown
from tests.mad import Mad
from tests.metadata.nodes import Service, service
from tests.metadata.service.test_service import SETTINGS, names
from tests.waiting import becomes

ALICE = Principal("alice", tenant="a")
TOKEN = TokenRecord(
    token_id="abcdefgh", kind="token", name="billing", tenant="a", rights=("publish:*",),
    created_unix_ms=1, digest=b"d" * 32,
)  # fmt: skip


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Service]:
    """Two over one file, in the layout that tells most about nodes; n1 by a way that can stall."""
    async with service(tmp_path, "ring", []) as made:
        await made.start("n1", cast(NodeDatabase, Mad(made.database)))
        await made.start("n2")
        yield made


def way_of(nodes: Service) -> Mad:
    """From n1 to the database."""
    return cast(Mad, nodes.nodes["http://n1"].database)


async def test_a_node_that_is_cut_off_from_its_database_tells_nothing_it_remembers(
    nodes: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its gateways would go on with what was revoked. They ask another one, and hear of what
    is changed there within the time that the node needs to know."""
    monkeypatch.setattr("metadata.service.node.CUT_OFF_S", CUT_OFF_S)
    here, there = await nodes.gateway("n1", "n2", seed=1), await nodes.gateway("n2")
    await there.tokens.create(TOKEN)
    await becomes(lambda: here.tokens.find("abcdefgh"))
    way_of(nodes).stall()
    await there.tokens.revoke("abcdefgh")
    assert await becomes(lambda: not here.tokens.find("abcdefgh")) < CUT_OFF_S + 1.5
    await becomes(nodes.nodes["http://n1"].not_ready)
    for target in ("/v1/watch?version=0&wait_s=0", "/v1/shards/0"):
        answer = await nodes.network.ask("http://n1", "GET", target, None, timeout_s=5)
        assert (answer.status, b"storage_unavailable" in answer.body) == (503, True)
    await here.put_queue(ALICE, "orders", SETTINGS)
    assert names(here) == ["orders"]
    way_of(nodes).well()
    await becomes(lambda: not nodes.nodes["http://n1"].not_ready())


async def test_what_is_changed_through_one_node_is_read_through_another(
    nodes: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also through one that has not heard of it: who knows more than a node is not told less."""
    monkeypatch.setattr("metadata.service.node.READ_S", 0.3)
    here = await nodes.gateway("n1", "n2", seed=1)
    behind = nodes.nodes["http://n1"]
    for number in range(20):
        await here.put_queue(ALICE, f"q{number}", SETTINGS)
        first = None
        async with asyncio.timeout(20):
            while first is None:
                with suppress(
                    NoNodeAnswers
                ):  # a machine that stood still: the node says nothing then
                    first = await nodes.gateway("n1")
        assert names(first) == names(here)
    place = await behind.fresh()
    way_of(nodes).stall("read")
    before = CatalogPlace(place.incarnation, place.version + 1, "of another node")
    with pytest.raises(Refused, match="storage_unavailable"):
        await behind.read(before)
    with pytest.raises(Refused, match="storage_unavailable"):
        await behind.watch(place.version + 1, "", 0.1)
    way_of(nodes).well()


async def test_a_node_with_another_catalog_ends_nobody(nodes: Service, tmp_path: Path) -> None:
    """Somebody has started it over a wrong file: its gateways do not believe it, and find another
    one. Where nobody contradicts it they end: their queues are not there."""
    fatal: list[str] = []
    here = await nodes.gateway("n1", "n2", seed=1, on_fatal=fatal.append)
    await here.put_queue(ALICE, "orders", SETTINGS)
    wrong = await SqliteDatabase.open(tmp_path / "wrong.sqlite")
    nodes.kill("n1")
    await nodes.start("n1", wrong)
    before, made = len(nodes.network.asked), 1
    async with asyncio.timeout(30):
        while ("http://n1", "POST", "/v1/read") not in nodes.network.asked[before:]:
            nodes.not_reached("n2")
            await here.put_queue(ALICE, f"q{made}", SETTINGS)
            made += 1
    await here.put_queue(ALICE, "last", SETTINGS)
    assert len(names(here)) == made + 1
    assert fatal == []
    nodes.kill("n2")
    async with asyncio.timeout(30):
        while not fatal:  # asked often enough, n1 is asked
            with suppress(Refused):
                await here.put_queue(ALICE, "more", SETTINGS)
            await asyncio.sleep(0.1)
    with pytest.raises(Refused, match="older copy"):
        await here.put_queue(ALICE, "more", SETTINGS)
    assert len(fatal) == 1
    assert await here.state() == (False, fatal[0])
    await wrong.close()


async def test_a_database_that_was_rolled_back_stops_its_nodes(tmp_path: Path) -> None:
    """R30: what they remember is about queues that may not be there; and gateways are not told by
    the next node either that all is well."""
    fatal: list[str] = []
    async with service(tmp_path, "whole", ["n1"]) as nodes:
        here = await nodes.gateway(on_fatal=fatal.append)
        await here.put_queue(ALICE, "before", SETTINGS)
        copy = tmp_path / "copy.sqlite"
        await nodes.database.copy_to(copy)
        await here.put_queue(ALICE, "after", SETTINGS)
        nodes.kill("n1")
        shutil.copy(copy, tmp_path / "older.sqlite")
        older = await SqliteDatabase.open(tmp_path / "older.sqlite")
        await nodes.start("n1", older)
        await becomes(lambda: fatal, within_s=20)
        with pytest.raises(Refused, match="older copy"):
            await here.put_queue(ALICE, "more", SETTINGS)
        await older.close()


async def test_a_node_whose_database_is_exchanged_ends(tmp_path: Path) -> None:
    async with service(tmp_path, "whole", []) as nodes:
        mad = Mad(nodes.database)
        node = await nodes.start("n1", cast(NodeDatabase, mad))
        other = await SqliteDatabase.open(tmp_path / "other.sqlite")
        mad.real = other
        await becomes(lambda: nodes.fatal)
        assert "older copy" in nodes.fatal[0]
        assert node.not_ready()
        with pytest.raises(Refused, match="must not be followed"):
            await node.fresh()
        await other.close()


async def test_what_nobody_knows_any_more_is_unknown(
    nodes: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: whether a change was made whose answer was lost is told by its stamp, as long as that is
    kept. To be told then that everything is to be read anew is no yes."""
    monkeypatch.setattr("metadata.service.node.CHANGES_KEPT", 3)
    monkeypatch.setattr("metadata.service.shards.CHANGES_KEPT", 3)
    monkeypatch.setattr("metadata.sqlite.database.CHANGES_KEPT", 3)
    remote = await nodes.remote("n1", "n2")
    reading = await remote.read(NOWHERE)
    assert reading is not None
    seen = place = reading.place
    for number in range(6):
        assert await remote.change(place, f"s{number}", [("marks", f"m{number}", b"v")])
        place = CatalogPlace(place.incarnation, place.version + 1, f"s{number}")
    with pytest.raises(Unknown, match="it is unknown whether"):
        await remote._is_made(CatalogPlace(seen.incarnation, seen.version + 1, "mine"))
    assert await remote._is_made(place)
    assert not await remote._is_made(CatalogPlace(place.incarnation, place.version, "mine"))
    await remote.close()


class Late:
    """A database whose readings can be made to end late, each as it was when it began."""

    def __init__(self, real: NodeDatabase) -> None:
        self.real = real
        self.held = asyncio.Event()
        self.held.set()

    async def read(self, seen: CatalogPlace) -> CatalogRows | None:
        """Implement Database.read."""
        reading = await self.real.read(seen)
        await self.held.wait()
        return reading

    def __getattr__(self, name: str) -> Callable[..., object]:
        return cast(Callable[..., object], getattr(self.real, name))


async def test_what_is_fresh_was_not_read_before_it_was_asked_for(tmp_path: Path) -> None:
    """A reading that is under way may have been made before the change that somebody has just been
    told of: it does not count."""
    async with service(tmp_path, "whole", []) as nodes:
        late = Late(nodes.database)
        node = await nodes.start("n1", cast(NodeDatabase, late))
        await nodes.start("n2")
        here = await nodes.gateway("n2")
        late.held.clear()
        await asyncio.sleep(0.5)  # a look is under way by now
        await here.put_queue(ALICE, "orders", SETTINGS)
        asked = asyncio.create_task(node.fresh())
        await asyncio.sleep(0.01)
        late.held.set()
        assert (await asked).version == 2


async def test_the_file_knows_whom_it_was_read_by(tmp_path: Path) -> None:
    """Who has missed more changes than are kept reads everything; who is elsewhere is lost."""
    database = await SqliteDatabase.open(tmp_path / FILE)
    first = await database.read(NOWHERE)
    assert first is not None
    place = first.place
    for number in range(CHANGES_KEPT + 5):
        writes = [("marks", f"m{number}", b"v")]
        assert await database.change(place, f"s{number}", writes)
        assert not await database.change(place, "again", writes)
        place = CatalogPlace(place.incarnation, place.version + 1, f"s{number}")
    again = await database.read(first.place)
    assert again is not None
    assert (again.is_all, len(again.raw["marks"])) == (True, CHANGES_KEPT + 5)
    near = CatalogPlace(place.incarnation, place.version - 1, f"s{CHANGES_KEPT + 3}")
    last = await database.read(near)
    assert last is not None
    assert (last.is_all, last.raw) == (False, {"marks": {f"m{CHANGES_KEPT + 4}": b"v"}})
    assert await database.read(place) is None
    for other in (
        CatalogPlace("another", 1, ""), CatalogPlace(place.incarnation, place.version, "x"),
        CatalogPlace(place.incarnation, near.version, "x"),
        CatalogPlace(place.incarnation, 1 << 40, "x"),
    ):  # fmt: skip
        with pytest.raises(Lost):
            await database.read(other)
    await database.close()
    again_opened = await SqliteDatabase.open(tmp_path / FILE)
    assert await again_opened.read(place) is None
    await again_opened.close()


async def test_a_token_that_nobody_can_vouch_for_admits_nobody(
    nodes: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P11: a gateway that is cut off does not know what was revoked; it goes on for an hour, and
    then what its tokens have let in ends. When it is answered again they count again."""
    monkeypatch.setattr("metadata.row_store.METADATA_STALE_S", 1.0)
    monkeypatch.setattr("metadata.token_store.METADATA_STALE_S", 1.0)
    monkeypatch.setattr("metadata.service.client.RemoteDatabase.poll_s", 0.1)
    here = await nodes.gateway()
    await here.tokens.create(TOKEN)
    ended: list[TokenRecord] = []
    here.tokens.on_revoked(ended.append)
    await asyncio.sleep(1.2)
    assert here.tokens.is_known
    gone, nodes.network.applications = nodes.network.applications, {}
    assert 0.5 < await becomes(lambda: not here.tokens.is_known) < 3
    await becomes(lambda: ended == [TOKEN])
    nodes.network.applications = gone
    await becomes(lambda: here.tokens.is_known)
    await asyncio.sleep(0.3)
    assert (ended, here.tokens.find("abcdefgh")) == ([TOKEN], TOKEN)
