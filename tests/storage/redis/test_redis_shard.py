"""A shard against real servers: whose answers are given out, and which are not."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from push.errors import Fenced, Refused, Unknown
from push.places import Durability
from storage.redis.connection import Address, Reach
from storage.redis.ops.provision import examine, provision, set_replicas
from storage.redis.shard import Marks, RedisShard
from tests.servers.binaries import Binary
from tests.servers.layouts import Guarded, Replicated, guarded, replicated
from tests.servers.node import Node, until
from tests.storage.shards import LIST, MARKS, address, sentinels, settings, shard


@pytest.fixture
def three(redis_binary: Binary, tmp_path: Path) -> Iterator[Replicated]:
    """A primary and two replicas."""
    with replicated(redis_binary, tmp_path, replicas=2) as servers:
        yield servers


@pytest.fixture
def alone(redis_binary: Binary, tmp_path: Path) -> Iterator[Node]:
    """A primary without replicas."""
    with replicated(redis_binary, tmp_path, replicas=0) as servers:
        yield servers.nodes[0]


async def note(on: RedisShard, text: str, level: Durability = "all") -> int:
    """Append to the list; its length then."""
    length: int = await on.act("note", [LIST], [text], level=level)
    return length


def kept(node: Node) -> list[str]:
    """Return what the list of this server holds."""
    found: list[str] = node.ask("LRANGE", LIST, 0, -1)
    return found


async def test_acts_of_a_level_take_effect_in_the_order_of_the_calls(three: Replicated) -> None:
    async with shard(settings(three.nodes[0]), replicas=2) as opened:
        lengths = await asyncio.gather(*(note(opened, str(n)) for n in range(2500)))
        assert lengths == list(range(1, 2501))
        assert await opened.look("find", [LIST], []) == [b"%d" % n for n in range(2500)]
    for node in three.nodes:
        assert kept(node) == [str(n) for n in range(2500)]


async def test_a_dead_replica_holds_up_all_and_neither_quorum_nor_local(three: Replicated) -> None:
    primary, _, other = three.nodes
    async with shard(settings(primary, wait_s=1.0), replicas=2) as opened:
        assert await note(opened, "0", "all") == 1
        other.freeze()
        done = await asyncio.gather(
            note(opened, "a", "all"),
            note(opened, "q", "quorum"),
            note(opened, "l", "local"),
            return_exceptions=True,
        )
        assert isinstance(done[0], Unknown)
        assert "1 of 2" in done[0].detail
        assert all(isinstance(length, int) for length in done[1:])
        with pytest.raises(Refused):  # nor is it asked again for what it cannot confirm
            await note(opened, "a1", "all")
        three.nodes[1].freeze()
        with pytest.raises(Unknown):
            await note(opened, "q2", "quorum")
        assert await note(opened, "l2", "local") > 0
        other.thaw()
        three.nodes[1].thaw()
        assert await until_done(opened, "a2", "all") > 0


async def test_what_waits_behind_a_group_that_failed_does_not_overtake_it(
    three: Replicated,
) -> None:
    """R7: it was asked to come behind."""
    primary, _, other = three.nodes
    async with shard(settings(primary, wait_s=0.3), replicas=2) as opened:
        assert await note(opened, "0") == 1
        other.freeze()
        first = asyncio.create_task(note(opened, "a"))
        await asyncio.sleep(0)
        behind = asyncio.create_task(note(opened, "b"))
        with pytest.raises(Unknown):
            await first
        with pytest.raises(Refused, match="may not have happened"):
            await behind
        other.thaw()
        until(lambda: kept(other) == ["0", "a"], "the replica has come to the end")
    assert kept(primary) == ["0", "a"]


async def test_what_was_decided_before_a_failure_does_not_come_after_it(
    three: Replicated,
) -> None:
    """R7: it was being sealed meanwhile, and is asked for when the group before it has failed."""
    primary, _, other = three.nodes
    async with shard(settings(primary, wait_s=0.3), replicas=2) as opened:
        assert await note(opened, "0") == 1
        decided, elsewhere = opened.lane(LIST, "all"), opened.lane(LIST, "local")
        other.freeze()
        with pytest.raises(Unknown):
            await note(opened, "a")
        other.thaw()
        now = opened.lane(LIST, "all")
        assert now.doubts > decided.doubts
        with pytest.raises(Refused, match="may not have happened"):
            await opened.act("note", [LIST], ["b"], level="all", lane=decided)
        assert await opened.act("note", [LIST], ["b"], level="all", lane=now) == 3
        # What `all` could not do says nothing of what the level `local` does.
        assert await opened.act("note", [LIST], ["c"], level="local", lane=elsewhere) == 4


async def test_what_has_a_receipt_is_on_every_copy_whenever_a_replica_stops(
    three: Replicated,
) -> None:
    """The replica is frozen in the middle of commits and in the end killed: what stands in its
    socket buffer then is lost. What was confirmed is on its disk."""
    primary, _, other = three.nodes
    given: list[str] = []
    unknown = 0
    numbers = count()
    enough = asyncio.Event()
    goal = 0
    is_frozen = False
    async with shard(settings(primary, wait_s=0.05, silence_s=0.5), replicas=2) as opened:

        async def publish() -> None:
            nonlocal unknown
            while True:
                number = str(next(numbers))
                try:
                    await note(opened, number)
                except Unknown:
                    unknown += 1
                    if is_frozen:
                        return
                except Refused:  # the replica cannot be asked whether it has what it confirms
                    if is_frozen:
                        return
                    await asyncio.sleep(0.01)
                else:
                    given.append(number)
                    if len(given) == goal:
                        enough.set()
                    if is_frozen and len(given) > goal + 500:  # in flight were 40 at most
                        return

        for turn in range(12):
            goal = len(given) + 100 * (turn % 4 + 1)
            enough.clear()
            work = [asyncio.create_task(publish()) for _ in range(40)]
            await enough.wait()
            other.freeze()
            is_frozen = True
            await asyncio.gather(*work)
            if turn < 11:
                other.thaw()
                is_frozen = False
        other.kill()
    assert len(given) >= 1000
    assert unknown >= 100
    primary.kill()
    lines = other.config.read_text().splitlines()
    lines = [line for line in lines if not line.startswith("replicaof ")]
    other.config.write_text("\n".join(lines))
    other.start()
    assert set(given) <= set(kept(other))


async def test_the_first_act_of_a_connection_is_counted_even_if_it_writes_nothing(
    three: Replicated,
) -> None:
    """R9: what a duplicate finds was written by another connection, and its copies may be
    missing."""
    primary, _, other = three.nodes
    given = settings(primary, wait_s=0.5)
    async with shard(given, replicas=2) as opened, shard(given, replicas=2) as second:
        assert await second.act("length", [LIST], [], level="all") == 0
        other.freeze()
        assert await note(opened, "m", "local") == 1
        with pytest.raises(Unknown):
            await second.act("length", [LIST], [], level="all")
        other.thaw()
        assert await second.act("length", [LIST], [], level="all") == 1  # connected anew


async def test_a_late_reply_is_never_taken_for_anothers(alone: Node) -> None:
    async with shard(settings(alone, silence_s=0.8, wait_s=0.1), replicas=0) as opened:
        assert await note(opened, "1") == 1
        alone.freeze()
        with pytest.raises(Unknown, match="no reply in time"):
            await note(opened, "2")
        with pytest.raises(Refused, match="no connection in time") as refused:
            await opened.look("find", [LIST], [])
        assert refused.value.code.name == "storage_unavailable"
        alone.thaw()
        until(lambda: len(kept(alone)) == 2, "the act came about")
        lengths = await again(opened, 3)
        assert lengths == [3, 4, 5]


async def again(opened: RedisShard, times: int) -> list[int]:
    """Acts, as soon as the store can be asked again."""
    lengths: list[int] = []
    while len(lengths) < times:
        try:
            lengths.append(await note(opened, "again"))
        except Refused:
            await asyncio.sleep(0.01)
    return lengths


async def test_who_asked_and_went_disturbs_nobody(alone: Node) -> None:
    async with shard(settings(alone), replicas=0) as opened:
        alone.freeze()
        gone = asyncio.create_task(note(opened, "gone"))
        stays = asyncio.create_task(note(opened, "stays"))
        await asyncio.sleep(0.05)
        gone.cancel()
        alone.thaw()
        assert await stays == 2
        assert await note(opened, "next") == 3


async def test_what_a_function_says_is_what_the_caller_gets(alone: Node) -> None:
    async with shard(settings(alone), replicas=0) as opened:
        done = await asyncio.gather(
            opened.act("refuse", [LIST], ["group_not_found", "no g"], level="all"),
            opened.act("refuse", [LIST], ["fenced", "newer owner"], level="all"),
            opened.act("break", [LIST], [], level="all"),
            opened.act("unheard_of", [LIST], [], level="all"),
            note(opened, "good"),
            return_exceptions=True,
        )
        assert isinstance(done[0], Refused)
        assert (done[0].code.name, done[0].detail) == ("group_not_found", "no g")
        assert isinstance(done[1], Fenced)
        assert isinstance(done[2], Unknown)
        assert isinstance(done[3], Refused)
        assert done[3].code.name == "storage_unavailable"
        assert done[4] == 2
        with pytest.raises(Refused, match="storage_unavailable"):
            await opened.look("note", [LIST], ["x"])


async def test_at_memorys_end_publishing_is_refused_and_the_rest_goes_on(alone: Node) -> None:
    async with shard(settings(alone), replicas=0) as opened:
        alone.ask("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(Refused) as refused:
            await note(opened, "x")
        assert refused.value.code.name == "storage_full"
        with pytest.raises(Refused) as refused:
            await opened.act("refuse", [LIST], ["group_not_found", ""], level="all")
        assert refused.value.code.name == "group_not_found"
        alone.ask("CONFIG", "SET", "maxmemory", "64mb")
        assert await note(opened, "x") == 1


async def test_a_replica_too_many_and_no_receipt_is_given(three: Replicated) -> None:
    """R28."""
    primary = three.nodes[0]
    three.nodes[2].kill()
    until(lambda: int(primary.info("replication")["connected_slaves"]) == 1, "one replica")
    given = settings(primary)
    async with shard(given, replicas=1) as opened:
        assert await note(opened, "1") == 1
        three.nodes[2].start()
        three.wait_in_sync()
        with pytest.raises(Unknown, match="2 replicas are attached"):
            await note(opened, "2")
        with pytest.raises(Unknown):
            await note(opened, "3", "quorum")
        assert await note(opened, "4", "local") == 4
        await set_replicas(given, 2)
        assert await note(opened, "5") == 5
        with pytest.raises(Refused, match="2 replicas are attached"):
            await set_replicas(given, 1)


async def test_an_open_connection_learns_of_more_replicas(three: Replicated) -> None:
    primary = three.nodes[0]
    three.nodes[2].kill()
    until(lambda: int(primary.info("replication")["connected_slaves"]) == 1, "one replica")
    given = settings(primary, wait_s=0.5)
    async with shard(given, replicas=1) as opened:
        assert await note(opened, "1") == 1
        await set_replicas(given, 2)
        with pytest.raises(Unknown, match="1 of 2"):
            await note(opened, "2")


async def test_an_open_connection_waits_for_no_replica_that_was_taken_out(
    three: Replicated,
) -> None:
    primary, loop = three.nodes[0], asyncio.get_running_loop()
    given = replace(settings(primary, wait_s=4.0), watch_s=60.0)
    async with shard(given, replicas=2) as opened:
        assert await note(opened, "1") == 1
        assert opened.copies("all") == 3
        three.nodes[2].kill()
        until(lambda: int(primary.info("replication")["connected_slaves"]) == 1, "one replica")
        await set_replicas(given, 1)
        assert await note(opened, "2") == 2  # it does not know yet
        assert opened.copies("all") == 2  # what receipts name
        began = loop.time()
        assert await note(opened, "3") == 3
        assert loop.time() - began < given.wait_s / 2


async def test_what_was_asked_behind_an_act_that_redis_refused_does_not_happen(alone: Node) -> None:
    """R7: at memory's end a large record is refused, and a small one behind it has room. Whoever
    has no lane does not care; nor does another partition."""
    async with shard(settings(alone), replicas=0) as opened:
        lane = opened.lane(LIST, "all")
        acts = [("note", "2"), ("missing", "1"), ("note", "1")]
        works = [opened.act(name, [LIST], [text], level="all", lane=lane) for name, text in acts]
        works.append(opened.act("note", [LIST], ["1"], level="all"))
        found = await asyncio.gather(*works, return_exceptions=True)
        assert [isinstance(one, Refused) for one in found] == [False, True, True, False]
        assert kept(alone) == ["2", "1"]
        with pytest.raises(Refused, match="may not have happened"):
            await opened.act("note", [LIST], ["1"], level="all", lane=lane)
        lane = opened.lane(LIST, "all")
        assert await opened.act("note", [LIST], ["1"], level="all", lane=lane) == 3


async def test_a_replica_whose_file_is_still_being_written_does_not_count(
    three: Replicated,
) -> None:
    """It was synced anew, confirms what it receives, and would have nothing after a power loss."""
    primary, first, other = three.nodes
    async with shard(settings(primary), replicas=2) as opened:
        await asyncio.gather(*(note(opened, str(n)) for n in range(10)))
        await opened.act("fill", [LIST], [200], level="all")
        assert await note(opened, "q", "quorum") == 11
        resynced(primary, other, first)
        with pytest.raises(Unknown, match="synced anew"):
            await note(opened, "x")
        with pytest.raises(Refused, match="append-only file is being rewritten"):
            await note(opened, "y")
        with pytest.raises(Unknown, match="synced anew"):
            await note(opened, "z", "quorum")
        with pytest.raises(Unknown, match="0 of 1 replicas"):  # both are being written
            await note(opened, "z", "quorum")
        assert await note(opened, "l", "local")
        for node in (other, first):  # it begins once more, and takes no time
            node.ask("CONFIG", "SET", "rdb-key-save-delay", "0")
            node.ask("CONFIG", "SET", "appendonly", "no")
            node.ask("CONFIG", "SET", "appendonly", "yes")
        done = await until_done(opened, "whole", "all")
        assert kept(other)[done - 1] == "whole"
        assert other.info("persistence")["aof_rewrite_in_progress"] in (0, "0")


def resynced(primary: Node, *replicas: Node) -> None:
    """Have these replicas copy everything anew, and take a minute to write it to their files."""
    for replica in replicas:
        replica.ask("CONFIG", "SET", "rdb-key-save-delay", "300000")
        replica.ask("REPLICAOF", "NO", "ONE")
        replica.ask("SET", "{q}:astray", "x")  # a history of its own: no partial sync
        replica.ask("REPLICAOF", primary.address, primary.port)
    for replica in replicas:
        until(partial(is_rewriting, replica), f"{replica!r} writes its file")


def is_rewriting(node: Node) -> bool:
    """Whether it follows, and its append-only file is being written for the first time."""
    link = node.info("replication").get("master_link_status")
    return link == "up" and int(node.info("persistence")["aof_rewrite_in_progress"]) == 1


async def test_an_emptied_store_is_refused(alone: Node) -> None:
    given = settings(alone)
    async with shard(given, replicas=0) as opened:
        assert await note(opened, "1") == 1
        alone.ask("FLUSHALL")
        with pytest.raises(Unknown, match="incarnation"):
            await note(opened, "2")
        with pytest.raises(Refused, match="no incarnation"):
            await note(opened, "3")
    with pytest.raises(Refused, match="no incarnation"):
        await RedisShard.open(given, MARKS)
    with pytest.raises(Refused, match="not empty"):
        await provision(given, "history-2", 0)


async def test_another_history_and_an_older_copy_are_refused(alone: Node) -> None:
    given = settings(alone)
    async with shard(given, replicas=0) as opened:
        await note(opened, "1")
        before = opened.touches
        await note(opened, "2")
        assert opened.touches == before + 1
        alone.ask("HSET", given.key, "touches", before)  # an older copy came back
        alone.ask("CLIENT", "KILL", "TYPE", "normal")
        with pytest.raises(Unknown):
            await note(opened, "3")
        with pytest.raises(Refused, match="older copy"):
            await note(opened, "4")
    with pytest.raises(Refused, match="older copy"):
        await RedisShard.open(given, Marks(MARKS.incarnation, before + 1))
    with pytest.raises(Refused, match="history-1"):
        await RedisShard.open(given, Marks("history-2"))
    with pytest.raises(Refused, match="another incarnation"):
        await provision(given, "history-2", 0)


async def test_messages_are_received_again_after_a_restart(alone: Node) -> None:
    heard: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue()
    async with shard(settings(alone), replicas=0) as opened:
        opened.on_message("{q}*:", lambda channel, text: heard.put_nowait((channel, text)))
        for text in ("one", "two"):
            await opened.wait_subscribed()
            await opened.act("say", [LIST], ["{q}x:1", "no"], level="local")
            await opened.act("say", [LIST], ["{q}*:1", text], level="local")
            async with asyncio.timeout(10):
                assert await heard.get() == (b"{q}*:1", text.encode())
            if text == "one":
                alone.ask("CLIENT", "KILL", "TYPE", "pubsub")
                await asyncio.sleep(0.05)


async def test_what_was_accepted_is_finished_before_the_end(alone: Node) -> None:
    async with shard(settings(alone), replicas=0) as opened:
        acts = [asyncio.create_task(note(opened, str(n))) for n in range(10)]
        await asyncio.sleep(0)
        await opened.close()
        assert await asyncio.gather(*acts) == list(range(1, 11))
        with pytest.raises(Refused):
            await note(opened, "x")
        with pytest.raises(Refused):
            await opened.look("find", [LIST], [])


async def test_a_replica_is_no_primary(three: Replicated) -> None:
    async with shard(settings(three.nodes[0]), replicas=2):
        with pytest.raises(Refused, match="no primary"):
            await RedisShard.open(settings(three.nodes[1]), MARKS)


async def test_the_settings_that_are_shipped_break_no_promise_and_others_are_named(
    three: Replicated,
) -> None:
    for node in three.nodes:
        assert await examine(address(node), Reach()) == []
    three.nodes[2].ask("CONFIG", "SET", "appendfsync", "everysec")
    (sentence,) = await examine(address(three.nodes[2]), Reach())
    assert sentence.startswith('appendfsync is "everysec"')
    three.nodes[2].kill()
    with pytest.raises(Refused, match="storage_unavailable"):
        await examine(address(three.nodes[2]), Reach())


async def test_when_one_level_finds_the_primary_elsewhere_all_go_there(
    redis_binary: Binary, tmp_path: Path
) -> None:
    """The primary of before still answers, as one that was cut off from the others does."""
    with (
        replicated(redis_binary, tmp_path / "old", replicas=0) as old,
        replicated(redis_binary, tmp_path / "new", replicas=0) as new,
    ):
        before, after = old.nodes[0], new.nodes[0]
        await provision(settings(after), MARKS.incarnation, 0)
        after.ask("HSET", settings(after).key, "touches", 1000)
        primary = before

        async def find() -> Address:
            return address(primary)

        async with shard(settings(find), replicas=0) as opened:
            assert await note(opened, "1", "all") == 1
            assert await note(opened, "2", "local") == 2
            assert await opened.look("find", [LIST], []) == [b"1", b"2"]
            primary = after
            assert await note(opened, "3", "quorum") == 1
            assert await note(opened, "4", "local") == 2
            assert await note(opened, "5", "all") == 3
            assert await opened.look("find", [LIST], []) == [b"3", b"4", b"5"]
        assert kept(before) == ["1", "2"]


@pytest.fixture
def watched(redis_binary: Binary, tmp_path: Path) -> Iterator[Guarded]:
    """A primary, two replicas, three Sentinels."""
    with guarded(redis_binary, tmp_path, replicas=2) as servers:
        yield servers


async def test_after_a_failover_the_new_primary_is_found_and_has_every_receipt(
    watched: Guarded,
) -> None:
    given = settings(sentinels(watched.sentinels), wait_s=1.0)
    async with shard(given, replicas=2) as opened:
        receipts = [f"before {n}" for n in range(100)]
        await asyncio.gather(*(note(opened, text) for text in receipts))
        lost = watched.primary
        lost.kill()
        with pytest.raises(Unknown):
            await note(opened, "lost")
        found = await asyncio.to_thread(watched.wait_failover, lost)
        assert await given.find() == address(found)
        assert set(receipts) <= set(kept(found))
        done = await until_done(opened, "after", "quorum")
        assert kept(found)[done - 1] == "after"
        assert await opened.look("find", [LIST], [])
        lost.start()  # it follows the new primary now
        done = await until_done(opened, "whole", "all")
        assert kept(found)[done - 1] == "whole"


async def until_done(opened: RedisShard, text: str, level: Durability) -> int:
    """Try until it is done, within half a minute; the length then."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await note(opened, text, level)
            except (Refused, Unknown):
                await asyncio.sleep(0.05)
