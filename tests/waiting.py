"""Waiting for a condition that becomes true by itself."""

import asyncio
import inspect
from collections.abc import Callable


async def becomes(is_so: Callable[[], object], within_s: float = 60.0) -> float:
    """Wait until a condition holds; its result may have to be awaited. Return the seconds that it
    took. Raises AssertionError if it does not hold in time."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        answer = is_so()
        if await answer if inspect.isawaitable(answer) else answer:
            return loop.time() - began
        assert loop.time() - began < within_s, "it does not become so"
        await asyncio.sleep(0.01)
