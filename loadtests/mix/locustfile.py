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

    def __init_subclass__(cls) -> None:
        """Locust makes exactly so many where every class says how many it wants; by weights a role
        of one user may have none, and nobody would drain its queue."""
        super().__init_subclass__()
        cls.fixed_count = _PLAN.counts.get(cls.role, 0)

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


class WebSocketPublisher(MixUser):
    """See plan.ROLES."""

    role = "websocket"


class RestPublisher(MixUser):
    """See plan.ROLES."""

    role = "rest"


class GroupWorker(MixUser):
    """See plan.ROLES."""

    role = "worker"


class KeyReader(MixUser):
    """See plan.ROLES."""

    role = "reader"


class LongPoller(MixUser):
    """See plan.ROLES."""

    role = "poller"


class SlowConsumer(MixUser):
    """See plan.ROLES."""

    role = "slow"


class ReconnectStorm(MixUser):
    """See plan.ROLES."""

    role = "storm"


class MixedDay(MixUser):
    """See plan.ROLES."""

    role = "day"


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
