"""A Cluster of tests does what tests will take for granted."""

from pathlib import Path

from tests.servers.binaries import Binary
from tests.servers.layouts import Cluster, clustered
from tests.servers.node import Node, until, written


def test_a_cluster_replaces_a_primary_that_was_killed(redis_binary: Binary, tmp_path: Path) -> None:
    with clustered(redis_binary, tmp_path) as cluster:
        shards = cluster.shards()
        assert [len(replicas) for replicas in shards.values()] == [1, 1, 1]
        slot = int(cluster.nodes[0].ask("CLUSTER", "KEYSLOT", "a"))
        lost = cluster.primary_of(slot)
        (heir,) = shards[lost]
        written(lost, "a", 1)
        lost.kill()
        assert cluster.wait_failover(lost) is heir
        until(lambda: replaced(cluster, slot) is heir, f"{heir!r} takes over")
        cluster.wait_in_sync()
        assert heir.ask("GET", "a") == "a"
        lost.start()
        cluster.wait_in_sync()
        assert cluster.shards()[heir] == [lost]


def replaced(cluster: Cluster, slot: int) -> Node | None:
    """The running primary of a slot."""
    try:
        return cluster.primary_of(slot)
    except LookupError:
        return None
