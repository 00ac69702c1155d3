"""Accounting of HTTP requests: their usage, and the acts that operations are.

`Accounts` is the layer under the problem documents: it counts each request and each refusal for its
principal and for the queue in the path. An operation with an `act` has a line in the audit trail,
which `gateway.rest.app.carry_out` begins; its handler adds details by `about` (`act_of`).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.accounting.audit import NOT_LET_IN, Actor, AuditedAct, why_of
from gateway.accounting.usage import UsageCounter
from gateway.accounting.writer import AccountingWriter
from gateway.broker import Broker
from gateway.models import WhichKey
from gateway.rest.operation import ADMISSION
from metadata.catalog import Queue
from metadata.port import has_queue
from push.errors import TocsinError
from push.ring import key_hash
from runtime.addresses import client_address
from runtime.problems import refusal

ACT: Final = "tocsin.act"
"""The key of a request's scope under which its act is."""


class Accounts:
    """An ASGI layer that counts requests and refusals."""

    def __init__(self, app: ASGIApp, accounting: AccountingWriter, broker: Broker) -> None:
        self._app = app
        self._accounting = accounting
        self._broker = broker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises what the application raises."""
        code: str | None = None
        why: tuple[str | None, str | None] = (None, None)
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            code = _code_of(error)
            why = why_of(error)
            raise
        finally:
            self._count(scope, code, why)

    def _count(self, scope: Scope, code: str | None, why: tuple[str | None, str | None]) -> None:
        counter = counter_of(scope, self._accounting, self._broker)
        counter.requests += 1
        if code is not None:
            counter.count_refusal(code)
        who, audit = actor_of(scope), self._accounting.audit
        if code in NOT_LET_IN and who.principal is None:
            audit.note_rejection(who, code, *why)
        elif who.principal is not None:
            audit.count_access(who)


def _code_of(error: Exception) -> str | None:
    """None: nothing is refused, its client is gone. A function of its own: a local name for what
    `refusal` returns, which is mostly `error` itself, would keep error, traceback, frames and the
    body among them alive for each other until the collector comes around (P9)."""
    refused = refusal(error)
    return refused.code.name if refused is not None else None


def actor_of(scope: Scope) -> Actor:
    """Whoever the access layer has let in, or nobody known."""
    return Actor.of(scope.get(ADMISSION), client_address(scope).text or None)


def counter_of(scope: Scope, accounting: AccountingWriter, broker: Broker) -> UsageCounter:
    """Where a request counts: for the queue in its path, if there is one."""
    principal = actor_of(scope).principal
    if principal is None:
        return accounting.usage.counter(None, None, None)
    name = scope.get("path_params", {}).get("queue")
    is_there = name is not None and has_queue(broker.metadata, principal, name)
    return accounting.usage.counter(principal.tenant, principal.name, name if is_there else None)


def act_of(request: Request) -> AuditedAct:
    """The act that this request is. Only in handlers of operations that have one."""
    act: AuditedAct = request.scope[ACT]
    return act


def hash_text(key: str, queue: Queue) -> str:
    """A key as the trail has it, which may be somebody's name: as parked keys are listed."""
    return f"{key_hash(key, queue.hash_key):016x}"


def key_fields(which: WhichKey, queue: Queue) -> dict[str, Any]:
    """Which keys a decision is about, as the trail has them."""
    if which.key is not None:
        return {"key_hash": hash_text(which.key, queue)}
    return {"all": True} if which.every else {"key_hash": f"{which.key_hash:016x}"}


@contextmanager
def asking(request: Request, named: Mapping[str, Any]) -> Iterator[None]:
    """Inside, settings are asked for: where that is refused, the trail has what was asked."""
    try:
        yield
    except TocsinError:
        act_of(request).about(asked=msgspec.to_builtins(dict(named)))
        raise


def changes(before: msgspec.Struct | None, after: msgspec.Struct) -> dict[str, Any]:
    """The settings that differ, as [before, after]; of what was not there, all that are not left
    at their default."""
    was = msgspec.to_builtins(before if before is not None else type(after)())
    now = msgspec.to_builtins(after)
    return {name: [was[name], now[name]] for name in now if was[name] != now[name]}
