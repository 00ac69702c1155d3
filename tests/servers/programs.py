"""Programs that are not ours: what stands around a broker. Where they are, and their processes.

`python -m tests.servers.programs haproxy nginx` prints which of those are missing, for
scripts/needs.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_ADMINS_PATHS: Final = "/usr/sbin:/sbin:/usr/local/sbin"
"""Where Debian has them, and not every user's PATH looks."""

_PACKAGES: Final = {"setpriv": "util-linux", "promtool": "prometheus"}
"""Of those that are called otherwise."""


class ProgramMissing(RuntimeError):
    """It is not here; the text says what to do."""


def find(name: str) -> str | None:
    """The path of this program: on PATH, or where scripts/needs unpacks it; None: neither."""
    usual = shutil.which(name, path=f"{os.environ['PATH']}:{_ADMINS_PATHS}")
    unpacked = Path(sys.prefix) / _PACKAGES.get(name, name) / name
    return usual or (str(unpacked) if unpacked.exists() else None)


def needed(name: str) -> str:
    """The path of this program. Raises ProgramMissing."""
    found = find(name)
    if found is None:
        package = _PACKAGES.get(name, name)
        raise ProgramMissing(f"{name} is needed here (Debian, Ubuntu: apt install {package})")
    return found


class Program:
    """A command, one process at a time, which ends when the thread that started it does: start
    it from the main thread. `inside` is the command that runs another in its network; what it
    says is added to `log`. Its environment is ours with `settings`."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        inside: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        self._settings = settings or {}
        self._command = [needed("setpriv"), "--pdeathsig", "KILL", *inside, *command]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether there is a process, frozen or not."""
        return self._process is not None and self._process.poll() is None

    def spawn(self) -> None:
        """Start it and return at once."""
        assert not self.is_running
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env=os.environ | self._settings,
            )  # fmt: skip

    def children(self) -> list[str]:
        """The ids of the processes that it has started and that are there."""
        return Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()

    def exit_code(self) -> int | None:
        """How it ended, below 0: by which signal; None: it runs, or was never started."""
        return None if self._process is None else self._process.poll()

    def said(self) -> str:
        """Return its log, over all its lives."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def log_end(self, lines: int = 20) -> str:
        """The last lines of its log."""
        return "\n".join(self.said().splitlines()[-lines:])

    def end(self) -> None:
        """SIGTERM, and return at once. One that has gone is no error."""
        if self._process is not None:
            self._process.terminate()

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; whether it has come."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._process is not None:
                self._process.wait(timeout_s)
        return not self.is_running

    def kill(self) -> None:
        """kill -9 it and what it has started, and wait. One that has gone is no error."""
        if self._process is None:
            return
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


if __name__ == "__main__":
    sys.stdout.write("".join(f"{name}\n" for name in sys.argv[1:] if find(name) is None))
