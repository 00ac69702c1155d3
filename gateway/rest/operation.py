"""An HTTP operation: its place, its handler, its right, and its text in OpenAPI, in one value.

Routes and `/openapi.json` are made from the same table of operations, so that neither can lack
what the other has. A handler reads its request with the functions below and those of
runtime.operation, and returns a `reply`. It raises every error.

A `need` says which right lets an operation run. `gateway.rest.app.carry_out` checks it, before the
handler and nowhere else. Frames have rights too, and each names a queue. Those are checked in
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
from metadata.catalog import Principal, Queue
from metadata.rights import VERBS, Rights, Verb
from push import limits
from push.errors import Refused
from push.places import check_name
from runtime.operation import JSON, json_text, receive_body

Need = Literal[
    "publish",
    "consume",
    "read",
    "manage",
    "consume or manage",
    "consume or manage or observe",
    "read or manage",
    "publish or manage",
    "manage every",
    "observe every",
    "any",
    "own",
    "nothing",
]
NEEDS: Final[Mapping[Need, str]] = {
    "publish": "`publish` on the queue, for each message on its key",
    "consume": "`consume` on the queue",
    "read": "`read` on the queue; if it covers some keys only, for one of these",
    "manage": "`manage` on the queue",
    "consume or manage": "`consume` or `manage` on the queue",
    "consume or manage or observe": "`consume`, `manage` or `observe` on the queue",
    "read or manage": "`manage` on the queue, or `read` on it, which also shows contents",
    "publish or manage": "`manage` on the queue, or `publish` on it, on the message's key",
    "manage every": "`manage` on every queue: `manage:*`",
    "observe every": "`observe` or `manage` on every queue: `observe:*`",
    "any": "any right on the queue, which decides what is shown of it",
    "own": "no right beyond valid credentials, because it only concerns the client itself",
    "nothing": "no right beyond valid credentials",
}
"""Meaning of each need, for the documents."""
EVERY: Final = "*"
"""A name that no queue has. Only a right with this pattern, or one as wide, covers it."""


# enforces: P11
def check_need(need: Need, rights: Rights, queue: str | None) -> None:
    """Raise Refused(forbidden), with the missing right, unless the need is met. `queue` is None if
    the operation names no queue, and shows only what there is a right to."""
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
"""Key of the ASGI scope under which the access layer leaves the Admission."""
ALLOWANCE: Final = "tocsin.allowance"
"""Key of the ASGI scope under which the access layer leaves the Allowance that the request is
charged to."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that is not a problem. `body` is a msgspec type, or None for no body."""

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
    """The right without which the handler does not run; None only if it is public (P11)."""
    request: Any = None
    """The msgspec type of the request body; None if no body is read."""
    query: Sequence[Parameter] = ()
    errors: Sequence[str] = field(default=())
    """Codes of this operation, in addition to those of every operation."""
    act: str | None = None
    """Name in the audit trail; None if it is no act."""
    public: bool = False
    """Whether it is answered without credentials. Then it shows nothing of queues."""

    def __post_init__(self) -> None:
        """Raise ValueError unless the operation either needs a right or is public, so that no right
        is forgotten."""
        if self.public is not (self.needs is None):
            raise ValueError(f"{self.method} {self.path}: needs a right, or is public")

    @property
    def name(self) -> str:
        """The operationId."""
        return self.handler.__name__


def admission(request: Request) -> Admission:
    """Return the admission of a request. The access layer sets it before the handler of an
    operation that is not public runs."""
    found: Admission = request.scope[ADMISSION]
    return found


def authenticator(request: Request) -> Authenticator:
    """Return the authenticator of this gateway."""
    found: Authenticator = request.app.auth
    return found


def audit_of(request: Request) -> Audit:
    """Return the audit trail."""
    accounting: AccountingWriter = request.app.accounting
    return accounting.audit


def allowance(request: Request) -> Allowance:
    """Return the allowance that a request is charged to. The access layer sets it with the
    admission."""
    found: Allowance = request.scope[ALLOWANCE]
    return found


def principal(request: Request) -> Principal:
    """Return the principal of a request."""
    return admission(request).principal


def rights(request: Request) -> Rights:
    """Return the rights of a request."""
    return admission(request).rights


def check_rights(operation: Operation, request: Request) -> None:
    """Check the need of an operation, before its handler runs and before anything is looked up. So
    the answer is the same whether or not there is such a queue (P11). The handler itself checks
    rights on single keys, or on a second queue.

    Raises:
        Refused: forbidden, which names the right; invalid_name.
    """
    if operation.needs is not None:
        named = "queue" in request.path_params
        check_need(operation.needs, rights(request), queue_name(request) if named else None)


def queue_name(request: Request) -> str:
    """Return the queue's name of the path. Raises Refused(invalid_name)."""
    name: str = request.path_params["queue"]
    check_name(name, "the queue's name")
    return name


def group_name(request: Request) -> str:
    """Return the group's name of the path. Raises Refused(invalid_name)."""
    name: str = request.path_params["group"]
    check_name(name, "the group's name")
    return name


def find_queue(broker: Broker, request: Request) -> Queue:
    """Return the queue of the path. Raises Refused: invalid_name, queue_not_found."""
    return broker.find_queue(principal(request), queue_name(request))


async def find_names(operation: Operation, broker: Broker, request: Request) -> None:
    """Learn of a queue or a group of the path that was just made through another gateway. This is
    called before the handler of an operation runs.

    Raises:
        Refused: metadata_unavailable if nobody can say whether it exists.
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
    """Receive the whole request body, and check that the sender's credential is still good then.

    Raises:
        Refused: as runtime.operation.receive_body and json_text do; unauthorized if the
            credential has ended meanwhile.
        ClientDisconnect: the client went away in the middle.
    """
    began = asyncio.get_running_loop().time()
    body = await receive_body(request, bytes_max)
    if ADMISSION in request.scope:
        _check_still(request, asyncio.get_running_loop().time() - began)
    return json_text(request, body)


def _check_still(request: Request, after_s: float) -> None:
    """Check that the credential is still good. It was judged when the header came, and a body may
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
    """Return a number of the query, or `default` if it is left out. Raises
    Refused(invalid_request)."""
    text = request.query_params.get(name)
    if text is None:
        return default
    number = whole_number(text)
    if number is None or not low <= number <= high:
        raise Refused("invalid_request", f"{name} is a number from {low} to {high}")
    return number


def query_limit(request: Request, high: int, default: int) -> int:
    """Return `limit`, the largest number of things to return. Raises Refused(invalid_request)."""
    return query_number(request, "limit", low=1, high=high, default=default) or default


def query_flag(request: Request, name: str) -> bool:
    """Return whether a flag of the query is `true`; False if it is left out. Raises
    Refused(invalid_request)."""
    text = request.query_params.get(name, "false")
    if text not in ("true", "false"):
        raise Refused("invalid_request", f"{name} is true or false")
    return text == "true"


def limit_parameter(high: int) -> Parameter:
    """Describe `limit` for OpenAPI."""
    schema = {"type": "integer", "minimum": 1, "maximum": high}
    return Parameter("limit", "The largest number to return.", schema)
