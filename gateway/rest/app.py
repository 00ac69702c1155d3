"""The HTTP application: operations behind one layer that judges credentials, and problem documents.

The layers from the outside in are CORS (if origins are allowed), `Problems` (makes documents of
errors), `Accounts` (counts requests and refusals), `Access` (credentials, and headers of every
answer) and the router. A layer is an ASGI callable without a task or a queue of its own.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final
from urllib.parse import unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.accounting.writer import AccountingWriter
from gateway.auth.auth import Authenticator, several
from gateway.auth.origins import configured_origin
from gateway.broker import Broker
from gateway.limits.limiter import Limiter
from gateway.models import Admission
from gateway.net.longpoll import LongPolls
from gateway.rest import openapi
from gateway.rest.accounting import ACT, Accounts, actor_of
from gateway.rest.operation import (
    ADMISSION,
    ALLOWANCE,
    Operation,
    check_rights,
    find_names,
)
from gateway.rest.routes import (
    access,
    backlog,
    groups,
    messages,
    pull,
    queues,
    sessions,
    status,
)
from push.places import NAME, check_name
from runtime.addresses import client_address, name_of
from runtime.loop.fairness import IncompleteBytesBudget
from runtime.operation import INCOMING
from runtime.problems import SECURITY_HEADERS, Problems
from runtime.trace_context import NoTracer, Tracer, answering, trace_of

OPERATIONS: Final[tuple[Operation, ...]] = (
    *queues.OPERATIONS,
    *messages.OPERATIONS,
    *groups.OPERATIONS,
    *pull.OPERATIONS,
    *backlog.OPERATIONS,
    *sessions.OPERATIONS,
    *access.OPERATIONS,
    *status.OPERATIONS,
)
NAMED: Final = "/v1/queues/"
"""Beginning of the paths that have names in them."""
_ONCE: Final = frozenset({b"host", b"origin", b"authorization", b"cookie"})


class Access:
    """The ASGI layer that judges credentials once for all operations. Public paths need none."""

    def __init__(
        self,
        app: ASGIApp,
        auth: Authenticator,
        public: frozenset[str],
        leaving: Callable[[], bool],
        wall: Callable[[], float],
        *,
        limiter: Limiter,
        broker: Broker,
    ) -> None:
        self._app = app
        self._broker = broker
        self._auth = auth
        self._limiter = limiter
        self._wall = wall
        self._public = public
        self._below = tuple(path.removesuffix("*") for path in public if path.endswith("/*"))
        self._leaving = leaving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Judge a request, then call the router. Raises Refused: unauthorized, origin_refused,
        invalid_request, invalid_name, rate_limited."""
        # By scope["path"], which the router uses too. A URL made with the Host header would be
        # what the client claims.
        if not self._is_public(scope["path"]):
            admission = scope[ADMISSION] = self.judge(scope)
            allowance = scope[ALLOWANCE] = self._limiter.allowance(
                admission.principal,
                _address(scope),
                own=admission.limits,
                credential=admission.credential,
            )
            allowance.take("requests", now=asyncio.get_running_loop().time())
            _check_slashes(scope)
        await self._app(scope, receive, send)

    @staticmethod
    def check_once(scope: Scope) -> None:
        """Check that no important header came twice, because a proxy and this gateway might each
        use another one of them. Raises Refused: unauthorized, invalid_request."""
        seen: set[bytes] = set()
        for name, _ in scope["headers"]:
            if name in _ONCE:
                if name in seen:
                    raise several(name.decode())
                seen.add(name)

    def judge(self, scope: Scope) -> Admission:
        """Return the admission of a request. Raises Refused: unauthorized, origin_refused,
        invalid_request, rate_limited."""
        self.check_once(scope)
        is_read = scope["method"] in {"GET", "HEAD"}
        headers, client = Headers(scope=scope), client_address(scope)
        with self.guessing(scope) if "authorization" in headers else nullcontext():
            admission = self._auth.authenticate(
                headers,
                is_read=is_read,
                wall=self._wall(),
                certificate=client.certificate_name,
                is_tls=client.is_tls,
            )
        if admission is None:
            raise self._auth.refusal_of(headers, client.certificate_name)
        return admission

    def guessing(self, scope: Scope) -> AbstractContextManager[None]:
        """Return a context in which a wrong credential counts as a guess of the client's address
        (`Limiter.checking_credential`). A request without a credential is refused, but is no guess.
        A cookie cannot be guessed."""
        now = asyncio.get_running_loop().time()
        return self._limiter.checking_credential(_address(scope), now=now)

    def _is_public(self, path: str) -> bool:
        return path in self._public or path.startswith(self._below)

    def finishing(self, scope: Scope, send: Send) -> Send:
        """Return a `send` that adds the headers of every answer, problems included. A client with
        access also gets the names of the gateways."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if ADMISSION in scope and (gateways := self._broker.gateways):
                    headers["Tocsin-Gateway"] = self._broker.gateway
                    headers["Tocsin-Gateways"] = ", ".join(gateways)
                for name, text in SECURITY_HEADERS:
                    headers.setdefault(name, text)
                if self._leaving():  # the next request is for another gateway (P14)
                    headers["Connection"] = "close"
            await send(message)

        return sending


def _address(scope: Scope) -> str | None:
    """Return the name under which an address is counted; None if it is not counted."""
    return name_of(client_address(scope).text)


def _check_slashes(scope: Scope) -> None:
    """Raise Refused(invalid_name) for a quoted slash in a name. The router uses the unquoted path.
    It would take the slash for the end of the name, and find nothing or something else."""
    if b"%2f" in scope["raw_path"].lower() and scope["path"].startswith(NAMED):
        for part in scope["raw_path"].decode("ascii", "replace").split("/"):
            if "/" in unquote(part):
                check_name(unquote(part), "a name in the path")


class Application:
    """The ASGI application of a gateway."""

    def __init__(
        self,
        broker: Broker,
        auth: Authenticator,
        polls: LongPolls | None = None,
        *,
        origins: Sequence[str] = (),
        operations: Sequence[Operation] = OPERATIONS,
        routes: Sequence[BaseRoute] = (),
        public: Sequence[str] = (),
        wall: Callable[[], float] = time.time,
        incoming: IncompleteBytesBudget | None = None,
        accounting: AccountingWriter | None = None,
        limiter: Limiter | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`polls` are the sessions by long poll; None if there are none. `routes` are further
        routes that OpenAPI does not describe, such as pages. `public` are the paths among them
        that need no credentials; `/…/*` stands for everything below it. `wall` returns unix
        seconds. `incoming` is the budget that bodies count in; None for one of their own.
        `limiter` None means no limits."""
        self.polls = polls
        self.auth = auth
        self.accounting = accounting or AccountingWriter()
        self.wall = wall
        self.tracer = tracer or NoTracer()
        self._incoming = incoming or IncompleteBytesBudget()
        self.openapi = openapi.encode(operations)
        self._router = Router(
            [*_routes(broker, operations), *routes],
            redirect_slashes=False,  # a redirect would repeat the client's Host header
        )
        open_paths = frozenset(o.path for o in operations if o.public) | frozenset(public)
        self.access = Access(
            self._router,
            auth,
            open_paths,
            lambda: broker.draining,
            wall,
            limiter=limiter or Limiter(),
            broker=broker,
        )
        self._problems: ASGIApp = Problems(Accounts(self.access, self.accounting, broker))
        self._outermost: ASGIApp = self._finish
        if origins:
            self._outermost = CORSMiddleware(
                self._finish,
                allow_origins=list(map(configured_origin, origins)),
                allow_methods=("GET", "PUT", "PATCH", "POST", "DELETE"),
                allow_headers=("Authorization", "Content-Type", "traceparent", "tracestate"),
                expose_headers=("Retry-After", "Tocsin-Gateway", "Tocsin-Gateways"),
                max_age=600,
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer HTTP. WebSockets never come here, because their protocol class handles them."""
        assert scope["type"] == "http", scope["type"]
        scope[INCOMING] = self._incoming
        scope["app"] = self  # Starlette's router then raises 404 and 405 instead of answering
        trace = trace_of(scope["headers"])
        with answering(trace) if trace is not None else nullcontext():
            await self._outermost(scope, receive, send)

    async def _finish(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._problems(scope, receive, self.access.finishing(scope, send))


def _routes(broker: Broker, operations: Sequence[Operation]) -> list[BaseRoute]:
    """Make one route for each path, so that a 405 names every method the path has."""
    paths: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = operation
    return [_route(broker, path, methods) for path, methods in paths.items()]


def _route(broker: Broker, path: str, methods: dict[str, Operation]) -> Route:
    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await carry_out(methods[method], broker, request)

    return Route(path, endpoint, methods=list(methods))


async def carry_out(operation: Operation, broker: Broker, request: Request) -> Response:
    """Check the right that an operation needs, then run its handler. If it is an act, its line in
    the audit trail is written when this returns or raises."""
    if operation.act is None:
        check_rights(operation, request)
        await find_names(operation, broker, request)
        return await operation.handler(broker, request)
    accounting: AccountingWriter = request.app.accounting
    path = request.path_params
    queue, group = _name_in(path, "queue"), _name_in(path, "group")
    who = actor_of(request.scope)
    async with accounting.audit.act(operation.act, who, queue=queue, group=group) as act:
        request.scope[ACT] = act
        check_rights(operation, request)
        await find_names(operation, broker, request)
        return await operation.handler(broker, request)


def _name_in(path: dict[str, Any], what: str) -> str | None:
    """Return a name of the path for the trail; None if it is no valid name."""
    name = path.get(what)
    return name if isinstance(name, str) and NAME.fullmatch(name) else None
