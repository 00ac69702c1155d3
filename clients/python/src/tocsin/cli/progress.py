"""The progress of long work: a live line on a terminal, otherwise a plain line now and then."""

import shutil
import time
from collections.abc import Callable
from typing import Final, TextIO

from tocsin.cli.common import plural
from tocsin.cli.durations import format_duration

LIVE_EVERY_S: Final = 0.2
PLAIN_EVERY_S: Final = 5.0
QUIET_S: Final = 1.0
"""The time before the first live line on a terminal, in seconds. Work that takes less prints
none."""


class Progress:
    """The progress of one work. `total` and `done` count the same thing, such as bytes of a file. A
    `total` of None means that the end is unknown."""

    def __init__(
        self,
        stream: TextIO,
        *,
        total: int | None,
        verb: str = "published",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._total = total
        self._verb = verb
        self._clock = clock
        self._is_live = stream.isatty()
        self._started = clock()
        self._due = self._started + (QUIET_S if self._is_live else PLAIN_EVERY_S)
        self._width = 0

    def update(self, messages: int, done: int, note: str = "") -> None:
        """Print the progress if it is due; `note` is appended to the line."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + (LIVE_EVERY_S if self._is_live else PLAIN_EVERY_S)
        line = self.line(messages, done, now - self._started)
        if note:
            line += f"; {note}"
        if self._is_live:
            self._stream.write("\r" + self._cut(line).ljust(self._width))
            self._width = len(self._cut(line))
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def _cut(self, line: str) -> str:
        """Cut a line to the terminal's width, because a longer one could not be wiped."""
        return line[: max(20, shutil.get_terminal_size().columns - 1)]

    def line(self, messages: int, done: int, elapsed_s: float) -> str:
        """Return the line: `published 45,000 messages, 38 %, 52,000/s, 2s to go`."""
        parts = [f"{self._verb} {plural(messages, 'message')}"]
        if self._total:
            parts.append(f"{min(done / self._total, 1.0):.0%}")
        if elapsed_s > 0:
            parts.append(f"{messages / elapsed_s:,.0f}/s")
            if self._total and 0 < done < self._total:
                parts.append(f"{format_duration(elapsed_s * (self._total / done - 1))} to go")
        return ", ".join(parts)

    def close(self) -> None:
        """Wipe the live line."""
        if self._is_live and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
        self._width = 0
