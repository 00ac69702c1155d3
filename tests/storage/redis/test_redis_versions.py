"""Functions of several versions of the broker in one store (R4): those in use stay, the others
go."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from storage.redis.library import Library
from storage.redis.ops.provision import UNUSED_S, provision
from storage.redis.shard import RedisShard, Settings
from tests.servers.binaries import Binary
from tests.servers.layouts import single
from tests.servers.node import Node
from tests.storage.shards import LIST, MARKS, library_of_tests, settings
from tests.storage.standing import reach_of
from tests.waiting import becomes


@pytest.fixture
def node(redis_binary: Binary, tmp_path: Path) -> Iterator[Node]:
    """A server with the shipped users."""
    with single(redis_binary, tmp_path, with_users=True) as node:
        yield node


def named(library: Library, version: str) -> Library:
    """The same functions as those of another version."""
    before = library.name.removeprefix("tocsin_")
    return Library(f"tocsin_{version}", library.code.replace(before, version))


def libraries(node: Node) -> set[str]:
    """Return those that are loaded."""
    return {one[one.index("library_name") + 1] for one in node.ask("FUNCTION", "LIST")}


def by(user: str, node: Node, library: Library) -> Settings:
    """How this user speaks to it, with these functions."""
    return replace(settings(node), reach=reach_of(user), library=library)


async def test_functions_that_nobody_uses_go_and_those_of_a_rollout_stay(node: Node) -> None:
    old, before, after = (named(library_of_tests(), f"{n:012d}") for n in range(3))
    key = settings(node).key
    for library in (old, before):
        await provision(by("tocsin-admin", node, library), MARKS.incarnation, 0)
    running = await RedisShard.open(by("tocsin", node, before), MARKS)
    await becomes(lambda: node.ask("HEXISTS", key, f"used:{before.name}"))
    long_ago = int(node.ask("TIME")[0]) - UNUSED_S - 1
    node.ask("HSET", key, f"used:{old.name}", long_ago)
    await provision(by("tocsin-admin", node, after), MARKS.incarnation, 0)
    assert libraries(node) == {before.name, after.name}
    assert await running.act("note", [LIST], ["1"], level="all") == 1
    assert not node.ask("HEXISTS", key, f"used:{old.name}")
    await running.close()


async def test_functions_that_never_told_get_their_time(node: Node) -> None:
    """They may have been loaded for a version that is about to start."""
    first, second = (named(library_of_tests(), f"{n:012d}") for n in range(2))
    for library in (first, second):
        await provision(by("tocsin-admin", node, library), MARKS.incarnation, 0)
    assert libraries(node) == {first.name, second.name}
    assert node.ask("HEXISTS", settings(node).key, f"used:{first.name}")


@pytest.mark.parametrize("function", ["used", "unused"])
async def test_a_store_that_was_emptied_stays_empty_and_can_be_ours_again(
    node: Node, function: str
) -> None:
    """A gateway that has not yet looked says that it uses its functions."""
    admin = by("tocsin-admin", node, library_of_tests())
    await provision(admin, MARKS.incarnation, 0)
    node.ask("FLUSHALL")
    link = await admin.open()
    await admin.ask(link, admin.call(function, [admin.key], [UNUSED_S, "tocsin_of_before"]))
    await link.close()
    assert node.ask("DBSIZE") == 0
    await provision(admin, MARKS.incarnation, 0)
