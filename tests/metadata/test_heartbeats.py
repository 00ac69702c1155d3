"""Which gateways are there, and whose members a group has (R14)."""

from hypothesis import given
from hypothesis import strategies as st

from metadata.catalog import Membership
from metadata.catalog_service import CatalogService
from metadata.heartbeats import GONE_S, Heartbeats, with_members


def row(**gateways: tuple[str, ...]) -> Membership:
    return Membership(
        group_id="g", generation=7,
        members=tuple(sorted(name for part in gateways.values() for name in part)),
        assignment={0: "a"}, gateways=gateways,
    )  # fmt: skip


def test_a_gateway_whose_heartbeat_does_not_change_is_gone() -> None:
    seen = Heartbeats()
    assert seen.gone() == {}
    assert not seen.is_gone("x", now=0)
    seen.saw({"x": 1, "y": 1}, now=100)
    seen.saw({"x": 1, "y": 2}, now=100 + GONE_S - 0.1)
    assert seen.gone() == {}
    seen.saw({"x": 1, "y": 2}, now=100 + GONE_S)
    assert seen.gone() == {"x": 1}
    now = 100 + GONE_S
    assert (seen.is_gone("x", now=now), seen.is_gone("y", now=now)) == (True, False)
    seen.saw({"x": 2, "y": 3}, now=101 + GONE_S)
    assert seen.gone() == {}  # it is back


def test_a_number_that_goes_back_is_one_that_moves() -> None:
    """A failover may take beats back; a gateway that started anew counts from one."""
    seen = Heartbeats()
    seen.saw({"x": 9}, now=0)
    seen.saw({"x": 3}, now=GONE_S)
    assert seen.gone() == {}


def test_who_was_frozen_takes_nobody_for_gone() -> None:
    """R3, R14: minutes pass for it between two looks; at the second one the others have moved."""
    seen = Heartbeats()
    seen.saw({"me": 1, "x": 1}, now=0)
    assert not seen.is_alone(now=GONE_S - 0.1)
    assert seen.is_alone(now=90)  # others have taken over
    assert seen.gone() == {}
    seen.saw({"me": 2, "x": 80}, now=90)
    assert seen.gone() == {}
    assert not seen.is_alone(now=90)


def test_a_forgotten_gateway_gets_no_more_notices() -> None:
    seen = Heartbeats()
    seen.saw({"x": 1, "y": 1}, now=0)
    seen.saw({"y": 1}, now=GONE_S)
    assert seen.gone() == {"y": 1}


def test_a_gateway_that_has_just_come_is_not_gone() -> None:
    """It is in the row before its number is heard of; without one it is gone after a while."""
    seen = Heartbeats()
    seen.saw({"me": 1}, now=0)
    assert not seen.is_gone("x", now=50)
    seen.saw({"me": 2}, now=50 + GONE_S - 0.1)
    assert not seen.is_gone("x", now=60)
    seen.saw({"me": 3}, now=50 + GONE_S)
    assert seen.is_gone("x", now=60)
    seen.saw({"me": 4, "x": 1}, now=61)
    assert not seen.is_gone("x", now=61)
    seen.saw({"me": 5}, now=62)
    assert "x" not in seen.gone(0)


def test_a_gateway_says_its_own_members_and_leaves_the_others() -> None:
    new = with_members(row(x=("a",)), "y", ["c", "b"])
    assert new.gateways == {"x": ("a",), "y": ("b", "c")}
    assert (new.members, new.generation, new.assignment) == (("a", "b", "c"), 8, {0: "a"})
    assert with_members(new, "y", {"b", "c"}) is new
    assert with_members(new, "y", []).gateways == {"x": ("a",)}


def test_members_of_a_gateway_that_is_gone_are_taken_out() -> None:
    new = with_members(row(x=("a",), y=("b",), z=("c",)), "y", ["b"], gone={"x"})
    assert (new.gateways, new.members) == ({"y": ("b",), "z": ("c",)}, ("b", "c"))


def test_who_comes_to_another_gateway_has_moved() -> None:
    """R22: it is a member once, and its place stays its own."""
    new = with_members(row(x=("a", "b")), "y", ["a"])
    assert (new.gateways, new.members) == ({"x": ("b",), "y": ("a",)}, ("a", "b"))


NAMES = st.sampled_from("abcdef")
GATEWAYS = st.sampled_from("xyz")


@given(st.lists(st.tuples(GATEWAYS, st.sets(NAMES), st.sets(GATEWAYS))))
def test_everybody_is_a_member_of_one_gateway_and_generations_grow(
    steps: list[tuple[str, set[str], set[str]]],
) -> None:
    """Whatever gateways say, in whatever order."""
    now = row()
    for gateway, members, gone in steps:
        new = with_members(now, gateway, members, gone - {gateway})
        assert new.generation == now.generation + (new is not now)
        parts = [name for part in new.gateways.values() for name in part]
        assert tuple(sorted(parts)) == new.members
        assert set(new.gateways.get(gateway, ())) == members
        assert not set(new.gateways) & (gone - {gateway})
        now = new


async def test_each_gateway_hears_of_all(catalog: CatalogService) -> None:
    """And those that stand still are forgotten, unless they have moved meanwhile."""
    assert await catalog.beat("x", 1, {}) == {"x": 1}
    assert await catalog.beat("x", 2, {}) == {"x": 2}
    assert await catalog.beat("y", 9, {}) == {"x": 2, "y": 9}
    assert await catalog.beat("y", 10, {"x": 1}) == {"x": 2, "y": 10}
    assert await catalog.beat("y", 11, {"x": 2}) == {"y": 11}
    assert await catalog.beat("", 0, {}) == {"y": 11}


async def test_a_beat_that_comes_late_says_nothing(catalog: CatalogService) -> None:
    """Its number stays the highest that was said, by value and not as text."""
    assert await catalog.beat("x", 10, {}) == {"x": 10}
    assert await catalog.beat("x", 9, {}) == {"x": 10}
    assert await catalog.beat("x", 100, {}) == {"x": 100}


async def test_what_each_gateway_says_of_itself_is_what_it_said_last(
    catalog: CatalogService,
) -> None:
    """And nothing is left of one that was forgotten."""
    await catalog.beat("x", 2, {}, "knows a key")
    await catalog.beat("x", 1, {}, "knew another one")
    await catalog.beat("y", 1, {})
    assert await catalog.said() == {"x": "knows a key", "y": ""}
    await catalog.beat("x", 3, {}, "knows two keys")
    assert await catalog.said() == {"x": "knows two keys", "y": ""}
    await catalog.beat("y", 2, {"x": 3})
    assert await catalog.said() == {"y": ""}
