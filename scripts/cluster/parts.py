"""The processes of a cluster on this machine.

They are started in stages, watched, started again when one ends, and stopped in the opposite order.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.servers.node import until
from tests.servers.programs import Program

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
PAUSE_S: Final = 0.5
"""The pause before a part that has ended is started again, in seconds. Each early end doubles
it."""
PAUSE_S_MAX: Final = 30.0
SOON_S: Final = 10.0
SAID_S: Final = 2.0
"""The length from which a pause is reported, in seconds."""


class PartFailed(RuntimeError):
    """A part did not become ready; the text has the end of its log."""


@dataclass
class Part:
    """A process, over all its starts. Its log is in `folder`."""

    name: str
    command: Sequence[str]
    folder: Path
    at: str
    """The address at which it listens, for people; empty if it listens nowhere."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Variables of its environment beside ours."""
    is_ready: Callable[[], bool] = lambda: True
    stop_timeout_s: float = STOP_TIMEOUT_S
    """The time to end after a signal, in seconds."""
    stays_down_s: float = PAUSE_S
    """The time for which it stays down after its end, in seconds."""
    program: Program = field(init=False)
    starts: int = 0
    _is_back: bool = True
    """Whether its readiness need not be reported."""
    _pause_s: float = PAUSE_S
    _started_at: float = 0.0
    _due_at: float | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{self.name}.log"
        self.program = Program(self.command, log, settings=self.settings)

    def start(self, now: float) -> None:
        """Start the process and return at once."""
        self.program.spawn()
        self.starts += 1
        self._started_at = now
        self._due_at = None

    def revive(self, now: float) -> str:
        """If the process has ended, start it again after its pause.

        Returns a sentence about that, or about its readiness afterwards; empty if there is none.
        """
        if self.program.is_running:
            return self._came_back(now)
        if self._due_at is None:
            lived_s = now - self._started_at
            again_s = min(2 * self._pause_s, PAUSE_S_MAX)
            self._pause_s = PAUSE_S if lived_s > SOON_S else again_s
            pause_s = max(self._pause_s, self.stays_down_s)
            self._due_at = now + pause_s
            when = f" in {pause_s:.0f} s" if pause_s >= SAID_S else ""
            return f"{self.name} {ending(self.program.exit_code())}, and is started again{when}"
        if now >= self._due_at:
            self.start(now)
            self._is_back = False
        return ""

    def _came_back(self, now: float) -> str:
        if self._is_back:
            return ""
        try:
            until(self.is_ready, self.name, within_s=0)
        except TimeoutError:
            return ""
        self._is_back = True
        took_s = now - self._started_at
        return f"{self.name} is ready again, process {self.program.pid}: {took_s:.1f} s"

    def wait_ready(self) -> None:
        """Wait until the part is ready. Raises PartFailed."""

        def looked() -> bool:
            if not self.program.is_running:
                raise PartFailed(
                    f"{self.name} {ending(self.program.exit_code())}:\n{self.program.log_end()}"
                )
            return self.is_ready()

        try:
            until(looked, f"{self.name} is ready", within_s=START_TIMEOUT_S)
        except TimeoutError as error:
            raise PartFailed(f"{error}:\n{self.program.log_end()}") from None


def ending(code: int | None) -> str:
    """Return how a process has ended, in words."""
    if code is not None and code < 0:
        return f"was ended by signal {-code}"
    return f"has ended with exit code {code}"


class Parts:
    """All running parts, in the stages in which they were started. `say` is called with each
    sentence for people."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._stages: list[list[Part]] = []

    def all(self) -> list[Part]:
        """Return all parts in the order of their starts."""
        return [part for stage in self._stages for part in stage]

    def start(self, what: str, *parts: Part) -> None:
        """Start one more stage, and wait until all its parts are ready. Raises PartFailed."""
        began = time.monotonic()
        self._stages.append([*parts])
        for part in parts:
            part.start(began)
        for part in parts:
            part.wait_ready()
        self._say(f"{what}: {time.monotonic() - began:.1f} s")

    def look(self) -> None:
        """Start again all parts that have ended."""
        for part in self.all():
            said = part.revive(time.monotonic())
            if said:
                self._say(said)

    def stop(self) -> None:
        """Send SIGTERM, stage by stage from the last one. A part that does not end in time is
        killed."""
        while self._stages:
            stage = self._stages.pop()
            for part in stage:
                part.program.end()
            told_at = time.monotonic()
            for part in stage:
                left_s = told_at + part.stop_timeout_s - time.monotonic()
                part.program.wait(max(0.0, left_s))
                part.program.kill()
