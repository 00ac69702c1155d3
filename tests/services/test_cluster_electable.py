"""R28 in a Cluster: whoever is not counted is known to no node, and whoever is known is counted."""

from dataclasses import dataclass, field, replace

from push.replicas import Follower, Forget, Meet, RecordReplicas, ReplicaAct, ShardServer, ShardView
from services.manager.rules.election import AWAY_S, ClusterElectable

P, FIRST, SECOND, Q = "p:1", "r:1", "s:1", "q:1"
"""The primary, its replicas, and the primary of another shard."""
IDS = {P: "id-p", FIRST: "id-r", SECOND: "id-s", Q: "id-q"}


@dataclass
class Shard:
    """What a manager would see, and what becomes of it when it acts."""

    replicas: int = 2
    out: frozenset[str] = frozenset()
    online: set[str] = field(default_factory=lambda: {FIRST, SECOND})
    given: set[str] = field(default_factory=set)
    """Those that are being given all there is."""
    up: set[str] = field(default_factory=lambda: set(IDS))
    offsets: dict[str, int] = field(default_factory=lambda: dict.fromkeys(IDS, 10))
    unready: set[str] = field(default_factory=set)
    knows: dict[str, set[str]] = field(
        default_factory=lambda: {place: set(IDS.values()) for place in IDS}
    )

    def look(self) -> ShardView:
        """As `storage.redis.ops.cluster`."""
        followers = tuple(
            Follower(place, place not in self.given, self.offsets[place], 0.0)
            for place in sorted(self.online | self.given)
        )
        servers = {
            place: ShardServer(
                place, "run", "", place == P, "" if place == P else P, place in self.online,
                offset=self.offsets[place],
                unready="its file is written" if place in self.unready else "",
                followers=followers if place == P else (),
            )
            for place in self.up - {Q}
        }  # fmt: skip
        knows = {place: frozenset(self.knows[place]) for place in self.up}
        named = {node_id: place for place, node_id in IDS.items()}
        return ShardView(
            P, servers, {}, replicas=self.replicas, out=self.out,
            users={place: IDS[place] for place in (P, FIRST, SECOND)},
            knows=knows,
            places={one: named[one] for known in knows.values() for one in known & set(named)},
            silent=dict.fromkeys(set(IDS) - self.up, "no reply"),
        )  # fmt: skip

    def do(self, act: ReplicaAct) -> None:
        """What it says happens."""
        match act:
            case Forget(at, node_id):
                self.knows[at].discard(node_id)
            case Meet(at, place):
                self.knows[at].add(IDS[place])
            case RecordReplicas():
                assert (act.replicas_before, act.out_before) == (self.replicas, self.out)
                self.replicas, self.out = act.replicas, act.out

    def lose(self, place: str) -> None:
        """It is gone."""
        self.up.discard(place)
        self.online.discard(place)


def run(shard: Shard, manager: ClusterElectable, begin: float, seconds: int) -> list[ReplicaAct]:
    """Return what is done in this many seconds, from `begin` on."""
    done: list[ReplicaAct] = []
    for second in range(seconds):
        acts = manager.saw(shard.look(), now=begin + second)
        for act in acts:
            shard.do(act)
            manager.did(act)
        done += acts
    return done


def taken_out() -> tuple[Shard, ClusterElectable]:
    """A shard of which SECOND was taken out."""
    shard, manager = Shard(), ClusterElectable()
    run(shard, manager, 0.0, 3)
    shard.lose(SECOND)
    run(shard, manager, 3.0, 20)
    assert (shard.replicas, shard.out) == (1, frozenset({SECOND}))
    return shard, manager


def test_one_that_is_away_is_forgotten_by_all_and_then_not_counted() -> None:
    shard, manager = Shard(), ClusterElectable()
    assert run(shard, manager, 0.0, 3) == []
    shard.lose(SECOND)
    assert run(shard, manager, 3.0, round(AWAY_S) - 1) == []
    assert run(shard, manager, 2.0 + AWAY_S, 30) == [
        *(Forget(place, "id-s") for place in (P, Q, FIRST)),
        RecordReplicas(2, frozenset(), 1, frozenset({SECOND})),
    ]


def test_r_that_was_raised_by_hand_before_one_is_back_is_what_it_is_to_be() -> None:
    shard, manager = taken_out()
    shard.replicas = 2
    shard.up.add(SECOND)
    shard.online.add(SECOND)
    run(shard, manager, 30.0, 10)
    assert (shard.replicas, shard.out) == (2, frozenset())


def test_one_that_is_attached_is_waited_for_however_long_it_takes() -> None:
    """Nobody can put it out there: it would be counted again at once, and not, in turns."""
    shard, manager = Shard(), ClusterElectable()
    run(shard, manager, 0.0, 3)
    shard.online.discard(SECOND)
    shard.given.add(SECOND)
    assert run(shard, manager, 3.0, 60) == []


def test_nobody_is_taken_out_whom_a_node_that_is_away_may_still_know() -> None:
    """Also one of another shard: it would tell the others."""
    shard, manager = Shard(), ClusterElectable()
    run(shard, manager, 0.0, 3)
    shard.lose(SECOND)
    shard.up.discard(Q)
    done = run(shard, manager, 3.0, 60)
    assert {type(act) for act in done} == {Forget}  # those that answer have; it is not uncounted
    assert {act.at for act in done if isinstance(act, Forget)} == {P, FIRST}
    assert any(Q in says for says in manager.says)


def test_one_that_is_back_is_counted_and_known_when_it_has_what_there_was_then() -> None:
    shard, manager = taken_out()
    shard.up.add(SECOND)
    assert run(shard, manager, 30.0, 5) == []
    shard.online.add(SECOND)
    shard.unready.add(SECOND)
    shard.offsets |= {P: 90, FIRST: 90, SECOND: 10}
    assert run(shard, manager, 40.0, 5) == [RecordReplicas(1, frozenset({SECOND}), 2, frozenset())]
    shard.unready.clear()
    assert run(shard, manager, 45.0, 5) == []
    shard.offsets[SECOND] = 90
    assert run(shard, manager, 50.0, 5) == [Meet(P, SECOND)]
    assert any("known to 2 of 4" in says for says in manager.says)


def test_what_was_written_just_before_it_was_counted_is_waited_for() -> None:
    shard, manager = taken_out()
    shard.up.add(SECOND)
    shard.online.add(SECOND)
    view = shard.look()
    (count,) = manager.saw(view, now=30.0)
    shard.do(count)
    shard.offsets |= {P: 90, FIRST: 90}  # acknowledged before the count
    assert manager.saw(shard.look(), now=31.0) == []
    shard.offsets[SECOND] = 90
    assert run(shard, manager, 32.0, 3) == [Meet(P, SECOND)]


def test_who_comes_back_and_knows_one_that_is_out_forgets_it_first() -> None:
    """It would tell the others of it."""
    shard, manager = taken_out()
    shard.lose(FIRST)
    run(shard, manager, 30.0, 20)
    assert (shard.replicas, shard.out) == (0, frozenset({FIRST, SECOND}))
    shard.up.add(FIRST)
    shard.knows[FIRST] = set(IDS.values())
    shard.online.add(FIRST)
    done = run(shard, manager, 60.0, 10)
    assert done.index(Forget(FIRST, "id-s")) < done.index(Meet(P, FIRST))


def test_a_node_of_another_shard_that_knows_one_that_is_out_forgets_it() -> None:
    """A restored disk, for instance. The node is no replica of this shard, so nothing else looks at
    what it knows, and it would tell the other nodes."""
    shard, manager = taken_out()
    assert run(shard, manager, 30.0, 3) == []
    shard.knows[Q].add("id-s")
    assert run(shard, manager, 33.0, 3) == [Forget(Q, "id-s")]


def test_one_is_known_again_when_those_that_may_be_elected_have_heard_that_it_is_counted() -> None:
    """Or one of them, elected, would acknowledge without it, and it could be elected then."""
    shard, manager = taken_out()
    shard.up.add(SECOND)
    shard.online.add(SECOND)
    assert run(shard, manager, 30.0, 1) == [RecordReplicas(1, frozenset({SECOND}), 2, frozenset())]
    shard.offsets |= {P: 90, SECOND: 90}
    assert run(shard, manager, 31.0, 5) == []
    assert any(f"{FIRST} may not have heard" in says for says in manager.says)
    shard.offsets[FIRST] = 90
    assert run(shard, manager, 36.0, 3) == [Meet(P, SECOND)]


def test_one_that_knows_who_was_forgotten_of_another_shard_forgets_it_before_it_is_known() -> None:
    """Nobody could tell it, for nobody knew it; it would tell the others."""
    shard, manager = taken_out()
    shard.up.add(SECOND)
    shard.online.add(SECOND)
    shard.knows[SECOND].add("id-elsewhere")
    done = run(shard, manager, 30.0, 5)
    assert done[1:] == [Forget(SECOND, "id-elsewhere"), Meet(P, SECOND)]


def test_more_that_follow_than_are_counted_are_counted() -> None:
    shard, manager = Shard(replicas=1), ClusterElectable()
    assert run(shard, manager, 0.0, 3) == [RecordReplicas(1, frozenset(), 2, frozenset())]


def test_nothing_is_done_while_no_primary_is_seen() -> None:
    manager = ClusterElectable()
    view = replace(Shard().look(), primary="", servers={})
    assert manager.saw(view, now=0.0) == []
    assert manager.says
