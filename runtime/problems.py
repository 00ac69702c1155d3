"""Errors over HTTP: RFC 9457 problem documents with a stable `code`.

`Problems` is the outermost layer of every HTTP application of Tocsin. Whatever goes wrong below
it becomes a problem document, once: nothing a client sends gives a 5xx (P12), and what does is a
bug of Tocsin, logged with its traceback and answered `internal` without any of it.
"""

import logging
import math
from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metadata.settings import Difference
from push.errors import CODES, Refused, TocsinError

logger = logging.getLogger("tocsin.http")

MEDIA_TYPE = "application/problem+json"
SECURITY_HEADERS: Final = (
    ("X-Content-Type-Options", "nosniff"),  # a message's body is never taken for a page
    ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),  # answers hold messages
)
"""On every answer that has not set them itself."""
_HTTP_CODES: Mapping[int, str] = {
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
}
"""What Starlette raises by itself; anything else of its 4xx is an invalid_request."""


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem document (RFC 9457, section 3)."""

    type: str
    """urn:tocsin:problem:<code>"""
    title: str
    """What this code means, the same for every occurrence."""
    status: int
    detail: str
    """A sentence about this occurrence, for people."""
    code: str
    """What a program switches on."""
    retry: bool
    """Whether the same request may succeed later, unchanged."""
    retry_after_s: float | None = None
    differences: list[Difference] = []
    """With `settings_differ`: the settings that were named and have other values."""
    deleted: int | None = None
    """With `would_delete`: how many messages the change would delete,"""
    dead_lettered: int | None = None
    """and how many it would move to the dead letters."""


def document(error: TocsinError) -> Problem:
    """The problem document of an error."""
    code = error.code
    return Problem(
        type=f"urn:tocsin:problem:{code.name}",
        title=code.meaning,
        status=code.http_status,
        detail=error.detail,
        code=code.name,
        retry=code.retry,
        retry_after_s=error.retry_after_s,
        **error.more,
    )


def response(error: TocsinError, headers: Mapping[str, str] | None = None) -> Response:
    """The answer for an error: its document, its status, the headers that belong to it."""
    more = dict(headers or {})
    if error.retry_after_s is not None:
        more["Retry-After"] = _whole_seconds(error.retry_after_s)
    if error.code.http_status == 401:
        more["WWW-Authenticate"] = 'Bearer realm="tocsin"'  # RFC 9110, 11.6.1: a 401 has one
    if error.code.http_status == 415:
        more["Accept-Encoding"] = "identity"  # RFC 9110, 15.5.16: what would have been accepted
    return Response(
        msgspec.json.encode(document(error)), error.code.http_status, more, media_type=MEDIA_TYPE
    )


def refusal(error: Exception) -> TocsinError | None:
    """What was raised while a request was handled, as one of our errors; None: its client is
    gone."""
    if isinstance(error, TocsinError):
        return error
    if isinstance(error, HTTPException):
        code = _HTTP_CODES.get(error.status_code, "invalid_request")
        return Refused(code, CODES[code].meaning)
    if isinstance(error, msgspec.ValidationError):
        return Refused("invalid_request", str(error))
    if isinstance(error, msgspec.DecodeError):
        return Refused("invalid_json", str(error))
    return None if isinstance(error, ClientDisconnect) else TocsinError("internal")


def retry_after(error: TocsinError) -> list[str]:
    """The header that says when to come again, as a line; none where nobody knows."""
    if error.retry_after_s is None:
        return []
    return [f"retry-after: {_whole_seconds(error.retry_after_s)}"]


def _whole_seconds(after_s: float) -> str:
    """RFC 9110, 10.2.3: whole ones. Rounded up, or who comes then comes too soon."""
    return str(max(0, math.ceil(after_s)))


def from_exception(error: Exception) -> Response | None:
    """The answer for what was raised while a request was handled; None: nobody is there to read
    one. An exception nobody foresaw is logged here, and nowhere else."""
    found = refusal(error)
    if found is None:
        return None
    if found is not error and found.code.name == "internal":
        logger.error("a request ended in an unexpected error", exc_info=error)
    elif found.code.name == "internal":
        logger.error("internal error: %s", found.detail, exc_info=error)
    return response(found, error.headers if isinstance(error, HTTPException) else None)


class Problems:
    """ASGI: turns what the application below raises into problem documents."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Once an answer has begun it cannot be taken back: then the connection is cut, which is
        how HTTP says that an answer is incomplete."""
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            answer = from_exception(error)
            if answer is not None and not started:
                await answer(scope, receive, send)
