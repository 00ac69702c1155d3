"""What Locust runs in each process of a run: its users, their ledger, and the ledger's file.

`python -m loadtests.mix` starts it, with the run's folder and the process's number in the
environment. Importing it imports Locust, which makes every socket of the process one of gevent's.
"""

import os
import threading
import time
from pathlib import Path
from typing import Any, ClassVar, Final

from locust import User, constant, events, task
from locust.runners import MasterRunner

from loadtests.mix import books, phases, plan, roles
from loadtests.mix.desk import Desk
from loadtests.mix.processes import FOLDER, PROCESS

LOOK_S: Final = 0.1
"""Between two looks at where the run is."""
REPORT_S: Final = 0.5

_FOLDER: Final = Path(os.environ[FOLDER])
_PLAN: Final = plan.read(_FOLDER / phases.PLAN)


class MixUser(User):
    """A user of the mix: one turn after another until Locust ends it."""

    abstract = True
    wait_time = constant(0)
    role: ClassVar[str]
    desk: ClassVar[Desk]
    """Of this process; there before any user is."""

    def on_start(self) -> None:
        """Locust has made it."""
        self.doing = roles.MAKE[self.role](self.desk)

    def on_stop(self) -> None:
        """Locust ends it."""
        self.doing.close()

    @task
    def turn(self) -> None:
        """One turn."""
        roles.turn(self.desk, self.role, self.doing)


def _many(role: str) -> int:
    """Users of a role. Locust makes exactly so many where every class says how many it wants; by
    weights a role of one user may have none, and nobody would drain its queue."""
    return _PLAN.counts.get(role, 0)


class WebSocketPublisher(MixUser):
    """See plan.ROLES."""

    role = "websocket"
    fixed_count = _many(role)


class RestPublisher(MixUser):
    """See plan.ROLES."""

    role = "rest"
    fixed_count = _many(role)


class GroupWorker(MixUser):
    """See plan.ROLES."""

    role = "worker"
    fixed_count = _many(role)


class KeyReader(MixUser):
    """See plan.ROLES."""

    role = "reader"
    fixed_count = _many(role)


class LongPoller(MixUser):
    """See plan.ROLES."""

    role = "poller"
    fixed_count = _many(role)


class SlowConsumer(MixUser):
    """See plan.ROLES."""

    role = "slow"
    fixed_count = _many(role)


class ReconnectStorm(MixUser):
    """See plan.ROLES."""

    role = "storm"
    fixed_count = _many(role)


class MixedDay(MixUser):
    """See plan.ROLES."""

    role = "day"
    fixed_count = _many(role)


def begin(environment: Any, **_: object) -> None:
    """This process's desk, and who looks after it. The master has no users."""
    if isinstance(environment.runner, MasterRunner):
        return

    def told(kind: str, name: str, took_ns: int, size: int, error: str = "") -> None:
        environment.events.request.fire(
            request_type=kind, name=name, response_time=took_ns / 1e6, response_length=size,
            exception=RuntimeError(error) if error else None, context={},
        )  # fmt: skip

    process = int(os.environ[PROCESS])
    desk = Desk(_PLAN, process, os.environ.get("TOCSIN_TOKEN"), told=told)
    MixUser.desk = desk
    # A greenlet, as everything here is.
    threading.Thread(target=_follow, args=(environment, desk), daemon=True).start()


def _follow(environment: Any, desk: Desk) -> None:
    """Where the run is, and how far we are, until it is over and the ledger is in its file."""
    reported = 0.0
    while not desk.is_over:
        desk.enter(phases.phase(_FOLDER))
        if time.monotonic() - reported >= REPORT_S:
            reported = time.monotonic()
            users = dict(environment.runner.user_classes_count)
            phases.report(_FOLDER, desk.process, desk.progress(users))
        time.sleep(LOOK_S)
    books.write(desk.ledger, _FOLDER / phases.LEDGER.format(desk.process))


_INIT: Any = events.init  # has no types
_INIT.add_listener(begin)
