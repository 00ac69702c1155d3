"""One HTTP operation: its place, its handler, and what OpenAPI says of it, in one value.

Routes and `/openapi.json` are made from the same table of operations, so that neither can lack
what the other has. A handler reads its request with the functions below and returns a `reply`;
everything that is wrong it raises.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from gateway.admission import Admission, NotLetIn
from gateway.incoming import Incoming
from gateway.limiter import Allowance
from gateway.needs import Need, check_need
from gateway.ports import BrokerPort
from gateway.whole_numbers import whole_number
from metadata.catalog import Principal, Queue, check_name
from metadata.rights import Rights
from push import limits
from push.errors import Refused

Handler = Callable[[BrokerPort, Request], Awaitable[Response]]
JSON: Final = "application/json"
ADMISSION: Final = "tocsin.admission"
"""Where the access layer leaves the Admission in the ASGI scope."""
INCOMING: Final = "tocsin.incoming"
"""Where the application leaves the Incoming that its request bodies count in."""
ALLOWANCE: Final = "tocsin.allowance"
"""Where it leaves the Allowance that the request is charged to."""
T = TypeVar("T")


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
    """One method of one path. `path` is in Starlette's form, which is OpenAPI's too."""

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
    """What the audit trail calls it; None: it is work, or a look, and no act."""
    public: bool = False
    """Answered without credentials: for supervisors, tells nothing about the content."""

    def __post_init__(self) -> None:
        """Nobody can forget to say what an operation needs: without, there is no broker."""
        if self.public is not (self.needs is None):
            raise ValueError(f"{self.method} {self.path}: needs a right, or is public")

    @property
    def name(self) -> str:
        """Its operationId."""
        return self.handler.__name__


def admission(request: Request) -> Admission:
    """Who asks, and for how long; set by the access layer before the handler of an operation that
    is not public runs."""
    found: Admission = request.scope[ADMISSION]
    return found


def allowance(request: Request) -> Allowance:
    """What this request is charged to; as `admission`."""
    found: Allowance = request.scope[ALLOWANCE]
    return found


def principal(request: Request) -> Principal:
    """Who asks."""
    return admission(request).principal


def rights(request: Request) -> Rights:
    """What who asks may do."""
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


def find_queue(broker: BrokerPort, request: Request) -> Queue:
    """The queue of the path. Raises Refused: invalid_name, queue_not_found."""
    return broker.find_queue(principal(request), queue_name(request))


async def find_names(operation: Operation, broker: BrokerPort, request: Request) -> None:
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
    """The whole request body, valid UTF-8; `{}` where the request has none and announces none.

    Stops at the bound (P9): by Content-Length before anything is read, else as soon as what came
    is too much.

    Raises:
        Refused: request_too_large, invalid_json (not UTF-8, or empty where one was announced),
            unsupported_encoding, overloaded (too much of everybody's is incomplete), unauthorized
            (its sender's credential has ended meanwhile).
        ClientDisconnect: the client went away in the middle.
    """
    _check_encoding(request)
    declared = request.headers.get("content-length", "")
    # Ten digits are 9 GB; longer ones are not worth an int(), which has a limit of its own.
    if declared.isdecimal() and (len(declared) > 10 or int(declared) > bytes_max):
        raise _too_large(bytes_max)
    began = asyncio.get_running_loop().time()
    body = await _Body(request.scope.get(INCOMING)).read(request, bytes_max)
    if ADMISSION in request.scope:
        _check_still(request, asyncio.get_running_loop().time() - began)
    if not body.isascii():
        try:
            body.decode()  # msgspec.Raw, which message bodies are, lets invalid UTF-8 through
        except UnicodeDecodeError as error:
            raise Refused("invalid_json", f"not UTF-8: {error}") from None
    if not body and _announces_body(request):
        raise Refused(
            "invalid_json",
            "the body is empty although the header announces one; send {} to mean the defaults, or "
            "no Content-Type and no Transfer-Encoding",
        )
    return body or b"{}"


def _check_encoding(request: Request) -> None:
    """Compressed content would be taken for JSON. Raises Refused(unsupported_encoding)."""
    codings = ",".join(request.headers.getlist("content-encoding")).lower().split(",")
    for coding in codings:
        if coding.strip() not in ("", "identity"):
            raise Refused(
                "unsupported_encoding",
                f"Content-Encoding: {coding.strip()[:100]} is not read here; send the body as it "
                "is (identity)",
            )


def _announces_body(request: Request) -> bool:
    """Whether a request says that it has a body. An empty one is then a mistake of its sender (a
    file that is not there), and must not mean the defaults."""
    headers = request.headers
    length = headers.get("content-length", "0").strip("0 ")
    return "transfer-encoding" in headers or "content-type" in headers or bool(length)


def _check_still(request: Request, after_s: float) -> None:
    """Who asks has been judged when the header came, and a body may take half a minute: nothing is
    begun for a credential that has ended since (P11). Raises Refused(unauthorized)."""
    found = admission(request)
    left_s = found.lasts_s - after_s
    if left_s <= 0 or not request.app.auth.is_live(found.credential):
        raise NotLetIn("ended", found.credential)
    request.scope[ADMISSION] = found._replace(lasts_s=left_s)


class _Body:
    """A request body on its way."""

    __slots__ = ("_incoming", "_parts", "_size")

    def __init__(self, incoming: Incoming | None) -> None:
        self._incoming = incoming
        self._parts: list[bytes] | None = []
        """None: given up."""
        self._size = 0

    async def read(self, request: Request, bytes_max: int) -> bytes:
        try:
            more = True
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                more = message.get("more_body", False)
                # Not held while more is awaited, as Request.stream does: who has given up would go
                # on to have it.
                self._take(message.pop("body", b""), bytes_max)
        finally:
            if self._incoming is not None:
                self._incoming.hold(self, 0)
        assert self._parts is not None  # the last part, perhaps an empty one, is taken, too
        return b"".join(self._parts)

    def _take(self, part: bytes, bytes_max: int) -> None:
        self._size += len(part)
        if self._size > bytes_max:
            raise _too_large(bytes_max)
        if self._parts is not None:
            self._parts.append(part)
            if self._incoming is not None:
                self._incoming.hold(self, self._size)
        if self._parts is None:
            raise _too_much()

    def give_up(self) -> None:
        """As Holder.give_up of gateway.incoming. Who reads is told with the next part, or with the
        end of its time."""
        self._parts = None


def _too_much() -> Refused:
    return Refused("overloaded", "too many requests are not complete", retry_after_s=1.0)


def _too_large(bytes_max: int) -> Refused:
    return Refused("request_too_large", f"a request body has at most {bytes_max} bytes here")


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The typed form of a body. Of a key that stands twice in an object the last one counts.

    Raises:
        Refused: invalid_json, or invalid_request with a sentence that names the field.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise Refused("invalid_request", str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused("invalid_json", str(error)) from None


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


def reply(value: object, status: int = 200) -> Response:
    """A JSON answer. `msgspec.Raw` inside stands in it byte for byte (P2)."""
    return Response(msgspec.json.encode(value), status, media_type=JSON)
