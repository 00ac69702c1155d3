"""The users of the mix as Locust knows them.

Locust runs this file by itself, `locust -f loadtests/mix/locustfile.py`, as any other:
loadtests.mix.plain says how. In a run that `python -m loadtests.mix` has started and judges, the
environment says so, and loadtests.mix.run_process takes its place. Importing this file imports
Locust, which makes every socket of the process one of gevent's.
"""

import os
import sys
from pathlib import Path
from typing import ClassVar

from locust import User, constant, task

_HERE = Path(__file__).resolve()
if len(_HERE.parents) > 2 and (_HERE.parents[2] / "loadtests" / "mix" / _HERE.name).is_file():
    # Locust is started in any folder, and a folder `loadtests` may be there as well.
    sys.path.insert(0, str(_HERE.parents[2]))

from loadtests.mix import plain, run_process, users  # noqa: E402 - not before it is to be found
from loadtests.mix.coordination import FOLDER  # noqa: E402
from loadtests.mix.process_context import ProcessContext  # noqa: E402


class MixUser(User):
    """A user of the mix: one turn after another until Locust ends it."""

    abstract = True
    wait_time = constant(0)
    host = plain.HOST
    role: ClassVar[str]
    process_context: ClassVar[ProcessContext]
    """Of this process; set before any user is made."""

    def on_start(self) -> None:
        """Begin."""
        self.doing = users.MAKE[self.role](self.process_context)

    def on_stop(self) -> None:
        """Leave. Locust may end a user before it has begun."""
        if hasattr(self, "doing"):
            self.doing.close()

    @task
    def turn(self) -> None:
        """Do one turn."""
        users.turn(self.process_context, self.role, self.doing)


class WebSocketPublisher(MixUser):
    """Publishes over a WebSocket, numbered."""

    role = "websocket"


class RestPublisher(MixUser):
    """Publishes over HTTP, under ids."""

    role = "rest"


class GroupWorker(MixUser):
    """Consumes in a group, and acks in random order."""

    role = "worker"


class KeyReader(MixUser):
    """Reads one key from the start."""

    role = "reader"


class LongPoller(MixUser):
    """Consumes in a group by long poll."""

    role = "poller"


class SlowConsumer(MixUser):
    """Consumes in a group, and takes its time."""

    role = "slow"


class ReconnectStorm(MixUser):
    """Consumes in a group, and loses its socket with all others of its kind."""

    role = "storm"


class MixedDay(MixUser):
    """Goes through a day: publishes, works, reads, sleeps."""

    role = "day"


(run_process if FOLDER in os.environ else plain).attach(MixUser)
