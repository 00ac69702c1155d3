"""Who waits for an operator's decisions about the parked keys of one slot."""

import asyncio


class Decisions:
    """Key hash → the one who waits. Made anew with each slot."""

    def __init__(self) -> None:
        self._waits: dict[int, asyncio.Future[bool]] = {}

    def wait(self, key: int) -> "asyncio.Future[bool]":
        """True: the decision is durable. False: it is not made, or the slot ended before."""
        decided: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waits[key] = decided
        return decided

    def tell(self, keys: list[int], *, made: bool) -> None:
        """Answer those who wait: the decisions about these keys are durable, or were not made."""
        for key in keys:
            self._answer(self._waits.pop(key), made)

    def end(self) -> None:
        """The slot has ended: whether the others became durable will not be known here."""
        for decided in self._waits.values():
            self._answer(decided, False)
        self._waits.clear()

    def _answer(self, decided: "asyncio.Future[bool]", durable: bool) -> None:
        if not decided.done():  # who waited may have gone
            decided.set_result(durable)
