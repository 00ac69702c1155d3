"""Errors over HTTP: RFC 9457 problem documents with a stable `code`.

`Problems` is the outermost layer of every HTTP application of Tocsin. Every error below it becomes
a problem document, once. Nothing that a client sends gives a 5xx (P12). An error that does is a bug
of Tocsin, logged with its traceback and answered `internal` without any of it.
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
"""Headers of every answer that has not set them itself."""
_HTTP_CODES: Mapping[int, str] = {
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
}
"""Codes for the errors that Starlette raises by itself; its other 4xx are invalid_request."""


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem document (RFC 9457, section 3)."""

    type: str
    """urn:tocsin:problem:<code>"""
    title: str
    """Meaning of this code, the same for every occurrence."""
    status: int
    detail: str
    """A sentence about this occurrence, for people."""
    code: str
    """Name of the error for programs."""
    retry: bool
    """Whether the same request may succeed later, unchanged."""
    retry_after_s: float | None = None
    differences: list[Difference] = []
    """With `settings_differ`: the named settings whose values differ."""
    deleted: int | None = None
    """With `would_delete`: the number of messages that the change would delete."""
    dead_lettered: int | None = None
    """With `would_delete`: the number that it would move to the dead letters."""


def document(error: TocsinError) -> Problem:
    """Return the problem document of an error."""
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
    """Return the answer for an error: its document, its status, its headers."""
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
    """Return an exception from the handling of a request as one of our errors; None if its client
    is gone."""
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
    """Return the header line that says when to retry; [] if the error does not say."""
    if error.retry_after_s is None:
        return []
    return [f"retry-after: {_whole_seconds(error.retry_after_s)}"]


def _whole_seconds(after_s: float) -> str:
    """Return whole seconds (RFC 9110, 10.2.3), rounded up, because a client that retries earlier
    retries too soon."""
    return str(max(0, math.ceil(after_s)))


# enforces: P12
def from_exception(error: Exception) -> Response | None:
    """Return the answer for an exception from the handling of a request; None if the client is
    gone. An unexpected exception is logged here, and nowhere else."""
    found = refusal(error)
    if found is None:
        return None
    if found is not error and found.code.name == "internal":
        logger.error("a request ended in an unexpected error", exc_info=error)
    elif found.code.name == "internal":
        logger.error("internal error: %s", found.detail, exc_info=error)
    return response(found, error.headers if isinstance(error, HTTPException) else None)


class Problems:
    """The ASGI layer that turns exceptions of the application below into problem documents."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request. An answer that has begun cannot be taken back; then the connection is
        cut, by which HTTP marks an incomplete answer."""
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
