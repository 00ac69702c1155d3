"""SDK clients whose frames go to a log that the judge and `sessions` read.

In the log a stream is a session, over any number of transports. A client that gets another session
continues as another stream.
"""

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
import tocsin

from loadtests.clients.recorder import Recorder

Direction = Literal["sent", "received"]
Transport = Literal["websocket", "long-poll"]
_HELLO: Final = b'"type":"hello"'
_WELCOME: Final = b'"type":"welcome"'
_LOOKED_AT_BYTES: Final = 4096
"""Number of bytes searched for a welcome, which is the first frame of its message."""


class _Welcome(msgspec.Struct):
    type: str
    session: str = ""
    resumed: list[int] | None = None


_ONE: Final = msgspec.json.Decoder(_Welcome)
_MANY: Final = msgspec.json.Decoder(list[_Welcome])


class Tracer:
    """A recorder of one client's frames. `counts`: what happened to its connections, such as
    `reconnects` and `fallbacks`."""

    def __init__(
        self, log: Recorder, streams: "itertools.count[int]", start: Callable[[], int], who: str
    ) -> None:
        """`start`: returns how many times the broker has been started, 1 for its first start."""
        self.who = who
        self._log = log
        self._streams = streams
        self._start = start
        self._at = 0
        self._stream = 0
        self._session = ""
        self._hello = b""
        self._transport: Transport | None = None
        self.counts: Counter[str] = Counter()

    def trace(self, direction: Direction, transport: Transport, frames: bytes) -> None:
        """Record the frames of one message, as the `trace` argument of tocsin.connect. A hello is
        recorded with its welcome."""
        start = frames[:_LOOKED_AT_BYTES]
        if direction == "sent" and _HELLO in start:
            self._hello = frames  # its welcome says whose it is
            self.counts["attempts"] += 1
            return
        if direction == "received" and _WELCOME in start:
            self._welcomed(frames, transport)
        # Frames that were read after a kill came from the start before it.
        self._log.ws(self._at, self._stream, b"out" if direction == "sent" else b"in", frames)

    def _welcomed(self, frames: bytes, transport: Transport) -> None:
        many = _MANY.decode(frames) if frames[:1] == b"[" else [_ONE.decode(frames)]
        welcome = next(frame for frame in many if frame.type == "welcome")
        before, self._transport = self._transport, transport
        if before is not None:
            self.counts["reconnects"] += 1
            self.counts["resumed" if welcome.resumed is not None else "begun anew"] += 1
        if (before, transport) == ("websocket", "long-poll"):
            self.counts["fallbacks"] += 1
        elif (before, transport) == ("long-poll", "websocket"):
            self.counts["returns"] += 1
        if welcome.session != self._session:
            self._session, self._stream = welcome.session, next(self._streams)
        self._at = self._start()
        self._log.ws(self._at, self._stream, b"out", self._hello)


class Clients:
    """A maker of clients that all record to one log, and the sums of their counts."""

    def __init__(self, log: Recorder, start: Callable[[], int] = lambda: 1) -> None:
        self.log = log
        self.tracers: list[Tracer] = []
        self._start = start
        self._streams = itertools.count(1)

    def connect(self, url: str, *, who: str = "", **options: Any) -> tocsin.Client:
        """Call tocsin.connect with a trace. `counts_of` groups clients by `who`."""
        tracer = Tracer(self.log, self._streams, self._start, who)
        self.tracers.append(tracer)
        return tocsin.connect(url, trace=tracer.trace, **options)

    @property
    def counts(self) -> Counter[str]:
        """The sum of the counts of all clients."""
        return sum((tracer.counts for tracer in self.tracers), Counter())

    def counts_of(self, who: str) -> Counter[str]:
        """Return the sum of the counts of the clients with this `who`."""
        found = (tracer.counts for tracer in self.tracers if tracer.who == who)
        return sum(found, Counter())
