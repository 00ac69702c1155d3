"""The ledger of what is in flight: masks, deadlines, and what is in flight of a key (P6, P9, R16,
R17, R20), against one entry per offset."""

from array import array

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from push import limits
from push.delivery.leases import Leases, Push, bits_between, offsets_of, ranges_of
from push.delivery.values import append_offset


def give(leases: Leases, first: int, *hashes: int, now: float = 0.0, of_line: bool = False) -> Push:
    return leases.give(
        first, first + len(hashes) - 1, array("Q", hashes),
        now=now, lease_s=10.0, of_line=of_line,
    )  # fmt: skip


def in_flight(leases: Leases) -> set[int]:
    return {o for push in leases.pushes.values() for o in offsets_of(push.open, push.first)}


@given(low=st.integers(0, 80), size=st.integers(1, 80), first=st.integers(0, 1 << 39))
def test_a_mask_names_its_offsets_in_order(low: int, size: int, first: int) -> None:
    mask = bits_between(low, low + size - 1)
    assert list(offsets_of(mask, first)) == list(range(first + low, first + low + size))


def test_numbers_count_up_from_one() -> None:
    """R16."""
    leases = Leases()
    assert [give(leases, first, 7).number for first in range(3)] == [1, 2, 3]


def test_a_push_ends_with_its_last_message() -> None:
    leases = Leases()
    push = give(leases, 5, 1, 2, 3)
    leases.close(push, 0b101)
    assert (leases.open_count, in_flight(leases)) == (1, {6})
    leases.close(push, 0b010)
    assert (leases.open_count, leases.pushes) == (0, {})
    assert leases.given(1) == (5, 0b111)
    assert leases.given(2) is None


def test_the_extents_of_finished_pushes_are_bounded() -> None:
    """P9."""
    leases = Leases()
    for first in range(limits.FINISHED_PUSHES_MAX + 10):
        push = give(leases, first, 7)
        leases.close(push, 1)
    assert leases.given(10) is None
    assert leases.given(11) == (10, 1)


def test_what_a_line_sent_is_known_to_be_given_again() -> None:
    leases = Leases()
    give(leases, 0, 7, 7)
    push = give(leases, 5, 7, of_line=True)
    assert [leases.given_again(offset) for offset in (0, 5)] == [False, True]
    leases.close(push, 1)
    assert not leases.given_again(5)


def test_nothing_is_left_when_the_holder_is_gone() -> None:
    leases = Leases()
    leases.close(give(leases, 0, 7), 1)
    give(leases, 1, 7, of_line=True)
    leases.clear()
    assert (leases.open_count, leases.next_deadline()) == (0, None)
    assert leases.given(1) is leases.given(2) is None
    assert leases.of_key(7, -1) == []
    assert leases.number == 2  # numbers never restart within an epoch


def test_a_push_is_due_in_parts() -> None:
    """P6."""
    leases = Leases()
    push = give(leases, 0, 1, 2, 3)
    leases.extend(push, 0b010, 20.0)
    leases.extend(push, 0b100, 30.0)
    assert leases.due(9.9) == []
    for at, mask in ((10.0, 0b001), (20.0, 0b010), (30.0, 0b100)):
        assert leases.next_deadline() == at
        assert leases.due(at) == [(push, mask)]
        leases.close(push, mask)
    assert leases.next_deadline() is None


def test_pushes_are_due_oldest_first() -> None:
    leases = Leases()
    first = give(leases, 0, 1)
    second = give(leases, 1, 1, now=-5.0)
    assert leases.due(10.0) == [(first, 1), (second, 1)]


def test_deadlines_of_settled_pushes_are_forgotten() -> None:
    """P9: one hung delivery, and a hundred thousand settled behind it."""
    leases = Leases()
    give(leases, 0, 7)
    for first in range(1, 1000):
        leases.close(give(leases, first, 7), 1)
    assert len(leases._deadlines) <= 2 * 2 + 64
    assert leases.next_deadline() == 10.0


def test_the_index_of_keys_is_forgotten_with_what_it_indexes() -> None:
    """P9."""
    leases = Leases()
    for first in range(0, 20_000, 2):
        push = give(leases, first, first + 1, first + 2)
        assert leases.of_key(first + 2, -1) == [(push, first + 1)]
        leases.close(push, 0b11)
    assert sum(map(len, leases._by_key.values())) <= limits.PUSH_MESSAGES_MAX + 2


@pytest.fixture(params=[0, 16], ids=["indexed at once", "indexed for who asks often"])
def looks_max(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in flight of a key is found by looking, or in an index: the same either way."""
    monkeypatch.setattr("push.delivery.leases._LOOKS_MAX", request.param)


@settings(
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@pytest.mark.usefixtures("looks_max")
@given(st.data())
def test_leases_are_what_one_entry_per_message_says(data: st.DataObject) -> None:
    """P6, R17, R20: give, close, extend, look for a key, let time pass, in any order."""
    leases = Leases()
    naive: dict[int, tuple[int, int, float]] = {}  # offset → (push, key, deadline)
    now, end = 0.0, 0
    for _ in range(data.draw(st.integers(1, 25))):
        act = data.draw(st.sampled_from("ggccekt"))
        if act == "g":
            hashes = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
            push = give(leases, end, *hashes, now=now)
            for key in hashes:
                naive[end] = (push.number, key, now + 10.0)
                end += 1
        elif act in "ce" and naive:
            offset = data.draw(st.sampled_from(sorted(naive)))
            push = leases.pushes[naive[offset][0]]
            mask = push.within(offset, offset + data.draw(st.integers(0, 3))) & push.open
            to = now + data.draw(st.sampled_from([1.0, 15.0, 40.0]))
            for o in list(offsets_of(mask, push.first)):
                number, key, deadline = naive.pop(o)
                if act == "e":
                    naive[o] = (number, key, max(deadline, to))
            if act == "e":
                leases.extend(push, mask, to)
            else:
                leases.close(push, mask)
        elif act == "k":
            key, after = data.draw(st.integers(1, 3)), data.draw(st.integers(-1, end))
            found = sorted((push.number, offset) for push, offset in leases.of_key(key, after))
            assert found == sorted(
                (n, o) for o, (n, k, _) in naive.items() if k == key and o > after
            )
        elif act == "t":
            now += data.draw(st.sampled_from([0.0, 2.0, 10.0]))
            earliest = min((at for _, _, at in naive.values()), default=None)
            looked_at = leases.next_deadline()
            assert earliest is None or (looked_at is not None and looked_at <= earliest)
            due = leases.due(now)
            ended = {o for push, mask in due for o in offsets_of(mask, push.first)}
            assert ended == {o for o, (_, _, at) in naive.items() if at <= now}
            for push, mask in due:
                leases.close(push, mask)
            for o in ended:
                del naive[o]
        assert in_flight(leases) == naive.keys()
        assert leases.open_count == len(naive)


@given(st.integers(0, (1 << 70) - 1), st.integers(0, 1000))
def test_the_runs_of_a_mask_are_its_offsets(mask: int, first: int) -> None:
    expected: list[tuple[int, int]] = []
    for offset in offsets_of(mask, first):
        append_offset(expected, offset)
    assert ranges_of(mask, first) == expected
