"""A process of Locust in a run that `python -m loadtests.mix` has started, and judges.

The launcher has written the plan and has made the queues. It says where the run is, over files in
the run's folder, and wants this process's ledger there in the end.
"""

import os
import threading
import time
from pathlib import Path
from typing import Any, Final

from locust import events
from locust.runners import MasterRunner

from loadtests.mix import coordination, plan
from loadtests.mix.coordination import FOLDER, PROCESS
from loadtests.mix.process_context import ProcessContext, teller

LOOK_S: Final = 0.1
"""Between two looks at where the run is."""
REPORT_S: Final = 0.5


def attach(users: Any) -> None:
    """Have Locust's users, `users` and its subclasses, do what the plan says."""
    folder = Path(os.environ[FOLDER])
    drawn = plan.read(folder / coordination.PLAN)
    for one in users.__subclasses__():
        # Locust makes exactly these where every class has a number; by weights a role of one user
        # may have none, and nobody would drain its queue.
        one.fixed_count = drawn.counts.get(one.role, 0)

    def begin(environment: Any, **_: object) -> None:
        """Make the context of this process, and follow the run. The master has no users."""
        if isinstance(environment.runner, MasterRunner):
            return
        process = int(os.environ[PROCESS])
        token = os.environ.get("TOCSIN_TOKEN")
        users.process_context = ProcessContext(drawn, process, token, told=teller(environment))
        # A greenlet, as everything here is.
        arguments = (environment, folder, users.process_context)
        threading.Thread(target=_follow, args=arguments, daemon=True).start()

    hook: Any = events.init  # has no types
    hook.add_listener(begin)


def _follow(environment: Any, folder: Path, context: ProcessContext) -> None:
    """Learn where the run is, and say how far we are, until it is over and the ledger is in its
    file."""
    reported = 0.0
    while not context.is_over:
        context.enter(coordination.phase(folder))
        if time.monotonic() - reported >= REPORT_S:
            reported = time.monotonic()
            users = dict(environment.runner.user_classes_count)
            coordination.report(folder, context.process, context.progress(users))
        time.sleep(LOOK_S)
    coordination.write_ledger(context.ledger, folder / coordination.LEDGER.format(context.process))
