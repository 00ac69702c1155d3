"""Requests over HTTP: the broker's URL, paths, the token, and the meaning of refusals."""

import re
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from ssl import PROTOCOL_TLS_CLIENT, SSLContext
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import httpx2
import msgspec

from tocsin.answers import Difference
from tocsin.errors import BrokerError, CannotConnect, NotABroker, NoToken, broker_error

T = TypeVar("T")
Token = str | Callable[[], str | Awaitable[str]] | None
"""A bearer token, or a function that returns a fresh one at each use, plain or as an awaitable."""
BUSY_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of a proxy, or of a broker that starts. Another attempt may succeed."""
TIMEOUT_S: Final = 30.0
"""The usual time limit of an answer to a call, in seconds; a pull adds its `wait_s`."""
_TOKEN: Final = re.compile(r"[!-~]+")
_NO_TOKEN: Final = "{} is no token; a token is printable ASCII without blanks or line ends"


class _Problem(msgspec.Struct):
    """A problem document (RFC 9457) of Tocsin."""

    code: str = ""
    detail: str = ""
    retry: bool = False
    retry_after_s: float | None = None
    differences: list[Difference] = []
    deleted: int = 0
    dead_lettered: int = 0


def checked_url(url: str) -> str:
    """Return the URL of a broker without slashes at its end.

    Raises:
        ValueError: the text is no such URL, and why.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"the URL of a broker must begin with http:// or https://, unlike {url!r}")
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ValueError(f"{url!r} is no URL of a broker: {error}") from None
    if not has_host or parts.query or parts.fragment:
        raise ValueError(f"the URL of a broker must be like http://127.0.0.1:8080, not {url!r}")
    return url.rstrip("/")


def open_http(url: str, tls: SSLContext | None, *, timeout_s: float) -> httpx2.AsyncClient:
    """Return a client for requests to this broker. `tls` is from `tls_context`."""
    context = tls or SSLContext(PROTOCOL_TLS_CLIENT)  # None would read the system's authorities
    return httpx2.AsyncClient(base_url=url, verify=context, timeout=timeout_s, trust_env=False)


def path_to(*parts: str) -> str:
    """Return the path of these names below /v1. Raises InvalidRequest if one is no name."""
    for part in parts:
        if part in ("", ".", ".."):  # quoting cannot keep these from meaning another path
            raise broker_error("invalid_name", f"{part!r} is not a name")
    return "/v1/" + "/".join(quote(checked_text(part), safe="") for part in parts)


def checked_text(text: str) -> str:
    """Return the text. Raises InvalidRequest if it holds half of a character (a lone surrogate).

    Such a text cannot be encoded, so it cannot be sent.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise broker_error("invalid_request", f"{text!r} is not Unicode text") from None
    return text


def checked_token(token: Token) -> Token:
    """Return the token. The result of a token function is checked when it is used.

    Raises:
        ValueError: the token cannot be sent in a header. The error text does not show the token.
    """
    if isinstance(token, str) and not _TOKEN.fullmatch(token):
        raise ValueError(_NO_TOKEN.format("the token"))
    return token


def query_of(parameters: dict[str, object]) -> str:
    """Return the query string of the parameters that are not None. Raises InvalidRequest if one is
    no Unicode text."""
    given = {name: value for name, value in parameters.items() if value is not None}
    for value in given.values():
        if isinstance(value, str):
            checked_text(value)
    return f"?{urlencode(given)}" if given else ""


async def fresh_token(token: Token) -> str | None:
    """Return the token to present now; None if there is none.

    Raises:
        NoToken: the token function has raised, or returned no valid token.
    """
    if not callable(token):
        return token
    try:
        found = token()
        text = await found if isawaitable(found) else found
    except Exception as error:
        raise NoToken(f"the function for the token has failed: {error!r}") from error
    if not isinstance(text, str):
        raise NoToken(f"the function for the token has returned {text!r}, which is no text")
    if not _TOKEN.fullmatch(text):
        raise NoToken(_NO_TOKEN.format("the text from the function for the token"))
    return text


def bearer(token: str | None) -> dict[str, str]:
    """Return the headers that carry a token; empty without one."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def refusal_of(status: int, content: bytes) -> BrokerError | CannotConnect:
    """Return the error that the status and body of the answer to a refused request mean."""
    try:
        problem = msgspec.json.decode(content, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = _Problem()
    if problem.code:
        return broker_error(
            problem.code,
            problem.detail,
            retry=problem.retry,
            retry_after_s=problem.retry_after_s,
            more=msgspec.structs.asdict(problem),
        )
    if status == 401:
        return broker_error("unauthorized", "the broker does not accept the token")
    what = f"the server is not a Tocsin broker: HTTP status {status}"
    return CannotConnect(what) if status in BUSY_STATUSES else NotABroker(what)


def object_of(data: bytes) -> Any:
    """Return the JSON object of an answer, a dict whose fields the caller knows.

    Raises:
        CannotConnect: the answer is no JSON object.
    """
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise CannotConnect(f"the server is not a Tocsin broker: {error}") from None


def decoded_as(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    """Return what an answer holds.

    Raises:
        CannotConnect: the answer is of another form.
    """
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        raise CannotConnect(f"the server is not a Tocsin broker: {error}") from None
