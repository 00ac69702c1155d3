"""Connections are accepted a few at a time, in turns with everybody else who begins something.

The event loop's own server accepts all that wait whenever it looks: after a network was away that
is a fleet, each connection of which costs 0.1 ms, and nobody is heard meanwhile. Here those who
wait, wait in the kernel (P9).
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from runtime.loop.turns import Turns

AT_ONCE: Final = 4
"""Accepted in one turn: together they are half a millisecond's work, as a handshake is."""
PAUSE_S: Final = 1.0
"""Where there is no file descriptor, or no memory, for one more."""
_SHORT: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_LOG: Final = logging.getLogger("gateway.accepting")


class Accepting:
    """Stands where asyncio's Server would: `close`, `wait_closed`."""

    def __init__(
        self,
        bound: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        turns: Turns,
        tls: dict[str, Any],
    ) -> None:
        """`bound` stays its owner's. `tls`: as for `connect_accepted_socket`; {}: none."""
        self._bound = bound
        self._protocol = protocol
        self._turns = turns
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[Any]] = set()
        self._is_open = False

    def start(self, backlog: int) -> None:
        """Up to `backlog` wait in the kernel. Raises OSError."""
        self._bound.setblocking(False)
        self._bound.listen(backlog)
        self._is_open = True
        self._loop.add_reader(self._bound, self._somebody_waits)

    def close(self) -> None:
        """Accept nobody any more; those who are connected stay. Again: nothing happens."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._bound)
            for opening in self._opening:
                opening.cancel()

    async def wait_closed(self) -> None:
        """Those who were not yet connected are gone."""
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _somebody_waits(self) -> None:
        self._loop.remove_reader(self._bound)
        self._turns.take(self._accept)

    def _accept(self) -> None:
        if not self._is_open:
            return
        for _ in range(AT_ONCE):
            try:
                accepted, _address = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                if error.errno not in _SHORT:
                    raise
                _LOG.error("no connection is accepted for %g s: %s", PAUSE_S, error.strerror)
                self._loop.call_later(PAUSE_S, self._look)
                return
            opening = self._loop.create_task(self._open(accepted))
            self._opening.add(opening)
            opening.add_done_callback(partial(self._ended, accepted))
        self._look()

    def _look(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._bound, self._somebody_waits)

    async def _open(self, accepted: socket.socket) -> None:
        try:
            if accepted.family != socket.AF_UNIX:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(self._protocol, accepted, **self._tls)
        except OSError as error:  # ssl.SSLError among them: it went, or does not speak TLS
            _LOG.debug("a connection did not come to be: %s", error)
            accepted.close()

    def _ended(self, accepted: socket.socket, opening: asyncio.Task[None]) -> None:
        self._opening.discard(opening)
        if opening.cancelled():  # before it had begun, perhaps: then nothing of it ran
            accepted.close()
