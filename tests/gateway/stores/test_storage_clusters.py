"""Where a gateway places a new queue, by what it has found itself of each storage cluster."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.stores.clusters import ClusterDescriber, place_queues_on
from metadata.catalog import ANYBODY, QueueSettings
from push.errors import Refused
from storage.redis.target import parse_all
from tests.catalogs import open_catalog

TARGETS = parse_all("redis://10.0.0.1?cluster=a redis://10.0.0.2?cluster=b")


@dataclass
class Found:
    """What was found of one."""

    answers: bool


@pytest.mark.parametrize("away", ["a", "b"])
async def test_nothing_new_is_placed_where_nobody_answers(tmp_path: Path, away: str) -> None:
    """The first one included: where the catalog is a metadata service's it may be the one."""
    metadata = await open_catalog(tmp_path)
    shards = {name: Found(name != away) for name in ("a", "b")}
    place_queues_on(TARGETS, metadata, shards)
    queue, _ = await metadata.put_queue(ANYBODY, "orders", QueueSettings(partitions=4))
    assert queue.clusters == ("b" if away == "a" else "a",)
    told = {
        one.name: one.answers for one in await ClusterDescriber(TARGETS, metadata, shards)(None)
    }
    assert told == {"a": away != "a", "b": away != "b"}
    behind = ClusterDescriber(TARGETS, metadata, shards, has_catalog=False)
    assert not any(one.has_catalog for one in await behind(None))
    shards["a"].answers = shards["b"].answers = False
    with pytest.raises(Refused, match="no storage cluster answers"):
        await metadata.put_queue(ANYBODY, "more", QueueSettings())
    await metadata.close()
