"""Who has the interpreter's lock when a commit begins: the writer's thread, until its COMMIT.

A thread that has slept wakes up on another core, a tenth of a millisecond later where that core
was halted, and then asks for the lock. The loop, which goes from socket to socket, gives the lock
up at each of them for as long as a read takes, is back before the other one has woken up, and each
time the half millisecond begins anew after which Python would make it wait. So the writer began up
to six milliseconds after it had been handed a commit, and between two statements waited as long
again. [Each event of both threads traced under `bench --scenario open10k`.]

So the loop stands still, for as long as the statements take. What it would have done meanwhile
needs the lock too; the fsync, which does not, it does not wait for.
"""

import threading
from typing import Final

STAND_S: Final = 0.002
"""At most so long: nobody else is heard meanwhile."""
STAND_BYTES_MIN: Final = 4 * 1024
"""With less the loop has hardly anything else to do, and gives the lock up of itself."""
STAND_BYTES_MAX: Final = 128 * 1024
"""What takes longer than the loop stands is begun no sooner for it."""


class FirstTurn:
    """Between the loop and the writer's thread. Everything here happens under the interpreter's
    lock, but for the waiting itself."""

    def __init__(self) -> None:
        self.is_idle = False
        """The writer waits for something to do. Set by its thread."""
        self._gate: threading.Lock | None = None

    def wanted(self, size: int) -> bool:
        """By the loop, before it hands `size` bytes over: whether it is to `stand` once everything
        is handed over that goes with them."""
        if not (self.is_idle and STAND_BYTES_MIN <= size <= STAND_BYTES_MAX):
            return False
        self.is_idle = False
        self._gate = threading.Lock()
        self._gate.acquire()
        return True

    def stand(self) -> None:
        """By the loop: wait until the writer is at its COMMIT, or has ended without one; STAND_S at
        most. It is there already: nothing happens."""
        gate = self._gate
        if gate is not None:
            gate.acquire(timeout=STAND_S)

    def over(self) -> None:
        """By the writer: what needs the lock is done. Nobody stands: nothing happens."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.release()
