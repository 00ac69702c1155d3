"""The figures of a queue and its groups that each right shows: those that it needs, no more. Pure.

A right that covers some keys only shows that the queue exists. Every other figure is about more
than these keys: settings, depth, groups and their lag, consumers.
"""

from collections.abc import Mapping
from typing import Any, Final

from metadata.catalog import DEAD_LETTERS
from metadata.rights import VERBS, Rights, Verb

View = Mapping[str, object]
"""A description, or a part of one."""

_EVERY: Final[frozenset[Verb]] = frozenset(VERBS)
_CONTENT: Final[frozenset[Verb]] = frozenset(("consume", "read", "manage", "observe"))
_GROUPS: Final[frozenset[Verb]] = frozenset(("consume", "manage", "observe"))
_CONSUMERS: Final[frozenset[Verb]] = frozenset(("consume", "manage"))
_OPERATION: Final[frozenset[Verb]] = frozenset(("manage", "observe"))
_OWNERSHIP: Final[frozenset[Verb]] = frozenset(("manage",))

QUEUE_FIELDS: Final[Mapping[str, frozenset[Verb]]] = {
    "holder": _OWNERSHIP,
    "created_unix_ms": _EVERY,
    "paused": _EVERY,
    "settings": _EVERY,
    "partitions": _CONTENT,
    "depth": _CONTENT,
    "bytes": _CONTENT,
    "oldest_unix_ms": _CONTENT,
    "scheduled": _CONTENT,
    "counters": _CONTENT,
    "dead_letters": _CONTENT,
    "groups": _GROUPS,
}
"""Field of a queue's description → the rights on the whole queue that show it. Every other field is
shown by any right, even one that covers some keys only."""
SETTINGS_FIELDS: Final[Mapping[str, frozenset[Verb]]] = {"alerts": _OPERATION}
"""Setting in a queue's description → the rights on the whole queue that show it. Every other
setting is shown wherever `settings` is."""
GROUP_FIELDS: Final[Mapping[str, frozenset[Verb]]] = {"members": _CONSUMERS, "absent": _CONSUMERS}
"""Field of a group's description → the rights on the whole queue that show it. Every other field is
shown with the group."""
PLACE_FIELDS: Final[Mapping[str, frozenset[Verb]]] = {"owner": _CONSUMERS, "member": _CONSUMERS}
"""Field of one partition in a group's description → the rights on the whole queue that show it.
Every other field is shown with the group."""
TABLE: Final[Mapping[str, frozenset[Verb]]] = {
    **QUEUE_FIELDS,
    **{f"settings.{name}": verbs for name, verbs in SETTINGS_FIELDS.items()},
    **{f"group.{name}": verbs for name, verbs in GROUP_FIELDS.items()},
    **{f"group.partitions.{name}": verbs for name, verbs in PLACE_FIELDS.items()},
}
"""All fields and rights, for the documents."""


def verbs_on_all(rights: Rights, queue: str) -> frozenset[Verb]:
    """Return the verbs that are allowed on every key of a queue."""
    found = ((verb, rights.keys(verb, queue)) for verb in VERBS)
    return frozenset(verb for verb, keys in found if keys is not None and keys.is_all)


def shows_groups(rights: Rights, queue: str) -> bool:
    """Whether names and figures of a queue's groups may be seen."""
    return bool(_GROUPS & verbs_on_all(rights, queue))


def shows_depth(rights: Rights, queue: str) -> bool:
    """Whether the depth of a queue may be seen."""
    return bool(_CONTENT & verbs_on_all(rights, queue))


def queue_view(described: View, rights: Rights) -> dict[str, Any]:
    """Return the part of a queue's description that these rights show."""
    name = str(described["name"])
    verbs = verbs_on_all(rights, name)
    view = _part(described, QUEUE_FIELDS, verbs)
    if "settings" in view:
        view["settings"] = _part(view["settings"], SETTINGS_FIELDS, verbs)
    if "dead_letters" in view:
        view["dead_letters"] = _letters_view(view["dead_letters"], name, rights)
    return view


def _letters_view(letters: View, queue: str, rights: Rights) -> View:
    """Leave out the depth of a dead-letter queue of another name, unless the rights show it."""
    dead = str(letters["queue"])
    if dead == queue + DEAD_LETTERS or shows_depth(rights, dead):
        return letters
    return {"queue": dead, "messages": None}


def group_view(described: View, rights: Rights, queue: str) -> dict[str, Any]:
    """Return the part of a group's description that these rights show."""
    verbs = verbs_on_all(rights, queue)
    view = _part(described, GROUP_FIELDS, verbs)
    view["partitions"] = [_part(place, PLACE_FIELDS, verbs) for place in view["partitions"]]
    return view


def _part(
    described: View, fields: Mapping[str, frozenset[Verb]], verbs: frozenset[Verb]
) -> dict[str, Any]:
    return {
        name: value
        for name, value in described.items()
        if name not in fields or fields[name] & verbs
    }
