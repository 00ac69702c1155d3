"""An HTTP operation: its place, its handler, its right, and what OpenAPI says of it, in one value.

Routes and `/openapi.json` are made from the same table of operations, so that neither can lack
what the other has. A handler reads its request with the functions below and those of
runtime.operation, and returns a `reply`; everything that is wrong it raises.

A `need` says which right lets an operation run. `gateway.rest.app.carry_out` checks it, before the
handler and nowhere else. The rights of frames, each of which names a queue, are checked in
`gateway.session.session` and `gateway.session.subscriptions`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from starlette.requests import Request
from starlette.responses import Response

from gateway.accounting.audit import Audit
from gateway.accounting.writer import AccountingWriter
from gateway.auth.auth import Authenticator
from gateway.broker import Broker
from gateway.limits.limiter import Allowance
from gateway.models import Admission, NotLetIn, whole_number
from metadata.catalog import Principal, Queue, check_name
from metadata.rights import VERBS, Rights, Verb
from push import limits
from push.errors import Refused
from runtime.operation import JSON, json_text, receive_body

Need = Literal[
    "publish",
    "consume",
    "read",
    "manage",
    "consume or manage",
    "consume or manage or observe",
    "manage every",
    "observe every",
    "any",
    "own",
    "nothing",
]
NEEDS: Final[Mapping[Need, str]] = {
    "publish": "`publish` on the queue, for each message on its key",
    "consume": "`consume` on the queue",
    "read": "`read` on the queue; where it is one on some keys only, for one of these",
    "manage": "`manage` on the queue",
    "consume or manage": "`consume` or `manage` on the queue",
    "consume or manage or observe": "`consume`, `manage` or `observe` on the queue",
    "manage every": "`manage` on every queue: `manage:*`",
    "observe every": "`observe` or `manage` on every queue: `observe:*`",
    "any": "any right on the queue, which decides what is shown of it",
    "own": "nothing: it is about what is one's own",
    "nothing": "nothing beyond being let in",
}
"""Meaning of each need, for the documents."""
EVERY: Final = "*"
"""No queue is called so: only a right whose pattern it is, or one as wide, fits it."""


# enforces: P11
def check_need(need: Need, rights: Rights, queue: str | None) -> None:
    """Raises Refused(forbidden), which names the right that is missing. `queue` None: the operation
    names none, and shows only what there is a right to."""
    if need == "manage every":
        rights.check("manage", EVERY)
    if need == "observe every":
        rights.check_one_of(("observe", "manage"), EVERY)
    if queue is None:
        return
    match need:
        case "any":
            rights.check_one_of(VERBS, queue)
        case "own" | "nothing" | "manage every" | "observe every":
            pass
        case _:
            rights.check_one_of(cast(list[Verb], need.split(" or ")), queue)


Handler = Callable[[Broker, Request], Awaitable[Response]]
ADMISSION: Final = "tocsin.admission"
"""Where the access layer leaves the Admission in the ASGI scope."""
ALLOWANCE: Final = "tocsin.allowance"
"""Where it leaves the Allowance that the request is charged to."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that is not a problem. `body` is a msgspec type, None where there is no body."""

    description: str
    body: Any = None
    media_type: str = JSON


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter; `schema` is a JSON schema."""

    name: str
    description: str
    schema: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path. `path` is in Starlette's form, which is OpenAPI's too."""

    method: str
    path: str
    summary: str
    handler: Handler
    answers: Mapping[int, Answer]
    needs: Need | None = None
    """The right without which the handler does not run; None only where it is public (P11)."""
    request: Any = None
    """The msgspec type of the request body, None where none is read."""
    query: Sequence[Parameter] = ()
    errors: Sequence[str] = field(default=())
    """Codes that this operation has beside those every operation has."""
    act: str | None = None
    """Name in the audit trail; None: it is work, or a look, and no act."""
    public: bool = False
    """Answered without credentials: for supervisors, tells nothing about the content."""

    def __post_init__(self) -> None:
        """Refuse to start without a need, so that none can be forgotten."""
        if self.public is not (self.needs is None):
            raise ValueError(f"{self.method} {self.path}: needs a right, or is public")

    @property
    def name(self) -> str:
        """The operationId."""
        return self.handler.__name__


def admission(request: Request) -> Admission:
    """Return who asks, and for how long; set by the access layer before the handler of an operation
    that is not public runs."""
    found: Admission = request.scope[ADMISSION]
    return found


def authenticator(request: Request) -> Authenticator:
    """Return what judges credentials here."""
    found: Authenticator = request.app.auth
    return found


def audit_of(request: Request) -> Audit:
    """The audit trail."""
    accounting: AccountingWriter = request.app.accounting
    return accounting.audit


def allowance(request: Request) -> Allowance:
    """Return what this request is charged to; set like `admission`."""
    found: Allowance = request.scope[ALLOWANCE]
    return found


def principal(request: Request) -> Principal:
    """Return who asks."""
    return admission(request).principal


def rights(request: Request) -> Rights:
    """Return the rights of who asks."""
    return admission(request).rights


def check_rights(operation: Operation, request: Request) -> None:
    """Before the handler of an operation runs, and before anything is looked up: the answer is the
    same whether or not there is such a queue (P11). What an operation needs on single keys, or on
    a second queue, its handler checks.

    Raises:
        Refused: forbidden, which names the right; invalid_name.
    """
    if operation.needs is not None:
        named = "queue" in request.path_params
        check_need(operation.needs, rights(request), queue_name(request) if named else None)


def queue_name(request: Request) -> str:
    """The queue's name of the path. Raises Refused(invalid_name)."""
    name: str = request.path_params["queue"]
    check_name(name, "the queue's name")
    return name


def group_name(request: Request) -> str:
    """The group's name of the path. Raises Refused(invalid_name)."""
    name: str = request.path_params["group"]
    check_name(name, "the group's name")
    return name


def find_queue(broker: Broker, request: Request) -> Queue:
    """The queue of the path. Raises Refused: invalid_name, queue_not_found."""
    return broker.find_queue(principal(request), queue_name(request))


async def find_names(operation: Operation, broker: Broker, request: Request) -> None:
    """Before the handler of an operation runs: a queue or a group of the path that is not known
    here, and may have been made through another gateway just now, is known when this returns.

    Raises:
        Refused: metadata_unavailable: nobody can say whether it is there.
    """
    if "queue_not_found" not in operation.errors or not broker.metadata.is_shared:
        return
    metadata = broker.metadata
    try:
        queue = find_queue(broker, request)
        if "group_not_found" in operation.errors and "group" in request.path_params:
            metadata.find_group(principal(request), queue, group_name(request))
    except Refused as error:
        if error.code.name in ("queue_not_found", "group_not_found"):
            await metadata.catch_up()


async def read_body(request: Request, bytes_max: int = limits.FRAME_BYTES_MAX) -> bytes:
    """The whole request body of who is still let in when it is there.

    Raises:
        Refused: as runtime.operation.read_body; unauthorized: its sender's credential has ended
            meanwhile.
        ClientDisconnect: the client went away in the middle.
    """
    began = asyncio.get_running_loop().time()
    body = await receive_body(request, bytes_max)
    if ADMISSION in request.scope:
        _check_still(request, asyncio.get_running_loop().time() - began)
    return json_text(request, body)


def _check_still(request: Request, after_s: float) -> None:
    """Check that the credential is still good: it was judged when the header came, and a body may
    take half a minute. Nothing is begun for one that has ended since (P11). Raises
    Refused(unauthorized)."""
    found = admission(request)
    left_s = found.lasts_s - after_s
    if left_s <= 0 or not authenticator(request).is_live(found.credential):
        raise NotLetIn("ended", found.credential)
    request.scope[ADMISSION] = found._replace(lasts_s=left_s)


def query_number(
    request: Request, name: str, *, low: int = 0, high: int, default: int | None = None
) -> int | None:
    """A number of the query; `default` where it is not there. Raises Refused(invalid_request)."""
    text = request.query_params.get(name)
    if text is None:
        return default
    number = whole_number(text)
    if number is None or not low <= number <= high:
        raise Refused("invalid_request", f"{name} is a number {low} to {high}")
    return number


def query_limit(request: Request, high: int, default: int) -> int:
    """How many of something are wanted at most: `limit`. Raises Refused(invalid_request)."""
    return query_number(request, "limit", low=1, high=high, default=default) or default


def query_flag(request: Request, name: str) -> bool:
    """`true` or `false`; left out: false. Raises Refused(invalid_request)."""
    text = request.query_params.get(name, "false")
    if text not in ("true", "false"):
        raise Refused("invalid_request", f"{name} is true or false")
    return text == "true"


def limit_parameter(high: int) -> Parameter:
    """`limit`, as OpenAPI has it."""
    schema = {"type": "integer", "minimum": 1, "maximum": high}
    return Parameter("limit", "How many at most.", schema)
