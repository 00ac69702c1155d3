"""Requests and answers of any HTTP interface: bodies that are read within a bound, JSON, and what
supervisors are told. Of queues and of who asks it knows nothing."""

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
    """The process answers."""

    status: str


class Readiness(msgspec.Struct):
    """`not_ready` has a sentence for each thing that is not ready; empty: send traffic here."""

    ready: bool
    not_ready: list[str]


async def read_body(request: Request, bytes_max: int = limits.FRAME_BYTES_MAX) -> bytes:
    """The whole request body, valid UTF-8; `{}` where the request has none and announces none.

    Raises:
        Refused: as `receive_body` and `json_text`.
        ClientDisconnect: the client went away in the middle.
    """
    return json_text(request, await receive_body(request, bytes_max))


async def receive_body(request: Request, bytes_max: int) -> bytes:
    """The bytes of the body. Stops at the bound (P9): by Content-Length before anything is read,
    else as soon as what came is too much.

    Raises:
        Refused: request_too_large, unsupported_encoding, overloaded (too much of everybody's is
            incomplete).
        ClientDisconnect: the client went away in the middle.
    """
    _check_encoding(request)
    declared = request.headers.get("content-length", "")
    # Ten digits are 9 GB; longer ones are not worth an int(), which has a limit of its own.
    if declared.isdecimal() and (len(declared) > 10 or int(declared) > bytes_max):
        raise _too_large(bytes_max)
    return await _Body(request.scope.get(INCOMING)).read(request, bytes_max)


def json_text(request: Request, body: bytes) -> bytes:
    """The body, or `{}` where there is none and none was announced. Raises Refused(invalid_json):
    it is not UTF-8, or empty where one was announced."""
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


class _Body:
    """A request body on its way."""

    __slots__ = ("_incoming", "_parts", "_size")

    def __init__(self, incoming: IncompleteBytesBudget | None) -> None:
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
        """As BytesHolder.give_up. Who reads is told with the next part, or with
        the end of its time."""
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


def reply(value: object, status: int = 200) -> Response:
    """A JSON answer. `msgspec.Raw` inside stands in it byte for byte (P2)."""
    return Response(msgspec.json.encode(value), status, media_type=JSON)
