"""The next row of a group that several gateways serve, against a world that keeps a log of who has
what (R14, R20, R22)."""

from collections import Counter

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from metadata.catalog import Drain, Membership
from metadata.group_row import GatewayPart, drains, gateway_of, missing, next_row

PARTITIONS = range(6)
GATEWAYS = st.sampled_from("xyz")
MEMBERS = st.sampled_from("abcd")


def row(
    gateways: dict[str, tuple[str, ...]], assignment: dict[int, str], **fields: object
) -> Membership:
    members = tuple(sorted(name for part in gateways.values() for name in part))
    made = Membership(
        group_id="g", generation=7, members=members, assignment=assignment, gateways=gateways
    )
    return msgspec.structs.replace(made, **fields)


def test_what_moves_to_another_gateway_names_who_has_it() -> None:
    new = next_row(row({"x": ("a",)}, {0: "a", 1: "a"}), GatewayPart("y", ["b"]), [0, 1])
    (moved,) = [number for number, name in new.assignment.items() if name == "b"]
    assert new.draining == {moved: Drain("x", "a")}
    assert (drains(new, moved), drains(new, 1 - moved)) == ("x", None)
    still = GatewayPart("x", ["a"], has=[0, 1])
    assert next_row(new, still, [0, 1]) is new
    assert next_row(new, GatewayPart("x", ["a"], has=[1 - moved]), [0, 1]).draining == {}


def test_what_moves_within_a_gateway_is_nobody_elses_business() -> None:
    new = next_row(
        row({"x": ("a",)}, {0: "a", 1: "a"}), GatewayPart("x", ["a", "b"], has=[0, 1]), [0, 1]
    )
    assert set(new.assignment.values()) == {"a", "b"}
    assert new.draining == {}


def test_who_drains_goes_on_when_the_next_owner_is_another_one() -> None:
    before = row({"y": ("b",)}, {0: "b"}, draining={0: Drain("x", "a")})
    new = next_row(before, GatewayPart("z", ["c"], gone=["y"]), [0])
    assert (new.assignment, new.draining) == ({0: "c"}, {0: Drain("x", "a")})
    assert next_row(new, GatewayPart("z", ["c"], overdue=[0]), [0]).draining == {}
    assert next_row(new, GatewayPart("z", ["c"], gone=["x"]), [0]).draining == {}


def test_whoever_is_unresponsive_loses_its_partitions_to_those_who_work() -> None:
    before = row({"x": ("a", "b"), "y": ("c",)}, {0: "a", 1: "b", 2: "c"})
    part = GatewayPart("x", ["a", "b"], unresponsive=["a"], has=[0, 1])
    new = next_row(before, part, [0, 1, 2])
    assert (new.members, new.unresponsive) == (("a", "b", "c"), ("a",))
    assert set(new.assignment.values()) == {"b", "c"}
    assert {new.assignment[1], new.assignment[2]} == {"b", "c"}, "these need not move"
    elsewhere = next_row(new, GatewayPart("y", ["c"], has=[2]), [0, 1, 2])
    assert elsewhere.assignment == new.assignment, "all gateways compute the same"
    back = next_row(elsewhere, GatewayPart("x", ["a", "b"], has=[0, 1]), [0, 1, 2])
    assert (back.unresponsive, set(back.assignment.values())) == ((), {"a", "b", "c"})


def test_where_all_are_unresponsive_they_keep_what_they_have() -> None:
    before = row({"x": ("a",), "y": ("b",)}, {0: "a", 1: "b"})
    new = next_row(before, GatewayPart("x", ["a"], unresponsive=["a"], has=[0]), [0, 1])
    assert set(new.assignment.values()) == {"b"}
    new = next_row(new, GatewayPart("y", ["b"], unresponsive=["b"], has=[1]), [0, 1])
    assert (new.unresponsive, len(set(new.assignment.values()))) == (("a", "b"), 2)
    alone = next_row(row({}, {}), GatewayPart("", ["a"], unresponsive=["a"]), [0, 1])
    assert alone.assignment == {0: "a", 1: "a"}
    assert next_row(alone, GatewayPart("", ["a", "b"], unresponsive=["a"]), [0, 1]).assignment == {
        0: "b", 1: "b",
    }  # fmt: skip
    left = next_row(new, GatewayPart("y", [], has=[1]), [0, 1])
    assert (left.members, left.unresponsive, left.assignment) == (("a",), ("a",), {0: "a", 1: "a"})


def test_who_moves_keeps_what_it_was_to_let_go_of() -> None:
    """R22: it has not said yet what it holds of that."""
    before = row(
        {"x": ("a",), "y": ("b",)}, {0: "a", 1: "b"}, draining={1: Drain("x", "a")},
        lingers={"a": 30.0},
    )  # fmt: skip
    came = next_row(before, GatewayPart("z", ["a"], staying=["a"], lingers={"a": 30.0}), [0, 1])
    assert came.assignment == {0: "a", 1: "a"}
    assert came.draining == {0: Drain("x", "a"), 1: Drain("x", "a")}
    gone = next_row(
        before, GatewayPart("y", ["b"], absent=["a"], lingers={"a": 30.0}, gone=["x"]), [0, 1]
    )
    assert gone.assignment == {0: "a", 1: "a"}
    assert missing(gone, []) == {"a": 30.0}


def test_one_gateway_alone_has_no_part() -> None:
    before = row({}, {})
    new = next_row(before, GatewayPart("", ["a"], staying=["a"], has=[0]), [0, 1])
    assert (new.gateways, new.staying, new.draining) == ({}, (), {})
    assert next_row(new, GatewayPart("", ["a"], staying=["a"]), [0, 1]) is new


class Gateways(RuleBasedStateMachine):
    """Three gateways that look at one row, each as late as it likes. What a gateway has is kept
    apart from the row: it begins a partition when its own row says so, and lets go when it has
    seen that it is another one's."""

    def __init__(self) -> None:
        super().__init__()
        self.row = row({}, {})
        self.here: dict[str, set[str]] = {name: set() for name in "xyz"}
        self.unheard: set[str] = set()
        """Members whose handlers are not heard of; their gateway alone knows that."""
        self.seen: dict[str, Membership] = dict.fromkeys("xyz", self.row)
        self.has: dict[str, set[int]] = {name: set() for name in "xyz"}
        self.dead: set[str] = set()

    def look(self, gateway: str, gone: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        """Read, write, carry out."""
        for name in list(self.here[gateway]):
            told = self.seen[gateway].gateways.get(gateway, ())
            if name in told and gateway_of(self.row, name) not in (None, gateway):
                self.here[gateway].discard(name)
        part = GatewayPart(
            gateway, self.here[gateway], has=self.has[gateway], gone=gone,
            unresponsive=self.here[gateway] & self.unheard,
        )  # fmt: skip
        new = next_row(self.row, part, list(PARTITIONS))
        assert new.generation == self.row.generation + (new is not self.row)
        assert next_row(new, part, list(PARTITIONS)) is new, "who has written has nothing to add"
        self.row = self.seen[gateway] = new

    @rule(gateway=GATEWAYS, member=MEMBERS)
    def joins(self, gateway: str, member: str) -> None:
        if gateway not in self.dead:
            self.here[gateway].add(member)
            self.look(gateway)

    @rule(gateway=GATEWAYS, member=MEMBERS)
    def leaves(self, gateway: str, member: str) -> None:
        if gateway not in self.dead:
            self.here[gateway].discard(member)
            self.look(gateway)

    @rule(gateway=GATEWAYS, member=MEMBERS)
    def is_heard_of_or_not(self, gateway: str, member: str) -> None:
        if gateway not in self.dead and member in self.here[gateway]:
            self.unheard ^= {member}
            self.look(gateway)

    @rule(gateway=GATEWAYS)
    def looks(self, gateway: str) -> None:
        if gateway not in self.dead:
            self.look(gateway)

    @rule(gateway=GATEWAYS)
    def begins(self, gateway: str) -> None:
        """What its row, which may be old, lets it begin; an older row than who had it is fenced by
        the storage."""
        seen = self.seen[gateway]
        if gateway in self.dead or seen is not self.row:
            return
        for number, name in seen.assignment.items():
            if name in self.here[gateway] and drains(seen, number) in (None, gateway):
                self.has[gateway].add(number)

    @rule(gateway=GATEWAYS)
    def lets_go(self, gateway: str) -> None:
        """Its slots that are to be another one's have ended."""
        seen = self.seen[gateway]
        for number in list(self.has[gateway]):
            if seen.assignment.get(number) not in self.here[gateway]:
                self.has[gateway].discard(number)

    @precondition(lambda self: not self.dead)
    @rule(gateway=GATEWAYS)
    def dies(self, gateway: str) -> None:
        self.dead.add(gateway)
        self.has[gateway].clear()  # fenced by whoever comes

    @rule(gateway=GATEWAYS)
    def is_taken_for_gone(self, gateway: str) -> None:
        if gateway not in self.dead:
            self.look(gateway, gone=self.dead)

    @invariant()
    def nobody_has_what_another_gateway_has(self) -> None:
        counted = Counter(number for has in self.has.values() for number in has)
        assert all(count == 1 for count in counted.values()), self.has

    @invariant()
    def shares_are_balanced_and_everybody_is_somewhere_once(self) -> None:
        names = [name for part in self.row.gateways.values() for name in part]
        assert sorted(names) == list(self.row.members)
        shares = Counter(self.row.assignment.values())
        assert set(shares) <= set(names)
        working = [name for name in names if name not in self.row.unresponsive] or names
        assert set(self.row.unresponsive) <= set(names)
        assert set(shares) <= set(working), "P8: nothing waits for who says nothing"
        if names:
            counts = [shares[name] for name in working]
            assert sum(counts) == len(PARTITIONS)
            assert max(counts) - min(counts) <= 1

    def teardown(self) -> None:
        """Let alone, they come to an end: who lets go says so, and everybody else begins."""
        living = [name for name in "xyz" if name not in self.dead]
        for _ in range(3):
            for gateway in living:
                self.look(gateway, gone=self.dead)
                self.lets_go(gateway)
            for gateway in living:
                self.look(gateway, gone=self.dead)
        generation = self.row.generation
        for gateway in living:
            self.look(gateway, gone=self.dead)
            self.begins(gateway)
        assert self.row.generation == generation, "and then nobody has anything to write"
        assert not self.row.draining
        if self.row.members:
            assert set[int]().union(*self.has.values()) == set(PARTITIONS)
        self.nobody_has_what_another_gateway_has()


TestGateways = Gateways.TestCase
TestGateways.settings = settings(max_examples=60, stateful_step_count=30)
