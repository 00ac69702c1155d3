"""The one timer of all slots."""

import asyncio
from weakref import ref

from runtime.loop.end_of_turn import Deadlines
from tests.conformance.virtual import run


class Timed:
    """Something with a deadline."""

    scheduled = float("inf")

    def __init__(self, error: Exception | None = None) -> None:
        self.ticks = 0
        self._error = error

    def tick(self) -> None:
        """Time has come."""
        self.ticks += 1
        if self._error is not None:
            raise self._error


def test_a_bug_in_one_holds_up_no_other() -> None:
    """P6: neither those that are due with it, nor those that come later."""

    async def main() -> None:
        loop, deadlines = asyncio.get_running_loop(), Deadlines()
        told: list[object] = []
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        bug = RuntimeError("a bug")
        failing, with_it, later = Timed(bug), Timed(), Timed()
        now = loop.time()
        for timed, at in ((failing, now + 1), (with_it, now + 1), (later, now + 2)):
            deadlines.set(timed, at)
        await asyncio.sleep(3)
        assert (with_it.ticks, later.ticks, told) == (1, 1, [bug])

    run(main())


def test_a_deadline_keeps_nobody() -> None:
    """P9: a slot that is done with is free at once, not when its lease would have ended; those that
    stay are told in time."""

    async def main() -> None:
        loop, deadlines = asyncio.get_running_loop(), Deadlines()
        left, stays = Timed(), Timed()
        gone = ref(left)
        deadlines.set(left, loop.time() + 1)
        deadlines.set(stays, loop.time() + 2)
        del left
        assert gone() is None
        await asyncio.sleep(3)
        assert stays.ticks == 1

    run(main())
