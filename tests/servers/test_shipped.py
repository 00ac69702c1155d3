"""The shipped configurations of deploy/redis, as servers run with them: what they set, whom they
let in, and what each of these may do."""

import asyncio
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from storage.redis.connection import Address, Reach
from storage.redis.ops.provision import examine
from tests.layout.tree import table_rows
from tests.servers.binaries import Binary
from tests.servers.layouts import clustered, guarded, single
from tests.servers.node import Login, Node, NodeFailed, in_sync, until
from tests.servers.ports import ClaimedPort
from tests.servers.shipped import MASTER, SHIPPED, SMALLER, Setting, login

FUNCTIONS = """#!lua name=tried
redis.register_function('tried_append', function(keys, args)
  local added = redis.call('XADD', keys[1], args[1], 'h', args[2])
  redis.call('HINCRBY', keys[2], 'next', 1)
  redis.call('PUBLISH', 'tocsin:wake', redis.call('TIME')[1])
  return added
end)
redis.register_function{function_name='tried_read', flags={'no-writes'},
  callback=function(keys, args) return redis.call('XRANGE', keys[1], '-', '+') end}
"""
CALLED = ("FCALL", "tried_append", 2, "{q}:log:0", "{q}:p:0", "1-0", "header")
READ = ("FCALL_RO", "tried_read", 1, "{q}:log:0")
BROKER, ADMIN = login("tocsin"), login("tocsin-admin")
NEITHER = (
    "FLUSHALL", "FLUSHDB", "CONFIG SET appendfsync no", "CONFIG REWRITE",
    "REPLICAOF NO ONE", "SLAVEOF NO ONE", "SHUTDOWN NOSAVE", "KEYS *", "SWAPDB 0 1",
    "FUNCTION FLUSH", "FUNCTION RESTORE x", "EVAL 1 0", "SCRIPT FLUSH", "MIGRATE h 1 k 0 1",
    "RESTORE k 0 x", "ACL SETUSER x", "ACL LIST", "CLIENT KILL ID 1", "CLIENT PAUSE 1", "MONITOR",
    "BGREWRITEAOF", "SAVE", "PSYNC ? -1", "MODULE LIST", "FAILOVER", "CLUSTER FAILOVER FORCE",
    "CLUSTER FORGET x", "CLUSTER RESET HARD", "LATENCY RESET", "SORT k",
)  # fmt: skip
BROKER_NOT = ("FUNCTION DELETE tried", "FUNCTION LOAD x")
BROKER_MAY = (
    "PING", "INFO replication", "ROLE", "CONFIG GET append*", "FUNCTION LIST", "WAIT 0 1", "TIME",
    "CLIENT SETNAME x", "PUBLISH tocsin:wake x", "SUBSCRIBE tocsin:wake", "PSUBSCRIBE tocsin:*",
    "HSET {q}:x a 1", "DEL {q}:x", "XLEN {q}:log:0", "MULTI",
)  # fmt: skip
"""Besides the functions."""
MANAGER = login("tocsin-manager")
MANAGER_NOT = (
    "GET {q}:x", "SET {q}:x 1", "DEL {tocsin}:shard", "HGET {tocsin}:catalog version", "KEYS *",
    "FLUSHALL", "FUNCTION LOAD x", "FUNCTION FLUSH", "SHUTDOWN NOSAVE", "MONITOR", "EVAL 1 0",
    "PSYNC ? -1", "ACL DELUSER x", "ACL LOAD", "SAVE", "BGREWRITEAOF", "PUBLISH tocsin:wake x",
)  # fmt: skip
MANAGER_MAY = (
    "INFO", "ROLE", "CONFIG GET masteruser", "CONFIG SET replica-priority 100", "ACL LIST",
    "CLIENT KILL USER replica-3", "HMGET {tocsin}:shard replicas out", "WATCH {tocsin}:managed",
    "HEXISTS {tocsin}:shard incarnation",
)  # fmt: skip
"""Besides the functions, and what changes who follows whom."""


@pytest.fixture(scope="module")
def node(redis_binary: Binary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A primary with the shipped users and the functions."""
    with single(redis_binary, tmp_path_factory.mktemp("node"), with_users=True) as node:
        node.ask("FUNCTION", "LOAD", FUNCTIONS, login=ADMIN)
        yield node


def settings(name: str) -> dict[str, str]:
    """The directives of a shipped file that CONFIG GET answers, as this is written there."""
    lines = (SHIPPED / f"{name}.conf").read_text().splitlines()
    found = dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))
    own = {"include", "replicaof", "bind", "port", "dir", "aclfile", "masterauth", "masteruser"}
    return {name: value for name, value in found.items() if name not in own}


def got(node: Node, name: str) -> str:
    """Return what CONFIG GET says of a setting."""
    answer: list[str] = node.ask("CONFIG", "GET", name)
    return answer[1]


def same(wanted: str, said: str) -> bool:
    """Whether a value of a file is what CONFIG GET says: in bytes, and of the replica's class."""
    units = {"kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
    in_bytes = re.sub(r"(\d+)([kmg]b)", lambda m: str(int(m[1]) * units[m[2]]), wanted).strip('"')
    return said in (in_bytes, wanted) or re.sub("^replica ", "slave ", in_bytes) in said


def check(node: Node, *files: str) -> None:
    """What these files set is in force; sizes are the tests'."""
    for file in files:
        for name, value in settings(file).items():
            smaller = SMALLER.get(f"{name} {value}", f"{name} {value}").split(" ", 1)[1]
            if name != "cluster-node-timeout":
                assert same(smaller, got(node, name)), (node, name, got(node, name))


def test_what_the_files_set_is_in_force(node: Node) -> None:
    assert settings("node")["appendfsync"] == "always"
    assert settings("node")["maxmemory-policy"] == "noeviction"
    assert settings("cluster")["cluster-replica-validity-factor"] == "10"
    check(node, "node", "primary")


def examined(node: Node) -> list[str]:
    """Return what the broker finds wrong with it before it starts, as its own user."""
    reach = Reach(BROKER.user, BROKER.password)
    return asyncio.run(examine(Address(node.address, node.port), reach))


def test_the_broker_finds_nothing_wrong_with_what_is_shipped(node: Node) -> None:
    assert examined(node) == []
    node.ask("CONFIG", "SET", "appendfsync", "everysec")
    try:
        (sentence,) = examined(node)
    finally:
        node.ask("CONFIG", "SET", "appendfsync", "always")
    assert sentence.startswith('appendfsync is "everysec"')


def test_what_a_function_wrote_is_there_after_a_restart_under_the_shipped_users(
    redis_binary: Binary, tmp_path: Path
) -> None:
    """Loading its file, a server asks the rights of `default` for what stands in a transaction."""
    with single(redis_binary, tmp_path, with_users=True) as node:
        node.ask("FUNCTION", "LOAD", FUNCTIONS, login=ADMIN)
        node.ask(*CALLED, login=BROKER)  # which writes twice: a transaction
        node.kill()
        node.start()
        assert node.ask(*READ, login=BROKER) == [["1-0", ["h", "header"]]]


@pytest.mark.parametrize("rights", ["-@all", "+@all -xadd", "resetkeys"])
def test_the_broker_finds_users_under_whom_a_restart_loses_messages(
    node: Node, rights: str
) -> None:
    node.ask("ACL", "SETUSER", "default", *rights.split())
    try:
        (sentence,) = examined(node)
    finally:
        node.ask("ACL", "SETUSER", "default", "+@all", "~*")
    assert sentence.startswith("a restart loses what was acknowledged")
    assert examined(node) == []


def test_who_may_not_ask_for_the_rights_of_default_is_told(node: Node) -> None:
    node.ask("ACL", "SETUSER", "tocsin", "-acl|dryrun")
    try:
        (sentence,) = examined(node)
    finally:
        node.ask("ACL", "LOAD")
    assert "+acl|dryrun" in sentence


def test_every_setting_has_its_reason_in_the_page() -> None:
    page = (SHIPPED / "README.md").read_text()
    reasons = {name for row in table_rows(page) for name in re.findall(r"`([^`]+)`", row[0])}
    found = set()
    for name in ("node", "primary", "replica", "cluster", "sentinel"):
        for line in (SHIPPED / f"{name}.conf").read_text().splitlines():
            if line and not line.startswith("#"):
                words = line.split()
                found.add(" ".join(words[: 2 if words[0] == "sentinel" else 1]))
    assert found == reasons


def test_functions_are_loaded_by_the_admin_and_called_by_the_broker(node: Node) -> None:
    assert node.ask(*CALLED, login=BROKER) == "1-0"
    assert node.ask(*READ, login=BROKER) == [["1-0", ["h", "header"]]]
    assert node.ask("FUNCTION", "LOAD", "REPLACE", FUNCTIONS, login=ADMIN) == "tried"


@pytest.mark.parametrize("words", BROKER_MAY)
def test_the_broker_may(node: Node, words: str) -> None:
    node.ask(*words.split(), login=BROKER)


def refused(node: Node, who: Login, words: str) -> None:
    with pytest.raises(redis.exceptions.NoPermissionError):
        node.ask(*words.split(), login=who)


def test_the_broker_may_not(node: Node) -> None:
    for words in (*NEITHER, *BROKER_NOT):
        refused(node, BROKER, words)
    assert node.ask("FUNCTION", "LIST")


@pytest.mark.parametrize("words", MANAGER_MAY)
def test_a_manager_may(node: Node, words: str) -> None:
    node.ask(*words.split(), login=MANAGER)


def test_a_manager_may_not(node: Node) -> None:
    """It could give itself the rights; but what it is written to do does not reach a message."""
    for words in MANAGER_NOT:
        refused(node, MANAGER, words)


def test_the_admin_may_not(node: Node) -> None:
    for words in NEITHER:
        refused(node, ADMIN, words)


@pytest.mark.parametrize("who", [BROKER, ADMIN], ids=["tocsin", "tocsin-admin"])
def test_nobody_debugs(node: Node, who: Login) -> None:
    """The server refuses DEBUG to everybody, before it looks at who asks; we ask it about that."""
    with pytest.raises(redis.ResponseError, match="not allowed"):
        node.ask("DEBUG", "SLEEP", 0, login=who)
    assert "no permissions" in node.ask("ACL", "DRYRUN", who.user, "DEBUG", "SLEEP", 0)


def test_who_has_no_password_may_nothing(node: Node) -> None:
    with pytest.raises(redis.AuthenticationError):
        Node(node.binary, node.folder, node.address, node.port).ask("PING")
    for password in ("", "default", "password-of-default"):
        with pytest.raises(redis.AuthenticationError):
            node.ask("PING", login=Login("default", password))
    for user in (BROKER, ADMIN, login("operator")):
        with pytest.raises(redis.AuthenticationError):
            node.ask("PING", login=Login(user.user, "no"))
    with pytest.raises(redis.exceptions.NoPermissionError):
        node.ask("GET", "{q}:x", login=login("replica-1"))
    with pytest.raises(redis.exceptions.NoPermissionError):
        node.ask("GET", "{q}:x", login=login("sentinel"))


def test_the_files_as_they_are_do_not_start(redis_binary: Binary, tmp_path: Path) -> None:
    """Nobody runs with passwords that everybody knows."""
    setting = Setting(tmp_path, "127.0.0.1", 1, with_users=True)
    setting.write("primary")
    (tmp_path / "users.acl").write_text((SHIPPED / "users.acl").read_text())
    node = Node(redis_binary, tmp_path, "127.0.0.1", 1)
    node.spawn()
    with pytest.raises(NodeFailed, match="ACL errors"):
        node.wait_ready()


def test_the_commands_of_the_page_fill_the_passwords_in(
    redis_binary: Binary, tmp_path: Path
) -> None:
    """They are run as they stand there; then the servers take what they have written."""
    page = (SHIPPED / "README.md").read_text()
    shown = re.search(r"```sh\n(# Passwords.*?)```", page, re.DOTALL)
    assert shown is not None
    shutil.copytree(SHIPPED, tmp_path, dirs_exist_ok=True)
    subprocess.run(["sh", "-eu", "-c", shown[1]], cwd=tmp_path, check=True)
    words = dict(line.split() for line in (tmp_path / "passwords").read_text().splitlines())
    written = (tmp_path / "users.acl").read_text()
    assert len(set(words.values())) == 6
    assert (tmp_path / "passwords").stat().st_mode & 0o077 == 0
    for file in ("users.acl", "sentinel-users.acl", "node.conf", "sentinel.conf"):
        assert not re.search("_SHA256|_PASSWORD", (tmp_path / file).read_text())
    assert words["replica"] in (tmp_path / "node.conf").read_text()
    assert words["sentinel"] in (tmp_path / "sentinel.conf").read_text()
    with ClaimedPort() as port:
        setting = Setting(tmp_path / "node", "127.0.0.1", port.number, with_users=True)
        setting.write("primary")
        (setting.folder / "users.acl").write_text(written)
        node = Node(redis_binary, setting.folder, "127.0.0.1", port.number)
        try:
            node.login = Login("operator", words["operator"])
            node.start()
            for user in ("tocsin", "tocsin-admin", "replica-1", "replica-3"):
                password = words[re.sub(r"tocsin-|-\d$", "", user)]
                assert node.ask("PING", login=Login(user, password)) == "PONG"
        finally:
            node.kill()


def test_sentinels_and_replicas_get_in_and_a_failover_weakens_nothing(
    redis_binary: Binary, tmp_path: Path
) -> None:
    """Sentinel has the servers write their configurations anew: these are as safe as before."""
    with guarded(redis_binary, tmp_path, with_users=True) as shard:
        lost = shard.primary
        lost.ask("FUNCTION", "LOAD", FUNCTIONS, login=ADMIN)
        lost.ask(*CALLED, login=BROKER)
        shard.wait_in_sync()
        for who in (BROKER, ADMIN):
            asked = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)
            assert shard.sentinels[0].ask(*asked, login=who) == [lost.address, str(lost.port)]
            for words in (f"SENTINEL FAILOVER {MASTER}", f"SENTINEL REMOVE {MASTER}", "SHUTDOWN"):
                refused(shard.sentinels[0], who, words)
        lost.kill()
        found = shard.wait_failover(lost)
        assert found.ask(*READ, login=BROKER) == [["1-0", ["h", "header"]]]
        lost.start()
        shard.wait_in_sync()
        for node in (*shard.sentinels, *shard.nodes):  # nobody elects while they are away
            node.kill()
        for node in shard.nodes:
            node.start()
            check(node, "node")
        shard.wait_in_sync()
        assert shard.primary is found
        for node in shard.nodes:
            assert examined(node) == []


def test_a_cluster_is_as_the_files_say(redis_binary: Binary, tmp_path: Path) -> None:
    with clustered(redis_binary, tmp_path, replicas=0, with_users=True) as cluster:
        for node in cluster.nodes:
            check(node, "node", "cluster")
            assert examined(node) == []
            node.ask("FUNCTION", "LOAD", FUNCTIONS, login=ADMIN)
        slot: Any = cluster.nodes[0].ask("CLUSTER", "KEYSLOT", "{q}", login=BROKER)
        home = cluster.primary_of(slot)
        assert home.ask(*CALLED, login=BROKER) == "1-0"
        for words in ("CLUSTER SLOTS", "CLUSTER NODES", "CLUSTER SHARDS", "READONLY", "ASKING"):
            home.ask(*words.split(), login=BROKER)
        with pytest.raises(redis.exceptions.MovedError):
            next(n for n in cluster.nodes if n is not home).ask(*CALLED, login=BROKER)


def test_a_service_whose_files_are_gone_is_not_started(node: Node) -> None:
    """What systemd looks for is what a server of this setting makes."""
    unit = (SHIPPED / "tocsin.conf").read_text()
    assert "\nAssertPathIsDirectory=/var/lib/redis/appendonlydir\n" in unit
    assert "\ndir /var/lib/redis\n" in (SHIPPED / "node.conf").read_text()
    assert (node.folder / "appendonlydir").is_dir()


def test_a_replica_that_was_locked_out_follows_nobody_and_no_sentinel_hears_of_it(
    redis_binary: Binary, tmp_path: Path
) -> None:
    """It was counted out, and is older than what was acknowledged since. A Sentinel elects whom a
    primary names as its replica, however old, even in the moment in which both come back."""
    with guarded(redis_binary, tmp_path, with_users=True) as shard:
        first = shard.primary
        gone, other = shard.replicas
        gone.kill()
        shard.count_out()
        first.ask("SET", "since", "1")
        for node in (first, other):
            node.kill()
        first.start()  # its locks are in its file
        said = len(gone.log.read_bytes())
        gone.start()
        until(lambda: b"Unable to AUTH" in gone.log.read_bytes()[said:], "it was refused")
        assert first.info("replication")["connected_slaves"] == "0"
        other.start()
        until(lambda: in_sync(first, [other]), "the other one follows")
        for sentinel in shard.sentinels:
            (known,) = sentinel.ask("SENTINEL", "REPLICAS", MASTER)
            assert known[1] == f"{other.address}:{other.port}"
        shard.count_in([gone], first)
        assert gone.ask("GET", "since") == "1"
        until(lambda: len(shard.sentinels[0].ask("SENTINEL", "REPLICAS", MASTER)) == 2, "known")
