"""The naive model of rights, for the histories of several tenants.

A right is written twice, as the broker reads it and as a line of a table: (verb, queue, keys), with
"*" for every queue and None for every key. The needs of operations are in a table of their own.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

KEYS: Final = ("k1", "k2", None)
GHOST: Final = "ghost"
"""A queue that no tenant has."""
OWN_NAMES: Final = {"red": "vault", "blue": "attic", "grey": "cellar"}
"""For each tenant, the name of a queue that no other one has."""
NAMES: Final = ("orders", "feed", "shared", *OWN_NAMES.values())
TENANTS: Final = tuple(OWN_NAMES)
VERBS: Final = ("publish", "consume", "read", "manage")
ALL_VERBS: Final[tuple[str, ...]] = VERBS
FIGURES: Final[tuple[str, ...]] = ("consume", "manage")
"""Verbs that show figures of groups, like `observe`, which no actor here has."""
SHOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "holder": ("manage",), "settings": VERBS, "alerts": ("manage",), "created_unix_ms": VERBS,
    "paused": VERBS, "depth": ("consume", "read", "manage"), "groups": FIGURES,
    "bytes": ("consume", "read", "manage"), "oldest_unix_ms": ("consume", "read", "manage"),
    "partitions": ("consume", "read", "manage"), "counters": ("consume", "read", "manage"),
    "dead_letters": ("consume", "read", "manage"), "name": (), "queue_id": (),
    "scheduled": ("consume", "read", "manage"),
}  # fmt: skip
"""The fields of a queue, and the verbs that show each, on every key; () if any right does."""
SETTINGS: Final[Mapping[str, dict[str, object]]] = {
    "feed": {"on_exhausted": "park", "dead_letter_queue": "shared"},
}
"""Further fields, beside those that all queues have."""
Right = tuple[str, str, tuple[str, ...] | None]
EVERY: Final = "(every key)"

NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "put_queue": ("manage",), "change_queue": ("manage",), "get_queue": ALL_VERBS,
    "publish": ("publish",),
    "put_group": ("manage",), "change_group": ("manage",), "get_group": FIGURES,
    "delete_group": ("manage",),
    "seek_group": ("manage",), "pull": ("consume",), "ack": ("consume",), "nack": ("consume",),
    "extend": ("consume",), "list_parked": ("consume", "manage"), "decide_parked": ("manage",),
    "explain_key": ("consume", "manage"), "list_held": ("consume", "manage"),
    "list_leases": ("consume", "manage"), "pause_queue": ("manage",), "resume_queue": ("manage",),
    "purge_queue": ("manage",), "peek_queue": ("read",), "list_dead_letters": ("read",),
    "redrive_dead_letters": ("manage",), "queue_metrics": FIGURES,
    "list_scheduled": ("read", "manage"), "show_scheduled": ("read", "manage"),
    "cancel_scheduled": ("publish", "manage"), "change_scheduled": ("publish", "manage"),
}  # fmt: skip
"""Operations that name a queue, and the verbs of which one on it is needed."""


@dataclass(frozen=True)
class Actor:
    """A principal with one credential. `is_let_in` False: it was revoked, or has expired."""

    tenant: str
    name: str
    texts: tuple[str, ...]
    table: tuple[Right, ...]
    is_let_in: bool = True

    @property
    def token(self) -> str:
        """The token that it presents."""
        return f"{self.tenant}.{self.name}"

    def keys(self, verb: str, queue: str) -> Collection[str] | None:
        """Return the keys that the verb is allowed on; None for all."""
        found = [keys for v, q, keys in self.table if v == verb and q in ("*", queue)]
        return None if None in found else {key for keys in found for key in keys or ()}

    def may(self, verb: str, queue: str, key: str | None = EVERY) -> bool:
        """Whether the verb is allowed there, on this key; without one, as a whole."""
        keys = self.keys(verb, queue)
        return keys is None or key in keys

    def sees(self, queue: str) -> set[str]:
        """Return the fields of a queue that are shown to this actor."""
        whole = {verb for verb in VERBS if self.keys(verb, queue) is None}
        return {name for name, verbs in SHOWN.items() if not verbs or whole & {*verbs}}

    def may_some(self, verbs: Collection[str], queue: str) -> bool:
        """Whether one of these verbs is allowed there, on some key."""
        return any(self.keys(verb, queue) != set() for verb in verbs)


def _boss(tenant: str) -> Actor:
    rights: tuple[Right, ...] = tuple((verb, "*", None) for verb in VERBS)
    return Actor(tenant, "boss", ("publish,consume,read,manage:*",), rights)


def _some(tenant: str) -> list[Actor]:
    """Return the actors of a tenant. Every tenant has the same names, for different principals."""
    return [
        _boss(tenant),
        Actor(tenant, "worker", ("consume:orders",), (("consume", "orders", None),)),
        Actor(
            tenant, "writer", ("publish:orders*",),
            (("publish", "orders", None), ("publish", "orders.dead-letters", None)),
        ),
        Actor(
            tenant, "fan", ("read,publish:feed:k1",),
            (("read", "feed", ("k1",)), ("publish", "feed", ("k1",))),
        ),
        Actor(
            tenant, "auditor", ("read:*", "consume:feed"),
            (("read", "*", None), ("consume", "feed", None)),
        ),
        Actor(
            tenant, "clerk", ("manage:o*s",),
            (("manage", "orders", None), ("manage", "orders.dead-letters", None)),
        ),
        Actor(tenant, "keeper", ("manage:feed",), (("manage", "feed", None),)),
        Actor(tenant, "nobody", (), ()),
        Actor(
            tenant, "lapsed", ("publish,consume,read,manage:*",), _boss(tenant).table,
            is_let_in=False,
        ),
    ]  # fmt: skip


ACTORS: Final = [actor for tenant in TENANTS for actor in _some(tenant)]
