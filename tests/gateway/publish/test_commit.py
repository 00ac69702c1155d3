"""A commit that is handed over: whatever the storage does then, somebody hears of it."""

import asyncio
import gc
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from gateway.publish.batch import (
    Commit,
)
from push.storage_port import Append, Appended, Lane
from storage.memory import MemoryStorage


class Raising(MemoryStorage):
    """It fails before there is anything to await."""

    def append(
        self, appends: Sequence[Append], *, lane: Lane | None = None
    ) -> Coroutine[Any, Any, list[Appended]]:
        raise ValueError("no")


def commit() -> Commit:
    """Of nothing."""
    return Commit([], 0.0, is_share=True, lane=Lane(0, 0))


async def test_what_a_storage_raises_at_once_is_raised_where_it_is_awaited() -> None:
    """P8: who starts a commit goes on, and who waits for it hears of it."""
    one = commit()
    one.hand_over(Raising())
    with pytest.raises(ValueError, match="no"):
        await one.stored


async def test_a_commit_whose_loop_ends_says_nothing(recwarn: pytest.WarningsRecorder) -> None:
    """A loop that ends cancels what the storage was to do, perhaps before it began."""
    one = commit()
    one.hand_over(MemoryStorage())
    one.stored.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one.stored
    del one
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []
