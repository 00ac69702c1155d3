"""Meaning of a reply of Redis: an answer, a refusal, or an unknown outcome."""

import asyncio
from typing import Any, Final

from redis import exceptions

from push.errors import CODES, Fenced, Refused, TocsinError, Unknown

NOT_EXECUTED: Final = (
    exceptions.ReadOnlyError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
    exceptions.ClusterCrossSlotError,
    exceptions.MasterDownError,
    exceptions.BusyLoadingError,
    exceptions.AuthenticationError,
    exceptions.NoPermissionError,
)
"""Errors that Redis gives before it begins a function, as classes of redis-py."""
NOT_EXECUTED_WORDS: Final = ("BUSY ", "MISCONF ", "NOREPLICAS ", "Function not found")
"""The same, by the words that they begin with, if redis-py has no class for them."""
OURS: Final = "TOCSIN "


class SlotMoved(Refused):
    """In a Cluster: not all of the keys are at this primary any more. Nothing has happened."""

    def __init__(self, where: str) -> None:
        slot, _, place = where.partition(" ")
        super().__init__("storage_unavailable", f"the slot {slot} of the cluster moves to {place}")


class FunctionRefusal(Refused):
    """A refusal by a function, whose server is up and has looked."""


def refusal(reply: Any) -> TocsinError | None:
    """Return Refused or Fenced if the reply itself says that the act did not happen. None: it is no
    error, or one that leaves the outcome open. The result is true on this server, however many
    copies exist.

    A function refuses with `TOCSIN <code> <detail>`. Source: the errors of `processCommand` and of
    `scriptPrepareForRun` in Redis 7.0's server.c and script.c.
    """
    if not isinstance(reply, exceptions.RedisError):
        return None
    text = str(reply)
    if text.startswith(OURS):
        code, _, detail = text[len(OURS) :].partition(" ")
        if code == "fenced":
            return Fenced(detail) if detail else Fenced()
        return FunctionRefusal(code, detail) if code in CODES else FunctionRefusal("internal", text)
    if isinstance(reply, exceptions.AskError):  # MovedError is one of them
        return SlotMoved(text)
    if isinstance(reply, exceptions.OutOfMemoryError):
        return Refused("storage_full")
    if isinstance(reply, NOT_EXECUTED) or text.startswith(NOT_EXECUTED_WORDS):
        return unavailable(text)
    return None


def answer(reply: Any, doubt: str) -> Any:
    """Return the answer for the caller of an act. `doubt`: the reason why the group is not
    confirmed; "": it is.

    Raises Refused and Fenced as the reply says, otherwise Unknown if there is a doubt, or an error
    that leaves the outcome open. A refusal by a function on a shard in doubt (emptied, or cut off)
    is Unknown, too, because `group_not_found` would be believed.
    """
    error = refusal(reply)
    if doubt and not (isinstance(error, Fenced) or is_sure(reply)):
        raise Unknown(doubt)
    if error is not None:
        raise error
    if isinstance(reply, exceptions.RedisError):
        raise Unknown(str(reply))
    return reply


def is_sure(reply: Any) -> bool:
    """Whether Redis itself has refused. Then nothing has begun, whatever becomes of the group
    around it."""
    return refusal(reply) is not None and not str(reply).startswith(OURS)


def refused(error: TocsinError) -> asyncio.Future[Any]:
    """Return the future of an act that was not begun; it raises `error`."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


def unavailable(detail: str) -> Refused:
    """Return the error for a store that cannot be called now. Nothing has happened."""
    return Refused("storage_unavailable", detail)
