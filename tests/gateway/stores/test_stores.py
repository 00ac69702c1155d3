"""What a broker keeps its messages in, opened on real servers: nothing is opened that cannot keep
the promises, and nobody takes another's store for its own."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from shutil import copyfile

import click
import pytest
from click.testing import CliRunner

from gateway.broker import Broker
from gateway.cli.store import doctor, forget_server, provision, set_replicas
from gateway.config import Config
from gateway.encryption.keyring import Rotated
from gateway.encryption.master_key import replace_keys
from gateway.stores.marks import STORE_MARK_FILE, Mark, MarkKeeper, read_store_mark, write_file
from gateway.stores.open import Stores, open_stores
from loadtests.server import free_port
from metadata.catalog import Principal, QueueSettings
from push.errors import Refused
from push.places import Partition
from tests.contract.stores import append as make_append
from tests.servers.binaries import Binary
from tests.servers.layouts import Guarded, clustered, guarded, single
from tests.servers.node import Node, until
from tests.servers.shipped import login
from tests.waiting import becomes

ME = Principal("me")


@pytest.fixture
def node(redis_binary: Binary, tmp_path: Path) -> Iterator[Node]:
    """An empty server with the shipped settings."""
    with single(redis_binary, tmp_path / "servers") as node:
        yield node


def url(node: Node, login: str = "") -> str:
    """The server as a setting names it."""
    return f"redis://{login}{node.address}:{node.port}"


def run(command: click.Command, *args: str) -> tuple[int, str]:
    """(exit code, what it said). It has an event loop of its own, so a thread of its own."""
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(CliRunner().invoke, command, args).result()
    return done.exit_code, done.output


@asynccontextmanager
async def opened(
    tmp_path: Path, storage: str, name: str = "gateway", fatal: list[str] | None = None
) -> AsyncIterator[Stores]:
    """The stores of a gateway with this data folder."""
    config = Config(
        data_dir=tmp_path / name, storage=storage, master_key_file=tmp_path / "key"
    )  # fmt: skip
    (tmp_path / "key").write_text("01" * 32)
    (tmp_path / "key").chmod(0o600)
    on_fatal = fatal.append if fatal is not None else pytest.fail
    stores = await open_stores(config, on_fatal=on_fatal)
    try:
        yield stores
    finally:
        await stores.storage.close()
        await stores.rest.aclose()


async def test_two_gateways_share_what_an_operator_has_provisioned(
    node: Node, tmp_path: Path
) -> None:
    code, said = run(doctor, "--storage", url(node))
    assert code == 1
    assert "no incarnation" in said
    code, said = run(provision, "--storage", url(node), "--replicas", "0")
    assert code == 0, said
    assert run(provision, "--storage", url(node), "--replicas", "0") == (0, said)  # nothing changed
    code, said = run(doctor, "--storage", url(node))
    assert code == 0, said
    async with (
        opened(tmp_path, url(node), "a") as one,
        opened(tmp_path, url(node), "b") as other,
    ):
        assert await one.storage.incarnation() == await other.storage.incarnation()
        assert one.metadata.secret("receipts") == other.metadata.secret("receipts")
        queue, _ = await one.metadata.put_queue(ME, "orders", QueueSettings(partitions=1))
        await one.storage.create_queue(queue.queue_id, 1)
        await other.metadata.set_mark("looked", "yes")  # a change reads the news first
        assert other.metadata.find_queue(ME, "orders") == queue
        (stored,) = await other.storage.append(
            [make_append(Partition(queue.queue_id, 0), messages=1)]
        )
        assert (stored.first, stored.certified) == (0, 1)


async def test_a_store_that_nobody_provisioned_is_not_adopted(node: Node, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="tocsin admin provision"):
        async with opened(tmp_path, url(node)):
            pass


async def test_settings_that_break_a_promise_stop_the_start(node: Node, tmp_path: Path) -> None:
    run(provision, "--storage", url(node), "--replicas", "0")
    node.ask("CONFIG", "SET", "appendfsync", "everysec")
    with pytest.raises(Refused, match='must be "always": a power loss'):
        async with opened(tmp_path, url(node)):
            pass
    code, said = run(doctor, "--storage", url(node))
    assert code == 1
    assert "BROKEN  appendfsync" in said


async def test_an_emptied_store_is_refused_by_who_knew_it(node: Node, tmp_path: Path) -> None:
    run(provision, "--storage", url(node), "--replicas", "0")
    async with opened(tmp_path, url(node)):
        pass
    node.ask("FLUSHALL")
    with pytest.raises(Refused, match="emptied"):
        async with opened(tmp_path, url(node)):
            pass
    run(provision, "--storage", url(node), "--replicas", "0")  # somebody takes it for a new one
    with pytest.raises(Refused, match="incarnation"):
        async with opened(tmp_path, url(node)):
            pass
    async with opened(tmp_path, url(node), "new"):
        pass


async def test_a_data_folder_is_one_gateways(node: Node, tmp_path: Path) -> None:
    run(provision, "--storage", url(node), "--replicas", "0")
    async with opened(tmp_path, url(node)):
        with pytest.raises(Refused, match="in use by another process"):
            async with opened(tmp_path, url(node)):
                pass
    (tmp_path / "gateway" / "store.sqlite").touch()
    with pytest.raises(Refused, match="not moved there automatically"):
        async with opened(tmp_path, url(node)):
            pass


async def test_the_brokers_user_opens_what_the_admins_user_provisioned(
    redis_binary: Binary, tmp_path: Path
) -> None:
    with guarded(redis_binary, tmp_path / "servers", replicas=1, with_users=True) as shard:
        broker = sentinel_url(shard, "tocsin")
        nodes = f"redis://tocsin-admin:{login('tocsin-admin').password}@"
        code, said = run(provision, "--storage", nodes + at(shard.primary), "--replicas", "1")
        assert code == 0, said
        async with opened(tmp_path, broker) as stores:
            assert (await stores.storage.state()).writable
        code, said = run(doctor, "--storage", broker, "--json")
        assert code == 0, said
        assert '"role":"replica"' in said


async def test_a_master_key_is_rotated_when_every_gateway_has_said_that_it_has_it(
    node: Node, tmp_path: Path
) -> None:
    """Over the shared catalog, with the beats of two brokers."""
    run(provision, "--storage", url(node), "--replicas", "0")
    old, new = b"o" * 32, b"n" * 32
    async with AsyncExitStack() as opened:
        brokers = []
        for name in ("a", "b"):
            file = tmp_path / f"{name}.key"
            replace_keys(file, [old])
            config = Config(data_dir=tmp_path / name, storage=url(node), master_key_file=file)
            broker = await Broker.open(config, on_fatal=pytest.fail)
            opened.push_async_callback(broker.stop)
            brokers.append(broker)
        keyring = brokers[0].keyring
        assert keyring is not None
        await becomes(brokers[0].groups.presence.announcements)  # its first beat
        with pytest.raises(Refused, match=f"do not have the master key .*{tmp_path}/b.key"):
            await keyring.rotate(new)
        replace_keys(tmp_path / "b.key", [old, new])
        rotated: list[Rotated] = []

        async def rotates() -> bool:
            with suppress(Refused):  # until the other one has looked into its file, and beaten
                rotated.append(await keyring.rotate(new))
            return bool(rotated)

        await becomes(rotates)
        assert rotated[0].data_keys == 2
        other = brokers[1].keyring
        assert other is not None
        await becomes(lambda: other.describe()["master_key_id"] == rotated[0].master_key_id)


async def test_a_cluster_is_provisioned_and_opened_whole(
    redis_binary: Binary, tmp_path: Path
) -> None:
    with clustered(redis_binary, tmp_path / "servers", primaries=3, replicas=0) as cluster:
        target = "redis+cluster://" + ",".join(at(node) for node in cluster.nodes[:2])
        code, said = run(provision, "--storage", target, "--replicas", "0")
        assert code == 0, said
        async with opened(tmp_path, target) as stores:
            for number in range(4):
                queue, _ = await stores.metadata.put_queue(ME, f"q{number}", QueueSettings())
                await stores.storage.create_queue(queue.queue_id, 16)
        assert len(read_marks(tmp_path).touches) == 3


def test_the_number_of_replicas_is_set_by_a_command(node: Node) -> None:
    run(provision, "--storage", url(node), "--replicas", "0")
    assert run(set_replicas, "--storage", url(node), "--replicas", "2")[0] == 0
    code, said = run(doctor, "--storage", url(node))
    assert (code, "0 of 2 replicas are attached" in said) == (0, True)


def test_a_new_version_is_provisioned_while_a_replica_is_out(node: Node) -> None:
    """Managers have taken it out: who says as many as there are in all is right, and changes
    nothing; to be told to say so by set-replicas would stop publishing."""
    assert run(provision, "--storage", url(node), "--replicas", "0")[0] == 0
    node.ask("HSET", "{tocsin}:shard", "out", "10.0.0.2:6379")
    assert run(provision, "--storage", url(node), "--replicas", "1")[0] == 0
    assert node.ask("HMGET", "{tocsin}:shard", "replicas", "out") == ["0", "10.0.0.2:6379"]
    code, said = run(provision, "--storage", url(node), "--replicas", "0")
    assert code == 1
    assert "already a store of this broker with 1 replicas" in said


def test_a_server_that_will_never_be_back_is_forgotten(node: Node) -> None:
    """Only one that managers have taken out, and where nobody answers: whoever is forgotten is not
    locked out of servers that join."""
    assert run(provision, "--storage", url(node), "--replicas", "0")[0] == 0
    gone, there = f"127.0.0.1:{free_port()}", f"{node.address}:{node.port}"
    for place in (gone, there, "10.0.0.2:6379"):
        node.ask("HSET", "{tocsin}:managed", f"user:{place}", "replica-2")
    node.ask("HSET", "{tocsin}:shard", "out", f"10.0.0.2:6379 {gone} {there}")
    code, said = run(forget_server, there, "--storage", url(node))
    assert (code, "answers" in said) == (1, True)
    assert run(forget_server, gone, "--storage", url(node))[0] == 0
    assert node.ask("HGET", "{tocsin}:shard", "out") == f"10.0.0.2:6379 {there}"
    users = node.ask("HMGET", "{tocsin}:managed", f"user:{gone}", "user:10.0.0.2:6379")
    assert users == [None, "replica-2"]
    code, said = run(forget_server, gone, "--storage", url(node))
    assert (code, "nothing was changed" in said) == (1, True)
    assert run(provision, "--storage", url(node), "--replicas", "2")[0] == 0
    assert run(forget_server, "gone", "--storage", url(node))[0] == 2


@pytest.mark.parametrize("which", [0, 2])
def test_one_primary_of_a_cluster_may_have_fewer_replicas_than_the_others(
    redis_binary: Binary, tmp_path: Path, which: int
) -> None:
    """P8: one machine is lost, and with it a replica of one of three shards."""
    with clustered(redis_binary, tmp_path, replicas=1) as cluster:
        places = ",".join(f"{node.address}:{node.port}" for node in cluster.nodes)
        there = f"redis+cluster://{places}"
        assert run(provision, "--storage", there, "--replicas", "1")[0] == 0
        primary, (gone,) = list(cluster.shards().items())[which]
        code, said = run(set_replicas, "--storage", there, "--replicas", "0")
        assert (code, "1 replicas are attached" in said) == (1, True)
        gone.kill()
        until(lambda: primary.info("replication")["connected_slaves"] == "0", "it is gone")
        code, said = run(set_replicas, "--storage", there, "--replicas", "0")
        assert (code, said.count("unchanged: ")) == (0, 2), said
        (key,) = primary.ask("KEYS", "{tocsin-*}:shard")
        assert primary.ask("HGET", key, "replicas") == "0"


def test_a_replica_that_a_sentinel_may_have_elected_is_counted_on(
    redis_binary: Binary, tmp_path: Path
) -> None:
    """P1: Sentinel knows no age of a copy: one that comes back at the worst moment is elected."""
    with guarded(redis_binary, tmp_path, replicas=1, sentinels=3) as store:
        places = ",".join(f"{node.address}:{node.port}" for node in store.sentinels)
        there = f"redis+sentinel://{places}/tocsin"
        assert run(provision, "--storage", there, "--replicas", "1")[0] == 0
        store.nodes[1].kill()
        primary = store.nodes[0]
        until(lambda: primary.info("replication")["connected_slaves"] == "0", "it is gone")
        code, said = run(set_replicas, "--storage", there, "--replicas", "0")
        assert (code, "SENTINEL RESET tocsin" in said) == (1, True), said
        for sentinel in store.sentinels[1:]:
            sentinel.ask("SENTINEL", "RESET", "tocsin")
        assert run(set_replicas, "--storage", there, "--replicas", "0")[0] == 1
        store.sentinels[0].kill()
        code, said = run(set_replicas, "--storage", there, "--replicas", "0")
        assert (code, "could not be asked" in said) == (0, True), said


def test_commands_for_a_store_ask_for_one() -> None:
    code, said = run(provision, "--storage", "sqlite:", "--replicas", "0")
    assert code == 2
    assert "TOCSIN_STORAGE" in said
    code, said = run(doctor, "--storage", "redis://u:s3cret@h:0")
    assert code == 1
    assert "s3cret" not in said
    assert run(doctor, "--storage", "sqlite:")[0] == 0


async def test_a_mark_is_written_at_the_end_too(tmp_path: Path) -> None:
    touches = {"s": 1}
    keeper = MarkKeeper(tmp_path, "i", lambda: touches)
    await keeper.start()
    assert read_store_mark(tmp_path) == Mark(incarnation="i", touches={"s": 1})
    touches["s"] = 7
    await keeper.close()
    await keeper.close()
    assert read_store_mark(tmp_path) == Mark(incarnation="i", touches={"s": 7})


def test_a_mark_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    assert read_store_mark(tmp_path) is None
    write_file(tmp_path / STORE_MARK_FILE, Mark(incarnation="i"))
    (tmp_path / STORE_MARK_FILE).write_bytes(b'{"incar')
    with pytest.raises(Refused, match="If you know that the store is the right one"):
        read_store_mark(tmp_path)


async def started_and_stopped(tmp_path: Path) -> int:
    """Open and close the embedded stores; returns the touches that the store has then."""
    async with opened(tmp_path, "sqlite:") as stores:
        if stores.keyring is not None:
            await stores.keyring.close()
        await stores.metadata.close()
    return read_marks(tmp_path).touches["store.sqlite"]


async def test_an_older_copy_of_the_embedded_store_is_refused(tmp_path: Path) -> None:
    """P13, R30. On both sides: the copy of the last stop, and the one before. A refused start
    changes nothing, however often it is tried."""
    store, copy = tmp_path / "gateway" / "store.sqlite", tmp_path / "copy"
    assert await started_and_stopped(tmp_path) == 2
    copyfile(store, copy)
    copyfile(copy, store)
    assert await started_and_stopped(tmp_path) == 4
    copyfile(copy, store)
    for _ in range(3):
        with pytest.raises(Refused, match="an older copy of the store: it was opened and closed 2"):
            await started_and_stopped(tmp_path)
    assert read_marks(tmp_path).touches == {"store.sqlite": 4}
    (tmp_path / "gateway" / STORE_MARK_FILE).unlink()
    assert await started_and_stopped(tmp_path) == 4


async def test_a_store_that_another_version_did_not_count_is_taken(tmp_path: Path) -> None:
    """R4. It has neither a number nor a mark."""
    await started_and_stopped(tmp_path)
    with closing(sqlite3.connect(tmp_path / "gateway" / "store.sqlite")) as connection, connection:
        connection.execute("DELETE FROM meta WHERE name = 'touches'")
    (tmp_path / "gateway" / STORE_MARK_FILE).unlink()
    assert await started_and_stopped(tmp_path) == 2


async def test_an_embedded_store_is_opened_though_its_mark_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """R31: a broker starts on a full disk. The mark is written when there is room again."""
    blocked = tmp_path / "gateway" / f"{STORE_MARK_FILE}.new"
    blocked.mkdir(parents=True)
    async with opened(tmp_path, "sqlite:") as stores:
        assert "store.mark cannot be written" in caplog.text
        assert read_store_mark(tmp_path / "gateway") is None
        blocked.rmdir()
        if stores.keyring is not None:
            await stores.keyring.close()
        await stores.metadata.close()
    assert read_marks(tmp_path).touches == {"store.sqlite": 2}


def at(node: Node) -> str:
    """host:port"""
    return f"{node.address}:{node.port}"


def sentinel_url(shard: Guarded, user: str) -> str:
    """Return its Sentinels, as a setting names them."""
    places = ",".join(map(at, shard.sentinels))
    return f"redis+sentinel://{user}:{login(user).password}@{places}/tocsin"


def read_marks(tmp_path: Path) -> Mark:
    """The gateway's."""
    mark = read_store_mark(tmp_path / "gateway")
    assert mark is not None
    return mark
