"""Who is waited for, and for how long, when partitions come from other gateways (R20)."""

from collections.abc import Mapping

from gateway.delivery.membership import DRAIN_S, MOVED_S, HandOver
from metadata.catalog import Drain, Membership


def row(assignment: Mapping[int, str], draining: Mapping[int, Drain]) -> Membership:
    return Membership(
        group_id="g", generation=1, members=("a", "b"), assignment=dict(assignment),
        draining=dict(draining),
    )  # fmt: skip


OURS = row({0: "b"}, {0: Drain("x", "a")})


async def waiting() -> HandOver:
    """For gateway x to let go of partition 0, since 100."""
    made = HandOver("y", lambda: None)
    made.look(row({0: "a"}, {}), OURS, 100.0)
    return made


async def test_a_drain_has_its_time_and_a_move_hardly_any() -> None:
    drained, moved = await waiting(), HandOver("y", lambda: None)
    assert drained.overdue(OURS, 100 + DRAIN_S - 0.001) == set()
    assert drained.overdue(OURS, 100 + DRAIN_S) == {0}
    drained.look(OURS, OURS, 120.0)  # seen again, it has no more time
    assert drained.overdue(OURS, 100 + DRAIN_S) == {0}
    moved.look(row({0: "b"}, {}), OURS, 100.0)
    assert moved.overdue(OURS, 100 + MOVED_S - 0.001) == set()
    assert moved.overdue(OURS, 100 + MOVED_S) == {0}
    for one in (drained, moved):
        one.close()


async def test_only_what_is_drained_still_by_the_same_gateway_is_overdue() -> None:
    """Who stood still for long reads a row that others have made meanwhile."""
    made, late = await waiting(), 100 + DRAIN_S
    assert made.overdue(row({0: "b"}, {}), late) == set()
    assert made.overdue(row({0: "b"}, {0: Drain("z", "c")}), late) == set()
    made.look(OURS, row({0: "b"}, {0: Drain("z", "c")}), late)
    assert made.overdue(row({0: "b"}, {0: Drain("z", "c")}), late + DRAIN_S - 1) == set()
    made.close()


async def test_who_was_taken_for_gone_waits_anew() -> None:
    """The same gateway may drain the same partition again, for another one."""
    made, late = await waiting(), 100 + DRAIN_S
    made.forget()
    assert made.overdue(OURS, late) == set()
    made.look(OURS, OURS, late)
    assert made.overdue(OURS, late + DRAIN_S - 1) == set()
    assert made.overdue(OURS, late + DRAIN_S) == {0}
    made.close()
