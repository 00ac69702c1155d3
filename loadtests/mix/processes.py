"""Locust's processes of one run: a master that deals users out, and workers that are them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from loadtests.mix import phases
from loadtests.mix.plan import Plan
from loadtests.server import free_port

FOLDER: Final = "TOCSIN_LOAD_FOLDER"
PROCESS: Final = "TOCSIN_LOAD_PROCESS"
"""Variables by which a worker knows what it is; the locustfile reads them."""
CLASSES: Final = {
    "websocket": "WebSocketPublisher",
    "rest": "RestPublisher",
    "worker": "GroupWorker",
    "reader": "KeyReader",
    "poller": "LongPoller",
    "slow": "SlowConsumer",
    "storm": "ReconnectStorm",
    "day": "MixedDay",
}
"""What the locustfile calls the user of each role."""
_ROOT: Final = Path(__file__).parent.parent.parent
_LOCUSTFILE: Final = Path(__file__).with_name("locustfile.py")
_END_S: Final = 15.0
_LOG_LINES: Final = 20


class LoadBroke(RuntimeError):
    """The load itself could not be made, or ended; nothing was found out about the broker."""


class Locusts:
    """One master and the plan's workers, on this machine. As a context: all are gone at its end."""

    def __init__(self, plan: Plan, folder: Path, token: str | None) -> None:
        """`folder`: of the run; the plan's file is in it. Logs go there as well."""
        self._plan = plan
        self._folder = folder
        self._environment = os.environ | {
            FOLDER: str(folder),
            "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
            "PYTHONUNBUFFERED": "1",
        }
        if token is not None:
            self._environment["TOCSIN_TOKEN"] = token
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Locusts":
        """Start them; the users begin when all workers are there."""
        plan, port = self._plan, free_port()
        per_s = max(1.0, plan.users / max(plan.ramp_s, 0.1))
        try:
            self._spawn(
                "master", "--master", "--headless", "--only-summary",
                "--master-bind-host", "127.0.0.1", "--master-bind-port", str(port),
                "--expect-workers", str(plan.processes),
                "--users", str(plan.users), "--spawn-rate", f"{per_s:.3f}",
            )  # fmt: skip
            for number in range(plan.processes):
                self._environment[PROCESS] = str(number)
                self._spawn(
                    f"worker-{number}", "--worker",
                    "--master-host", "127.0.0.1", "--master-port", str(port),
                )  # fmt: skip
        except BaseException:
            self.stop()
            raise
        return self

    def _spawn(self, name: str, *arguments: str) -> None:
        names = [CLASSES[role] for role, many in self._plan.counts.items() if many]
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [
                    sys.executable, "-m", "locust", "--locustfile", str(_LOCUSTFILE),
                    "--loglevel", "WARNING", *arguments, *names,
                ],
                env=self._environment, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # a Ctrl-C is for us: we stop them in our own order
            )  # fmt: skip

    def check(self) -> None:
        """Raise LoadBroke if any of them has ended, with the end of its log."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                log = (self._folder / f"{name}.log").read_text(errors="replace")
                tail = "\n".join(log.splitlines()[-_LOG_LINES:])
                raise LoadBroke(f"Locust's {name} ended with {process.returncode}:\n{tail}")

    def ledgers(self) -> list[Path]:
        """The ledgers of all workers; those that are not there yet are left out."""
        places = [
            self._folder / phases.LEDGER.format(number) for number in range(self._plan.processes)
        ]
        return [place for place in places if place.exists()]

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End them, the master first; by force what has not ended within _END_S."""
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _END_S
        for process in self._processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
