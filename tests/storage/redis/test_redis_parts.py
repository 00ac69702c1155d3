"""What the connections to Redis decide without one: levels, replies, settings, names."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import pytest
from redis import exceptions

from push.errors import Fenced, Refused, Unknown
from push.places import Durability
from storage.redis.answers import SlotMoved, answer, refusal
from storage.redis.connection import Address, Reach, pack, pattern_of
from storage.redis.discovery import by_sentinels
from storage.redis.library import joined, library
from storage.redis.ops.failover import info_period_ms
from storage.redis.ops.settings import UNBOUNDED, as_mapping, broken_promises
from storage.redis.replication import copies_needed, doubt_of, fields, places, without_replicas

GOOD = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "replica-ignore-disk-write-errors": "no",
    "maxmemory": "4294967296",
    "maxmemory-policy": "noeviction",
    "save": "",
    "min-replicas-to-write": "0",
    "replica-read-only": "yes",
    "repl-diskless-load": "disabled",
    "io-threads": "1",
    "timeout": "0",
    "cluster-enabled": "yes",
    "cluster-replica-validity-factor": "10",
    "cluster-allow-replica-migration": "no",
    "cluster-allow-reads-when-down": "no",
}
SERVER = {"redis_version": "7.0.15"}


@pytest.mark.parametrize(
    ("level", "counts"),
    [("local", [0, 0, 0, 0, 0]), ("quorum", [0, 1, 1, 2, 2]), ("all", [0, 1, 2, 3, 4])],
)
def test_a_level_needs_its_number_of_replicas(level: Durability, counts: list[int]) -> None:
    assert [copies_needed(level, replicas) for replicas in range(5)] == counts
    for replicas, counted in enumerate(counts):
        majority = 2 * (counted + 1) > replicas + 1  # the primary's copy is one of them
        assert level == "local" or majority


def replication(*ports: int, role: str = "master", more: int = 0) -> dict[str, str]:
    """INFO replication with replicas at these ports, and `more` that are not listed."""
    lines = [f"role:{role}", f"connected_slaves:{len(ports) + more}"]
    lines += [
        f"slave{n}:ip=10.0.0.1,port={port},state=online,offset=14,lag=0"
        for n, port in enumerate(ports)
    ]
    return fields("\r\n".join(["# Replication", *lines]).encode())


def test_replicas_beyond_those_set_up_or_seen_twice_are_not_believed() -> None:
    assert doubt_of(replication(1, 2), 2) == ""
    assert doubt_of(replication(1), 2) == ""
    assert "3 replicas" in doubt_of(replication(1, 2, 3), 2)
    assert "2 replicas" in doubt_of(replication(1, more=1), 1)
    assert "counts twice" in doubt_of(replication(1, 1), 2)
    assert "no primary" in doubt_of(replication(role="slave"), 2)
    assert "no primary" in doubt_of({}, 2)


def test_who_is_not_counted_puts_in_doubt_what_is_confirmed() -> None:
    """R28: it may lack what was acknowledged, and WAIT counts it. Where nobody is waited for, it is
    as if it were not attached."""
    out = {next(iter(places(replication(2))))}
    assert "is not counted" in doubt_of(replication(1, 2), 1, out)
    assert "is not counted" in doubt_of(replication(1, 2), 2, out)
    assert doubt_of(replication(1), 1, out) == ""
    assert doubt_of(replication(2), 0, out) == ""
    assert "1 replicas are attached" in doubt_of(replication(1, 2), 0, out)
    assert without_replicas(replication(1, 2), out) == replication(1)


REFUSALS = [
    exceptions.ReadOnlyError("You can't write against a read only replica."),
    exceptions.MovedError("3999 127.0.0.1:6381"),
    exceptions.ClusterDownError("The cluster is down"),
    exceptions.BusyLoadingError("Redis is loading the dataset in memory"),
    exceptions.MasterDownError("Link with MASTER is down"),
    exceptions.AuthenticationError("Authentication required."),
    exceptions.NoPermissionError("this user has no permissions"),
    exceptions.ResponseError("BUSY Redis is busy running a script."),
    exceptions.ResponseError("MISCONF Errors writing to the AOF file"),
    exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."),
    exceptions.ResponseError("Function not found"),
]


@pytest.mark.parametrize("reply", REFUSALS, ids=lambda reply: str(reply)[:20])
def test_what_redis_has_not_begun_is_refused_whatever_becomes_of_the_group(
    reply: exceptions.RedisError,
) -> None:
    for doubt in ("", "too few copies"):
        with pytest.raises(Refused) as refused:
            answer(reply, doubt)
        assert refused.value.code.name == "storage_unavailable"


def test_where_a_slot_has_gone_is_said() -> None:
    for error in (exceptions.MovedError, exceptions.AskError):
        with pytest.raises(
            SlotMoved, match=r"the slot 3999 of the cluster moves to 127\.0\.0\.1:6381"
        ):
            answer(error("3999 127.0.0.1:6381"), "too few copies")


def test_a_store_that_is_full_says_so_and_an_error_that_says_nothing_is_unknown() -> None:
    with pytest.raises(Refused) as refused:
        answer(exceptions.OutOfMemoryError("allow-oom flag is not set"), "too few copies")
    assert refused.value.code.name == "storage_full"
    for text in ("user_function: broken", "UNBLOCKED force unblock", "value is not an integer"):
        with pytest.raises(Unknown):
            answer(exceptions.ResponseError(text), "")


def test_what_a_function_refuses_is_believed_on_a_shard_that_is_in_no_doubt() -> None:
    not_found = exceptions.ResponseError("TOCSIN group_not_found no g in q")
    with pytest.raises(Refused) as refused:
        answer(not_found, "")
    assert (refused.value.code.name, refused.value.detail) == ("group_not_found", "no g in q")
    with pytest.raises(Unknown):
        answer(not_found, "the store was emptied")
    for doubt in ("", "too few copies"):  # who is fenced must stop at once, confirmed or not
        with pytest.raises(Fenced):
            answer(exceptions.ResponseError("TOCSIN fenced"), doubt)
    internal = refusal(exceptions.ResponseError("TOCSIN nonsense x"))
    assert internal is not None
    assert internal.code.name == "internal"


def test_an_answer_is_given_out_and_a_doubtful_one_is_not() -> None:
    assert answer([1, b"x"], "") == [1, b"x"]
    with pytest.raises(Unknown, match="too few copies"):
        answer([1, b"x"], "too few copies")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("appendonly", "no"),
        ("appendfsync", "everysec"),
        ("no-appendfsync-on-rewrite", "yes"),
        ("replica-ignore-disk-write-errors", "yes"),
        ("maxmemory-policy", "allkeys-lru"),
        ("save", "3600 1"),
        ("min-replicas-to-write", "1"),
        ("replica-read-only", "no"),
        ("repl-diskless-load", "swapdb"),
        ("io-threads", "4"),
        ("timeout", "60"),
        ("cluster-replica-validity-factor", "0"),
        ("cluster-allow-replica-migration", "yes"),
        ("cluster-allow-reads-when-down", "yes"),
    ],
)
def test_a_setting_that_breaks_a_promise_is_named(name: str, value: str) -> None:
    assert broken_promises(GOOD, SERVER) == []
    (sentence,) = broken_promises(GOOD | {name: value}, SERVER)
    assert sentence.startswith(f'{name} is "{value}" and must be ')
    (sentence,) = broken_promises({k: v for k, v in GOOD.items() if k != name}, SERVER)
    assert sentence.startswith(f"{name} could not be read")
    if name.startswith("cluster"):
        alone = GOOD | {name: value, "cluster-enabled": "no"}
        assert broken_promises(alone, SERVER) == []


def test_memory_has_a_bound_and_the_version_has_functions() -> None:
    assert broken_promises(GOOD | {"maxmemory": "0"}, SERVER) == [UNBOUNDED]
    (sentence,) = broken_promises(GOOD, {"redis_version": "6.2.14"})
    assert "6.2.14" in sentence
    assert broken_promises(GOOD, {}) != []
    assert broken_promises(GOOD, {"redis_version": "7.2.4", "valkey_version": "8.0.1"}) == []


def test_a_backlog_that_fills_the_memory_is_refused() -> None:
    """Else publishing stops, and goes on for nobody's acknowledgement."""
    half = GOOD | {"maxmemory": "1000", "repl-backlog-size": "500"}
    assert broken_promises(half, SERVER) == []
    (said,) = broken_promises(half | {"repl-backlog-size": "501"}, SERVER)
    assert "never goes on" in said
    assert as_mapping([b"save", b"", b"timeout", b"0"]) == {"save": "", "timeout": "0"}


def test_two_versions_of_the_functions_have_names_of_their_own() -> None:
    one, other = joined("VERSION begin", "x"), joined("VERSION begin", "y")
    assert one.name != other.name
    assert joined("VERSION begin", "x") == one
    version = one.name.removeprefix("tocsin_")
    assert one.code.startswith(f"#!lua name={one.name}\nlocal ")
    assert f"\n{version} begin\n" in one.code
    assert one.function("append") == f"tocsin_{version}_append"
    ours = library()
    assert "VERSION'" not in ours.code
    assert "act('touch'" in ours.code


def test_a_command_is_packed_as_redis_reads_it() -> None:
    assert pack("FCALL", "f", 1, "k", b"\x00", "ä") == (
        b"*6\r\n$5\r\nFCALL\r\n$1\r\nf\r\n$1\r\n1\r\n$1\r\nk\r\n$1\r\n\x00\r\n$2\r\n\xc3\xa4\r\n"
    )


def test_a_prefix_is_read_literally() -> None:
    assert pattern_of("{q}:") == "{q}:*"
    assert pattern_of("a*[b]?\\") == "a\\*\\[b\\]\\?\\\\*"


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def sentinel(port: int, epoch: int) -> Handler:
    """A Sentinel that names the primary at this port, in this configuration epoch."""
    facts = {"name": "tocsin", "ip": "10.0.0.1", "port": 7001, "config-epoch": epoch}
    master = array_of(word for fact in facts.items() for word in fact)
    named = array_of(["10.0.0.1", port])

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            settled = data.count(b"SETINFO")
            writer.write(b"+OK\r\n" * settled)
            if b"SENTINEL" in data:
                writer.write(master + named)
        writer.close()

    return answers


def array_of(words: Iterable[object]) -> bytes:
    """As Redis sends it."""
    texts = [str(word) for word in words]
    lines = [f"*{len(texts)}", *(f"${len(text)}\r\n{text}" for text in texts), ""]
    return "\r\n".join(lines).encode()


async def test_the_sentinel_with_the_newest_configuration_is_believed() -> None:
    """The first was cut off, and still names the primary of before; the last one is gone. The one
    that is right has not told all of itself yet: to MASTER it still gives the address of before."""
    servers = [
        await asyncio.start_server(sentinel(port, epoch), "127.0.0.1", 0)
        for port, epoch in [(7001, 3), (7002, 12), (7001, 3)]
    ]
    places = [Address(*server.sockets[0].getsockname()) for server in servers]
    find = by_sentinels(places, "tocsin", Reach(connect_s=0.5))
    assert await find() == Address("10.0.0.1", 7002)
    servers[2].close()
    assert await find() == Address("10.0.0.1", 7002)
    for server in servers:
        server.close()
    with pytest.raises(Refused, match="no Sentinel names the primary"):
        await find()


def test_how_often_a_sentinel_asks_is_what_it_says_or_as_it_begins() -> None:
    told = [[b"INFO-PERIOD", b"101", b"PING-PERIOD", b"400"]]
    assert info_period_ms(told) == 101
    assert info_period_ms([[b"info-period", b"100"]]) == 10_000  # a manager's that has ended
    assert info_period_ms([told[0][2:]]) == info_period_ms("no reply in time") == 10_000
