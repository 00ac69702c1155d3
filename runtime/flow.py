"""When the socket of an HTTP connection is read: uvicorn's flow control, with one more reason to
wait."""

import asyncio

from uvicorn.protocols.http.flow_control import FlowControl

from runtime.loop.intake import Intake


class Flow(FlowControl):
    """When a socket is read: when the application wants more of a body, and it is its turn."""

    def __init__(self, transport: asyncio.Transport, intake: Intake) -> None:
        super().__init__(transport)
        self._intake = intake
        self.is_resting = False
        self._is_over = False

    def rest(self) -> None:
        """Until it is its turn. Again: nothing happens."""
        if not self.is_resting:
            self.is_resting = True
            if not self.read_paused:
                self._transport.pause_reading()
            self._intake.rest(self._read_on)

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
