"""How the servers of one shard stand, as a manager sees them, and what it may do about it (R28).

Values only: `storage.redis.ops.observe` makes them, `services.manager.rules.election`
decides by them, and `storage.redis.ops.failover` does what it says. A server is named by where
it listens, `host:port`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Follower:
    """One that follows a server, as that server sees it."""

    place: str
    is_online: bool
    """It is given every write; not: it is being given all that there is."""
    offset: int
    """Up to which it has confirmed."""
    lag_s: float
    """Seconds since it last did."""


@dataclass(frozen=True, slots=True)
class ShardServer:
    """What a server that answers says of itself."""

    place: str
    run_id: str
    """Another one after each start."""
    user: str
    """Who it is to those that it follows; "": nobody in particular."""
    is_primary: bool
    follows: str = ""
    """Where; "": nowhere."""
    is_linked: bool = False
    """It hears whom it follows, and has all that there was."""
    is_electable: bool = True
    """Its replica-priority is not 0."""
    offset: int = 0
    """Of the stream of writes: the last that it has, or has made."""
    unready: str = ""
    """Why it may not have on its disk what it confirms; "": it has."""
    locked: frozenset[str] = frozenset()
    """Users whom it does not let in."""
    followers: tuple[Follower, ...] = ()


@dataclass(frozen=True, slots=True)
class Sentinel:
    """What a Sentinel that answers says."""

    primary: str
    is_calm: bool
    """It finds nothing wrong with the primary, and replaces nobody."""
    replicas: frozenset[str]
    """Whom it knows besides, those included that it has not seen for long."""
    others: frozenset[str] = frozenset()
    """The other Sentinels that it knows."""


@dataclass(frozen=True, slots=True)
class ShardView:
    """One look at a shard: everything in it was asked at about the same moment."""

    primary: str
    """Whom most of the Sentinels that answer name; "": nobody, or nobody answers."""
    servers: Mapping[str, ShardServer]
    """Those that answered."""
    sentinels: Mapping[str, Sentinel]
    """Those that answered."""
    guards: frozenset[str] = frozenset()
    """All Sentinels that were asked."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Who did not answer, and why."""
    replicas: int = 0
    """How many could be elected, as the shard says: R."""
    out: frozenset[str] = frozenset()
    """Those that are not counted in it, as the shard says."""
    users: Mapping[str, str] = field(default_factory=dict)
    """The user of every server that was ever seen, by its place; in a Cluster its id."""
    knows: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """In a Cluster: each of its nodes that answered, of all shards, and the ids that it knows."""
    places: Mapping[str, str] = field(default_factory=dict)
    """In a Cluster: where each node is that any of them knows, by its id."""


# --- What may be done ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LockOut:
    """This user follows the server `at` no longer, and never again; also after its restart."""

    at: str
    user: str


@dataclass(frozen=True, slots=True)
class LetIn:
    """This user may follow the server `at`; also after its restart."""

    at: str
    user: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """No Sentinel has this server elected; also after its restart."""

    at: str


@dataclass(frozen=True, slots=True)
class Elect:
    """Sentinels may have this server elected; also after its restart."""

    at: str


@dataclass(frozen=True, slots=True)
class Follow:
    """This server follows that one."""

    at: str
    primary: str


@dataclass(frozen=True, slots=True)
class Reset:
    """This Sentinel forgets all that it knows but the primary, and learns the rest anew from it."""

    sentinel: str
    expected: frozenset[str] = field(default=frozenset(), compare=False)
    """Of whom it will hear."""


@dataclass(frozen=True, slots=True)
class RecordReplicas:
    """The shard's R and who is not counted in it, if they still are as they were; on every copy
    that could be elected when it is done."""

    replicas_before: int
    out_before: frozenset[str]
    replicas: int
    out: frozenset[str]


@dataclass(frozen=True, slots=True)
class Forget:
    """This node of a Cluster does not know that one any more, for a minute at least: it neither
    votes for it nor tells others of it."""

    at: str
    node_id: str


@dataclass(frozen=True, slots=True)
class Meet:
    """This node of a Cluster makes the acquaintance of that one, and tells the others."""

    at: str
    place: str


ReplicaAct = LockOut | LetIn | Prepare | Elect | Follow | Reset | RecordReplicas | Forget | Meet
