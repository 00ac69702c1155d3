"""Queues that were deleted, for as long as messages may still be on their way to them. Pure.

Who publishes to such a name is not told that there is no such queue: what still arrives goes to the
queue's dead letters. Kept as one mark of the catalog, the latest ones of the last day.
"""

from typing import Final

import msgspec

from metadata.catalog import DEAD_LETTERS, Queue, dead_letter_name

KEPT_S: Final = 86_400.0
KEPT_MAX: Final = 200
"""A mark is read whole by every gateway when it changes."""
MARK: Final = "deleted queues"


class Grave(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a queue."""

    queue_id: str
    name: str
    tenant: str
    holder: str
    dead_letters: str
    """The name of the queue that takes its dead letters."""
    deleted_unix_ms: int


def graves_of(text: str | None) -> list[Grave]:
    """Those that the mark has; what cannot be read is as if nothing had been deleted."""
    try:
        return msgspec.json.decode(text, type=list[Grave]) if text else []
    except msgspec.MsgspecError:
        return []


def dug(text: str | None, queue: Queue, unix_ms: int) -> str:
    """The mark with one more, which is about to be deleted. One that takes dead letters itself has
    none: its messages are there to be looked at, and it is made again when it is needed."""
    kept = [
        grave
        for grave in graves_of(text)
        if unix_ms - grave.deleted_unix_ms < KEPT_S * 1000
        and (grave.tenant, grave.name) != (queue.tenant, queue.name)
    ]
    if not queue.name.endswith(DEAD_LETTERS):
        grave = Grave(
            queue_id=queue.queue_id, name=queue.name, tenant=queue.tenant, holder=queue.holder,
            dead_letters=dead_letter_name(queue), deleted_unix_ms=unix_ms,
        )  # fmt: skip
        kept.append(grave)
    return msgspec.json.encode(kept[-KEPT_MAX:]).decode()


def find_grave(text: str | None, tenant: str, name: str, unix_ms: int) -> Grave | None:
    """Of a queue of this name, where it was deleted within KEPT_S."""
    for grave in graves_of(text):
        is_it = (grave.tenant, grave.name) == (tenant, name)
        if is_it and unix_ms - grave.deleted_unix_ms < KEPT_S * 1000:
            return grave
    return None
