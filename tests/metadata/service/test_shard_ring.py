"""Which nodes of the metadata service keep what: found alike by all, moved as little as can be."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from metadata.service.shards import REPLICAS, SHARDS, held, holders, shard_of

NODES = st.sets(st.text("abcdef0123456789", min_size=1, max_size=6), min_size=1, max_size=9)


@given(NODES, st.integers(0, SHARDS - 1))
def test_every_shard_has_as_many_holders_as_there_can_be(nodes: set[str], shard: int) -> None:
    found = holders(shard, nodes)
    assert len(set(found)) == len(found) == min(REPLICAS, len(nodes))
    assert set(found) <= nodes
    assert holders(shard, sorted(nodes, reverse=True)) == found


@given(NODES, st.text("xyz", min_size=1, max_size=3), st.integers(0, SHARDS - 1))
def test_a_node_that_joins_takes_the_place_of_one_and_moves_nothing_else(
    nodes: set[str], joining: str, shard: int
) -> None:
    """And the other way round for one that leaves; the order of the others stays."""
    before, after = holders(shard, nodes), holders(shard, nodes | {joining})
    if joining not in after:
        assert after == before
    else:
        stayed = tuple(name for name in after if name != joining)
        assert stayed == before[: len(stayed)]
        assert len(stayed) >= len(before) - 1


@given(NODES)
def test_what_each_node_holds_is_what_it_is_asked_for(nodes: set[str]) -> None:
    for node in nodes:
        kept = held(node, nodes)
        assert kept == {shard for shard in range(SHARDS) if node in holders(shard, nodes)}


def test_shards_are_spread_over_nodes_and_rows_over_shards() -> None:
    nodes = [f"{number:016x}" for number in range(10)]
    load = Counter(name for shard in range(SHARDS) for name in holders(shard, nodes))
    assert sum(load.values()) == REPLICAS * SHARDS
    assert max(load.values()) < 2 * REPLICAS * SHARDS / len(nodes)
    rows = Counter(shard_of("queues", f"queue-{number}") for number in range(64_000))
    assert len(rows) == SHARDS
    assert max(rows.values()) < 1200


def test_the_ring_is_the_one_that_other_versions_compute() -> None:
    """Golden values: nodes of two versions run side by side while they are exchanged."""
    assert [shard_of("queues", name) for name in ("a", "b", "c")] == [13, 37, 11]
    assert holders(0, ["n1", "n2", "n3", "n4"]) == ("n4", "n1", "n3")


def test_without_nodes_nobody_holds_anything() -> None:
    assert holders(0, []) == ()
    assert held("me", []) == frozenset(range(SHARDS))
