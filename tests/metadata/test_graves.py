"""Queues that were deleted: known for a while, a bounded number of them."""

from typing import Any

from metadata.catalog import Queue, QueueSettings
from metadata.row_store import KEPT_MAX, KEPT_S, dug, find_grave, graves_of

WALL = 1_700_000_000_000


def queue(name: str, tenant: str = "default", **settings: Any) -> Queue:
    """One that is about to be deleted."""
    return Queue(
        queue_id=f"id-{name}", name=name, tenant=tenant, holder="ann", created_unix_ms=0,
        settings=QueueSettings(**settings), ring_epoch=1, members=(0,), hash_key=bytes(16),
    )  # fmt: skip


def test_a_deleted_queue_is_known_for_a_day() -> None:
    mark = dug(None, queue("orders"), WALL)
    found = find_grave(mark, "default", "orders", WALL + int(KEPT_S * 1000) - 1)
    assert found is not None
    assert (found.queue_id, found.dead_letters) == ("id-orders", "orders.dead-letters")
    assert find_grave(mark, "default", "orders", WALL + int(KEPT_S * 1000)) is None
    assert find_grave(mark, "other", "orders", WALL) is None
    assert find_grave(mark, "default", "other", WALL) is None


def test_its_dead_letters_go_where_it_said() -> None:
    mark = dug(None, queue("orders", dead_letter_queue="morgue"), WALL)
    (grave,) = graves_of(mark)
    assert grave.dead_letters == "morgue"


def test_of_one_name_the_last_is_known() -> None:
    mark = dug(None, queue("orders"), WALL)
    mark = dug(mark, queue("orders", dead_letter_queue="morgue"), WALL + 1)
    mark = dug(mark, queue("orders", "other"), WALL + 2)
    assert [grave.tenant for grave in graves_of(mark)] == ["default", "other"]


def test_a_queue_of_dead_letters_has_none_of_its_own() -> None:
    mark = dug(None, queue("orders.dead-letters"), WALL)
    assert graves_of(mark) == []


def test_the_mark_stays_small() -> None:
    """P9: who deletes many queues pushes out the oldest, and what is over goes by itself."""
    mark = None
    for number in range(KEPT_MAX + 5):
        mark = dug(mark, queue(f"q{number}"), WALL)
    kept = graves_of(mark)
    assert len(kept) == KEPT_MAX
    assert kept[0].name == "q5"
    later = dug(mark, queue("last"), WALL + int(KEPT_S * 1000))
    assert [grave.name for grave in graves_of(later)] == ["last"]


def test_a_mark_that_nobody_can_read_is_none() -> None:
    assert graves_of("nonsense") == []
    assert find_grave(None, "default", "orders", WALL) is None
