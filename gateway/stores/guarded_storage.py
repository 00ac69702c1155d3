"""The storage, of which whatever only looks is answered within READ_DEADLINE_S, or refused: what
one stalled read would hold up for ever, an owner's lines or an operator's question, asks again.

What changes something passes through. Publishing has its own deadline (gateway.publish.commits). A
cursor write has none, and must not: whether it came about would be unknown, and with it whether
messages that are given at most once may be pushed (R23), and who waits for a confirmed ack would be
told nothing either (R29). It is kept until it is answered; meanwhile deliveries go on under the
epoch there is. The tail's reads of the log have a deadline of their own, and keep their place.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from push import limits
from push.errors import Refused
from push.ports import Looking, Storage

READS: Final = frozenset(
    {"read", "read_each", "read_side", "offset_at"}
    | {name for name in vars(Looking) if not name.startswith("_")}
)
"""Calls that change nothing."""


def guarded(storage: Storage) -> Storage:
    """The same one, see the module."""
    return cast(Storage, _Guarded(storage))


class _Guarded:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._storage, name)
        return partial(_within, call) if name in READS else call


async def _within(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Raises Refused: storage_unavailable: it did not answer, and was given up."""
    try:
        async with asyncio.timeout(limits.READ_DEADLINE_S):
            return await call(*args, **kwargs)
    except TimeoutError:
        raise Refused("storage_unavailable", "the storage does not answer a read", 1.0) from None
