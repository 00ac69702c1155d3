"""The mix under Locust alone: its flags, its web page, its statistics, no judgement.

Users have the usual shares of the mix, as weights, and may come and go while it runs. The process
that runs the test (the only one, or the master) makes a plan when the test begins. Workers get it
with Locust's own messages. Every message that is published, delivered, settled or returned is a
request in Locust's statistics, so that they can be compared with the broker's counters. For this a
test stops in two steps: nothing new is published, and users leave when everything is answered.
"""

import logging
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from locust import events
from locust.dispatch import UsersDispatcher
from locust.exception import StopTest
from locust.runners import MasterRunner, WorkerNode, WorkerRunner

from loadtests.mix import plan
from loadtests.mix.calls import Http
from loadtests.mix.coordination import Phase
from loadtests.mix.ledger import BODY_BYTES_MIN, KINDS
from loadtests.mix.outages import Change, Watch
from loadtests.mix.plan import Plan
from loadtests.mix.process_context import NS, ProcessContext, Told, queues_lag, teller

HOST: Final = os.environ.get("TOCSIN_URL") or "http://127.0.0.1:8080"
"""The address at which `tocsin serve` listens, unless --host or LOCUST_HOST names another one."""
RATE: Final = 1.5
"""Messages a second of each publisher, as in `make load`."""
BODY_BYTES_MAX: Final = 65_536
STOP_S: Final = 10.0
"""The longest that a process waits for answers when the test stops."""
REPORT_S: Final = 6.0
"""The longest that a worker takes to report to the master; it reports every three seconds."""
STOP_MASTER_S: Final = STOP_S + REPORT_S
"""The longest that the master waits for its workers when the test stops."""
QUIET_S: Final = 1.0
"""When no delivery has come for this time, readers have received everything too."""
_LOOK_S: Final = 0.05
_PLAN: Final = "mix_plan"
"""The name of the option in which Locust sends the plan, as JSON, to its workers."""
_MANNED: Final = "mix_manned"
_DRAIN: Final = "mix_drain"
_OUTAGE: Final = "mix_outage"
"""Names of messages between the master and its workers: the plan with other counts, to workers;
stop publishing, to workers; an outage that a worker has seen, to the master."""
_LOG: Final = logging.getLogger("loadtests.mix")
_CLOCK_NS: Final = time.time_ns() - time.monotonic_ns()


def now_ns() -> int:
    """Return a time that does not jump, and that processes of several machines share as far as
    their clocks agree."""
    return _CLOCK_NS + time.monotonic_ns()


def attach(users: Any) -> None:
    """Prepare the subclasses of `users` for Locust alone: give each the weight of its role, and
    have a `Mix` called at Locust's events."""
    for one in users.__subclasses__():
        one.weight = plan.SHARES[one.role]
    mix = Mix(users)
    hooks: Any = events  # has no types
    hooks.init_command_line_parser.add_listener(mix.add_options)
    hooks.init.add_listener(mix.on_init)
    hooks.test_start.add_listener(mix.on_start)
    hooks.spawning_complete.add_listener(mix.on_spawned)
    hooks.test_stopping.add_listener(mix.on_stopping)
    hooks.test_stop.add_listener(mix.on_stop)
    hooks.report_to_master.add_listener(mix.on_report)
    hooks.worker_report.add_listener(mix.on_worker_report)


class Mix:
    """A process of Locust: the only one, the master, or a worker."""

    def __init__(self, users: Any) -> None:
        """`users`: the base class of all users, whose `process_context` is set when a test
        begins."""
        self._users = users
        self._environment: Any = None
        self._token = ""
        self._plan: Plan | None = None
        self._context: ProcessContext | None = None
        self._watch: Watch | None = None
        self._is_reported = False
        """In a worker: whether the latest report to the master was made after the run was over, so
        that nothing is left to report."""
        self._drained: set[str] = set()
        """In the master: the workers that have reported everything."""
        self._out: dict[str, set[str]] = {}
        """In the master: broker → workers that cannot reach it."""

    # --- before a test

    def add_options(self, parser: Any, **_: object) -> None:
        """Add the mix's own options. Locust parses the command line anew for each view of its page.
        After `on_init` a token on the command line is read as empty, or it would be in the page's
        source."""

        def token(text: str) -> str:
            return text if self._environment is None else ""

        parser.add_argument(
            "--token", type=token, default="", is_secret=True,
            help="Bearer token of the broker. If empty, the command line's or TOCSIN_TOKEN.",
        )  # fmt: skip
        parser.add_argument(
            "--publisher-rate", type=float, default=RATE,
            help="Messages per second of each publisher.",
        )  # fmt: skip
        parser.add_argument(
            "--body-bytes", type=int, default=256, help="Bytes of each message's body.",
        )  # fmt: skip
        parser.add_argument(
            "--storm-every", type=float, default=30.0,
            help="Seconds between two losses of the storm users' sockets.",
        )  # fmt: skip

    def on_init(self, environment: Any, **_: object) -> None:
        """Note the values of the command line before the page or the master can change them, and
        register the messages between master and workers. Exits with status 2 if an option is
        wrong."""
        self._environment = environment
        options, runner = environment.parsed_options, environment.runner
        self._token = options.token or os.environ.get("TOCSIN_TOKEN", "")
        environment.host = self._users.host = environment.host or HOST
        try:
            _check(environment)
        except ValueError as error:
            _LOG.error("%s", error)
            sys.exit(2)
        if isinstance(runner, WorkerRunner):
            runner.register_message(_MANNED, self._on_manned)
            runner.register_message(_DRAIN, self._on_drain, concurrent=True)
            environment.events.quitting.add_listener(self.on_worker_quitting)
        elif isinstance(runner, MasterRunner):
            runner.register_message(_OUTAGE, self._on_outage)

    # --- a test

    def on_start(self, environment: Any, **_: object) -> None:
        """Begin a test: make the plan, or take the master's. Except in the master, make a context
        from it, and watch the brokers."""
        options, runner = environment.parsed_options, environment.runner
        options.token = options.token or self._token
        if isinstance(runner, WorkerRunner):
            made = msgspec.json.decode(getattr(options, _PLAN), type=Plan)
        else:
            made = self._drawn()
            setattr(options, _PLAN, msgspec.json.encode(made).decode())
            _LOG.info("Queues load.%s.* at %s", made.run, ", ".join(made.urls))
        self._plan = made
        self._drained.clear()
        self._out.clear()
        self._is_reported = False
        if isinstance(runner, MasterRunner):
            return
        self._context = self._users.process_context = ProcessContext(
            made, max(0, runner.worker_index), options.token or None,
            told=self._counting(teller(environment)), now_ns=now_ns, makes_queues=True,
        )  # fmt: skip
        self._context.enter(Phase("measure", made.began_ns))
        began_s = time.monotonic()
        self._watch = Watch(made.urls, options.token or None, self._say, began_s=began_s)
        self._watch.start()

    def _drawn(self) -> Plan:
        """Return the plan of a new test. Raises StopTest."""
        environment = self._environment
        options, runner = environment.parsed_options, environment.runner
        try:
            urls = _check(environment)
        except ValueError as error:  # a wrong option from the web page
            raise StopTest(str(error)) from None
        counts = _dealt(runner.user_classes, runner.target_user_count)
        publishers = sum(counts.get(role, 0) for role in plan.PUBLISHING)
        return Plan(
            run=secrets.token_hex(4), urls=urls, counts=counts,
            processes=max(1, getattr(runner, "worker_count", 1)),
            rate=options.publisher_rate * max(1, publishers),
            seconds=float(options.run_time or 0), ramp_s=0.0, body_bytes=options.body_bytes,
            seed=secrets.randbits(31), began_ns=now_ns(), storm_every_s=options.storm_every,
        )  # fmt: skip

    def on_spawned(self, user_count: int, **_: object) -> None:
        """Change the plan to the numbers of users that exist now, so that publishers use the queues
        of these users. The master sends the new plan to its workers."""
        runner = self._environment.runner
        if isinstance(runner, WorkerRunner) or self._plan is None:
            return
        self._plan = plan.manned(
            self._plan, _roles(runner.user_classes, runner.target_user_classes_count)
        )
        text = msgspec.json.encode(self._plan).decode()
        setattr(self._environment.parsed_options, _PLAN, text)
        if isinstance(runner, MasterRunner):
            runner.send_message(_MANNED, {"plan": text})
        elif self._context is not None:
            self._context.plan = self._plan

    def _on_manned(self, msg: Any, **_: object) -> None:
        """Take the plan with the counts of all workers together."""
        if self._context is not None:
            self._context.plan = msgspec.json.decode(msg.data["plan"], type=Plan)

    def _counting(self, count: Told) -> Told:
        """Return a function that counts what users do, and counts new violations of the ledger as
        failures."""
        flagged: Counter[str] = Counter()

        def told(kind: str, name: str, took_ns: int | None, size: int, error: str = "") -> None:
            count(kind, name, took_ns, size, error)
            assert self._context is not None
            violations = self._context.ledger.violations
            if violations != flagged:
                for broken in (violations - flagged).elements():
                    count("violation", broken, None, 0, KINDS[broken])
                flagged.update(violations - flagged)

        return told

    # --- the end of a test

    def on_stopping(self, environment: Any, **_: object) -> None:
        """Let outstanding messages arrive, before Locust ends the users."""
        runner = environment.runner
        if isinstance(runner, MasterRunner):
            self._drained.clear()
            runner.send_message(_DRAIN)
            deadline = time.monotonic() + STOP_MASTER_S
            while time.monotonic() < deadline and not self._all_reported(runner):
                time.sleep(_LOOK_S)
        else:
            self._drain()

    def _all_reported(self, runner: MasterRunner) -> bool:
        """Whether all workers have reported all their work, the last message included."""
        clients = runner.clients
        return {one.id for one in (*clients.running, *clients.spawning)} <= self._drained

    def _on_drain(self, **_: object) -> None:
        self._drain()

    def _drain(self) -> None:
        """Stop publishing, and wait until everything is answered and settled and no message comes,
        for at most STOP_S. If a broker cannot be reached, the wait ends at once."""
        context, watch = self._context, self._watch
        if context is None or watch is None or not context.is_publishing:
            return
        context.enter(Phase("drain", context.plan.began_ns))
        began_ns, deadline = now_ns(), time.monotonic() + STOP_S
        http = Http(context.url(), context.token)
        while time.monotonic() < deadline and watch.out_s() is None:
            is_quiet = now_ns() - max(began_ns, context.given_at_ns) >= QUIET_S * NS
            if is_quiet and not context.unanswered and not queues_lag(http, context.plan):
                break
            time.sleep(_LOOK_S)
        http.close()
        context.enter(Phase("over", context.plan.began_ns))

    def on_worker_quitting(self, **_: object) -> None:
        """Drain, and wait for at most REPORT_S until the last report has gone to the master. The
        master ignores reports of this worker once it knows that the worker quits. A Ctrl-C ends all
        processes of a terminal at once."""
        self._drain()
        deadline = time.monotonic() + REPORT_S
        while self._context and not self._is_reported and time.monotonic() < deadline:
            time.sleep(_LOOK_S)

    def on_stop(self, environment: Any, **_: object) -> None:
        """Log the queues that remain, and when the broker could not be reached."""
        if self._watch is not None:
            for one in self._watch.outages():
                _LOG.warning("Not reached: %s", one)
            self._watch.stop()
            self._watch = None
        if self._plan is not None and not isinstance(environment.runner, WorkerRunner):
            _LOG.info("The broker keeps the queues load.%s.*: tocsin admin delete-queue",
                      self._plan.run)  # fmt: skip
        self._plan = None

    # --- between master and workers

    def on_report(self, client_id: str, data: dict[str, Any]) -> None:
        """Mark in a report whether it is the last one with anything new."""
        data["mix_over"] = self._is_reported = self._context is not None and self._context.is_over

    def on_worker_report(self, client_id: str, data: dict[str, Any]) -> None:
        """Note the workers that have nothing more to report."""
        if data.get("mix_over"):
            self._drained.add(client_id)

    def _say(self, change: Change) -> None:
        """Log a change of a broker; a worker also sends it to the master."""
        _LOG.warning("%s", change.text)
        runner = self._environment.runner
        if isinstance(runner, WorkerRunner):
            runner.send_message(_OUTAGE, change._asdict())

    def _on_outage(self, msg: Any, **_: object) -> None:
        """Log an outage once for all workers: when the first cannot reach a broker any more, and
        when the last can again."""
        change = Change(**msg.data)
        out = self._out.setdefault(change.url, set())
        was_out = bool(out)
        (out.add if change.is_out else out.discard)(msg.node_id)
        if bool(out) != was_out:
            _LOG.warning("%s", change.text)


def _check(environment: Any) -> list[str]:
    """Return the brokers' addresses. Raises ValueError if an option of the mix is out of range."""
    options = environment.parsed_options
    if options.publisher_rate <= 0 or options.storm_every <= 0:
        raise ValueError("--publisher-rate and --storm-every must be above 0")
    if not BODY_BYTES_MIN <= options.body_bytes <= BODY_BYTES_MAX:
        raise ValueError(f"--body-bytes must be {BODY_BYTES_MIN} to {BODY_BYTES_MAX}")
    return plan.addresses(environment.host)


def _dealt(classes: list[Any], users: int) -> dict[str, int]:
    """Return the number of users of each role that Locust makes of `users`. Locust's own dispatcher
    computes it, for one worker in one step."""
    if users < 1:
        return {}
    dispatcher = UsersDispatcher([WorkerNode("nobody")], classes)
    dispatcher.new_dispatch(users, float(users))
    (counts,) = next(dispatcher).values()
    return _roles(classes, counts)


def _roles(classes: list[Any], counts: Mapping[str, int]) -> dict[str, int]:
    """Return by role what Locust counts by class."""
    roles = {one.__name__: one.role for one in classes}
    return {roles[name]: many for name, many in counts.items() if many}
