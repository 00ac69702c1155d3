"""Several storage clusters as one storage: what is asked of a partition goes where it was placed,
one that is away costs what it holds, and nothing else."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest

from push.errors import Refused, Unknown
from push.places import Partition
from push.storage_port import Append, Appended, Lane, PartitionState, Storage, StorageState
from storage.memory import MemoryStorage
from storage.sharded import ClusterMap, ShardedStorage, share_of_bound
from tests.contract.stores import append, one, outcomes

PARTITIONS = 6
CYCLE = ("a", "b", "a")
"""Two of three are at the first one."""


class Cluster(MemoryStorage):
    """One that can be away, or lose its answers."""

    why: Refused | Unknown | None = None

    def _check_open(self) -> None:
        super()._check_open()
        if self.why is not None:
            raise self.why

    async def append(
        self, appends: Sequence[Append], *, lane: Lane | None = None
    ) -> list[Appended]:
        self._check_open()
        return await super().append(appends, lane=lane)

    async def partitions(self, queue_id: str) -> list[PartitionState]:
        self._check_open()
        return await super().partitions(queue_id)

    async def state(self) -> StorageState:
        if self.why is not None:
            return StorageState(False, False, (self.why.detail,))
        return await super().state()


@dataclass
class House:
    """Two clusters, the place of what this gateway is not told of, and where queues are."""

    a: Cluster = field(default_factory=Cluster)
    b: Cluster = field(default_factory=Cluster)
    elsewhere: Cluster = field(default_factory=Cluster)
    rows: dict[str, Sequence[str]] = field(default_factory=lambda: {"q-1": CYCLE})

    def __post_init__(self) -> None:
        self.elsewhere.why = Refused("storage_unavailable", "not told of")
        self.storage = self.another()

    def another(self) -> ShardedStorage:
        """The same, as a gateway has it that begins now."""
        clusters = {"a": self.a, "b": self.b}
        return ShardedStorage(ClusterMap(clusters, self.elsewhere, self.rows.get))


@pytest.fixture
async def house() -> AsyncIterator[House]:
    """A queue of six partitions with a group."""
    made = House()
    await made.storage.create_queue("q-1", PARTITIONS)
    await made.storage.create_group("g-1", "q-1", ["earliest"] * PARTITIONS)
    yield made
    await made.storage.close()


def away() -> Refused:
    """Return the error of a cluster that is away."""
    return Refused("storage_unavailable", "it does not answer")


async def messages(store: Storage, number: int) -> int:
    """How many a storage retains in a partition."""
    states = await store.partitions("q-1")
    return next(state.messages for state in states if state.partition.number == number)


async def test_a_partition_is_where_its_row_says(house: House) -> None:
    appends = [append(Partition("q-1", n), messages=n + 1) for n in range(PARTITIONS)]
    done = await house.storage.append(appends)
    assert [outcomes(each) for each in done] == [list(range(n + 1)) for n in range(PARTITIONS)]
    for number in range(PARTITIONS):
        here, there = (house.a, house.b) if CYCLE[number % 3] == "a" else (house.b, house.a)
        assert await messages(here, number) == number + 1
        assert await messages(there, number) == 0
        assert await messages(house.storage, number) == number + 1
    places = [(Partition("q-1", n), 0) for n in (5, 1, 0)]
    assert len(await house.storage.published(places)) == 3
    cursors = await house.storage.cursors("q-1", "g-1")
    assert [cursor.place.partition.number for cursor in cursors] == list(range(PARTITIONS))


async def test_a_queue_without_places_is_at_the_first_one(house: House) -> None:
    """Those of a broker that had one cluster; and what is gone is answered as gone."""
    await house.storage.create_queue("old", 1)
    assert await house.b.partitions("old") == []
    assert len(await house.storage.partitions("old")) == 1
    assert await one(house.storage, append(Partition("never", 0), messages=1)) == [
        "queue_not_found"
    ]


async def test_a_cluster_that_is_away_costs_its_own_partitions(house: House) -> None:
    house.b.why = away()
    assert await one(house.storage, append(Partition("q-1", 0), messages=1)) == [0]
    with pytest.raises(Refused, match="does not answer"):
        await house.storage.append([append(Partition("q-1", 1), messages=1)])
    (stored,) = await house.storage.append([append(Partition("q-1", 3), messages=1)])
    assert stored.count == 1
    state = await house.storage.state()
    assert (state.writable, state.publishable) == (True, True)
    assert state.reasons == ("cluster b: it does not answer",)
    house.a.why = away()
    state = await house.storage.state()
    assert (state.writable, state.publishable) == (False, False)


async def test_what_one_of_them_did_is_no_refusal(house: House) -> None:
    """P2: an act on a whole queue that half of its clusters did is done again, or it is unknown."""
    house.b.why = away()
    with pytest.raises(Unknown, match="not at every storage cluster: it does not answer"):
        await house.storage.create_group("g-2", "q-1", ["earliest"] * PARTITIONS)
    both = [append(Partition("q-1", n), messages=1) for n in (0, 1)]
    with pytest.raises(Unknown):
        await house.storage.append(both)
    house.a.why = away()
    with pytest.raises(Refused, match="does not answer"):
        await house.storage.create_group("g-3", "q-1", ["earliest"] * PARTITIONS)
    with pytest.raises(Refused):
        await house.storage.partitions("q-1")
    house.a.why = house.b.why = None
    await house.storage.create_group("g-2", "q-1", ["earliest"] * PARTITIONS)
    assert len(await house.storage.cursors("q-1", "g-2")) == PARTITIONS


async def test_looks_change_nothing_and_are_never_unknown(house: House) -> None:
    house.b.why = away()
    with pytest.raises(Refused):
        await house.storage.partitions("q-1")


async def test_a_queue_at_a_cluster_that_this_gateway_is_not_told_of(house: House) -> None:
    """Is refused, and not looked for elsewhere: to be told that it is not there would be a lie."""
    house.rows["q-2"] = ("a", "c")
    with pytest.raises(Unknown, match="not told of"):
        await house.storage.create_queue("q-2", 2)
    with pytest.raises(Refused, match="not told of"):
        await house.storage.append([append(Partition("q-2", 1), messages=1)])
    assert await one(house.storage, append(Partition("q-2", 0), messages=1)) == [0]


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_dropped_queue_is_dropped_wherever_it_may_be(house: House, is_known: bool) -> None:
    """Its row is gone; a gateway that began later never knew where it was."""
    await house.storage.append([append(Partition("q-1", n), messages=1) for n in (0, 1)])
    del house.rows["q-1"]
    storage = house.storage if is_known else house.another()
    house.b.why = away()
    with pytest.raises(Unknown):
        await storage.drop_queue("q-1")
    house.b.why = None
    await storage.drop_queue("q-1")
    assert await house.a.partitions("q-1") == await house.b.partitions("q-1") == []


async def test_what_never_was_at_a_cluster_is_dropped_without_it(house: House) -> None:
    """Else nothing could be deleted while one of them is away."""
    house.rows["q-2"] = ("a",)
    await house.storage.create_queue("q-2", 2)
    await house.storage.create_group("g-2", "q-2", ["earliest"] * 2)
    house.b.why = away()
    await house.storage.drop_group("g-2", "q-2")
    await house.storage.drop_queue("q-2")
    assert await house.a.partitions("q-2") == []


async def test_what_is_at_a_cluster_that_is_not_named_here_is_not_said_to_be_dropped(
    house: House,
) -> None:
    """P9: it would be forgotten, and whoever can drop it there never be told."""
    house.rows["q-2"] = ("a", "c")
    with pytest.raises(Unknown):
        await house.storage.create_queue("q-2", 2)
    del house.rows["q-2"]
    with pytest.raises(Unknown, match="not told of"):
        await house.storage.drop_queue("q-2")


async def test_each_cluster_keeps_its_part_of_a_bound(house: House) -> None:
    """All of them together never take more; a queue that is bounded when it is made is at one."""
    at_a, at_b = Partition("q-1", 0), Partition("q-1", 1)
    (first,) = await house.storage.append([append(at_a, messages=8, messages_max=9)])
    (second,) = await house.storage.append([append(at_b, messages=8, messages_max=9)])
    assert (first.count, second.count) == (6, 3)
    house.rows["q-2"] = ("b",)
    await house.storage.create_queue("q-2", 1)
    alone = append(Partition("q-2", 0), messages=10, messages_max=9)
    (third,) = await house.storage.append([alone])
    assert third.count == 9


async def test_a_message_larger_than_the_part_of_its_cluster_never_fits_there(
    house: House,
) -> None:
    """Waiting does not help it, whatever the whole queue may hold; both sides of either part."""
    at_a, at_b = Partition("q-1", 0), Partition("q-1", 1)
    bounded = partial(append, bytes_max=90, message_bytes_max=90)
    large = "message_too_large"
    for place, most in ((at_a, 60), (at_b, 30)):
        assert await one(house.storage, bounded(place, sizes=[most + 1])) == [large]
        assert await one(house.storage, bounded(place, sizes=[most])) == [0]
    # Where what overflows moves to the dead letters, only the whole bound counts, everywhere.
    for place in (at_a, at_b):
        answers = await one(house.storage, append(place, sizes=[91, 90], message_bytes_max=90))
        assert answers == [large, 1]


@pytest.mark.parametrize("bound", [0, 1, 2, 7, 100])
def test_the_parts_of_a_bound_are_no_more_than_it(bound: int) -> None:
    for of in range(1, 8):
        for here in range(1, of):
            parts = [share_of_bound(bound, here, of), share_of_bound(bound, of - here, of)]
            assert sum(parts) <= max(bound, 2 if bound else 0)
            assert bool(bound) == all(parts)


async def test_a_wake_up_comes_from_each(house: House) -> None:
    woken: list[tuple[Partition, int]] = []
    house.storage.on_certified(lambda partition, end: woken.append((partition, end)))
    for number in (0, 1):
        await house.storage.append([append(Partition("q-1", number), messages=2)])
    assert set(woken) == {(Partition("q-1", 0), 2), (Partition("q-1", 1), 2)}


async def test_what_is_shown_names_the_cluster(house: House) -> None:
    state = await house.storage.state()
    assert all(name.startswith(("a ", "b ")) for name in state.detail)
    assert house.storage.copies(Partition("q-1", 0), "all") == 1
    assert await house.storage.incarnation() == await house.a.incarnation()
