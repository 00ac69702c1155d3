"""When the socket of an HTTP connection is read: uvicorn's flow control, with one more reason to
wait."""

import asyncio
from typing import Final

from uvicorn.protocols.http.flow_control import FlowControl

from gateway.intake import LARGE_READ_BYTES, Intake

PIECES_AT_ONCE: Final = 4
"""Reads of one request for which nobody waits: a header, a body, and what a network cut them into.
More of them, and small, is somebody who says a thing byte by byte."""

EXCUSED_S: Final = 1.0
"""What comes from who is late is read once more in it, unless thousands are."""


class Flow(FlowControl):
    """When a socket is read: when the application wants more of a body, and it is its turn."""

    def __init__(self, transport: asyncio.Transport, large: Intake, small: Intake) -> None:
        super().__init__(transport)
        self._large, self._small = large, small
        """Where large reads take their turns, and where small ones do."""
        self._pieces = 0
        """Of what is not complete, so far."""
        self._was_excused = False
        self.is_resting = False
        self._is_over = False

    def have_read(self, size: int, *, is_complete: bool) -> None:
        """So many bytes. Who is in the middle of much, or of little and not the first piece of it,
        lets others be read."""
        if is_complete:
            self._pieces, self._was_excused = 0, False
            return
        self._pieces = 0 if size >= LARGE_READ_BYTES else self._pieces + 1
        if not self._pieces:
            self._rest(self._large)
        elif self._pieces > PIECES_AT_ONCE:
            self._rest(self._small)

    def excuse_s(self, timeout_s: float) -> float:
        """Asked when a client has not said all within `timeout_s`: seconds that it has yet, because
        we do not read at the moment; 0: it is late. Who says it byte by byte is read seldom, so it
        is excused once, and not for long."""
        if self.read_paused or (self.is_resting and self._pieces <= PIECES_AT_ONCE):
            return timeout_s
        if not self.is_resting or self._was_excused:
            return 0.0
        self._was_excused = True
        return EXCUSED_S

    def _rest(self, intake: Intake) -> None:
        if not self.is_resting:
            self.is_resting = True
            if not self.read_paused:
                self._transport.pause_reading()
            intake.rest(self._read_on)

    def hand_over(self) -> None:
        """Somebody else says from now on when the socket is read."""
        self._is_over = True
        if self.is_resting or self.read_paused:
            self._transport.resume_reading()

    def _read_on(self) -> None:
        self.is_resting = False
        if not self._is_over and not self.read_paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def pause_reading(self) -> None:
        """As uvicorn's."""
        if not self.read_paused:
            self.read_paused = True
            if not self.is_resting:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        """As uvicorn's."""
        if self.read_paused:
            self.read_paused = False
            if not self.is_resting:
                self._transport.resume_reading()
