"""The users of the mix as Locust classes.

Locust runs this file by itself, `locust -f loadtests/mix/locustfile.py`, as any other; see
loadtests.mix.plain. In a run that `python -m loadtests.mix` has started and judges, the environment
says so, and loadtests.mix.run_process is used instead. Importing this file imports Locust, which
turns every socket of the process into one of gevent's.
"""

import os
import sys
from pathlib import Path
from typing import ClassVar

from locust import User, constant, task

_HERE = Path(__file__).resolve()
if len(_HERE.parents) > 2 and (_HERE.parents[2] / "loadtests" / "mix" / _HERE.name).is_file():
    # Locust may be started in a folder that has a folder `loadtests` of its own.
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
    """The context of this process; set before any user is made."""

    def on_start(self) -> None:
        """Make the user of this role."""
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
    """A publisher of numbered messages over a WebSocket."""

    role = "websocket"


class RestPublisher(MixUser):
    """A publisher over HTTP, under ids."""

    role = "rest"


class GroupWorker(MixUser):
    """A consumer of a group that acks in random order."""

    role = "worker"


class KeyReader(MixUser):
    """A reader of one key from the start."""

    role = "reader"


class LongPoller(MixUser):
    """A consumer of a group by long poll."""

    role = "poller"


class SlowConsumer(MixUser):
    """A consumer of a group that takes its time."""

    role = "slow"


class ReconnectStorm(MixUser):
    """A consumer of a group that loses its socket together with all others of its kind."""

    role = "storm"


class MixedDay(MixUser):
    """A user that goes through a day: publishes, works, reads, sleeps."""

    role = "day"


(run_process if FOLDER in os.environ else plain).attach(MixUser)
