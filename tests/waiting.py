"""Waiting for what comes about by itself."""

import asyncio
import inspect
from collections.abc import Callable


async def becomes(is_so: Callable[[], object], within_s: float = 60.0) -> float:
    """Wait until it is so; what it answers may have to be awaited. How many seconds that took.
    Raises AssertionError: it is not so in time."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        answer = is_so()
        if await answer if inspect.isawaitable(answer) else answer:
            return loop.time() - began
        assert loop.time() - began < within_s, "it does not become so"
        await asyncio.sleep(0.01)
