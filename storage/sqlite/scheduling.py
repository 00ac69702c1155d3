"""The writer's thread on the core of the loop, while commits are small.

The two take turns: each needs the interpreter's lock for nearly all it does. Linux puts a thread
that wakes up on a core that is idle, so each turn woke another core, which takes a tenth of a
millisecond where it was halted, and found nothing of what the other thread had just written in its
caches. On one core a turn is a switch. With large commits there is enough that needs no lock
(SQLite, the kernel), and two cores do more.

The loop itself runs wherever the kernel puts it: threads and processes that it starts would stay
where it was kept. [`bench --scenario open10k`, five runs of each in turns: p99 17.8 ms, 21.5
without, p50 9.4 and 10.2, 2 % less CPU time; with the loop kept there, too, 15.2, and once 62.
`batch100` on one core: a seventh fewer messages.]

Who has the interpreter's lock when a commit begins: the writer's thread, until its COMMIT.

A thread that has slept wakes up on another core, a tenth of a millisecond later where that core
was halted, and then asks for the lock. The loop, which goes from socket to socket, gives the lock
up at each of them for as long as a read takes, is back before the other one has woken up, and each
time the half millisecond begins anew after which Python would make it wait. So the writer began up
to six milliseconds after it had been handed a commit, and between two statements waited as long
again. [Each event of both threads traced under `bench --scenario open10k`.]

So the loop stands still, for as long as the statements take. What it would have done meanwhile
needs the lock too; the fsync, which does not, it does not wait for.
"""

import contextlib
import ctypes
import os
import threading
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from typing import Final, Protocol

SMALL_BYTES: Final = 128 * 1024
"""A commit that was handed more is large."""
STAY_S: Final = 0.25
"""Then the kernel may move it: who has nothing to store any more is kept nowhere."""
APART_S: Final = 1.0
"""So long after a large commit the writer goes where it likes."""


class Cores(Protocol):
    """What the kernel is asked for."""

    def here(self) -> int:
        """The core that the caller runs on."""

    def of(self, thread: int) -> set[int]:
        """Those that a thread may run on."""

    def put(self, thread: int, cores: set[int]) -> None:
        """It runs on one of these from now on."""


class LinuxCores:
    """`sched_getcpu(3)`, `sched_setaffinity(2)`. Raises AttributeError where there is no such
    thing."""

    def __init__(self) -> None:
        # PyDLL keeps the interpreter's lock, as the other two do: the writer, woken up by one act,
        # would begin without those that are handed over behind it in the same turn of the loop.
        self.here: Callable[[], int] = ctypes.PyDLL(None).sched_getcpu
        self.of = os.sched_getaffinity
        self.put = os.sched_setaffinity


def cores() -> Cores | None:
    """Of this machine; None: they cannot be chosen here."""
    with contextlib.suppress(AttributeError, OSError):  # macOS
        return LinuxCores()
    return None


class SharedCore:
    """Of one store. Everything happens in the loop's thread; `writer` is the native id of the other
    one. `cores` None: nothing happens, ever."""

    def __init__(self, loop: AbstractEventLoop, writer: int, cores: Cores | None) -> None:
        self._loop = loop
        self._cores = cores
        self._writer = writer
        self._before: set[int] = set()
        """Where the writer may run; empty: it does."""
        self._core = -1
        self._apart_until = float("-inf")
        self._timer: TimerHandle | None = None

    def handed_over(self, size: int) -> None:
        """Something of so many bytes is on its way to the writer."""
        if size > SMALL_BYTES:
            self.part()
            self._apart_until = self._loop.time() + APART_S
        elif self._cores is not None and (self._before or self._loop.time() >= self._apart_until):
            self._join(self._cores)

    def _join(self, cores: Cores) -> None:
        here = cores.here()
        if here == self._core and self._before:
            return
        try:
            before = self._before or cores.of(self._writer)
            if len(before) < 2 or here not in before:
                # There is nothing to choose, or somebody has put it elsewhere: no need to ask soon.
                self._apart_until = self._loop.time() + APART_S
                return
            cores.put(self._writer, {here})
        except OSError:  # not allowed in here, or the thread has ended
            self._cores = None
            return
        if not self._before:
            self._before = before
            self._timer = self._loop.call_later(STAY_S, self.part)
        self._core = here

    def part(self) -> None:
        """The writer goes where it likes; it does already: nothing happens. If somebody else has
        put it somewhere meanwhile, it stays there."""
        before, self._before = self._before, set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if before and self._cores is not None:
            with contextlib.suppress(OSError):  # it has ended
                if self._cores.of(self._writer) == {self._core}:
                    self._cores.put(self._writer, before)


STAND_S: Final = 0.002
"""At most so long: nobody else is heard meanwhile."""
STAND_BYTES_MIN: Final = 4 * 1024
"""With less the loop has hardly anything else to do, and gives the lock up of itself."""
STAND_BYTES_MAX: Final = 128 * 1024
"""What takes longer than the loop stands is begun no sooner for it."""


class CommitHandoff:
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
