"""The catalog's values: names, settings, and which of them may change."""

import json

import msgspec
import pytest

from metadata.catalog import (
    DeadLetterCircle,
    GroupSettings,
    Queue,
    QueueSettings,
    check_change,
    check_circle,
    check_group_settings,
    check_settings,
    dead_letter_name,
)
from metadata.catalog_service import CatalogIndex
from metadata.settings import GroupChange, QueueNaming, named_in
from push import limits
from push.errors import Refused
from push.places import check_name
from runtime.operation import decode

LONGEST = "n" * limits.NAME_CHARS_MAX


def parse_settings(
    data: bytes, kind: type[QueueSettings] | type[GroupSettings]
) -> QueueSettings | GroupSettings:
    """Return what a request that has these bytes asks for."""
    form = QueueNaming if kind is QueueSettings else GroupChange
    return kind(**named_in(decode(data or b"{}", msgspec.json.Decoder(form))))


@pytest.mark.parametrize("name", ["a", "Z", "0", "orders", "a.b-c_d", "9.", "a" * 5, LONGEST])
def test_a_name_of_the_alphabet_is_taken(name: str) -> None:
    check_name(name, "queue")


@pytest.mark.parametrize(
    "name",
    ["", " ", ".", "-a", "_a", ".hidden", "..", "a b", "a/b", "a\\b", "a\n", "\na", "a\x00", "é",
     "a\u0301", "ａ", "\ud800", "a:b", "a*", "a%20", "a?", "a#", "'a'", "a;", "*", LONGEST + "n"],
)  # fmt: skip
def test_any_other_name_is_refused(name: str) -> None:
    """P12."""
    with pytest.raises(Refused, match="invalid_name: queue"):
        check_name(name, "queue")


def test_no_settings_are_the_defaults() -> None:
    assert parse_settings(b"", QueueSettings) == parse_settings(b"{}", QueueSettings)
    assert parse_settings(b"", QueueSettings) == QueueSettings()


ALERT = {"name": "late", "when": "oldest_age_s", "above": 60, "queue": "alarms"}
ALERTS = [{**ALERT, "name": f"a{number}"} for number in range(limits.ALERTS_MAX)]
BOUNDS: dict[str, tuple[list[object], list[object]]] = {
    "partitions": ([1, 16, limits.PARTITIONS_MAX], [0, -1, limits.PARTITIONS_MAX + 1, 1.5, "1"]),
    "message_bytes_max": (
        [1, limits.MESSAGE_BYTES_MAX_MAX],
        [0, limits.MESSAGE_BYTES_MAX_MAX + 1, 10**400],
    ),
    "messages_max": ([0, (1 << 53) - 1], [-1, 1 << 53, 10**30, None]),
    "due_messages_max": ([0, (1 << 53) - 1], [-1, 1 << 53, 10**30, None]),
    "due_bytes_max": ([0, (1 << 53) - 1], [-1, 1 << 53, 10**30, None]),
    "bytes_max": ([0, (1 << 53) - 1], [-1, 1 << 53, True]),
    "overflow": (["reject", "dead_letter"], ["drop", "", 1, None]),
    "retention_s": ([0, 0.5, limits.TTL_S_MAX], [-1, limits.TTL_S_MAX + 1, "1"]),
    "message_ttl_s": ([None, 0.001, limits.TTL_S_MAX], [0, -1, limits.TTL_S_MAX + 1]),
    "lease_s": ([1, 43_200], [0.9, 43_201, None]),
    "lease_total_s": ([1, 7 * 86_400], [0.9, 7 * 86_400 + 1]),
    "attempts_max": ([0, 1_000_000], [-1, 1_000_001, 1.5]),
    "backoff_s": ([0, limits.BACKOFF_S_MAX], [-0.1, limits.BACKOFF_S_MAX + 1]),
    "backoff_max_s": ([0, limits.BACKOFF_S_MAX], [-0.1, limits.BACKOFF_S_MAX + 1]),
    "on_exhausted": (["dead_letter", "park"], ["drop", None]),
    "dead_letter_queue": ([None, "dead"], [1, ["dead"]]),
    "dedup_window_s": ([0, limits.TTL_S_MAX], [-1, limits.TTL_S_MAX + 1]),
    "durability": (["local", "quorum", "all"], ["memory", "none", 1]),
    "publish_messages_per_s": ([None, 0.001, 1000, 1e12], [0, -1, 0.0009, 1e13, "1"]),
    "publish_bytes_per_s": ([None, 0.001, 1_000_000], [0, -1, 1e13, True]),
    "alerts": (
        [[], [ALERT], ALERTS],
        [
            None,
            [None],
            [*ALERTS, ALERT],
            [{"name": "late"}],
            [{**ALERT, "when": "rate"}],
            [{**ALERT, "above": -1}],
            [{**ALERT, "above": 1e16}],
            [{**ALERT, "lasts_s": 86_401}],
            [{**ALERT, "whom": "me"}],
        ],
    ),
    "partition": ([], [16]),  # unknown
}


@pytest.mark.parametrize("field", BOUNDS)
def test_every_setting_is_held_to_its_bounds(field: str) -> None:
    taken, refused = BOUNDS[field]
    for value in taken:
        parse_settings(json.dumps({field: value}).encode(), QueueSettings)
    for value in refused:
        with pytest.raises(Refused, match="invalid_request"):
            parse_settings(json.dumps({field: value}).encode(), QueueSettings)


def test_every_setting_has_its_bounds_tested() -> None:
    assert set(BOUNDS) - {"partition"} == {
        field.name for field in msgspec.structs.fields(QueueSettings)
    }


@pytest.mark.parametrize(
    "data", [b"{", b"nil", b'{"partitions":NaN}', b'{"overflow":"\xff"}', b"\xff", b"{}}"]
)  # fmt: skip
def test_settings_that_are_not_json_are_refused(data: bytes) -> None:
    with pytest.raises(Refused, match="invalid_json"):
        parse_settings(data, QueueSettings)


@pytest.mark.parametrize("data", [b"[]", b"1", b'"a"', b"null"])
def test_settings_that_are_no_object_are_refused(data: bytes) -> None:
    with pytest.raises(Refused, match="invalid_request"):
        parse_settings(data, GroupSettings)


def test_a_fixed_setting_cannot_change_and_the_others_can() -> None:
    old = QueueSettings(partitions=4)
    check_change(old, QueueSettings(partitions=4, retention_s=60))
    with pytest.raises(Refused, match="setting_fixed: partitions is 4 and cannot become 5"):
        check_change(old, QueueSettings(partitions=5))


def test_settings_that_contradict_each_other_are_refused() -> None:
    check_settings("q", QueueSettings(lease_s=30, lease_total_s=30))
    with pytest.raises(Refused, match="lease_total_s"):
        check_settings("q", QueueSettings(lease_s=31, lease_total_s=30))
    check_group_settings(GroupSettings(lease_s=31))
    with pytest.raises(Refused, match="lease_total_s"):
        check_group_settings(GroupSettings(lease_s=31, lease_total_s=30))


def test_a_dead_letter_queue_has_a_valid_name_and_is_another_queue() -> None:
    check_settings("q", QueueSettings(dead_letter_queue="dead"))
    with pytest.raises(Refused, match="invalid_name: dead_letter_queue"):
        check_settings("q", QueueSettings(dead_letter_queue="../q"))
    with pytest.raises(Refused, match="the queue itself"):
        check_settings("q", QueueSettings(dead_letter_queue="q"))


def queue(name: str, dead_letter_queue: str | None = None) -> Queue:
    return Queue(
        queue_id="aaaaaaaaaa", name=name, tenant="default", holder="me", created_unix_ms=1,
        settings=QueueSettings(dead_letter_queue=dead_letter_queue), ring_epoch=1, members=(0,),
        hash_key=bytes(16),
    )  # fmt: skip


def test_dead_letters_always_have_a_queue_name_to_go_to() -> None:
    """P1: the longest name has no room for a suffix, and its dead letters must not be lost."""
    assert dead_letter_name(queue("orders")) == "orders.dead-letters"
    assert dead_letter_name(queue("orders", "dead")) == "dead"
    assert dead_letter_name(queue(LONGEST)) == "aaaaaaaaaa.dead-letters"
    check_name(dead_letter_name(queue(LONGEST)), "queue")


def test_the_index_forgets_a_queue_with_its_groups() -> None:
    index = CatalogIndex([queue("a")])
    assert index.remove_queue(queue("a")) == []
    assert (len(index), index.queues("default"), index.queue("aaaaaaaaaa")) == (0, [], None)


def test_dead_letters_do_not_go_in_a_circle() -> None:
    """However many queues it has; one that is not there yet has no dead letters of its own."""
    there = {
        name: catalog_queue(name, dead)
        for name, dead in {"b": "c", "c": "a", "d": None, "x": "y", "y": "x"}.items()
    }
    with pytest.raises(DeadLetterCircle, match="a → b → another queue → a") as circle:
        check_circle(catalog_queue("a", "b"), there.get)
    assert circle.value.way == ["a", "b", "c", "a"]
    check_circle(catalog_queue("a", "d"), there.get)
    check_circle(catalog_queue("a", "new"), there.get)
    check_circle(catalog_queue("a", "x"), there.get)  # a circle of before, and not its own


def catalog_queue(name: str, dead_letters: str | None) -> Queue:
    """A queue whose dead letters go there."""
    return Queue(
        queue_id=name, name=name, tenant="t", holder="h", created_unix_ms=0,
        settings=QueueSettings(dead_letter_queue=dead_letters), ring_epoch=1, members=(0,),
        hash_key=bytes(16),
    )  # fmt: skip
