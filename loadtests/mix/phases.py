"""What launcher and processes of a run tell each other, over files in the run's folder.

Locust's own messages end with its users: who drains has to go on when publishing is over, and a
ledger is to be whole before anything is torn down. A file that is replaced is seen whole or not.
"""

import os
from pathlib import Path
from typing import Final, Literal

import msgspec

PLAN: Final = "plan.json"
_PHASE: Final = "phase.json"
LEDGER: Final = "ledger-{}.json"
_PROGRESS: Final = "progress-{}.json"

Name = Literal["ramp", "measure", "drain", "over"]


class Phase(msgspec.Struct, frozen=True):
    """Where the run is. From `drain` on nothing new is published, from `over` on nothing counts."""

    name: Name = "ramp"
    since_ns: int = 0
    """When measuring began."""
    is_drained: bool = False
    """Of `over`: nothing was left for anybody."""


class Progress(msgspec.Struct, frozen=True):
    """How far one process is."""

    users: dict[str, int]
    """Of each of Locust's classes."""
    certified: int
    given: int
    unanswered: int
    """Publishes that have no last answer yet."""
    violations: int
    p99_ms: float
    given_at_ns: int
    """When anything was given last."""
    error: str = ""
    """What ended one of its users, in words."""

    @property
    def standing(self) -> int:
        """Users, all together."""
        return sum(self.users.values())


def _put(path: Path, what: msgspec.Struct) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(msgspec.json.encode(what))
    os.replace(part, path)


def tell(folder: Path, phase: Phase) -> None:
    """The launcher says where the run is."""
    _put(folder / _PHASE, phase)


def phase(folder: Path) -> Phase:
    """Where it is; the ramp before anything was said."""
    try:
        return msgspec.json.decode((folder / _PHASE).read_bytes(), type=Phase)
    except FileNotFoundError:
        return Phase()


def report(folder: Path, process: int, progress: Progress) -> None:
    """A process says how far it is."""
    _put(folder / _PROGRESS.format(process), progress)


def progress(folder: Path, processes: int) -> list[Progress]:
    """What the processes have said last; those that have said nothing are left out."""
    found = []
    for process in range(processes):
        try:
            data = (folder / _PROGRESS.format(process)).read_bytes()
        except FileNotFoundError:
            continue
        found.append(msgspec.json.decode(data, type=Progress))
    return found
