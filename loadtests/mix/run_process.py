"""A process of Locust in a run that `python -m loadtests.mix` has started, and judges.

The launcher has written the plan and created the queues. It writes the run's phase into a file in
the run's folder, and expects this process's ledger there in the end.
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
"""Pause between two reads of the run's phase."""
REPORT_S: Final = 0.5


def attach(users: Any) -> None:
    """Have Locust's users, `users` and its subclasses, follow the plan."""
    folder = Path(os.environ[FOLDER])
    drawn = plan.read(folder / coordination.PLAN)
    for one in users.__subclasses__():
        # Locust makes exactly these numbers if every class has one. By weights, a role of one user
        # may get none, and its queue would not be drained.
        one.fixed_count = drawn.counts.get(one.role, 0)

    def begin(environment: Any, **_: object) -> None:
        """Make the context of this process, and follow the run. The master has no users."""
        if isinstance(environment.runner, MasterRunner):
            return
        process = int(os.environ[PROCESS])
        token = os.environ.get("TOCSIN_TOKEN")
        users.process_context = ProcessContext(drawn, process, token, told=teller(environment))
        # A greenlet, like every thread under gevent.
        arguments = (environment, folder, users.process_context)
        threading.Thread(target=_follow, args=arguments, daemon=True).start()

    hook: Any = events.init  # has no types
    hook.add_listener(begin)


def _follow(environment: Any, folder: Path, context: ProcessContext) -> None:
    """Follow the run's phase and report progress, until the run is over; then write the ledger."""
    reported = 0.0
    while not context.is_over:
        context.enter(coordination.phase(folder))
        if time.monotonic() - reported >= REPORT_S:
            reported = time.monotonic()
            users = dict(environment.runner.user_classes_count)
            coordination.report(folder, context.process, context.progress(users))
        time.sleep(LOOK_S)
    coordination.write_ledger(context.ledger, folder / coordination.LEDGER.format(context.process))
