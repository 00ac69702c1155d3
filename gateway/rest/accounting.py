"""Accounting of HTTP requests: their usage, and operations that are acts of the audit trail.

`Accounts` is the layer under the problem documents. It counts each request and each refusal for its
principal and for the queue in the path. An operation with an `act` has a line in the audit trail,
which `gateway.rest.app.carry_out` begins. Its handler adds details by `about` (`act_of`).
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
        """Call the application, and count. Raises what the application raises."""
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
    """Return the code of a refusal; None if nothing is refused because the client is gone.

    This is a function of its own because `refusal` mostly returns `error` itself. A local name for
    it in the caller would make a circle of error, traceback, frames and body. They would stay in
    memory until the garbage collector runs (P9).
    """
    refused = refusal(error)
    return refused.code.name if refused is not None else None


def actor_of(scope: Scope) -> Actor:
    """Return the actor that the access layer has let in, or one without a principal."""
    return Actor.of(scope.get(ADMISSION), client_address(scope).text or None)


def counter_of(scope: Scope, accounting: AccountingWriter, broker: Broker) -> UsageCounter:
    """Return the usage counter of a request: of its principal for the queue in its path, if there
    is such a queue."""
    principal = actor_of(scope).principal
    if principal is None:
        return accounting.usage.counter(None, None, None)
    name = scope.get("path_params", {}).get("queue")
    is_there = name is not None and has_queue(broker.metadata, principal, name)
    return accounting.usage.counter(principal.tenant, principal.name, name if is_there else None)


def act_of(request: Request) -> AuditedAct:
    """Return the act of this request. Only for handlers of operations that have one."""
    act: AuditedAct = request.scope[ACT]
    return act


def hash_text(key: str, queue: Queue) -> str:
    """Return the hash of a key for the trail, in the form in which parked keys are listed. The key
    itself may be somebody's name."""
    return f"{key_hash(key, queue.hash_key):016x}"


def key_fields(which: WhichKey, queue: Queue) -> dict[str, Any]:
    """Return the fields of the trail that name the keys of a decision."""
    if which.key is not None:
        return {"key_hash": hash_text(which.key, queue)}
    return {"all": True} if which.every else {"key_hash": f"{which.key_hash:016x}"}


@contextmanager
def asking(request: Request, named: Mapping[str, Any]) -> Iterator[None]:
    """Note the requested settings in the trail if the block is refused."""
    try:
        yield
    except TocsinError:
        act_of(request).about(asked=msgspec.to_builtins(dict(named)))
        raise


def changes(before: msgspec.Struct | None, after: msgspec.Struct) -> dict[str, Any]:
    """Return the settings that differ, as [before, after]. With `before` None, they are compared
    with the defaults."""
    was = msgspec.to_builtins(before if before is not None else type(after)())
    now = msgspec.to_builtins(after)
    return {name: [was[name], now[name]] for name in now if was[name] != now[name]}
