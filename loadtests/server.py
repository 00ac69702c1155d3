"""A broker under test: a `tocsin serve` of our own, its life, its CPU time and its memory."""

import contextlib
import os
import resource
import secrets
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 60.0
_NOTHING: Final[Mapping[str, str]] = {}
_COUNTS_HEAD: Final = struct.Struct("<2Q")
"""The beginning of the delivery log's file `counts`: magic, and the gateway's number, which is in
the name of the gateway's counts in shared memory."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
SERVE: Final = ("-c", "from gateway.cli.serve import serve; serve()")
"""Arguments with which our interpreter starts the shipped `tocsin serve`, whatever is on the
PATH."""


def tocsin(*arguments: str) -> list[str]:
    """Return the command with which our interpreter runs the shipped `tocsin`, whatever is on the
    PATH."""
    return [sys.executable, "-c", "from tocsin_command import main; main()", *arguments]


class ServerFailed(RuntimeError):
    """The broker did not start, did not end in time, or ended by itself; the text says more."""


def free_port() -> int:
    """Return a TCP port of loopback on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def raise_file_limit(files: int) -> None:
    """Let this process and its children open this many files.

    Raises:
        RuntimeError: the hard limit is lower; the text says by how much.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < files:
        raise RuntimeError(
            f"this needs {files} open files and the hard limit here is {hard}: "
            f"raise it (ulimit -Hn {files}) or take fewer connections"
        )
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


class Process:
    """A running process as /proc describes it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def cpu_s(self) -> float:
        """Return user and system time of all its threads so far, in seconds, to 10 ms. Raises
        ServerFailed if the process has ended."""
        fields = self._read("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def rss_bytes(self) -> int:
        """Return resident memory in bytes. Raises ServerFailed if the process has ended."""
        for line in self._read("status").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise ServerFailed(f"process {self.pid} has ended")

    def _read(self, name: str) -> str:
        try:
            return Path(f"/proc/{self.pid}/{name}").read_text()
        except (FileNotFoundError, ProcessLookupError):  # the latter if it ends meanwhile
            raise ServerFailed(f"process {self.pid} has ended") from None


class Server:
    """A `tocsin serve` on `data_dir`. Its log is `<data_dir>.log`, over all starts, its master key
    `<data_dir>.key`.

    `command` is what the interpreter runs in place of the shipped server (negative controls).
    `port` 0 picks a free port and keeps it over restarts. `settings` are further variables of its
    environment (`TOCSIN_…`). If they make it speak TLS, `ca` is its authority's file.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        command: Sequence[str] = SERVE,
        level: str = "",
        settings: Mapping[str, str] = _NOTHING,
        ca: Path | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._tls: ssl.SSLContext | None = None
        if ca is not None:
            self.url = f"https://localhost:{self.port}"
            self._tls = ssl.create_default_context(cafile=ca)
        self.log_path = data_dir.with_name(data_dir.name + ".log")
        self.key_path = data_dir.with_name(data_dir.name + ".key")
        self._command = [sys.executable, *command]
        self._level = level
        self._settings = dict(settings)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        assert self._process is not None
        return self._process.pid

    def spawn(self) -> None:
        """Start the broker and return at once. Clients of earlier starts find it on the same
        port."""
        settings = {
            name: text for name, text in os.environ.items() if not name.startswith("TOCSIN_")
        }
        settings |= {
            "TOCSIN_HOST": "127.0.0.1",
            "TOCSIN_PORT": str(self.port),
            "TOCSIN_DATA_DIR": str(self.data_dir),
        }
        # Neither the key of the user who runs this, nor a new one for each start on a data folder.
        if not self.key_path.exists():
            self.key_path.touch(mode=0o600)
            self.key_path.write_text(secrets.token_hex(32))
        settings["TOCSIN_MASTER_KEY_FILE"] = str(self.key_path)
        if self._level:
            settings["TOCSIN_LOG_LEVEL"] = self._level
        settings |= self._settings
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=settings,
                cwd=Path(__file__).parent.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is for this process, which ends the broker
            )

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> float:
        """Wait until /readyz answers 200; return the seconds it took. Raises ServerFailed."""
        began = time.monotonic()
        while time.monotonic() - began < timeout_s:
            if not self.running():
                raise ServerFailed(f"the broker ended with {self.exit_code()}:\n{self.log_tail()}")
            with (
                contextlib.suppress(OSError),  # not listening yet, or not ready: 503
                urllib.request.urlopen(
                    f"{self.url}/readyz", timeout=5, context=self._tls
                ) as answer,
            ):
                if answer.status == 200:
                    return time.monotonic() - began
            time.sleep(0.02)
        raise ServerFailed(f"the broker was not ready within {timeout_s} s:\n{self.log_tail()}")

    def start(self) -> None:
        """Start the broker and wait until it is ready."""
        self.spawn()
        self.wait_ready()

    def __enter__(self) -> Self:
        """Start the broker; it is killed at the end of the block."""
        try:
            self.start()
        except BaseException:
            self.discard()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def exit_code(self) -> int | None:
        """Return the exit code; None while it runs, or if it was never started."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """Send `kill -9`, and wait until the process has ended."""
        self._signal(signal.SIGKILL)

    def discard(self) -> None:
        """Kill the broker for good. Its folder is not used again, so its counts in shared memory
        are deleted too."""
        self.kill()
        with contextlib.suppress(OSError, struct.error):
            counts = (self.data_dir / "delivery" / "counts").read_bytes()
            _, gateway = _COUNTS_HEAD.unpack_from(counts)
            Path(f"/dev/shm/tocsin-counts-{gateway:016x}").unlink()

    def stop(self) -> None:
        """End the broker cleanly with SIGTERM. Raises ServerFailed, after a `kill -9`, when that
        takes longer than STOP_TIMEOUT_S."""
        try:
            self._signal(signal.SIGTERM)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(
                f"SIGTERM did not end the broker within {STOP_TIMEOUT_S} s:\n{self.log_tail()}"
            ) from None

    def freeze(self) -> None:
        """Send SIGSTOP. When this returns, none of its threads runs, not even within the kernel."""
        os.kill(self.pid, signal.SIGSTOP)
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            while (task / "stat").read_text().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.0005)

    def thaw(self) -> None:
        """Send SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        process, waiting_s = self._process, STOP_TIMEOUT_S
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(number)
        process.wait(waiting_s)

    def log_tail(self, lines: int = 25) -> str:
        """Return the last lines of its log."""
        if not self.log_path.exists():
            return "(no log)"
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
