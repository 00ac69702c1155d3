"""The command `make cluster`: a whole cluster on this machine, to watch and to break. See
--help."""

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from loadtests.server import free_port
from metadata.service.protocol import LAYOUTS
from scripts.cluster.parts import PartFailed, Parts
from scripts.cluster.plan import NAMES, Cluster, described, page
from tests.servers.binaries import ServerMissing, binaries
from tests.servers.ports import ClaimedPort
from tests.servers.programs import ProgramMissing, needed

LOOK_PERIOD_S = 0.2
LOCK = "tocsin-cluster.lock"
"""The name of a file in every folder that this command has made."""
KINDS = """
It starts storage clusters (each a primary, two replicas and three Sentinels, of Valkey or Redis),
the metadata service, managers, gateways, HAProxy before them, and the demo as their client. It says
where each process is, restarts a process that ends, and stops all of them on Ctrl-C. Everything
listens on this machine's own address only. Data are in a folder of its own, removed at the end.
"""


def arguments(given: list[str]) -> argparse.Namespace:
    """Return the parsed command line. A mistake ends the command with a sentence."""
    parser = argparse.ArgumentParser(
        prog="make cluster", description=KINDS, epilog='make cluster ARGS="--port 9000"'
    )
    parser.add_argument(
        "--port", type=int, default=8080, help="the port for clients; 0: any free one [8080]"
    )
    parser.add_argument(
        "--first-port", type=int, default=0,
        help="the first of the ports of all other parts [any free ones]",
    )  # fmt: skip
    parser.add_argument("--gateways", type=int, default=3, help="the number of gateways [3]")
    parser.add_argument(
        "--clusters", type=int, default=2, choices=range(1, len(NAMES) + 1),
        help="the number of storage clusters [2]",
    )  # fmt: skip
    parser.add_argument(
        "--metadata", type=int, default=3,
        help="nodes of the metadata service; 0: gateways keep the catalog [3]",
    )  # fmt: skip
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        default="ring",
        help="the layout of the catalog over these nodes [ring]",
    )
    parser.add_argument("--managers", type=int, default=2, help="the number of managers [2]")
    parser.add_argument("--no-demo", action="store_true", help="start no demo")
    parser.add_argument("--seconds", type=float, default=0, help="stop after this time [at Ctrl-C]")
    parser.add_argument(
        "--folder", type=Path, help="the folder of its files [one in the system's /tmp]"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object a line, for programs"
    )
    return parser.parse_args(given)


def main(given: list[str]) -> int:
    """Run the cluster until a signal ends it. Returns the exit code."""
    said = arguments(given)
    stopping = threading.Event()
    stop_on_signals(stopping)
    for name in [name for name in os.environ if name.startswith("TOCSIN_")]:
        if name != "TOCSIN_TEST_REDIS":
            del os.environ[name]  # settings of another broker

    def say(text: str) -> None:
        shown = json.dumps({"event": "said", "text": text}) if said.json else f"tocsin: {text}"
        sys.stdout.write(f"{shown}\n")
        sys.stdout.flush()

    try:
        needed("haproxy")
        with a_folder(said.folder) as folder, ports(said.port, said.first_port) as free:
            cluster = Cluster(
                folder, binaries()[0], free, said.gateways, said.clusters, said.metadata,
                said.layout, said.managers, not said.no_demo,
            )  # fmt: skip
            run(cluster, Parts(say), said, stopping)
    except (PartFailed, ProgramMissing, ServerMissing, InUse, TimeoutError) as error:
        sys.stderr.write(f"tocsin: {error}\n")
        return 1
    except Stopped:
        pass
    return 0


def stop_on_signals(stopping: threading.Event) -> None:
    """Set `stopping` at the first signal, and end any wait with Stopped."""

    def stop(number: int, frame: types.FrameType | None) -> None:
        if not stopping.is_set():
            stopping.set()
            raise Stopped

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


class Stopped(BaseException):
    """A signal came."""


def run(
    cluster: Cluster, parts: Parts, said: argparse.Namespace, stopping: threading.Event
) -> None:
    """Start, watch and stop the parts.

    A signal during the start stops the parts that have been started. A signal during the stop does
    nothing.
    """
    ending = threading.Timer(said.seconds, stopping.set) if said.seconds else None
    try:
        cluster.start(parts)
        if ending is not None:
            ending.start()
        shown = json.dumps(described(cluster, parts)) if said.json else page(cluster, parts)
        sys.stdout.write(f"{shown}\n")
        sys.stdout.flush()
        while not stopping.wait(LOOK_PERIOD_S):
            parts.look()
    except Stopped:
        pass
    finally:
        stopping.set()
        if ending is not None:
            ending.cancel()
        parts.stop()


class InUse(RuntimeError):
    """The folder or the port is in use; the text says what to do."""


@contextlib.contextmanager
def a_folder(wanted: Path | None) -> Iterator[Path]:
    """Give a private, empty folder, inside this block.

    Nobody else may read it, and it is removed at the end. Remains of a killed cluster are removed
    first.

    Raises:
        InUse: another cluster uses it, or it has other files, which must not be removed.
    """
    folder = wanted or Path(tempfile.gettempdir()) / f"tocsin-cluster-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        check_ours(folder)
    folder.chmod(0o700)
    with (folder / LOCK).open("w") as lock:
        claim(lock, folder)
        clear(folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def check_ours(folder: Path) -> None:
    """Check that everything in the folder may be removed. Raises InUse."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise InUse(
            f"{folder} is no folder, or belongs to another user. Give another one by --folder."
        )
    names = [path.name for path in folder.iterdir()]
    if names and LOCK not in names:
        raise InUse(
            f"{folder} has other files, which would be removed. Give a new one by --folder."
        )


def claim(lock: IO[str], folder: Path) -> None:
    """Lock the folder. Raises InUse if another cluster has locked it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InUse(
            f"a cluster runs in {folder} already. Stop it, or give this one another --folder "
            "and another --port"
        ) from None


def clear(folder: Path) -> None:
    """Remove everything in the folder except the lock."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


@contextlib.contextmanager
def ports(first: int, others: int) -> Iterator[Iterator[int]]:
    """Give the balancer's port, then those of the others: from `others` on, or free ones.

    Raises:
        InUse: the balancer's port is taken.
    """
    if first:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", first))
            except OSError as error:
                text = (
                    f"port {first} cannot be had ({error.strerror}): choose another one by --port"
                )
                raise InUse(text) from None
    with contextlib.ExitStack() as stack:

        def one_by_one() -> Iterator[int]:
            yield first or free_port()
            number = others
            while True:
                if others:
                    yield number
                    number += 1
                else:
                    yield stack.enter_context(ClaimedPort()).number

        yield one_by_one()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
