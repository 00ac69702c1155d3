"""Thousands of requests made from /openapi.json, against a running broker: each answer is as the
document says, and none is a 5xx (P12).

schemathesis makes the requests, both those that the document allows and those that it does not.
Half of the requests whose paths have names in them use existing names. Nine of ten have the token;
the others may have an Authorization header that was made up. In addition, each operation that is
not public is requested without a token.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from loadtests.server import SERVE, Server
from loadtests.trials import options
from loadtests.trials.trial import Finding, Progress, broker

if TYPE_CHECKING:
    from schemathesis import APIOperation, Case

    _Operation = APIOperation[Any, Any, Any, Any]
    _Case = Case[Any]

CASES: Final = 20_000
TOKEN: Final = "schema-trial"
QUEUE: Final = "orders"
GROUP: Final = "billing"
LATER: Final = "later"
"""The id of a scheduled message."""
PER_ROUND_MAX: Final = 25
"""The most cases of one operation and kind in a round, before the next operation or kind has its
turn."""
WAIT_S: Final = 10.0
"""Timeout of one answer."""
LONGEST_WAIT_S: Final = 0.01
"""The longest wait that a request may ask of the broker."""
_POLL: Final = "GET /v1/sessions/{session}/frames"
"""The operation that waits unless the request says otherwise."""
SHOWN_MAX: Final = 5
_NAMES: Final = re.compile(r"{(\w+)}")
_UNEXPECTED: Final = re.compile(rb"Traceback|ERROR|CRITICAL|unexpected", re.IGNORECASE)


@dataclass(frozen=True)
class Plan:
    """Send good and bad requests made from /openapi.json. Each answer must match the document."""

    cases: int = options.whole(CASES, "Number of requests made from the document.", 1)
    seed: int = options.seed()


class _Trial:
    """A run on a server of its own."""

    def __init__(self, server: Server, plan: Plan, progress: Progress) -> None:
        import requests
        import schemathesis
        from schemathesis.core.result import Ok

        self._server = server
        self._plan = plan
        self._progress = progress
        self._http = requests.Session()
        self._http.trust_env = False
        self._http.headers["Authorization"] = f"Bearer {TOKEN}"
        document = schemathesis.openapi.from_url(
            f"{server.url}/openapi.json", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        self._operations = [
            found.ok() for found in document.get_all_operations() if isinstance(found, Ok)
        ]
        self.operations = len(self._operations)
        self._per_round = min(PER_ROUND_MAX, max(2, plan.cases // (2 * self.operations)))
        self.cases = 0
        self.rounds = 0
        self.statuses: Counter[int] = Counter()
        self.wrong: list[str] = []
        """Answers that differ from the document, each operation, kind and failure once."""
        self._seen: set[tuple[str, ...]] = set()
        self.open: list[str] = []
        """Operations that did not answer a request without a token with 401 and WWW-Authenticate,
        and the status of their answer."""

    def run(self) -> None:
        """Request each operation without a token, then run `plan.cases` cases in rounds; blocks."""
        self._without_token()
        told = time.monotonic()
        while self.cases < self._plan.cases:
            self._prepare()
            for operation in self._operations:
                for kind in _kinds(operation):
                    self._hold(operation, kind)
            self.rounds += 1
            if time.monotonic() - told > 10:
                told = time.monotonic()
                self._progress(f"schema: {self.cases:,} of {self._plan.cases:,} cases")

    def _prepare(self) -> None:
        """Create what the known names name, because a round may have deleted it."""
        url = self._server.url
        self._http.put(f"{url}/v1/queues/{QUEUE}", json={"partitions": 2}, timeout=WAIT_S)
        self._http.put(f"{url}/v1/queues/{QUEUE}/groups/{GROUP}", json={}, timeout=WAIT_S)
        hello: dict[str, Any] = {"type": "hello", "linger_s": 0}
        opened = self._http.post(f"{url}/v1/sessions", json=hello, timeout=WAIT_S).json()
        later: dict[str, Any] = {"messages": [{"body": 1, "id": LATER, "delay_s": 86_400}]}
        self._http.post(f"{url}/v1/queues/{QUEUE}/messages", json=later, timeout=WAIT_S)
        self._known = {
            "queue": QUEUE, "group": GROUP, "session": opened["session"], "id": LATER,
        }  # fmt: skip

    def _without_token(self) -> None:
        import requests

        for operation in self._operations:
            if operation.definition.raw.get("security") == []:
                continue
            path = _NAMES.sub("x1", operation.path)
            answer = requests.request(
                operation.method, self._server.url + path, data=b"{}", timeout=WAIT_S
            )
            if answer.status_code != 401 or "WWW-Authenticate" not in answer.headers:
                self.open.append(f"{operation.label}: {answer.status_code}")

    def _hold(self, operation: "_Operation", kind: Any) -> None:
        from hypothesis import HealthCheck, Phase, given, seed, settings, strategies

        names = _NAMES.findall(operation.path)
        cases = operation.as_strategy(kind)
        if names:
            known = {name: self._known[name] for name in names}
            cases = strategies.one_of(cases, operation.as_strategy(kind, path_parameters=known))

        @settings(
            max_examples=self._per_round, database=None, deadline=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @seed(self._plan.seed * 100_003 + self.rounds)
        @given(case=cases)
        def hold(case: "_Case") -> None:
            if self.cases < self._plan.cases:
                self._judge(case, kind.value)

        hold()

    def _judge(self, case: "_Case", kind: str) -> None:
        import requests
        from schemathesis.core.failures import Failure, FailureGroup

        _hurry(case)
        self.cases += 1
        if self.cases % 10:  # the others keep the Authorization header that was made up
            case.headers["Authorization"] = f"Bearer {TOKEN}"
        try:
            answer = case.call(session=self._http, timeout=WAIT_S)
            self.statuses[answer.status_code] += 1
            case.validate_response(answer, checks=_checks())
        except (FailureGroup, Failure) as group:
            for failure in getattr(group, "exceptions", (group,)):
                self._note(case, kind, type(failure).__name__, str(failure))
        except requests.RequestException as error:
            self._note(case, kind, type(error).__name__, "no answer")

    def _note(self, case: "_Case", kind: str, failure: str, text: str) -> None:
        key = (case.operation.label, kind, failure)
        if key not in self._seen:
            self._seen.add(key)
            self.wrong.append(f"{', '.join(key)}: {text[:600]}\n{case.as_curl_command()[:600]}")

    def close(self) -> None:
        """Disconnect."""
        self._http.close()


def _kinds(operation: "_Operation") -> Iterator[Any]:
    """Yield the kinds of cases: allowed by the document, and not allowed if anything can be
    wrong."""
    from schemathesis import GenerationMode

    yield GenerationMode.POSITIVE
    if operation.body or operation.query or operation.path_parameters:
        yield GenerationMode.NEGATIVE


def _checks() -> list[Callable[..., Any]]:
    from schemathesis import checks
    from schemathesis.specs.openapi import checks as of_the_document

    return [
        checks.not_a_server_error,
        of_the_document.status_code_conformance,
        of_the_document.content_type_conformance,
        of_the_document.response_headers_conformance,
        of_the_document.response_schema_conformance,
    ]


def _hurry(case: "_Case") -> None:
    """Shorten the waits of a request, so that no case waits half a minute for messages."""
    for place in (case.body, case.query):
        wait_s = place.get("wait_s") if isinstance(place, dict) else None
        if isinstance(place, dict) and isinstance(wait_s, int | float):
            place["wait_s"] = min(float(wait_s), LONGEST_WAIT_S)
    if case.operation.label == _POLL and case.query is not None:
        case.query.setdefault("wait_s", LONGEST_WAIT_S)


async def schema(plan: Plan, progress: Progress) -> Finding:
    """Run `plan.cases` cases, and check that each is answered as the document says. Raises
    ServerFailed if the broker fails."""
    finding = Finding("schema")
    async with broker("schema", command=[*SERVE, "--token", TOKEN]) as server:
        trial = await asyncio.to_thread(_Trial, server, plan, progress)
        try:
            began = time.monotonic()
            await asyncio.to_thread(trial.run)
            seconds = time.monotonic() - began
        finally:
            trial.close()
        await asyncio.to_thread(server.wait_ready, WAIT_S)
        await asyncio.to_thread(server.stop)
        log = server.log_path.read_bytes()
    finding.figures = {
        "cases": trial.cases, "operations": trial.operations, "rounds": trial.rounds,
        "seconds": round(seconds, 1),
        "statuses": ", ".join(f"{code}: {n:,}" for code, n in sorted(trial.statuses.items())),
    }  # fmt: skip
    finding.conditions = {"seed": plan.seed, "cases_asked": plan.cases}
    server_errors = sum(n for code, n in trial.statuses.items() if code >= 500)
    finding.check("P12: no 5xx", not server_errors, f"{server_errors} of {trial.cases:,}")
    finding.check(
        "status, content type and body are those of /openapi.json", not trial.wrong,
        "\n".join([f"{len(trial.wrong)} are not", *trial.wrong[:SHOWN_MAX]])
        if trial.wrong else f"{trial.cases:,} answers",
    )  # fmt: skip
    finding.check(
        "P11: without a token every operation but the public ones is a 401", not trial.open,
        trial.open or "all of them",
    )  # fmt: skip
    finding.check(
        "nothing unexpected in the broker's log", _UNEXPECTED.search(log) is None,
        log[-2000:].decode(errors="replace") if _UNEXPECTED.search(log) else "nothing",
    )  # fmt: skip
    return finding
