"""State of the servers of one shard, as a manager sees it, and the acts by which the manager may
change it (R28).

Values only: `storage.redis.ops.observe` makes them, `services.manager.rules.election` decides by
them, and `storage.redis.ops.failover` carries out the decision. A server is named by where it
listens, `host:port`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Follower:
    """A server that follows another one, as that one sees it."""

    place: str
    is_online: bool
    """Whether it is sent every write. A follower that is being sent a first copy is not online."""
    offset: int
    """Offset in the stream of writes up to which it has confirmed."""
    lag_s: float
    """Seconds since its last confirmation."""


@dataclass(frozen=True, slots=True)
class ShardServer:
    """Report of a server that answers, about itself."""

    place: str
    run_id: str
    """Name of the run; each start makes another one."""
    user: str
    """User by which the servers that it follows know it; "": none in particular."""
    is_primary: bool
    follows: str = ""
    """Place of the server that it follows; "": none."""
    is_linked: bool = False
    """Whether it receives the writes of the server that it follows, and has all earlier ones."""
    is_electable: bool = True
    """Whether it may be elected: its replica-priority is not 0."""
    offset: int = 0
    """Offset in the stream of writes of the last one that it has, or has made."""
    unready: str = ""
    """Reason why it may not have on its disk what it confirms; "": it has."""
    locked: frozenset[str] = frozenset()
    """Users that it does not let in."""
    followers: tuple[Follower, ...] = ()


@dataclass(frozen=True, slots=True)
class Sentinel:
    """Report of a Sentinel that answers."""

    primary: str
    is_calm: bool
    """Whether it finds nothing wrong with the primary, and replaces none."""
    replicas: frozenset[str]
    """Places of the replicas that it knows, those included that it has not seen for long."""
    others: frozenset[str] = frozenset()
    """The other Sentinels that it knows."""


@dataclass(frozen=True, slots=True)
class ShardView:
    """Snapshot of a shard. Everything in it was queried at about the same moment."""

    primary: str
    """Primary that most of the Sentinels that answer name; "": none, or none answers."""
    servers: Mapping[str, ShardServer]
    """Servers that answered, by place."""
    sentinels: Mapping[str, Sentinel]
    """Sentinels that answered, by place."""
    guards: frozenset[str] = frozenset()
    """The places of all Sentinels that were queried, whether or not they answered."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Reason by place of each server and Sentinel that did not answer."""
    replicas: int = 0
    """R, the number of replicas that could be elected, as the shard itself has recorded it."""
    out: frozenset[str] = frozenset()
    """Replicas that R does not count, as the shard itself has recorded them."""
    users: Mapping[str, str] = field(default_factory=dict)
    """The user of every server that was ever seen, by its place; in a Cluster its id."""
    knows: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """In a Cluster: for each of its nodes that answered, of all shards, the ids that it knows."""
    places: Mapping[str, str] = field(default_factory=dict)
    """In a Cluster: the place of each node that any of them knows, by its id."""


# --- What may be done ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LockOut:
    """The act that forbids this user to follow the server `at`; also after its restart."""

    at: str
    user: str


@dataclass(frozen=True, slots=True)
class LetIn:
    """The act that allows this user to follow the server `at`; also after its restart."""

    at: str
    user: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """The act by which no Sentinel has this server elected; also after its restart."""

    at: str


@dataclass(frozen=True, slots=True)
class Elect:
    """The act by which Sentinels may have this server elected; also after its restart."""

    at: str


@dataclass(frozen=True, slots=True)
class Follow:
    """The act that makes the server `at` a replica of `primary`; also after its restart."""

    at: str
    primary: str


@dataclass(frozen=True, slots=True)
class Reset:
    """The act by which this Sentinel forgets all that it knows but the primary, and learns the rest
    anew from it."""

    sentinel: str
    expected: frozenset[str] = field(default=frozenset(), compare=False)
    """Replicas that it will learn of."""


@dataclass(frozen=True, slots=True)
class RecordReplicas:
    """The act that records the shard's R and the replicas not counted in it, if both are still as
    they were. The record is then on every copy that could be elected."""

    replicas_before: int
    out_before: frozenset[str]
    replicas: int
    out: frozenset[str]


@dataclass(frozen=True, slots=True)
class Forget:
    """The act by which the node `at` of a Cluster does not know the node `node_id` any more, for a
    minute at least. It neither votes for that node nor passes it on to others."""

    at: str
    node_id: str


@dataclass(frozen=True, slots=True)
class Meet:
    """The act by which the node `at` of a Cluster makes the acquaintance of the one at `place`, and
    makes it known to the others."""

    at: str
    place: str


ReplicaAct = LockOut | LetIn | Prepare | Elect | Follow | Reset | RecordReplicas | Forget | Meet
