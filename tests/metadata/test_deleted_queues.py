"""Queues that were deleted: known for a while, a bounded number of them."""

from typing import Any

from metadata.catalog import (
    DELETED_QUEUE_KEPT_S,
    DELETED_QUEUES_MAX,
    Queue,
    QueueSettings,
    add_deleted_queue,
    find_deleted_queue,
    read_deleted_queues,
)

WALL = 1_700_000_000_000
KEPT_MS = int(DELETED_QUEUE_KEPT_S * 1000)


def queue(name: str, tenant: str = "default", **settings: Any) -> Queue:
    """One that is about to be deleted."""
    return Queue(
        queue_id=f"id-{name}", name=name, tenant=tenant, holder="ann", created_unix_ms=0,
        settings=QueueSettings(**settings), ring_epoch=1, members=(0,), hash_key=bytes(16),
    )  # fmt: skip


def test_a_deleted_queue_is_known_for_a_day() -> None:
    mark = add_deleted_queue(None, queue("orders"), WALL)
    found = find_deleted_queue(mark, "default", "orders", WALL + KEPT_MS - 1)
    assert found is not None
    assert (found.queue_id, found.dead_letters) == ("id-orders", "orders.dead-letters")
    assert find_deleted_queue(mark, "default", "orders", WALL + KEPT_MS) is None
    assert find_deleted_queue(mark, "other", "orders", WALL) is None
    assert find_deleted_queue(mark, "default", "other", WALL) is None


def test_its_dead_letters_go_where_it_said() -> None:
    mark = add_deleted_queue(None, queue("orders", dead_letter_queue="morgue"), WALL)
    (deleted,) = read_deleted_queues(mark)
    assert deleted.dead_letters == "morgue"


def test_of_one_name_the_last_is_known() -> None:
    mark = add_deleted_queue(None, queue("orders"), WALL)
    mark = add_deleted_queue(mark, queue("orders", dead_letter_queue="morgue"), WALL + 1)
    mark = add_deleted_queue(mark, queue("orders", "other"), WALL + 2)
    assert [deleted.tenant for deleted in read_deleted_queues(mark)] == ["default", "other"]


def test_a_queue_of_dead_letters_has_none_of_its_own() -> None:
    mark = add_deleted_queue(None, queue("orders.dead-letters"), WALL)
    assert read_deleted_queues(mark) == []


def test_the_mark_stays_small() -> None:
    """P9: who deletes many queues pushes out the oldest, and what is over goes by itself."""
    mark = None
    for number in range(DELETED_QUEUES_MAX + 5):
        mark = add_deleted_queue(mark, queue(f"q{number}"), WALL)
    kept = read_deleted_queues(mark)
    assert len(kept) == DELETED_QUEUES_MAX
    assert kept[0].name == "q5"
    later = add_deleted_queue(mark, queue("last"), WALL + KEPT_MS)
    assert [deleted.name for deleted in read_deleted_queues(later)] == ["last"]


def test_a_mark_that_nobody_can_read_is_none() -> None:
    assert read_deleted_queues("nonsense") == []
    assert find_deleted_queue(None, "default", "orders", WALL) is None
