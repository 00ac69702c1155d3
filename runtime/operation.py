"""Requests and answers of any HTTP interface: bounded reading of bodies, JSON, and the health
answers for supervisors. The module knows neither queues nor users."""

from typing import Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from push import limits
from push.errors import Refused
from runtime.loop.fairness import IncompleteBytesBudget

JSON: Final = "application/json"
INCOMING: Final = "tocsin.incoming"
"""The key of the ASGI scope for the IncompleteBytesBudget that request bodies count in."""
T = TypeVar("T")


class Health(msgspec.Struct):
    """The answer of /healthz, which shows that the process answers."""

    status: str


class Readiness(msgspec.Struct, omit_defaults=True):
    """The answer of /readyz. `not_ready` has a sentence for each thing that is not ready. If it is
    empty, the process takes traffic."""

    ready: bool
    not_ready: list[str]
    notes: list[str] = []
    """A sentence for each thing that rests although the process takes traffic; left out if there
    is none."""


async def read_body(request: Request, bytes_max: int = limits.FRAME_BYTES_MAX) -> bytes:
    """Return the whole request body, valid UTF-8; `{}` if the request has none and announces none.

    Raises:
        Refused: request_too_large, unsupported_encoding, overloaded (too many bytes of all clients
            are incomplete), or invalid_json (not UTF-8, or empty although a body was announced).
        ClientDisconnect: the client went away in the middle.
    """
    return json_text(request, await receive_body(request, bytes_max))


async def receive_body(request: Request, bytes_max: int) -> bytes:
    """Return the bytes of the request's body. More than `bytes_max` are refused (P9): by
    Content-Length before anything is read, else as soon as too much has come.

    Raises:
        Refused: request_too_large, unsupported_encoding, overloaded (too many bytes of all clients
            are incomplete).
        ClientDisconnect: the client went away in the middle.
    """
    _check_encoding(request)
    declared = request.headers.get("content-length", "")
    # Ten digits are 9 GB; longer ones are not worth an int(), which has a limit of its own.
    if declared.isdecimal() and (len(declared) > 10 or int(declared) > bytes_max):
        raise _too_large(bytes_max)
    return await _Body(request.scope.get(INCOMING)).read(request, bytes_max)


def json_text(request: Request, body: bytes) -> bytes:
    """Return the body, or `{}` if there is none and none was announced. Raises
    Refused(invalid_json) when it is not UTF-8, or empty although one was announced."""
    if not body.isascii():
        try:
            body.decode()  # msgspec.Raw, which message bodies are, lets invalid UTF-8 through
        except UnicodeDecodeError as error:
            raise Refused("invalid_json", f"not UTF-8: {error}") from None
    if not body and _announces_body(request):
        raise Refused(
            "invalid_json",
            "the body is empty, but the header announces one. For the defaults send {}, or leave "
            "out Content-Type and Transfer-Encoding",
        )
    return body or b"{}"


def _check_encoding(request: Request) -> None:
    """Refuse compressed content, which would be taken for JSON. Raises
    Refused(unsupported_encoding)."""
    codings = ",".join(request.headers.getlist("content-encoding")).lower().split(",")
    for coding in codings:
        if coding.strip() not in ("", "identity"):
            raise Refused(
                "unsupported_encoding",
                f"Content-Encoding: {coding.strip()[:100]} is not supported. Send the body "
                "uncompressed (identity)",
            )


def _announces_body(request: Request) -> bool:
    """Whether a request says that it has a body. An empty one is then a mistake of its sender (a
    missing file), and must not mean the defaults."""
    headers = request.headers
    length = headers.get("content-length", "0").strip("0 ")
    return "transfer-encoding" in headers or "content-type" in headers or bool(length)


class _Body:
    """A request body that is arriving."""

    __slots__ = ("_incoming", "_parts", "_size")

    def __init__(self, incoming: IncompleteBytesBudget | None) -> None:
        self._incoming = incoming
        self._parts: list[bytes] | None = []
        """Parts that have come so far; None once `give_up` has dropped them."""
        self._size = 0

    async def read(self, request: Request, bytes_max: int) -> bytes:
        try:
            more = True
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                more = message.get("more_body", False)
                # Not held while more is awaited, unlike in Request.stream: after giving up the
                # memory would stay in use.
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
        """Drop the parts. `read` raises Refused(overloaded) when the next part comes, if one
        does."""
        self._parts = None


def _too_much() -> Refused:
    return Refused(
        "overloaded", "too many requests are incomplete: try again later", retry_after_s=1.0
    )


def _too_large(bytes_max: int) -> Refused:
    return Refused("request_too_large", f"this request body may have at most {bytes_max} bytes")


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Return the typed form of a body. Of a key that occurs twice in an object the last one counts.

    Raises:
        Refused: invalid_json, or invalid_request with a sentence that names the field.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise Refused("invalid_request", str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused("invalid_json", str(error)) from None


def reply(value: object, status: int = 200) -> Response:
    """Return a JSON answer. A `msgspec.Raw` inside it stays byte for byte (P2)."""
    return Response(msgspec.json.encode(value), status, media_type=JSON)
