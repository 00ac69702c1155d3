"""The metadata in this process: every method of the client interface, restarts, and bounds."""

import asyncio
import gc
import logging
import resource
import threading
import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from metadata.catalog import (
    ANYBODY,
    Group,
    GroupSettings,
    Membership,
    Principal,
    Queue,
    QueueSettings,
)
from metadata.catalog_service import CatalogService
from metadata.port import Metadata
from metadata.settings import Difference
from metadata.sqlite.catalog import FILE, CatalogFile, SqliteCatalog
from push.errors import Fenced, Refused, Unknown
from tests.catalogs import open_catalog
from tests.metadata.keepers import Keeper

ALICE = Principal("alice", tenant="a")
BOB = Principal("bob", tenant="b")
SETTINGS = QueueSettings(partitions=4)


ON_DISK = pytest.mark.parametrize("keeper", ["sqlite"], indirect=True)
"""What only one gateway with a folder promises."""


async def reopened(catalog: CatalogService, keeper: Keeper) -> CatalogService:
    await catalog.close()
    return await keeper.open()


def file_of(catalog: CatalogService) -> CatalogFile:
    assert isinstance(catalog._store, SqliteCatalog)
    return catalog._store.file


async def test_it_is_the_client_interface(catalog: CatalogService) -> None:
    client: Metadata = catalog
    assert await client.state() == (True, "")


# --- Queues -------------------------------------------------------------------------------------


async def test_a_created_queue_is_found_by_name_and_id(catalog: CatalogService) -> None:
    queue, created = await catalog.put_queue(ALICE, "orders", SETTINGS)
    assert created
    assert (queue.name, queue.tenant, queue.holder) == ("orders", "a", "alice")
    assert (queue.settings, queue.ring_epoch, queue.members) == (SETTINGS, 1, (0, 1, 2, 3))
    assert (len(queue.queue_id), len(queue.hash_key), queue.lineage) == (10, 16, ())
    assert abs(queue.created_unix_ms - time.time() * 1000) < 60_000
    assert catalog.find_queue(ALICE, "orders") == queue
    assert catalog.queue_by_id(queue.queue_id) == queue
    assert catalog.list_queues(ALICE) == [queue]


async def test_a_pause_is_durable_and_no_setting(catalog: CatalogService, keeper: Keeper) -> None:
    """Listeners hear of each change, and of nothing where nothing changes; putting settings leaves
    it as it is; another tenant cannot do it (P11)."""
    await catalog.put_queue(ALICE, "orders", SETTINGS)
    heard: list[bool] = []
    catalog.on_queue_changed(lambda queue, group, *, deleted: heard.append(queue.paused))
    for paused in (True, True, False, True):
        queue = await catalog.pause_queue(ALICE, "orders", paused=paused)
        assert queue.paused is paused
        assert catalog.find_queue(ALICE, "orders") == queue
    assert heard == [True, False, True]
    queue = await set_queue(catalog, "orders", lease_s=9)
    assert queue.paused
    with pytest.raises(Refused, match="queue_not_found"):
        await catalog.pause_queue(BOB, "orders", paused=False)
    again = await reopened(catalog, keeper)
    assert again.find_queue(ALICE, "orders") == queue
    await again.close()


async def test_the_same_name_in_two_tenants_is_two_queues(catalog: CatalogService) -> None:
    """P11: and neither tenant sees, changes or deletes the other's."""
    ours, _ = await catalog.put_queue(ALICE, "orders", SETTINGS)
    theirs, created = await catalog.put_queue(BOB, "orders", QueueSettings(partitions=8))
    assert created
    assert ours.queue_id != theirs.queue_id
    assert ours.hash_key != theirs.hash_key
    group, _ = await catalog.put_group(ALICE, ours, "g", GroupSettings())
    assert catalog.list_queues(BOB) == [theirs]
    assert catalog.list_groups(BOB, ours) == []
    for refused in (
        catalog.put_group(BOB, ours, "g", GroupSettings(lease_s=5)),
        catalog.delete_group(BOB, ours, "g"),
    ):
        with pytest.raises(Refused, match="not_found"):
            await refused
    with pytest.raises(Refused, match="group_not_found"):
        catalog.find_group(BOB, ours, "g")
    await catalog.delete_queue(BOB, "orders")
    assert catalog.find_queue(ALICE, "orders") == ours
    assert catalog.find_group(ALICE, ours, "g") == group


async def test_putting_what_is_there_changes_nothing(
    catalog: CatalogService, keeper: Keeper
) -> None:
    """With defaults, with the same settings named, and with others that nobody named: what is there
    stays, and no listener hears of anything."""
    kept = QueueSettings(partitions=4, retention_s=604_800, attempts_max=0)
    queue, _ = await catalog.put_queue(ALICE, "orders", kept)
    group, _ = await catalog.put_group(ALICE, queue, "g", GroupSettings(lease_s=99))
    told: list[Queue] = []
    catalog.on_queue_changed(lambda queue, group, deleted: told.append(queue))
    for settings, named in (
        (QueueSettings(), ()), (kept, ("partitions", "retention_s")),
        (QueueSettings(), ("lease_s",)),
        (QueueSettings(attempts_max=0, lease_total_s=1), ("attempts_max",)),
    ):  # fmt: skip
        again = await catalog.put_queue(ALICE, "orders", settings, frozenset(named))
        assert again == (queue, False)
    for of_group, named in (
        (GroupSettings(), ()), (GroupSettings(lease_s=99.0), ("lease_s",)),
        (GroupSettings(start="latest"), ("start",)),
    ):  # fmt: skip
        same = await catalog.put_group(ALICE, queue, "g", of_group, named=frozenset(named))
        assert same == (group, False)
    assert told == []
    reopened_ = await reopened(catalog, keeper)
    assert reopened_.list_queues(ALICE) == [queue]
    assert reopened_.list_groups(ALICE, queue) == [group]
    await reopened_.close()


async def test_what_is_there_with_other_settings_is_refused_with_the_differences(
    catalog: CatalogService,
) -> None:
    """Only of those that are named, and all of them; nothing changes."""
    queue, _ = await catalog.put_queue(ALICE, "orders", QueueSettings(partitions=4, retention_s=60))
    asked = QueueSettings(partitions=16, retention_s=60, message_ttl_s=5)
    named = frozenset({"partitions", "retention_s", "message_ttl_s"})
    with pytest.raises(Refused, match="settings_differ") as refused:
        await catalog.put_queue(ALICE, "orders", asked, named)
    assert refused.value.more == {
        "differences": [
            Difference(name="message_ttl_s", current=None, requested=5),
            Difference(name="partitions", current=4, requested=16, fixed=True),
        ]
    }
    assert "partitions is 4, not 16" in refused.value.detail
    group, _ = await catalog.put_group(ALICE, queue, "g", GroupSettings())
    with pytest.raises(Refused, match="settings_differ") as refused:
        await catalog.put_group(
            ALICE, queue, "g", GroupSettings(lease_s=60), named=frozenset({"lease_s"})
        )
    assert refused.value.more == {
        "differences": [Difference(name="lease_s", current=30, requested=60, inherited=True)]
    }
    assert refused.value.detail.endswith(": lease_s is the queue's, 30 s, not 60 s")
    assert catalog.find_queue(ALICE, "orders") == queue
    assert catalog.find_group(ALICE, queue, "g") == group


async def test_the_value_in_effect_is_no_difference_of_a_group(catalog: CatalogService) -> None:
    """Whether the group has it from its queue or of its own, and whichever of both is named."""
    queue, _ = await catalog.put_queue(ALICE, "orders", QueueSettings(partitions=1, lease_s=40))
    own, of_queue = GroupSettings(lease_s=40), GroupSettings()
    names = frozenset({"lease_s", "attempts_max", "expires_s", "semantics"})
    for name, has in (("own", own), ("inherits", of_queue)):
        group, _ = await catalog.put_group(ALICE, queue, name, has)
        for asked in (own, of_queue, GroupSettings(lease_s=40, attempts_max=5)):
            made = await catalog.put_group(ALICE, queue, name, asked, named=names)
            assert made == (group, False)
    _, changed = await catalog.change_queue(ALICE, "orders", {"lease_s": 50}) or ({}, queue)
    assert (await catalog.put_group(ALICE, changed, "inherits", of_queue, named=names))[1] is False
    with pytest.raises(Refused) as refused:
        await catalog.put_group(ALICE, changed, "own", of_queue, named=names)
    assert refused.value.detail.endswith(": lease_s is 40 s, not the queue's, 50 s")
    with pytest.raises(Refused) as refused:
        await catalog.put_group(ALICE, changed, "inherits", own, named=names)
    assert refused.value.detail.endswith(": lease_s is the queue's, 50 s, not 40 s")
    asked = GroupSettings(expires_s=1.5)
    with pytest.raises(Refused) as refused:
        await catalog.put_group(ALICE, changed, "inherits", asked, named=names)
    assert refused.value.detail.endswith(": expires_s is none, not 1.5 s")


async def test_a_change_touches_the_settings_that_it_names_and_no_others(
    catalog: CatalogService, keeper: Keeper
) -> None:
    before = QueueSettings(partitions=4, retention_s=60, attempts_max=0, message_ttl_s=9)
    old, _ = await catalog.put_queue(ALICE, "orders", before)
    assert await catalog.change_queue(ALICE, "orders", {}) == (before, old)
    done = await catalog.change_queue(ALICE, "orders", {"retention_s": 5, "message_ttl_s": None})
    assert done is not None
    after = msgspec.structs.replace(before, retention_s=5, message_ttl_s=None)
    assert done == (before, msgspec.structs.replace(old, settings=after))
    for named, code in (
        ({"partitions": 5}, "setting_fixed"), ({"lease_s": 9999}, "invalid_request"),
        ({"dead_letter_queue": "orders"}, "invalid_request"),
    ):  # fmt: skip
        with pytest.raises(Refused, match=code):
            await catalog.change_queue(ALICE, "orders", named)
    with pytest.raises(Refused, match="queue_not_found"):
        await catalog.change_queue(BOB, "orders", {"lease_s": 9})
    await catalog.put_group(ALICE, old, "g", GroupSettings(lease_s=5, attempts_max=3))
    changed = await set_group(catalog, old, "g", lease_s=None)
    assert changed.settings == GroupSettings(attempts_max=3)
    with pytest.raises(Refused, match="group_not_found"):
        await catalog.change_group(ALICE, old, "h", {"lease_s": 9})
    with pytest.raises(Refused, match="queue_not_found"):
        await catalog.change_group(BOB, old, "g", {"lease_s": 9})
    reopened_ = await reopened(catalog, keeper)
    assert reopened_.find_queue(ALICE, "orders") == done[1]
    assert reopened_.find_group(ALICE, old, "g") == changed
    await reopened_.close()


async def test_a_change_that_was_judged_on_other_settings_is_not_made(
    catalog: CatalogService,
) -> None:
    """Nor of a queue that was made anew under the name."""
    judged, _ = await catalog.put_queue(ALICE, "orders", SETTINGS)
    await set_queue(catalog, "orders", lease_s=9)
    assert await catalog.change_queue(ALICE, "orders", {"retention_s": 5}, was=judged) is None
    now = catalog.find_queue(ALICE, "orders")
    assert now.settings.retention_s == 0
    group, _ = await catalog.put_group(ALICE, now, "g", GroupSettings())
    await set_group(catalog, now, "g", lease_s=9)
    assert await catalog.change_group(ALICE, now, "g", {"lease_s": 5}, was=group) is None
    await catalog.delete_queue(ALICE, "orders")
    again, _ = await catalog.put_queue(ALICE, "orders", now.settings)
    assert await catalog.change_queue(ALICE, "orders", {"retention_s": 5}, was=now) is None
    done = await catalog.change_queue(ALICE, "orders", {"retention_s": 5}, was=again)
    assert done is not None


async def set_queue(catalog: CatalogService, name: str, **named: object) -> Queue:
    """Change settings of Alice's queue."""
    done = await catalog.change_queue(ALICE, name, named)
    assert done is not None
    return done[1]


async def set_group(catalog: CatalogService, queue: Queue, name: str, **named: object) -> Group:
    """Change settings of a group of Alice's queue."""
    done = await catalog.change_group(ALICE, queue, name, named)
    assert done is not None
    return done[1]


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a\n", "é", "x" * 129])
async def test_invalid_names_are_refused(catalog: CatalogService, name: str) -> None:
    """P12."""
    with pytest.raises(Refused, match="invalid_name: queue"):
        await catalog.put_queue(ALICE, name, SETTINGS)
    queue, _ = await catalog.put_queue(ALICE, "orders", SETTINGS)
    with pytest.raises(Refused, match="invalid_name: group"):
        await catalog.put_group(ALICE, queue, name, GroupSettings())
    assert catalog.list_queues(ALICE) == [queue]
    assert catalog.list_groups(ALICE, queue) == []


async def test_contradicting_settings_are_refused(catalog: CatalogService) -> None:
    with pytest.raises(Refused, match="invalid_request"):
        await catalog.put_queue(ALICE, "orders", QueueSettings(lease_s=9, lease_total_s=8))
    with pytest.raises(Refused, match="the queue itself"):
        await catalog.put_queue(ALICE, "orders", QueueSettings(dead_letter_queue="orders"))


async def test_unknown_names_are_refused(catalog: CatalogService) -> None:
    queue, _ = await catalog.put_queue(ALICE, "orders", SETTINGS)
    with pytest.raises(Refused, match="queue_not_found"):
        catalog.find_queue(ALICE, "other")
    with pytest.raises(Refused, match="queue_not_found"):
        await catalog.delete_queue(ALICE, "other")
    with pytest.raises(Refused, match="group_not_found"):
        catalog.find_group(ALICE, queue, "g")
    with pytest.raises(Refused, match="group_not_found"):
        await catalog.delete_group(ALICE, queue, "g")
    assert catalog.queue_by_id("aaaaaaaaaa") is None


async def test_a_queue_made_again_under_its_name_has_a_new_id(
    catalog: CatalogService, keeper: Keeper
) -> None:
    """R1: and nothing of the old one: no groups, no secrets of its hash."""
    old, _ = await catalog.put_queue(ALICE, "orders", SETTINGS)
    old_group, _ = await catalog.put_group(ALICE, old, "g", GroupSettings())
    assert await catalog.delete_queue(ALICE, "orders") == old
    with pytest.raises(Refused, match="queue_not_found"):
        catalog.find_queue(ALICE, "orders")
    with pytest.raises(Refused, match="queue_not_found"):
        await catalog.put_group(ALICE, old, "g", GroupSettings())
    new, created = await catalog.put_queue(ALICE, "orders", QueueSettings(partitions=9))
    assert created
    assert new.queue_id != old.queue_id
    assert new.hash_key != old.hash_key
    assert catalog.list_groups(ALICE, new) == []
    with pytest.raises(Refused, match="group_not_found"):
        catalog.find_group(ALICE, old, "g")
    new_group, _ = await catalog.put_group(ALICE, new, "g", GroupSettings())
    assert new_group.group_id != old_group.group_id
    again = await reopened(catalog, keeper)
    assert again.list_queues(ALICE) == [new]
    assert again.list_groups(ALICE, new) == [new_group]
    assert again.queue_by_id(old.queue_id) is None
    await again.close()


async def test_too_many_queues_or_groups_are_refused(
    catalog: CatalogService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9. The bounds are 100,000 and 1,000: here two of each are as good."""
    monkeypatch.setattr("metadata.catalog_service.QUEUES_MAX", 2)
    monkeypatch.setattr("metadata.catalog_service.GROUPS_PER_QUEUE_MAX", 2)
    one, _ = await catalog.put_queue(ALICE, "one", SETTINGS)
    two, _ = await catalog.put_queue(BOB, "two", SETTINGS)
    with pytest.raises(Refused, match="limit_reached"):
        await catalog.put_queue(ALICE, "three", SETTINGS)
    await catalog.put_queue(ALICE, "one", SETTINGS)
    for name in ("g", "h"):
        await catalog.put_group(ALICE, one, name, GroupSettings())
    with pytest.raises(Refused, match="limit_reached"):
        await catalog.put_group(ALICE, one, "i", GroupSettings())
    await catalog.put_group(BOB, two, "i", GroupSettings())


# --- Groups -------------------------------------------------------------------------------------


async def test_a_created_group_is_found_and_listed(catalog: CatalogService) -> None:
    queue, _ = await catalog.put_queue(ALICE, "orders", SETTINGS)
    second, _ = await catalog.put_group(ALICE, queue, "b", GroupSettings())
    first, created = await catalog.put_group(ALICE, queue, "a", GroupSettings(start="latest"))
    assert created
    assert (first.queue_id, first.settings.start) == (queue.queue_id, "latest")
    assert catalog.find_group(ALICE, queue, "a") == first
    assert catalog.list_groups(ALICE, queue) == [first, second]


async def test_a_groups_start_stays_as_it_was_created(catalog: CatalogService) -> None:
    queue, _ = await catalog.put_queue(ALICE, "orders", SETTINGS)
    group, _ = await catalog.put_group(ALICE, queue, "g", GroupSettings(start="latest"))
    assert await catalog.put_group(ALICE, queue, "g", GroupSettings()) == (group, False)
    assert await catalog.put_group(ALICE, queue, "g", GroupSettings(), "earliest") == (group, False)
    changed = await set_group(catalog, queue, "g", lease_s=5)
    assert changed.group_id == group.group_id
    assert (changed.settings.start, changed.settings.lease_s) == ("latest", 5)


async def test_a_deleted_group_is_gone_and_its_id_is_to_be_dropped(
    catalog: CatalogService,
) -> None:
    queue, _ = await catalog.put_queue(ALICE, "orders", SETTINGS)
    group, _ = await catalog.put_group(ALICE, queue, "g", GroupSettings())
    assert await catalog.delete_group(ALICE, queue, "g") == group
    assert catalog.list_groups(ALICE, queue) == []
    assert catalog.dropped() == [(queue.queue_id, group.group_id)]
    again, _ = await catalog.put_group(ALICE, queue, "g", GroupSettings())
    assert again.group_id != group.group_id


async def test_what_was_dropped_is_remembered_until_the_storage_dropped_it_too(
    catalog: CatalogService, keeper: Keeper
) -> None:
    """A crash between the two leaves no orphan for ever."""
    one, _ = await catalog.put_queue(ALICE, "one", SETTINGS)
    two, _ = await catalog.put_queue(ALICE, "two", SETTINGS)
    group, _ = await catalog.put_group(ALICE, one, "g", GroupSettings())
    gone_with_two, _ = await catalog.put_group(ALICE, two, "g", GroupSettings())
    await catalog.put_group(ALICE, two, "h", GroupSettings())
    await catalog.delete_group(ALICE, one, "g")
    await catalog.delete_group(ALICE, two, "g")
    await catalog.delete_queue(ALICE, "two")
    expected = [(one.queue_id, group.group_id), (two.queue_id, None)]
    assert catalog.dropped() == expected
    catalog = await reopened(catalog, keeper)
    assert sorted(catalog.dropped(), key=str) == sorted(expected, key=str)
    await catalog.forget(two.queue_id, gone_with_two.group_id)  # went with its queue: nothing
    await catalog.forget(one.queue_id, None)  # still there: nothing happens
    assert len(catalog.dropped()) == 2
    await catalog.forget(two.queue_id, None)
    assert catalog.dropped() == [(one.queue_id, group.group_id)]
    catalog = await reopened(catalog, keeper)
    assert catalog.dropped() == [(one.queue_id, group.group_id)]
    assert catalog.find_queue(ALICE, "one") == one
    await catalog.close()


# --- Restarts, secrets, marks --------------------------------------------------------------------


@pytest.mark.layouts
async def test_everything_is_there_after_a_restart(catalog: CatalogService, keeper: Keeper) -> None:
    queue, _ = await catalog.put_queue(ALICE, "orders", SETTINGS)
    changed = await set_queue(catalog, "orders", lease_s=7)
    await catalog.put_group(ALICE, queue, "g", GroupSettings())
    group = await set_group(catalog, queue, "g", attempts_max=0)
    await catalog.set_mark("storage", "first")
    await catalog.set_mark("storage", "second")
    receipts = catalog.secret("receipts")
    catalog = await reopened(catalog, keeper)
    assert catalog.list_queues(ALICE) == [changed]
    assert catalog.list_groups(ALICE, changed) == [group]
    assert catalog.mark("storage") == "second"
    assert catalog.mark("other") is None
    assert catalog.secret("receipts") == receipts
    await catalog.close()


@ON_DISK
async def test_secrets_differ_by_name_and_by_catalog(
    catalog: CatalogService, tmp_path: Path
) -> None:
    other = await open_catalog(tmp_path / "other")
    secrets = {catalog.secret("a"), catalog.secret("b"), other.secret("a")}
    assert [len(one) for one in secrets] == [32, 32, 32]
    await other.close()


@ON_DISK
async def test_a_second_process_on_the_same_folder_is_refused(
    catalog: CatalogService, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match="another process is using it"):
        await open_catalog(tmp_path)
    assert (await catalog.put_queue(ALICE, "orders", SETTINGS))[1]


async def test_the_time_of_a_start_and_of_look_ups_grows_with_the_queues_and_not_faster(
    tmp_path: Path,
) -> None:
    """A search through all of them would make it a hundred times as much for ten times as many."""
    gc.disable()  # it walks what other tests have left, for as long as it takes
    try:
        few_s = await _start_and_find(tmp_path / "few", 1000)
        many_s = await _start_and_find(tmp_path / "many", 10_000)
    finally:
        gc.enable()
    for few, many in zip(few_s, many_s, strict=True):
        assert many < 40 * few


async def _start_and_find(folder: Path, count: int) -> tuple[float, float]:
    """Open a catalog of this many queues, and find each. Returns the processor's seconds for
    each of the two."""
    queues = [
        Queue(
            queue_id=f"q{number:09}", name=f"queue-{number}", tenant="default", holder="me",
            created_unix_ms=1, settings=SETTINGS, ring_epoch=1, members=(0, 1, 2, 3),
            hash_key=bytes(16),
        )
        for number in range(count)
    ]  # fmt: skip
    groups = [
        Group(
            group_id=f"g{number:09}", name="g", queue_id=queue.queue_id, created_unix_ms=1,
            settings=GroupSettings(),
        )
        for number, queue in enumerate(queues)
    ]  # fmt: skip
    with closing(CatalogFile(folder / FILE)) as store:
        store.create([*queues, *groups])
    began = time.process_time()
    catalog = await open_catalog(folder)
    opened = time.process_time()
    for queue in queues:
        assert catalog.find_queue(ANYBODY, queue.name) == queue
        assert catalog.find_group(ANYBODY, queue, "g").queue_id == queue.queue_id
    found = time.process_time()
    assert len(catalog.list_queues(ANYBODY)) == count
    await catalog.close()
    return opened - began, found - opened


# --- Membership ----------------------------------------------------------------------------------


def row(group: Group, generation: int, *members: str) -> Membership:
    return Membership(
        group_id=group.group_id,
        generation=generation,
        members=members,
        assignment=dict.fromkeys(range(4), members[0]),
    )


@pytest.fixture
async def group(catalog: CatalogService) -> Group:
    queue, _ = await catalog.put_queue(ALICE, "orders", SETTINGS)
    return (await catalog.put_group(ALICE, queue, "g", GroupSettings()))[0]


@pytest.mark.layouts
async def test_a_membership_changes_by_compare_and_set(
    catalog: CatalogService, group: Group
) -> None:
    """R14: of two gateways with the same view one changes it, and the other looks again."""
    first = await catalog.membership(group.group_id)
    assert (first.members, first.assignment) == ((), {})
    seen = first.generation
    joined = row(group, seen + 1, "a")
    assert await catalog.change_membership(joined, expected_generation=seen)
    assert not await catalog.change_membership(row(group, seen + 5, "b"), expected_generation=seen)
    assert not await catalog.change_membership(
        row(group, seen + 9, "b"), expected_generation=seen + 7
    )
    assert await catalog.membership(group.group_id) == joined
    assert await catalog.change_membership(
        row(group, seen + 2, "a", "b"), expected_generation=seen + 1
    )


@pytest.mark.parametrize("step", [0, -1])
async def test_a_generation_that_does_not_grow_is_refused(
    catalog: CatalogService, group: Group, step: int
) -> None:
    seen = (await catalog.membership(group.group_id)).generation
    with pytest.raises(Refused, match="invalid_request"):
        await catalog.change_membership(row(group, seen + step, "a"), expected_generation=seen)


@ON_DISK
async def test_generations_grow_over_restarts(
    catalog: CatalogService, group: Group, keeper: Keeper
) -> None:
    """R14: an assignment of before the restart names an older generation, and is refused."""
    seen = (await catalog.membership(group.group_id)).generation
    for _ in range(3):
        assert await catalog.change_membership(row(group, seen + 1, "a"), expected_generation=seen)
        seen += 1
    catalog = await reopened(catalog, keeper)
    after = await catalog.membership(group.group_id)
    assert after.generation > seen
    assert after.members == ()
    assert not await catalog.change_membership(row(group, seen + 1, "a"), expected_generation=seen)
    await catalog.close()


@ON_DISK
async def test_who_lingers_is_known_after_a_restart(
    catalog: CatalogService, group: Group, keeper: Keeper
) -> None:
    """R22: by the assignment of before; who does not is forgotten, and with the last one all."""
    seen = (await catalog.membership(group.group_id)).generation
    lingering = msgspec.structs.replace(row(group, seen + 1, "a", "b"), lingers={"a": 30.0})
    assert await catalog.change_membership(lingering, expected_generation=seen)
    catalog = await reopened(catalog, keeper)
    after = await catalog.membership(group.group_id)
    assert (after.members, after.assignment, after.lingers) == (
        (), lingering.assignment, {"a": 30.0},
    )  # fmt: skip
    assert after.generation > lingering.generation
    gone = row(group, after.generation + 1, "b")
    assert await catalog.change_membership(gone, expected_generation=after.generation)
    catalog = await reopened(catalog, keeper)
    after = await catalog.membership(group.group_id)
    assert (after.assignment, after.lingers) == ({}, {})
    await catalog.close()


@ON_DISK
async def test_who_joins_at_once_is_kept_in_few_commits(
    catalog: CatalogService, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart everybody comes back in the same second, each to its group."""
    queue, _ = await catalog.put_queue(ALICE, "orders", SETTINGS)
    groups = [
        (await catalog.put_group(ALICE, queue, f"g{n}", GroupSettings()))[0] for n in range(50)
    ]
    file = file_of(catalog)
    put, sizes = file.put_memberships, list[int]()

    def counted(rows: list[Membership]) -> None:
        sizes.append(len(rows))
        put(rows)

    monkeypatch.setattr(file, "put_memberships", counted)

    async def join(group: Group) -> None:
        seen = (await catalog.membership(group.group_id)).generation
        new = msgspec.structs.replace(row(group, seen + 1, "a"), lingers={"a": 30.0})
        assert await catalog.change_membership(new, expected_generation=seen)

    await asyncio.gather(*map(join, groups))
    assert sum(sizes) == 50
    assert len(sizes) <= 3
    catalog = await reopened(catalog, keeper)
    for group in groups:
        assert (await catalog.membership(group.group_id)).lingers == {"a": 30.0}
    await catalog.close()


@ON_DISK
async def test_a_membership_that_cannot_be_kept_holds_nevertheless(
    catalog: CatalogService, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R22 is a kindness: who lingers would not be waited for, and joins all the same."""

    def full(_: object) -> None:
        raise Refused("storage_unavailable", "the disk is full")

    monkeypatch.setattr(file_of(catalog), "put_memberships", full)
    seen = (await catalog.membership(group.group_id)).generation
    lingering = msgspec.structs.replace(row(group, seen + 1, "a"), lingers={"a": 30.0})
    assert await catalog.change_membership(lingering, expected_generation=seen)
    assert await catalog.membership(group.group_id) == lingering


@pytest.mark.layouts
async def test_a_deleted_group_has_no_membership(catalog: CatalogService, group: Group) -> None:
    queue = catalog.find_queue(ALICE, "orders")
    seen = (await catalog.membership(group.group_id)).generation
    await catalog.change_membership(row(group, seen + 1, "a"), expected_generation=seen)
    await catalog.delete_group(ALICE, queue, "g")
    with pytest.raises(Refused, match="group_not_found"):
        await catalog.membership(group.group_id)
    with pytest.raises(Refused, match="group_not_found"):
        await catalog.change_membership(row(group, seen + 2, "a"), expected_generation=seen + 1)
    other, _ = await catalog.put_group(ALICE, queue, "h", GroupSettings())
    await catalog.change_membership(row(other, seen + 1, "a"), expected_generation=seen)
    await catalog.delete_queue(ALICE, "orders")
    with pytest.raises(Refused, match="group_not_found"):
        await catalog.membership(other.group_id)


@pytest.mark.layouts
async def test_a_group_is_deleted_by_its_row_only_while_that_is_its_row(
    catalog: CatalogService, group: Group
) -> None:
    """R11, R14: what was decided by a row is held to its id and its generation."""
    queue = catalog.find_queue(ALICE, "orders")
    seen = await catalog.membership(group.group_id)
    new = row(group, seen.generation + 1, "a")
    assert await catalog.change_membership(new, expected_generation=seen.generation)
    with pytest.raises(Fenced):
        await catalog.delete_group(ALICE, queue, "g", row=seen)
    assert (catalog.list_groups(ALICE, queue), catalog.dropped()) == ([group], [])
    assert await catalog.membership(group.group_id) == new
    assert await catalog.delete_group(ALICE, queue, "g", row=new) == group
    again, _ = await catalog.put_group(ALICE, queue, "g", GroupSettings())
    with pytest.raises(Refused, match="group_not_found"):
        await catalog.delete_group(ALICE, queue, "g", row=new)
    fresh = await catalog.membership(again.group_id)
    other = msgspec.structs.replace(fresh, group_id=group.group_id)
    with pytest.raises(Refused, match="group_not_found"):
        await catalog.delete_group(ALICE, queue, "g", row=other)
    assert await catalog.delete_group(ALICE, queue, "g", row=fresh) == again


@ON_DISK
@pytest.mark.parametrize("is_full", [False, True])
async def test_who_joins_while_its_group_is_deleted_waits_for_what_becomes_of_it(
    catalog: CatalogService, group: Group, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """R11: the row was looked at, and its group is on its way out: nobody joins in between."""
    queue = catalog.find_queue(ALICE, "orders")
    file, goes = file_of(catalog), threading.Event()
    real = file.drop_group

    def slow(group_id: str) -> None:
        goes.wait()
        if is_full:
            raise Refused("storage_unavailable", "the disk is full")
        real(group_id)

    monkeypatch.setattr(file, "drop_group", slow)
    seen = await catalog.membership(group.group_id)
    deleting = asyncio.create_task(catalog.delete_group(ALICE, queue, "g", row=seen))
    await asyncio.sleep(0.01)
    joining = asyncio.create_task(
        catalog.change_membership(
            row(group, seen.generation + 1, "a"), expected_generation=seen.generation
        )
    )
    await asyncio.sleep(0.01)
    waits = not joining.done()
    goes.set()
    assert waits
    if is_full:
        with pytest.raises(Refused, match="storage_unavailable"):
            await deleting
        assert await joining
    else:
        assert await deleting == group
        with pytest.raises(Refused, match="group_not_found"):
            await joining


# --- Listeners, order, ends ----------------------------------------------------------------------


async def test_listeners_hear_of_every_change_after_it_is_durable(keeper: Keeper) -> None:
    told: list[tuple[str, str | None, bool]] = []
    catalog = await keeper.open()

    def listen(queue: Queue, group: Group | None, *, deleted: bool) -> None:
        told.append((queue.name, None if group is None else group.name, deleted))
        there = catalog.queue_by_id(queue.queue_id) is not None
        assert there == (not deleted or (group is not None and group.name == "alone"))

    catalog.on_queue_changed(listen)
    queue, _ = await catalog.put_queue(ALICE, "q", SETTINGS)
    await set_queue(catalog, "q", retention_s=1)
    for name in ("alone", "b", "a"):
        await catalog.put_group(ALICE, queue, name, GroupSettings())
    await catalog.delete_group(ALICE, queue, "alone")
    await catalog.delete_queue(ALICE, "q")
    assert told == [
        ("q", None, False), ("q", None, False), ("q", "alone", False), ("q", "b", False),
        ("q", "a", False), ("q", "alone", True), ("q", "a", True), ("q", "b", True),
        ("q", None, True),
    ]  # fmt: skip
    await catalog.close()


async def test_a_listener_that_fails_does_not_undo_a_durable_change(
    catalog: CatalogService, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    def fail(queue: Queue, group: Group | None, *, deleted: bool) -> None:
        raise RuntimeError("listener")

    catalog.on_queue_changed(fail)
    catalog.on_queue_changed(lambda queue, group, deleted: told.append(queue.name))
    with caplog.at_level(logging.ERROR):
        queue, created = await catalog.put_queue(ALICE, "q", SETTINGS)
    assert created
    assert catalog.find_queue(ALICE, "q") == queue
    assert told == ["q"]
    assert "listener failed" in caplog.text


@pytest.mark.layouts
async def test_concurrent_puts_of_one_name_make_one_queue(catalog: CatalogService) -> None:
    answers = await asyncio.gather(
        *(catalog.put_queue(ALICE, "orders", SETTINGS) for _ in range(20))
    )
    assert [created for _, created in answers] == [True] + [False] * 19
    assert len({queue.queue_id for queue, _ in answers}) == 1


async def test_a_change_whose_caller_is_cancelled_is_finished(
    catalog: CatalogService, keeper: Keeper
) -> None:
    """Memory and disk never part: what is on the disk is found, and the other way round."""
    task = asyncio.create_task(catalog.put_queue(ALICE, "orders", SETTINGS))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    queue, created = await catalog.put_queue(ALICE, "orders", SETTINGS)
    assert not created
    catalog = await reopened(catalog, keeper)
    assert catalog.list_queues(ALICE) == [queue]
    await catalog.close()


async def test_closing_finishes_what_has_begun_and_refuses_the_rest(
    catalog: CatalogService, keeper: Keeper
) -> None:
    begun = [asyncio.create_task(catalog.put_queue(ALICE, f"q{n}", SETTINGS)) for n in range(5)]
    await asyncio.sleep(0)
    await catalog.close()
    await catalog.close()
    assert all(created for _, created in await asyncio.gather(*begun))
    assert await catalog.state() == (False, "the catalog is closed")
    with pytest.raises(Refused, match="storage_unavailable"):
        await catalog.put_queue(ALICE, "late", SETTINGS)
    catalog = await keeper.open()
    assert [queue.name for queue in catalog.list_queues(ALICE)] == [f"q{n}" for n in range(5)]
    await catalog.close()


async def test_an_unknown_commit_is_fatal_and_reported_once(tmp_path: Path) -> None:
    """R31. A real failure: the file may not grow."""
    fatal: list[str] = []
    catalog = await open_catalog(tmp_path, on_fatal=fatal.append)
    one, _ = await catalog.put_queue(ALICE, "one", SETTINGS)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (tmp_path / f"{FILE}-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        with pytest.raises(Unknown):
            await catalog.put_queue(ALICE, "two", SETTINGS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(Refused, match="storage_unavailable"):
        await catalog.delete_queue(ALICE, "one")
    assert catalog.list_queues(ALICE) == [one]
    assert len(fatal) == 1
    assert await catalog.state() == (False, fatal[0])
    await catalog.close()
    again = await open_catalog(tmp_path)
    assert again.find_queue(ALICE, "one") == one
    await again.close()
