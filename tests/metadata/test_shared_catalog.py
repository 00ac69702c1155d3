"""One catalog on a real Redis or Valkey server that several gateways share (R14, R30)."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec
import pytest

from gateway.catalog.guarded import GuardedMetadata
from metadata.catalog import Group, GroupSettings, Membership, Principal, Queue, QueueSettings
from metadata.catalog_service import CatalogService
from metadata.data_keys import DataKey
from metadata.redis.database import CHANGED, KEYS, STATE, RedisDatabase, found_catalog, key_of
from metadata.row_store import RowStore
from metadata.tokens import TokenRecord
from push.errors import Refused, Unknown
from storage.redis.ops.provision import provision
from storage.redis.shard import RedisShard
from tests.metadata.keepers import MARKS, RedisKeeper
from tests.servers.binaries import binaries
from tests.servers.layouts import replicated
from tests.servers.node import Node
from tests.storage.shards import answers_are_lost
from tests.waiting import becomes

ALICE = Principal("alice", tenant="a")
SETTINGS = QueueSettings(partitions=4)
KEY = DataKey(key_id=b"12345678", master_key_id="m", created_unix_ms=1, wrapped=b"w")
TOKEN = TokenRecord(
    token_id="abcdefgh", kind="token", name="billing", tenant="a", rights=("publish:*",),
    created_unix_ms=1, digest=b"d" * 32,
)  # fmt: skip


@pytest.fixture
async def server(node: Node) -> AsyncIterator[RedisKeeper]:
    keeper = RedisKeeper(node)
    await keeper.empty()
    yield keeper
    await keeper.close()


@pytest.fixture
async def both(
    server: RedisKeeper,
) -> AsyncIterator[tuple[CatalogService, CatalogService]]:
    """Two gateways' catalogs."""
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(2):
            one = await server.open()
            stack.push_async_callback(one.close)
            opened.append(one)
        yield opened[0], opened[1]


def same(one: CatalogService, other: CatalogService) -> bool:
    """Whether both gateways see the same catalog."""

    def seen(catalog: CatalogService) -> object:
        queues = catalog.list_queues(ALICE)
        return (
            queues, [catalog.list_groups(ALICE, queue) for queue in queues],
            sorted(catalog.dropped(), key=str), catalog.tokens.listed(), catalog.data_keys.all(),
            catalog.mark("storage"), catalog.secret("receipts"),
        )  # fmt: skip

    return seen(one) == seen(other)


# --- One of several wins, and nothing is lost -----------------------------------------------------


async def test_two_gateways_create_one_queue_at_once(
    both: tuple[CatalogService, CatalogService],
) -> None:
    """One wins, both see one and the same."""
    for number in range(20):
        answers = await asyncio.gather(
            *(one.put_queue(ALICE, f"q{number}", SETTINGS) for one in both)
        )
        assert sorted(created for _, created in answers) == [False, True]
        assert answers[0][0] == answers[1][0]
    assert [one.name for one in both[0].list_queues(ALICE)] == sorted(f"q{n}" for n in range(20))
    await becomes(lambda: same(*both))


async def test_no_change_is_lost_when_two_gateways_change_at_once(
    both: tuple[CatalogService, CatalogService],
) -> None:
    """Settings on one, a pause on the other: the later one keeps what the earlier one did."""
    for number in range(20):
        await both[0].put_queue(ALICE, "orders", QueueSettings(partitions=4, lease_s=100))
        await both[0].change_queue(ALICE, "orders", {"lease_s": 100.0})
        await both[0].pause_queue(ALICE, "orders", paused=False)
        lease_s = float(number + 1)
        await asyncio.gather(
            both[0].change_queue(ALICE, "orders", {"lease_s": lease_s}),
            both[1].pause_queue(ALICE, "orders", paused=True),
        )
        await becomes(lambda: same(*both))
        queue = both[0].find_queue(ALICE, "orders")
        assert (queue.settings.lease_s, queue.paused) == (lease_s, True)


async def test_a_group_is_not_made_on_a_queue_that_another_gateway_deletes(
    both: tuple[CatalogService, CatalogService],
) -> None:
    """Whichever comes first: no group is left without its queue."""
    for _ in range(10):
        queue, _ = await both[0].put_queue(ALICE, "orders", SETTINGS)
        await becomes(lambda: same(*both))
        answers = await asyncio.gather(
            both[0].delete_queue(ALICE, "orders"),
            both[1].put_group(ALICE, queue, "g", GroupSettings()),
            return_exceptions=True,
        )
        assert answers[0] == queue
        if isinstance(answers[1], BaseException):
            assert "queue_not_found" in str(answers[1])
        await becomes(lambda: same(*both))
        assert both[1].list_groups(ALICE, queue) == []
        assert (queue.queue_id, None) in both[1].dropped()


async def test_gateways_that_change_at_random_end_with_one_catalog(server: RedisKeeper) -> None:
    catalogs = [await server.open() for _ in range(3)]
    refused = set[str]()

    async def work(which: int) -> None:
        catalog = catalogs[which]
        for step in range(30):
            name = f"q{(step * 7 + which) % 5}"
            try:
                queue, _ = await catalog.put_queue(
                    ALICE, name, QueueSettings(partitions=4, lease_s=float(step + 1))
                )
                await catalog.put_group(ALICE, queue, f"g{step % 3}", GroupSettings())
                if step % 4 == which:
                    await catalog.delete_queue(ALICE, name)
            except Refused as error:
                refused.add(error.code.name)

    await asyncio.gather(*map(work, range(3)))
    assert refused <= {"queue_not_found", "group_not_found"}
    catalogs.append(await server.open())
    for other in catalogs[1:]:
        await becomes(lambda other=other: same(catalogs[0], other))  # type: ignore[misc]
    for catalog in catalogs:
        await catalog.close()


async def test_a_change_is_decided_by_how_it_is_now(
    server: RedisKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that has not heard yet neither takes what is there for what is wanted, nor refuses
    what is possible by now."""
    monkeypatch.setattr(RedisDatabase, "poll_s", 3600)
    monkeypatch.setattr(RowStore, "_on_notice", lambda *_: None)
    here, there = await server.open(), await server.open()
    queue, _ = await here.put_queue(ALICE, "orders", SETTINGS)
    assert there.list_queues(ALICE) == []
    _, created = await there.put_group(ALICE, queue, "g", GroupSettings())
    assert created
    await here.change_queue(ALICE, "orders", {"lease_s": 9.0})
    assert await there.change_queue(ALICE, "orders", {"retention_s": 5.0}, was=queue) is None
    assert there.find_queue(ALICE, "orders").settings.lease_s == 9
    await here.change_queue(ALICE, "orders", {"attempts_max": 1})
    done = await there.change_queue(ALICE, "orders", {"retention_s": 5.0})
    assert done is not None
    assert done[1].settings == QueueSettings(partitions=4, lease_s=9, attempts_max=1, retention_s=5)
    assert await here.put_queue(ALICE, "orders", SETTINGS) == (done[1], False)
    await here.close()
    await there.close()


async def test_who_has_not_heard_of_a_queue_makes_it_without_changing_it(
    server: RedisKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first publish, the first dead letter and the first subscribe make what is not known there,
    with defaults: what another gateway made a moment ago keeps its settings."""
    monkeypatch.setattr(RedisDatabase, "poll_s", 3600)
    monkeypatch.setattr(RowStore, "_on_notice", lambda *_: None)
    here, there = await server.open(), await server.open()
    settings = QueueSettings(partitions=4, retention_s=604_800)
    queue, _ = await here.put_queue(ALICE, "orders", settings)
    group, _ = await here.put_group(ALICE, queue, "g", GroupSettings(lease_s=60))
    assert there.list_queues(ALICE) == []
    assert await there.put_queue(ALICE, "orders", QueueSettings()) == (queue, False)
    assert await there.put_group(ALICE, queue, "g", GroupSettings()) == (group, False)
    assert same(here, there)
    await here.close()
    await there.close()


async def test_two_gateways_change_different_settings_at_once(
    both: tuple[CatalogService, CatalogService],
) -> None:
    """Both changes count."""
    await both[0].put_queue(ALICE, "orders", SETTINGS)
    for number in range(1, 21):
        await asyncio.gather(
            both[0].change_queue(ALICE, "orders", {"lease_s": float(number)}),
            both[1].change_queue(ALICE, "orders", {"retention_s": float(number)}),
        )
        await becomes(lambda: same(*both))
        settings = both[0].find_queue(ALICE, "orders").settings
        assert (settings.lease_s, settings.retention_s) == (number, number)


# --- Following ------------------------------------------------------------------------------------


async def test_every_change_is_known_to_the_other_gateway_within_a_second(
    both: tuple[CatalogService, CatalogService],
) -> None:
    """Queues, settings, groups, tokens, data keys, marks, what is dropped and forgotten; and its
    listeners hear of it as if it was done there."""
    here, there = both
    told: list[tuple[str, str | None, bool]] = []
    revoked: list[str] = []
    learned: list[bytes] = []
    there.on_queue_changed(
        lambda queue, group, *, deleted: told.append(
            (queue.name, None if group is None else group.name, deleted)
        )
    )
    there.tokens.on_revoked(lambda record: revoked.append(record.token_id))
    there.data_keys.on_learned(lambda rows: learned.extend(row.key_id for row in rows))
    queue, _ = await here.put_queue(ALICE, "orders", SETTINGS)
    assert await becomes(lambda: same(*both)) < 1
    await here.change_queue(ALICE, "orders", {"lease_s": 9.0})
    await here.put_group(ALICE, queue, "g", GroupSettings())
    await here.put_group(ALICE, queue, "h", GroupSettings())
    await here.tokens.create(TOKEN)
    await here.data_keys.put([KEY])
    await here.set_mark("storage", "first")
    assert await becomes(lambda: same(*both)) < 1
    assert there.tokens.find("abcdefgh") == TOKEN
    assert there.data_keys.find(KEY.key_id) == KEY
    await here.delete_group(ALICE, queue, "h")
    assert await becomes(lambda: same(*both)) < 1
    await here.delete_queue(ALICE, "orders")
    await here.tokens.revoke("abcdefgh")
    assert await becomes(lambda: same(*both)) < 1
    assert there.dropped() == [(queue.queue_id, None)]
    await there.forget(queue.queue_id, None)
    assert await becomes(lambda: same(*both)) < 1
    assert here.dropped() == []
    assert told[0] == ("orders", None, False)
    assert told[-3:] == [("orders", "h", True), ("orders", "g", True), ("orders", None, True)]
    assert (revoked, set(learned)) == (["abcdefgh"], {KEY.key_id})


async def test_what_is_sealed_on_one_gateway_can_be_opened_on_the_other(
    both: tuple[CatalogService, CatalogService],
) -> None:
    """Its data key is known there too, behind the guard; wrapped anew it is the new one."""
    guarded = GuardedMetadata(both[1])
    await both[0].data_keys.put([KEY])
    assert await becomes(lambda: guarded.data_keys.find(KEY.key_id)) < 1
    again = msgspec.structs.replace(KEY, wrapped=b"anew")
    await both[0].data_keys.put([again])
    assert await becomes(lambda: guarded.data_keys.all() == [again]) < 1


async def test_a_change_is_known_also_when_its_notice_is_lost(
    server: RedisKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowStore, "_on_notice", lambda *_: None)
    here, there = await server.open(), await server.open()
    await here.put_queue(ALICE, "orders", SETTINGS)
    assert await becomes(lambda: same(here, there)) < 1
    await here.close()
    await there.close()


async def test_a_notice_is_what_a_gateway_waits_for(
    server: RedisKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RedisDatabase, "poll_s", 3600)
    here, there = await server.open(), await server.open()
    await here.put_queue(ALICE, "orders", SETTINGS)
    await becomes(lambda: same(here, there))
    await here.close()
    await there.close()


async def test_who_has_missed_more_than_is_kept_reads_everything_again(
    server: RedisKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what is gone by then, and several pages of it."""
    monkeypatch.setattr("metadata.redis.database.CHANGES_KEPT", 3)
    monkeypatch.setattr("metadata.redis.database.PAGE_ROWS", 10)
    here = await server.open()
    gone, _ = await here.put_queue(ALICE, "gone", SETTINGS)
    kept, _ = await here.put_queue(ALICE, "kept", SETTINGS)
    await here.put_group(ALICE, kept, "gone", GroupSettings())
    await here.tokens.create(TOKEN)
    with monkeypatch.context() as slow:
        slow.setattr(RedisDatabase, "poll_s", 3600)
        slow.setattr(RowStore, "_on_notice", lambda *_: None)
        there = await server.open()
        assert same(here, there)
        told: list[str] = []
        there.on_queue_changed(
            lambda queue, group, *, deleted: told.append(queue.name) if deleted else None
        )
        await here.delete_queue(ALICE, "gone")
        await here.forget(gone.queue_id, None)
        await here.delete_group(ALICE, kept, "gone")
        await here.tokens.revoke("abcdefgh")
        for number in range(200):
            await here.put_queue(ALICE, f"q{number}", SETTINGS)
        await there.set_mark("storage", "x")  # a change reads the news first
    assert await becomes(lambda: same(here, there)) < 1
    assert told == ["gone", "kept"]
    assert there.dropped() == here.dropped() != []
    await here.close()
    await there.close()


async def test_what_too_few_copies_have_is_not_believed(
    server: RedisKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R10: it may go again with its server. As soon as all have it, it is."""
    here, there = await server.open(), await server.open()
    act, is_short = RedisShard.act, True

    async def short(self: RedisShard, function: str, *args: object, **named: object) -> object:
        if is_short and function == "catalog_confirm":
            raise Unknown("0 of 1 replicas have confirmed it")
        return await act(self, function, *args, **named)  # type: ignore[arg-type]

    asked: list[str] = []
    look = RedisShard.look

    async def counted(self: RedisShard, function: str, *args: object) -> object:
        asked.append(function)
        return await look(self, function, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(RedisShard, "act", short)
    monkeypatch.setattr(RedisShard, "look", counted)
    await here.put_queue(ALICE, "orders", SETTINGS)
    asked.clear()
    await becomes(lambda: asked.count("catalog_since") >= 4)  # both have looked since
    assert there.list_queues(ALICE) == []
    is_short = False
    await becomes(lambda: same(here, there))
    await here.close()
    await there.close()


async def test_a_change_that_a_replica_lacks_is_news_to_nobody(tmp_path: Path) -> None:
    """R10, with a replica that stands still: who asked for it does not know, all others do not
    either, and what they knew goes on; when it goes on, all know."""
    with replicated(binaries()[0], tmp_path, replicas=1) as servers:
        server = RedisKeeper(servers.nodes[0], replicas=1)
        await provision(server.settings, MARKS.incarnation, 1)
        here, there = await server.open(), await server.open()
        before, _ = await here.put_queue(ALICE, "before", SETTINGS)
        await becomes(lambda: same(here, there))
        servers.nodes[1].freeze()
        try:
            with pytest.raises((Unknown, Refused)):
                await here.put_queue(ALICE, "orders", SETTINGS)
            with pytest.raises((Unknown, Refused)):
                await there.put_queue(ALICE, "orders", SETTINGS)
            assert there.list_queues(ALICE) == here.list_queues(ALICE) == [before]
        finally:
            servers.nodes[1].thaw()
        queue = await settled(there)
        await becomes(lambda: same(here, there))
        assert here.list_queues(ALICE) == [before, queue]
        await here.close()
        await there.close()
        await server.close()


async def settled(catalog: CatalogService) -> Queue:
    """Ask again until it is known."""
    while True:
        with suppress(Unknown, Refused):
            return (await catalog.put_queue(ALICE, "orders", SETTINGS))[0]


# --- Damage and older copies (R30) ----------------------------------------------------------------


@pytest.mark.parametrize(
    "act",
    [
        ("HINCRBY", STATE, "version", -1),
        ("HSET", STATE, "stamp", "0123456789abcdef"),
        ("HSET", STATE, "incarnation", "another"),
        ("DEL", STATE),
    ],
    ids=["version-back", "another-change", "incarnation", "gone"],
)
async def test_an_older_or_other_catalog_stops_the_gateway(
    server: RedisKeeper, act: tuple[str | int, ...]
) -> None:
    """What it knows is about queues that may not be there: it ends, with a sentence, and changes
    nothing before."""
    fatal: list[str] = []
    catalog = await server.open(on_fatal=fatal.append)
    await catalog.put_queue(ALICE, "orders", SETTINGS)
    server.node.ask(*act)
    await becomes(lambda: fatal)
    (sentence,) = fatal
    assert "older copy" in sentence
    with pytest.raises(Refused, match="older copy"):
        await catalog.put_queue(ALICE, "more", SETTINGS)
    assert await catalog.state() == (False, sentence)
    assert len(server.node.ask("HKEYS", key_of("queues"))) == 1
    await catalog.close()


async def test_a_look_at_a_primary_of_before_stops_nobody(
    server: RedisKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look may ask one that was cut off and knows less; an act of level all cannot."""
    fatal: list[str] = []
    catalog = await server.open(on_fatal=fatal.append)
    shard = await server.shard()
    before = await shard.look("catalog_since", KEYS, [0, ""])
    before[4] = b"other"
    queue, _ = await catalog.put_queue(ALICE, "orders", SETTINGS)
    look, asked = RedisShard.look, 0

    async def old(self: RedisShard, function: str, *args: object) -> object:
        nonlocal asked
        if function == "catalog_since" and asked < 2:
            asked += 1
            return before
        return await look(self, function, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(RedisShard, "look", old)
    await becomes(lambda: asked == 2)
    other = await server.open()
    await other.put_queue(ALICE, "more", SETTINGS)
    await becomes(lambda: same(catalog, other))
    assert fatal == []
    assert catalog.find_queue(ALICE, "orders") == queue
    await catalog.close()
    await other.close()


async def test_there_must_be_a_catalog_unless_it_is_to_be_made(server: RedisKeeper) -> None:
    """Who takes an emptied store for a new one makes every queue anew beside its messages."""
    with pytest.raises(Refused, match="there is no catalog"):
        await RowStore.open(RedisDatabase(await server.shard()))
    await found_catalog(await server.shard())
    made, _ = await RowStore.open(RedisDatabase(await server.shard()))
    await found_catalog(await server.shard())
    again, _ = await RowStore.open(RedisDatabase(await server.shard()))
    assert len(made.root_secret) == 32
    assert again.root_secret == made.root_secret


@pytest.mark.parametrize("kind", ["queues", "groups", "data_keys", "marks"])
async def test_a_damaged_row_is_refused_by_its_name(server: RedisKeeper, kind: str) -> None:
    catalog = await server.open()
    queue, _ = await catalog.put_queue(ALICE, "orders", SETTINGS)
    await catalog.put_group(ALICE, queue, "g", GroupSettings())
    await catalog.data_keys.put([KEY])
    await catalog.set_mark("storage", "x")
    await catalog.close()
    (row_id,) = server.node.ask("HKEYS", key_of(kind))
    value = server.node.ask("HGET", key_of(kind), row_id)
    server.node.ask("HSET", key_of(kind), row_id, value[:-3] + "~" + value[-2:])
    with pytest.raises(Refused, match=f"the row '{row_id}' of .*{kind} is damaged"):
        await RowStore.open(RedisDatabase(await server.shard()))


async def test_a_damaged_token_admits_nobody_and_is_said(
    server: RedisKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    catalog = await server.open()
    await catalog.tokens.create(TOKEN)
    await catalog.close()
    server.node.ask("HSET", key_of("tokens"), "abcdefgh", "00000000{}")
    with caplog.at_level(logging.ERROR):
        again = await server.open()
    assert again.tokens.find("abcdefgh") is None
    assert "abcdefgh" in caplog.text
    await again.close()


# --- Unknown, and ids -----------------------------------------------------------------------------


async def test_a_change_whose_outcome_is_unknown_comes_as_news(
    server: RedisKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has happened: the gateway that asked learns it as all others do, and may ask again."""
    catalog = await server.open()
    with answers_are_lost("catalog_change"), pytest.raises(Unknown):
        await catalog.put_queue(ALICE, "orders", SETTINGS)
    await becomes(lambda: catalog.list_queues(ALICE))
    _, created = await catalog.put_queue(ALICE, "orders", SETTINGS)
    assert not created
    assert await catalog.state() == (True, "")
    await catalog.close()


async def test_an_id_is_never_given_twice(server: RedisKeeper) -> None:
    """R1: also that of a queue that is gone and forgotten."""
    drawn = iter(["aaaaaaaaaa", "aaaaaaaaaa", "bbbbbbbbbb"])
    await found_catalog(await server.shard())
    store, contents = await RowStore.open(
        RedisDatabase(await server.shard()), draw_id=lambda: next(drawn)
    )
    catalog = CatalogService(store, contents)
    queue, _ = await catalog.put_queue(ALICE, "orders", SETTINGS)
    await catalog.delete_queue(ALICE, "orders")
    await catalog.forget(queue.queue_id, None)
    again, _ = await catalog.put_queue(ALICE, "orders", SETTINGS)
    assert (queue.queue_id, again.queue_id) == ("aaaaaaaaaa", "bbbbbbbbbb")
    await catalog.close()


async def test_all_keys_have_one_hash_tag(server: RedisKeeper) -> None:
    """So one function may change them together, in a Cluster too."""
    catalog = await server.open()
    queue, _ = await catalog.put_queue(ALICE, "orders", SETTINGS)
    await catalog.put_group(ALICE, queue, "g", GroupSettings())
    await catalog.delete_queue(ALICE, "orders")
    assert all(name.startswith("{tocsin}:") for name in server.node.ask("KEYS", "*"))
    assert CHANGED.startswith("{tocsin}:")
    await catalog.close()


# --- Memberships (R14) ----------------------------------------------------------------------------


def row(group: Group, generation: int, *members: str) -> Membership:
    return Membership(
        group_id=group.group_id, generation=generation, members=members,
        assignment=dict.fromkeys(range(4), members[0]),
    )  # fmt: skip


async def made(catalog: CatalogService) -> tuple[Queue, Group]:
    queue, _ = await catalog.put_queue(ALICE, "orders", SETTINGS)
    group, _ = await catalog.put_group(ALICE, queue, "g", GroupSettings())
    return queue, group


async def test_of_two_gateways_with_one_view_one_changes_a_membership(
    both: tuple[CatalogService, CatalogService],
) -> None:
    """R14: no two views of one generation; and the row outlives the gateways."""
    _, group = await made(both[0])
    await becomes(lambda: same(*both))
    for _ in range(20):
        seen = (await both[0].membership(group.group_id)).generation
        rows = [row(group, seen + 1, f"gateway-{number}") for number in range(2)]
        answers = await asyncio.gather(
            *(
                one.change_membership(new, expected_generation=seen)
                for one, new in zip(both, rows, strict=True)
            )
        )
        assert sorted(answers) == [False, True]
        won = rows[answers.index(True)]
        assert await both[0].membership(group.group_id) == won
        assert await both[1].membership(group.group_id) == won


async def test_gateways_hear_of_changed_memberships(server: RedisKeeper) -> None:
    shard = await server.shard()
    here = await server.open()
    there = CatalogService(*await RowStore.open(RedisDatabase(shard)))
    told: list[tuple[str, int]] = []
    there.on_membership_changed(lambda group_id, generation: told.append((group_id, generation)))
    await shard.wait_subscribed()
    _, group = await made(here)
    assert await here.change_membership(row(group, 1, "a"), expected_generation=0)
    assert not await here.change_membership(row(group, 9, "a"), expected_generation=8)
    assert await here.change_membership(row(group, 2, "a"), expected_generation=1)
    await becomes(lambda: len(told) >= 2)
    assert told == [(group.group_id, 1), (group.group_id, 2)]
    await here.close()
    await there.close()


async def test_a_membership_goes_with_its_group(
    both: tuple[CatalogService, CatalogService], server: RedisKeeper
) -> None:
    """Also for a gateway that has not heard of it yet: no row comes back."""
    queue, group = await made(both[0])
    await becomes(lambda: same(*both))
    assert await both[1].change_membership(row(group, 1, "a"), expected_generation=0)
    await both[0].delete_group(ALICE, queue, "g")
    with pytest.raises(Refused, match="group_not_found"):
        await both[1]._memberships.change(row(group, 2, "a"), expected_generation=1)
    assert server.node.ask("HLEN", key_of("memberships")) == 0


async def test_a_row_is_glanced_at_while_a_replica_is_away(tmp_path: Path) -> None:
    """R14: what was confirmed is there, and perhaps more. A group that is deleted has none."""
    with replicated(binaries()[0], tmp_path, replicas=1) as servers:
        server = RedisKeeper(servers.nodes[0], replicas=1)
        await provision(server.settings, MARKS.incarnation, 1)
        here, there = await server.open(), await server.open()
        queue, group = await made(here)
        await becomes(lambda: same(here, there))
        assert await here.change_membership(row(group, 7, "a"), expected_generation=0)
        servers.nodes[1].freeze()
        try:
            with pytest.raises((Unknown, Refused)):
                await there.membership(group.group_id)
            assert await there.glance(group.group_id) == row(group, 7, "a")
            with pytest.raises((Unknown, Refused)):
                await here.delete_group(ALICE, queue, "g")
            assert not (await there.glance(group.group_id)).generation
        finally:
            servers.nodes[1].thaw()
        await here.close()
        await there.close()
        await server.close()


async def test_a_damaged_membership_keeps_its_generation_and_is_mended(
    server: RedisKeeper,
) -> None:
    """Nobody is waited for, and no older assignment comes back."""
    catalog = await server.open()
    _, group = await made(catalog)
    assert await catalog.change_membership(row(group, 7, "a"), expected_generation=0)
    key = key_of("memberships")
    value = server.node.ask("HGET", key, group.group_id)
    server.node.ask("HSET", key, group.group_id, value.replace("members", "membors"))
    found = await catalog.membership(group.group_id)
    assert (found.generation, found.members, found.assignment) == (7, (), {})
    mended = msgspec.structs.replace(row(group, 8, "b"))
    assert await catalog.change_membership(mended, expected_generation=7)
    assert await catalog.membership(group.group_id) == mended
    await catalog.close()
