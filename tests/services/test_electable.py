"""R28: no copy is electable that lacks something acknowledged, and R is never lowered before what
is left out cannot be elected: in any history of crashes, cuts and elections, wherever a manager
ends."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from push.replicas import Elect, Follow, LetIn, LockOut, Prepare, RecordReplicas, ReplicaAct, Reset
from services.manager.rules.election import AWAY_S, Electable
from tests.metadata.copies_world import GUARDS, NODES, Lost, World

A, B, C = NODES
LOOK_S = 1.0


def breathe(world: World, seconds: float = LOOK_S, rounds: int = 3) -> None:
    """So much time passes, in which all happens that can by itself, but for elections."""
    world.now += seconds
    world.reconfigure()
    world.settle_links()
    for place in sorted(world.nodes) * rounds:
        world.replicate(place)
    for guard in world.guards.values():
        world.learn(guard)


def look(world: World, manager: Electable) -> list[ReplicaAct]:
    """Let a manager look once and do what it finds to do."""
    acts = manager.saw(world.look(), now=world.now)
    for act in acts:
        if world.do(act):
            manager.did(act)
    return acts


def run(
    world: World, manager: Electable, seconds: float, step_s: float = LOOK_S
) -> list[ReplicaAct]:
    """Run it for this many seconds; return all that was done."""
    done: list[ReplicaAct] = []
    for _ in range(round(seconds / step_s)):
        breathe(world, step_s)
        done += look(world, manager)
    return done


def publish(world: World) -> bool:
    """Something, at whom a Sentinel names; whether it was acknowledged."""
    place = world.guards[GUARDS[0]].primary
    world.publish(place)
    for one in sorted(world.nodes) * 2:
        world.replicate(one)
    return world.acknowledge(place)


def is_whole(world: World) -> bool:
    """Everybody is counted, electable, attached, and known."""
    view = world.look()
    others = set(NODES) - {view.primary}
    return (
        (view.replicas, view.out) == (2, frozenset())
        and {one.place for one in view.servers[view.primary].followers if one.is_online} == others
        and all(one.is_electable and not one.locked for one in view.servers.values())
        and all(sentinel.replicas == others for sentinel in view.sentinels.values())
    )


def test_while_all_are_there_nothing_is_done() -> None:
    world, manager = World(), Electable()
    assert run(world, manager, 60) == []
    assert is_whole(world)


def test_one_that_is_away_is_locked_out_then_forgotten_then_not_counted() -> None:
    world, manager = World(), Electable()
    run(world, manager, 3)
    world.kill(C)
    assert not publish(world)
    assert run(world, manager, AWAY_S - 1) == []
    done = run(world, manager, 3, 0.3)
    assert done == [
        LockOut(A, "replica-c"), LockOut(B, "replica-c"),
        Reset("s:1"), Reset("s:2"), Reset("s:3"),
        RecordReplicas(2, frozenset(), 1, frozenset({C})),
    ]  # fmt: skip
    assert publish(world)
    assert run(world, manager, 600) == []


def test_one_that_comes_back_is_given_everything_by_a_replica_and_counted_then() -> None:
    """Publishing goes on meanwhile."""
    world, manager = World(), Electable()
    world.kill(C)
    run(world, manager, 30)
    assert publish(world)
    world.start(C)
    world.nodes[C].follows = A
    done: list[ReplicaAct] = []
    for _ in range(20):
        breathe(world)
        done += look(world, manager)
        assert publish(world) or RecordReplicas(1, frozenset({C}), 2, frozenset()) in done
    assert done == [
        Prepare(C), LetIn(B, "replica-c"), Follow(C, B),
        RecordReplicas(1, frozenset({C}), 2, frozenset()),
        LetIn(A, "replica-c"), Follow(C, A), Elect(C),
    ]  # fmt: skip
    assert is_whole(world)


def test_where_only_the_primary_is_left_who_comes_back_follows_it() -> None:
    world, manager = World(), Electable()
    world.kill(B)
    world.kill(C)
    run(world, manager, 30)
    assert world.nodes[A].counts() == (0, frozenset({B, C}))
    assert publish(world)
    world.start(C)
    run(world, manager, 20)
    assert world.nodes[A].counts() == (1, frozenset({B}))
    world.start(B)
    run(world, manager, 20)
    assert is_whole(world)


def test_a_primary_that_was_lost_is_taken_out_as_well() -> None:
    world, manager = World(), Electable()
    run(world, manager, 3)
    world.kill(A)
    assert world.fail_over(GUARDS[0], 0)
    assert not publish(world)
    run(world, manager, 20)
    assert publish(world)
    assert world.nodes[B].counts() == (1, frozenset({A}))
    world.start(A)  # and believes that it is primary
    run(world, manager, 20)
    assert is_whole(world)


@pytest.mark.parametrize("guard", [0, 2])
def test_nobody_is_taken_out_whom_a_sentinel_that_is_away_may_still_know(guard: int) -> None:
    world, manager = World(), Electable()
    run(world, manager, 3)
    world.kill(C)
    world.guards[GUARDS[guard]].is_up = False
    run(world, manager, 60)
    assert world.nodes[A].counts() == (2, frozenset())
    assert any(GUARDS[guard] in says for says in manager.says)
    world.start(C)  # and is counted: it needs nobody's leave
    run(world, manager, 5)
    assert publish(world)


def test_nobody_is_taken_out_whose_user_is_not_known_or_not_its_own() -> None:
    for user in ("", "replica-b"):
        world, manager = World(), Electable()
        world.users[C] = user
        world.kill(C)
        run(world, manager, 60)
        assert world.nodes[A].counts() == (2, frozenset())
        assert any("user" in says for says in manager.says)


def test_it_is_known_when_somebody_will_have_been_away_for_too_long() -> None:
    """A manager looks then, and not up to a second later: publishing waits."""
    world, manager = World(), Electable()
    run(world, manager, 3)
    assert manager.absences.due_s() == float("inf")
    world.kill(C)
    run(world, manager, 4)
    due_s = manager.absences.due_s()
    assert AWAY_S - 5 <= due_s <= AWAY_S - 4 + LOOK_S
    assert run(world, manager, due_s - 0.5, 0.5) == []
    assert run(world, manager, 1.0, 0.5)
    world.guards[GUARDS[0]].is_up = False
    run(world, manager, 30)
    assert manager.absences.due_s() == float("inf")  # it is away, whatever comes of that


def test_a_frozen_manager_does_not_take_out_by_the_time_that_it_has_missed() -> None:
    world, manager = World(), Electable()
    run(world, manager, 3)
    world.kill(C)
    run(world, manager, 2)
    breathe(world, 60.0)
    assert look(world, manager) == []
    assert run(world, manager, AWAY_S - 1) == []


def test_what_the_manager_before_has_seen_of_an_absence_counts() -> None:
    """It is killed just before it takes out who is away."""
    world, manager = World(), Electable()
    run(world, manager, 3)
    world.kill(C)
    run(world, manager, AWAY_S - 2)
    silent_s = {place: manager.absences.silent_s(place) for place in NODES}
    manager = Electable(silent_s=silent_s)
    assert run(world, manager, 1) == []
    assert LockOut(A, "replica-c") in run(world, manager, 3)


def test_who_never_gets_everything_is_let_in_later_each_time() -> None:
    """Publishing waits for it each time."""
    world, manager = World(), Electable()
    world.kill(C)
    run(world, manager, 30)
    times = []
    for _ in range(400):
        world.start(C)
        if any(isinstance(act, RecordReplicas) and not act.out for act in run(world, manager, 1)):
            times.append(world.now)
            world.kill(C)  # as soon as it is waited for
            run(world, manager, 20)
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps[0] >= 60
    assert all(after > 1.5 * before for before, after in pairwise(gaps))


def test_whoever_an_operator_lets_in_by_hand_is_put_out_again() -> None:
    """And what is published meanwhile is not acknowledged on the strength of it."""
    world, manager = World(), Electable()
    world.kill(C)
    run(world, manager, 30)
    world.start(C)
    world.nodes[A].locked.clear()
    world.nodes[C].follows = A
    breathe(world, 0.1)
    assert not publish(world)
    run(world, manager, 20)
    assert is_whole(world)


def test_a_lock_that_may_not_outlive_a_restart_is_said_again() -> None:
    world, manager = World(), Electable()
    world.kill(C)
    run(world, manager, AWAY_S)
    breathe(world)
    acts = manager.saw(world.look(), now=world.now)
    assert acts == [LockOut(A, "replica-c"), LockOut(B, "replica-c")]
    for act in acts:
        world.do(act, is_half=True)
    assert look(world, manager) == acts


def test_who_is_let_in_lets_nobody_in_who_is_out() -> None:
    """It may be the next primary."""
    world, manager = World(), Electable()
    world.kill(C)
    run(world, manager, 30)
    world.kill(B)
    run(world, manager, 30)
    world.start(C)
    done = run(world, manager, 20)
    lock, count = LockOut(C, "replica-b"), RecordReplicas(0, frozenset({B, C}), 1, frozenset({B}))
    assert done.index(lock) < done.index(count)


def test_nobody_is_taken_out_while_one_that_stays_does_not_answer() -> None:
    """It might let in, as the next primary, who was taken out."""
    world, manager = World(), Electable()
    world.kill(C)
    for _ in range(60):
        breathe(world)
        view = world.look()
        servers = {place: one for place, one in view.servers.items() if place != B}
        assert manager.saw(replace(view, servers=servers), now=world.now) == []
    assert any(B in says for says in manager.says)


def test_what_was_acknowledged_just_before_it_was_counted_is_waited_for() -> None:
    world, manager = World(NODES[:2]), Electable()
    world.kill(B)
    run(world, manager, 30)
    world.start(B)
    acts: list[ReplicaAct] = []
    while not any(isinstance(act, RecordReplicas) for act in acts):
        breathe(world)
        acts = manager.saw(world.look(), now=world.now)
        world.publish(A)
        assert world.acknowledge(A)
        for act in acts:
            world.do(act)
            manager.did(act)
    for _ in range(3):
        assert Elect(B) not in look(world, manager)
    breathe(world)
    assert look(world, manager) == [Elect(B)]


def counted_again_while_one_is_cut(manager: Electable) -> World:
    """C is counted again in the moment in which B is cut: B has not heard of it."""
    world = World()
    run(world, manager, 3)
    world.kill(C)
    run(world, manager, 30)
    world.start(C)
    acts: list[ReplicaAct] = []
    while not any(isinstance(act, RecordReplicas) for act in acts):
        breathe(world)
        acts = manager.saw(world.look(), now=world.now)
        if any(isinstance(act, RecordReplicas) for act in acts):
            world.nodes[B].is_cut = True
        for act in acts:
            if world.do(act):
                manager.did(act)
    assert (world.nodes[A].counts()[0], world.nodes[B].counts()[0]) == (2, 1)
    return world


def test_nobody_may_be_elected_of_whom_another_that_may_be_has_not_heard() -> None:
    """B would acknowledge with the old R, without C, and C could be elected behind it."""
    manager = Electable()
    world = counted_again_while_one_is_cut(manager)
    assert Elect(C) not in run(world, manager, 5)
    assert world.nodes[C].priority == 0
    world.kill(C)
    world.kill(A)
    world.nodes[B].is_cut = False
    assert world.fail_over(GUARDS[0], 0)
    world.start(A)
    breathe(world)
    assert publish(world)  # by A and B alone
    world.kill(A)
    world.kill(B)
    world.start(C)
    assert not world.fail_over(GUARDS[0], 0)  # or it raises Lost


def test_one_that_was_cut_while_another_was_counted_holds_it_up_until_it_has_heard() -> None:
    manager = Electable()
    world = counted_again_while_one_is_cut(manager)
    world.nodes[B].is_cut = False
    done = run(world, manager, 3)
    assert done[-1] == Elect(C)
    assert is_whole(world)


def test_it_is_said_why_one_that_is_out_cannot_be_forgotten() -> None:
    world, manager = World(), Electable()
    run(world, manager, 3)
    world.kill(C)
    run(world, manager, 30)
    for guard in world.guards.values():
        guard.replicas.add(C)
    world.guards[GUARDS[2]].is_up = False
    run(world, manager, 3)
    assert any(f"{C} cannot be forgotten" in says for says in manager.says)


def test_r_is_raised_where_more_are_known() -> None:
    world, manager = World(), Electable()
    world.nodes[A].history.append(("count", 1, frozenset()))
    assert look(world, manager) == [RecordReplicas(1, frozenset(), 2, frozenset())]


def test_who_was_counted_out_by_hand_is_out() -> None:
    """Locked out, forgotten, and R is lowered already: it is let in like all others."""
    world, manager = World(), Electable()
    world.kill(C)
    for node in (world.nodes[A], world.nodes[B]):
        node.locked.add("replica-c")
        node.locked_kept.add("replica-c")
    for guard in world.guards.values():
        guard.replicas.discard(C)
    world.nodes[A].history.append(("count", 1, frozenset()))
    run(world, manager, 30)
    assert world.nodes[A].counts() == (1, frozenset({C}))
    world.start(C)
    run(world, manager, 20)
    assert is_whole(world)


def test_one_that_is_back_at_once_and_takes_long_to_get_everything_is_not_waited_for() -> None:
    """Its process was restarted, and the primary has to give it all there is: minutes. It is taken
    out, and gets that from a replica."""
    world, manager = World(), Electable()
    run(world, manager, 3)
    world.kill(C)
    world.start(C)
    world.nodes[C].history = [*world.nodes[C].history, ("message", -1, frozenset())]
    done: list[ReplicaAct] = []
    for _ in range(round(AWAY_S) + 5):
        world.now += LOOK_S
        world.settle_links()
        for place in (A, B):
            world.replicate(place)
        for guard in world.guards.values():
            world.learn(guard)
        done += look(world, manager)
    assert RecordReplicas(2, frozenset(), 1, frozenset({C})) in done
    assert publish(world)
    run(world, manager, 20)
    assert is_whole(world)


def test_r_that_was_raised_by_hand_before_one_is_back_is_what_it_is_to_be() -> None:
    """Who sees that R is 1 may say 2: nothing is acknowledged until the other one is there, which
    is then no third."""
    world, manager = World(), Electable()
    world.kill(C)
    run(world, manager, 30)
    world.nodes[A].history.append(("count", 2, frozenset({C})))
    breathe(world)
    assert not publish(world)
    world.start(C)
    run(world, manager, 20)
    assert is_whole(world)
    assert publish(world)


OPS = (
    *("breathe",) * 6, *("look",) * 6, *("publish",) * 6, "half a look", "new manager", "wait",
    "kill", "cut", "guard down", *("start",) * 2, *("join",) * 2, *("guard up",) * 2,
    *("fail over",) * 3, *("ambush",) * 6, *("replicate",) * 2, "attach", "learn",
)  # fmt: skip


class History:
    """One of operations, each with two numbers that say whom it meets."""

    def __init__(self, *, count: int = 3) -> None:
        self.world, self.manager = World(NODES[:count]), Electable()

    def step(self, what: str, first: int, second: int) -> None:
        """One of OPS."""
        world = self.world
        place = sorted(world.nodes)[first % len(world.nodes)]
        guard = GUARDS[first % 3]
        match what:
            case "kill":
                world.kill(place)
            case "start":
                places = sorted(world.nodes)
                world.start(place, places[second % len(places)] if second < 20 else None)
            case "cut":
                world.nodes[place].is_cut = True
                world.settle_links()
            case "join":
                world.nodes[place].is_cut = False
            case "guard down":
                world.guards[guard].is_up = False
            case "guard up":
                world.guards[guard].is_up = True
            case "fail over":
                world.fail_over(guard, second)
            case "publish":
                for one in sorted({each.primary for each in world.guards.values()}):
                    world.publish(one)
                    for other in sorted(world.nodes)[first % 2 : second % 6 + 1]:
                        world.replicate(other)
                    world.acknowledge(one)
            case "attach":
                world.settle_links()
            case "ambush":
                world.ambush(place, second)
            case "replicate":
                world.replicate(place)
            case "learn":
                world.learn(world.guards[guard])
            case "breathe":
                breathe(world, 0.04 * second, second % 4)
            case "wait":
                for _ in range(12):
                    world.now += LOOK_S
                    world.settle_links()
                    look(world, self.manager)
            case "new manager":
                self.manager = Electable()
            case _:
                acts = self.manager.saw(world.look(), now=world.now)
                if what == "half a look":  # it ends in the middle, or the world goes on in it
                    acts = acts[: second % (len(acts) + 1)]
                for act in acts:
                    is_last = what == "half a look" and act is acts[-1]
                    if world.do(act, is_half=is_last):
                        self.manager.did(act)

    def heal(self) -> None:
        """All comes back, and one manager stays."""
        world = self.world
        for node in world.nodes.values():
            node.is_cut = False
            world.start(node.place)
        for guard in world.guards.values():
            guard.is_up = True
        nobody = all(node.follows for node in world.nodes.values())
        assert not nobody


steps = st.lists(
    st.tuples(st.sampled_from(OPS), st.integers(0, 5), st.integers(0, 59)), max_size=60
)


@given(steps)
def test_nothing_acknowledged_is_lost_in_any_history(
    history: list[tuple[str, int, int]],
) -> None:
    """P1, R28: and when all is back, all are counted again."""
    played = History()
    for what, first, second in history:
        played.step(what, first, second)
    played.heal()
    run(played.world, played.manager, 200)
    assert is_whole(played.world), played.manager.says
    assert publish(played.world)


@pytest.mark.parametrize("count", [2, 3])
def test_nothing_acknowledged_is_lost_in_many_histories(count: int) -> None:
    """Long ones, of a generator whose seed is told."""
    elected = acknowledged = 0
    for seed in range(40):
        random, played = Random(seed), History(count=count)
        try:
            for _ in range(300):
                played.step(random.choice(OPS), random.randrange(6), random.randrange(60))
        except Lost as error:
            raise AssertionError(f"seed {seed}: {error}") from None
        elected += played.world.elected
        acknowledged += len(played.world.acknowledged)
    assert elected > 15
    assert acknowledged > 500
