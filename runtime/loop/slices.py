"""Long answers in slices: whoever pushes messages does not wait for who looks (P9)."""

import asyncio
from time import perf_counter
from typing import Final

SLICE_S: Final = 0.005
"""So long an answer is worked at before others have their turn."""


class Slices:
    """Of one answer."""

    def __init__(self) -> None:
        self._ends = perf_counter() + SLICE_S  # not the loop's clock: that stands while we work

    async def turn(self) -> None:
        """Let others have their turn if it is time; to be called between the parts."""
        if perf_counter() >= self._ends:
            await asyncio.sleep(0)
            self._ends = perf_counter() + SLICE_S
