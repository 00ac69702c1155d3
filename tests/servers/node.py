"""One Redis, Valkey or Sentinel process of a test: its folder, its life, what it says."""

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers.binaries import Binary

T = TypeVar("T")
DEADLINE_S = 30.0
"""How long anything is waited for. Nothing here takes a tenth of it on a machine at rest."""
_BETWEEN_S = 0.01
_CONNECTION: Any = redis.Connection
"""Has no types."""
_ALL_ON_DISK = {
    "loading": "0",
    "aof_enabled": "1",
    "aof_rewrite_in_progress": "0",
    "aof_rewrite_scheduled": "0",
    "aof_last_bgrewrite_status": "ok",
    "aof_last_write_status": "ok",
}


class NodeFailed(RuntimeError):
    """It did not start, or has ended; the text holds the end of its log."""


class Login(NamedTuple):
    """A user of the server, and the password."""

    user: str
    password: str


def until(looked: Callable[[], T], what: str, *, within_s: float = DEADLINE_S) -> T:
    """What `looked` answers as soon as that is true. A server that cannot be asked is asked again.

    Raises:
        TimeoutError: it has not become true; the text says what was waited for.
    """
    deadline = time.monotonic() + within_s
    while True:
        problem: Exception | None = None
        try:
            answer = looked()
        except redis.RedisError as error:
            problem = error
        else:
            if answer:
                return answer
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{what}: not within {within_s:g} s" + (f" ({problem})" * bool(problem))
            )
        time.sleep(_BETWEEN_S)


class Node:
    """A server with the configuration `<folder>/node.conf`, which the server may write itself.

    `inside` is the command that runs another in the node's network, and `login` who asks. The
    process dies with the thread that started it, so start it from the main thread: then it does
    not outlive a test that is killed.
    """

    def __init__(
        self,
        binary: Binary,
        folder: Path,
        address: str,
        port: int,
        *,
        is_sentinel: bool = False,
        inside: Sequence[str] = (),
        login: Login | None = None,
    ) -> None:
        self.binary = binary
        self.folder = folder
        self.address = address
        self.port = port
        self.login = login
        self.config = folder / "node.conf"
        self.log = folder / "node.log"
        self._is_sentinel = is_sentinel
        self._inside = inside
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<{self.folder.name} at {self.address}:{self.port}>"

    @property
    def pid(self) -> int:
        """The running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether there is a process, stopped or not."""
        return self._process is not None and self._process.poll() is None

    def spawn(self) -> None:
        """Start it and return at once."""
        assert not self.is_running
        setpriv = shutil.which("setpriv")
        assert setpriv, "setpriv is needed here (util-linux)"
        command = [setpriv, "--pdeathsig", "KILL", *self._inside, self.binary.path]
        command += [str(self.config), *["--sentinel"] * self._is_sentinel]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def wait_ready(self) -> None:
        """Wait until it answers and has loaded what it has.

        Raises:
            NodeFailed: it has ended.
            TimeoutError: it does not answer.
        """

        def answers() -> bool:
            if not self.is_running:
                raise NodeFailed(f"{self!r} has ended:\n{self.log_end()}")
            return bool(self.ask("PING") == "PONG")

        until(answers, f"{self!r} answers")

    def start(self) -> None:
        """Start it, on what an earlier life has left, and wait until it is ready."""
        self.spawn()
        self.wait_ready()

    def kill(self) -> None:
        """kill -9. Its port stays its own; a process that is gone already is no error."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and wait until it has gone."""
        self._signal(signal.SIGTERM)
        assert self._process is not None
        self._process.wait(DEADLINE_S)

    def freeze(self) -> None:
        """SIGSTOP: it does nothing, but its kernel still takes and sends for it. No partition."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """End a freeze."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def log_end(self, lines: int = 20) -> str:
        """The last lines of its log, over all its lives."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def ask(self, *words: str | int, login: Login | None = None) -> Any:
        """One command on a connection of its own, tried once; its answer as the server gave it
        (RESP 2, text as str). `login`: who asks, where it is not who does by default.

        Raises:
            redis.RedisError: what the server said, or that it could not be asked.
        """
        who = login or self.login
        connection: Any = _CONNECTION(
            self.address, self.port, decode_responses=True, protocol=2,
            socket_timeout=DEADLINE_S, socket_connect_timeout=1, retry=Retry(NoBackoff(), 0),
            username=who and who.user, password=who and who.password,
        )  # fmt: skip
        try:
            connection.connect()
            connection.send_command(*words)
            return connection.read_response()
        finally:
            connection.disconnect()

    def info(self, section: str) -> dict[str, str]:
        """Return one section of INFO."""
        return fields(self.ask("INFO", section))

    def role(self) -> str:
        """`master`, `slave` or `sentinel`, in the server's word."""
        return str(self.ask("ROLE")[0])


def fields(text: str) -> dict[str, str]:
    """The lines `name:value` of INFO or CLUSTER INFO."""
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def in_sync(primary: Node, replicas: Sequence[Node]) -> bool:
    """Whether exactly these replicas follow the primary, have all it had when asked, and have it
    on disk: one whose append-only file is still being rewritten would lose it (R28)."""
    said = primary.info("replication")
    if said["role"] != "master" or said["connected_slaves"] != str(len(replicas)):
        return False
    if any("state=online" not in said[f"slave{n}"] for n in range(len(replicas))):
        return False
    for replica in replicas:
        theirs = replica.info("replication")
        if theirs["role"] != "slave" or theirs["master_link_status"] != "up":
            return False
        if (theirs["master_host"], theirs["master_port"]) != (primary.address, str(primary.port)):
            return False
        if int(theirs["slave_repl_offset"]) < int(said["master_repl_offset"]):
            return False
        kept = replica.info("persistence")
        if any(kept[name] != value for name, value in _ALL_ON_DISK.items()):
            return False
    return True


def wait_in_sync(primary: Node, replicas: Sequence[Node]) -> None:
    """Wait until `in_sync`. Raises TimeoutError."""
    until(lambda: in_sync(primary, replicas), f"{list(replicas)} are in sync with {primary!r}")


def written(primary: Node, key: str, copies: int) -> None:
    """Set this key to itself, and have it confirmed by this many replicas, on one connection: on
    another one WAIT would count copies of something else.

    Raises:
        AssertionError: other than this many have confirmed it within 10 s.
    """
    with (
        contextlib.closing(redis.Redis(primary.address, primary.port)) as client,
        client.pipeline(transaction=False) as both,
    ):
        both.set(key, key)
        both.execute_command("WAIT", copies, 10_000)  # type: ignore[no-untyped-call]
        assert both.execute() == [True, copies]
