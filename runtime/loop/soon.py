"""What happens when the present callback of the event loop has ended: pumps, then what they and
others have to write.

Each turn of the loop looks at all sockets in between, and beside a crowd that is milliseconds. So
what follows from a commit (its receipts, its pushes, the writing of both) does not take a turn
each: it is collected while the commit is answered, and done at the end of that same callback.
Outside of such a block it is done in the next turn. What it asks for itself has the turn behind
that one, so that a backlog starves nobody, however many commits are answered in this one.
"""

import asyncio
from collections.abc import Callable

Work = Callable[[], None]


class Soon:
    """Of one event loop. As a context manager: what is asked for within is done at its end."""

    __slots__ = ("_behind", "_depth", "_has_turn", "_is_doing", "_last", "_work")

    def __init__(self) -> None:
        self._work: list[Work] = []
        self._behind: list[Work] = []
        """What was asked for by what was done: the next turn's."""
        self._last: list[Work] = []
        self._depth = 0
        self._is_doing = False
        self._has_turn = False

    def call(self, work: Work) -> None:
        """In the order of asking."""
        (self._behind if self._is_doing else self._work).append(work)
        self._ask()

    def call_last(self, work: Work) -> None:
        """The same, behind everything that `call` was asked for."""
        self._last.append(work)
        self._ask()

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth and (self._work or self._last):
            self._do()

    def _ask(self) -> None:
        if not (self._depth or self._is_doing or self._has_turn):
            self._has_turn = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._has_turn = False
        self._work[:0] = self._behind
        self._behind = []
        self._do()

    def _do(self) -> None:
        self._is_doing = True
        try:
            work, self._work = self._work, []
            for one in work:
                _do_alone(one)
            last, self._last = self._last, []
            for one in last:
                _do_alone(one)
        finally:
            self._is_doing = False
            if self._behind or self._last:
                self._ask()


def _do_alone(work: Work) -> None:
    """What it raises is told, as of any callback of the loop, and is nobody else's."""
    try:
        work()
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": "unexpected", "exception": error})
