"""Server of the admin socket: acts that only an operator on this machine may do.

The socket is a Unix socket in the data folder, for its owner alone (0600). So a user that may write
the data may use it, and no client over the network can. It speaks HTTP with the same problem
documents, about queues, parked keys, backups, API tokens, the master key, and the places of
partitions.

A path of a Unix socket has at most 107 bytes. If the path in the data folder is longer, the socket
is in a temporary folder, and `admin.path` in the data folder says where.
"""

import asyncio
import contextlib
import os
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.accounting.audit import LOCAL, Actor, Audit
from gateway.accounting.writer import AccountingWriter
from gateway.admin.client import ADMINISTRATOR, POINTER_NAME, SOCKET_NAME, socket_path
from gateway.auth.auth import Authenticator
from gateway.broker import Broker
from gateway.encryption.keyring import Keyring
from gateway.encryption.master_key import parse_new_key
from gateway.limits.spec import limits_of
from gateway.rest.accounting import key_fields
from gateway.rest.routes.backlog import KEYS_DEFAULT, DecisionRequest
from metadata.catalog import Principal
from metadata.port import Tokens
from metadata.tokens import (
    ID_ALPHABET,
    ID_LETTERS,
    SECRET_ALPHABET,
    SECRET_LETTERS,
    TokenRecord,
    digest_of,
    write_token,
)
from push import limits
from push.errors import Refused, TocsinError
from push.places import NAME
from runtime.listener import Listener
from runtime.operation import decode, read_body, reply
from runtime.problems import Problems, document

SOCKET_PATH_BYTES_MAX: Final = 107
"""Longest path of a Unix socket. sockaddr_un.sun_path has 108 bytes, one of them the final zero."""
PROGRESS_S: Final = 0.5
"""Seconds between two lines about a backup under way."""
UNUSED: Final = (
    "this broker lets everybody on this machine in, with or without a token. To require tokens, "
    "set TOCSIN_TOKEN, TOCSIN_JWT_KEYS or TOCSIN_AUTH=required, and restart it"
)
_NOTED: Final = ("master_key_id", "master_key_id_before", "data_keys")
"""Fields of the result of a rotation that the audit trail gets."""


class DeleteQueue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to delete a queue. `confirm` repeats its name, because a deleted queue cannot be
    brought back. Without `confirm` nothing is deleted, and the answer says what would be."""

    queue: str
    confirm: str | None
    tenant: str = ADMINISTRATOR.tenant


class Park(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request about the parked keys of a group: to list at most `limit` of them, or with `decide`
    to decide about some."""

    queue: str
    group: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=limits.PARKED_PER_CALL_MAX)] = KEYS_DEFAULT
    decide: DecisionRequest | None = None
    tenant: str = ADMINISTRATOR.tenant


class BackupTo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The place of a backup: the absolute path of a folder that is empty or does not exist."""

    folder: str


class PartitionsOf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A queue whose partitions are wanted."""

    queue: str
    tenant: str = ADMINISTRATOR.tenant


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Properties of a new token. `lasts_s`: seconds until it expires; None: never. `certificate`:
    the name of a client certificate that is used instead of a token; `limits`: bounds of what its
    holder may do (gateway.limits.spec)."""

    name: str
    tenant: str = "default"
    rights: list[str]
    lasts_s: float | None = None
    certificate: str | None = None
    limits: str = ""


class TokenId(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The id of the token to revoke."""

    token_id: str


class RotateMasterKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The new master key; None: the broker makes one."""

    new_key: str | None = None


_DELETE_QUEUE: Final = msgspec.json.Decoder(DeleteQueue)
_PARK: Final = msgspec.json.Decoder(Park)
_BACKUP_TO: Final = msgspec.json.Decoder(BackupTo)
_PARTITIONS_OF: Final = msgspec.json.Decoder(PartitionsOf)
_NEW_TOKEN: Final = msgspec.json.Decoder(NewToken)
_TOKEN_ID: Final = msgspec.json.Decoder(TokenId)
_ROTATE: Final = msgspec.json.Decoder(RotateMasterKey)


class AdminSocket:
    """The admin socket of a running broker, with its server."""

    def __init__(
        self,
        data_dir: Path,
        broker: Broker,
        routes: Sequence[BaseRoute] = (),
        accounting: AccountingWriter | None = None,
        *,
        url: str = "",
    ) -> None:
        """Begin without a socket. `routes`: further routes. `url`: the address at which clients
        find the broker."""
        self._url = url
        self._audit = (accounting or AccountingWriter()).audit
        self._data_dir = data_dir
        self._routes = tuple(routes)
        self._broker = broker
        self._listener: Listener | None = None
        self._backups: set[_Backup] = set()

    async def start(self) -> None:
        """Listen. The caller has locked the data folder, so the socket that a dead broker left is
        removed."""
        clear(self._data_dir)
        self._listener = Listener(self._application(), _bind(self._data_dir))
        await self._listener.start()

    async def stop(self) -> None:
        """Break backups off, wait at most a second for the requests under way, then remove the
        socket. If the socket was not started, nothing happens."""
        for backup in list(self._backups):
            backup.break_off()
        if self._listener is not None:
            await self._listener.finish(1)
            clear(self._data_dir)

    async def _where(self, _request: Request) -> Response:
        return reply({"url": self._url})

    def _application(self) -> ASGIApp:
        broker, audit = self._broker, self._audit

        async def delete_queue(request: Request) -> Response:
            return await _delete_queue(broker, audit, request)

        async def park(request: Request) -> Response:
            wanted = decode(await read_body(request), _PARK)
            who, by = _administrator(wanted.tenant)
            queue = broker.find_queue(who, wanted.queue)
            group = broker.metadata.find_group(who, queue, wanted.group)
            if wanted.decide is None:
                return reply(await broker.parking.list_keys(queue, group, wanted.limit))
            which, verb = wanted.decide.which(), wanted.decide.decision
            place = {"queue": wanted.queue, "group": wanted.group}
            async with audit.act("parked.decide", by, **place) as act:
                act.about(decision=verb, **key_fields(which, queue))
                decided = await broker.parking.decide(queue, group, verb, which)
                act.about(keys=len(decided.keys))
            return reply(decided)

        async def status(request: Request) -> Response:
            return reply(await broker.describe())

        async def backup(request: Request) -> Response:
            wanted = decode(await read_body(request), _BACKUP_TO)
            under_way = _Backup(broker, audit, Path(wanted.folder), self._backups.discard)
            self._backups.add(under_way)
            return await under_way.response()

        router = Router(
            [
                *key_routes(broker, audit),
                *cluster_routes(broker),
                Route("/delete-queue", delete_queue, methods=["POST"]),
                Route("/park", park, methods=["POST"]),
                Route("/backup", backup, methods=["POST"]),
                Route("/status", status, methods=["GET"]),
                Route("/broker", self._where, methods=["GET"]),
                *self._routes,
            ],
            redirect_slashes=False,
        )

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            scope["app"] = application  # the router then raises 404 and 405
            await router(scope, receive, send)

        return Problems(application)


def _administrator(tenant: str) -> tuple[Principal, Actor]:
    """Return the principal that acts in this tenant, and its actor for the audit trail."""
    who = Principal(ADMINISTRATOR.name, tenant)
    return who, msgspec.structs.replace(LOCAL, principal=who)


async def _delete_queue(broker: Broker, audit: Audit, request: Request) -> Response:
    wanted = decode(await read_body(request), _DELETE_QUEUE)
    who, by = _administrator(wanted.tenant)
    if wanted.confirm is None:
        return reply(await _contents(broker, who, wanted.queue))
    if wanted.queue != wanted.confirm:
        raise Refused(
            "invalid_request", "queue and confirm are not the same name: repeat the queue's name"
        )
    async with audit.act("queue.delete", by, queue=wanted.queue) as act:
        held = await _contents(broker, who, wanted.queue)
        act.about(**held)
        await act.begin()
        queue = await broker.delete_queue(who, wanted.queue)
        act.about(queue_id=queue.queue_id)
    return reply({"deleted": queue.name, "queue_id": queue.queue_id, **held})


async def _contents(broker: Broker, who: Principal, name: str) -> dict[str, Any]:
    """Count the messages, scheduled ones included, and groups that are deleted with a queue. If the
    storage is away, the messages are left out, because the queue can be deleted nevertheless.
    Raises Refused(queue_not_found)."""
    queue = broker.find_queue(who, name)
    groups = len(broker.metadata.list_groups(who, queue))
    try:
        described = await broker.describe_queue(who, name)
    except TocsinError as error:
        if error.code.name not in {"storage_unavailable", "unknown"}:
            raise
        return {"groups": groups}
    depth, scheduled = described["depth"], described["scheduled"]
    assert isinstance(depth, int)
    assert isinstance(scheduled, dict)
    return {"messages": depth + scheduled["messages"], "groups": groups}


def _bind(data_dir: Path) -> socket.socket:
    path = data_dir / SOCKET_NAME
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        path = Path(tempfile.mkdtemp(prefix="tocsin-")) / SOCKET_NAME  # a folder of mode 0700
        (data_dir / POINTER_NAME).write_text(str(path), encoding="utf-8")
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Before a chmod afterwards, anybody could connect for a moment.
    umask = os.umask(0o177)
    try:
        bound.bind(os.fspath(path))
    except OSError:
        bound.close()
        raise
    finally:
        os.umask(umask)
    return bound


def clear(data_dir: Path) -> None:
    """Remove the admin socket of this data folder, and its temporary folder if it has one."""
    path = socket_path(data_dir)
    path.unlink(missing_ok=True)
    (data_dir / POINTER_NAME).unlink(missing_ok=True)
    # The owner of the folder can write any path into the pointer, so only ours is removed.
    folder = path.parent
    if folder != data_dir and folder.name.startswith("tocsin-"):
        with contextlib.suppress(OSError):
            folder.rmdir()


class _Backup:
    """A backup under way, answered line by line: `progress` now and then, in the end `backup` with
    the manifest, or `problem`. If the client that asked goes away, the backup is broken off."""

    def __init__(
        self, broker: Broker, audit: Audit, folder: Path, ended: Callable[["_Backup"], None]
    ) -> None:
        self._progress: tuple[str, int, int] | None = None
        self._task = asyncio.create_task(self._make(broker, audit, folder))
        self._task.add_done_callback(lambda _task: ended(self))

    async def _make(self, broker: Broker, audit: Audit, folder: Path) -> dict[str, object]:
        async with audit.act("broker.backup", LOCAL, subject=str(folder)):
            return await broker.backup(folder, self._note)

    def _note(self, what: str, done: int, total: int) -> None:
        self._progress = (what, done, total)

    def break_off(self) -> None:
        """Cancel the backup, because the broker is going down."""
        self._task.cancel()

    def _result(self) -> dict[str, object]:
        if self._task.cancelled():
            raise Refused(
                "draining",
                "the broker is going down, so the backup was broken off: make it again later",
            )
        return self._task.result()

    async def response(self) -> Response:
        """Return the response, which goes on with lines until the backup ends. Raises the error if
        the backup fails within PROGRESS_S, so that the response is a problem document."""
        await asyncio.wait((self._task,), timeout=PROGRESS_S)
        if self._task.done():
            self._result()
        return StreamingResponse(self._lines(), media_type="application/x-ndjson")

    async def _lines(self) -> AsyncIterator[bytes]:
        try:
            while not self._task.done():
                yield msgspec.json.encode({"progress": self._progress}) + b"\n"
                await asyncio.wait((self._task,), timeout=PROGRESS_S)
            try:
                yield msgspec.json.encode({"backup": self._result()}) + b"\n"
            except TocsinError as error:
                yield msgspec.json.encode({"problem": document(error)}) + b"\n"
        finally:
            self._task.cancel()


def cluster_routes(broker: Broker) -> list[BaseRoute]:
    """Return the routes that describe the storage clusters and a queue's partitions. They change
    nothing."""

    async def clusters(request: Request) -> Response:
        return reply(await broker.clusters(None))

    async def partitions(request: Request) -> Response:
        wanted = decode(await read_body(request), _PARTITIONS_OF)
        who = Principal(ADMINISTRATOR.name, wanted.tenant)
        described = await broker.describe_queue(who, wanted.queue)
        return reply({"queue": wanted.queue, "partitions": described["partitions"]})

    return [
        Route("/clusters", clusters, methods=["GET"]),
        Route("/partitions", partitions, methods=["POST"]),
    ]


def key_routes(broker: Broker, audit: Audit) -> list[Route]:
    """Return the routes that describe the keys, without any secret, and rotate the master key."""

    async def master_key(request: Request) -> Response:
        return reply(_keys(broker).describe())

    async def rotate(request: Request) -> Response:
        wanted = decode(await read_body(request), _ROTATE)
        new = parse_new_key(wanted.new_key) if wanted.new_key is not None else None
        async with audit.act("master_key.rotate", LOCAL) as act:
            rotated = await _keys(broker).rotate(new)
            fields: dict[str, Any] = msgspec.to_builtins(rotated)
            act.about(**{name: fields[name] for name in _NOTED if name in fields})
        return reply(rotated)

    return [
        Route("/master-key", master_key, methods=["GET"]),
        Route("/master-key", rotate, methods=["POST"]),
    ]


def _keys(broker: Broker) -> Keyring:
    if broker.keyring is None:
        raise Refused(
            "invalid_request", "this broker encrypts nothing, because TOCSIN_ENCRYPTION is off"
        )
    return broker.keyring


def token_routes(
    tokens: Tokens, auth: Authenticator, wall: Callable[[], float], audit: Audit
) -> list[Route]:
    """Return the routes that create, list and revoke API tokens. `wall`: unix seconds."""

    async def create(request: Request) -> Response:
        wanted = decode(await read_body(request), _NEW_TOKEN)
        try:
            limits_of(wanted.limits)
        except ValueError as error:
            raise Refused("invalid_request", f"limits: {error}") from None
        token_id, created = draw_id(), wall()
        text = None if wanted.certificate is not None else write_token(token_id, draw_secret())
        expires = None if wanted.lasts_s is None else int((created + wanted.lasts_s) * 1000)
        record = TokenRecord(
            token_id=token_id,
            kind="token" if text is not None else "certificate",
            name=wanted.name,
            tenant=wanted.tenant,
            rights=tuple(wanted.rights),
            created_unix_ms=int(created * 1000),
            expires_unix_ms=expires,
            digest=digest_of(text) if text is not None else b"",
            certificate=wanted.certificate,
            limits=wanted.limits,
        )
        async with audit.act("token.create", LOCAL, subject=token_id) as act:
            act.about(**_audit_fields(record))
            await tokens.create(record)
        warning = UNUSED if auth.is_open else None
        return reply({**_token_fields(record), "token": text, "warning": warning})

    async def list_tokens(request: Request) -> Response:
        return reply({"tokens": [_token_fields(record) for record in tokens.listed()]})

    async def revoke(request: Request) -> Response:
        wanted = decode(await read_body(request), _TOKEN_ID)
        async with audit.act("token.revoke", LOCAL, subject=wanted.token_id[:ID_LETTERS]) as act:
            record = await tokens.revoke(wanted.token_id)
            act.about(name=record.name, tenant=record.tenant)
        return reply(_token_fields(record))

    return [
        Route("/tokens", list_tokens, methods=["GET"]),
        Route("/tokens/create", create, methods=["POST"]),
        Route("/tokens/revoke", revoke, methods=["POST"]),
    ]


def _audit_fields(record: TokenRecord) -> dict[str, Any]:
    """Return the fields of a new token in the audit trail. An invalid name is left out, because it
    may be anything."""
    fields = {**_token_fields(record), "rights": list(record.rights)}
    names = ("name", "tenant")
    wrong = [one for one in names if not NAME.fullmatch(fields[one])]
    kept = {"kind", *names, "rights", "limits", "expires_unix_ms", "certificate"} - set(wrong)
    return {one: fields[one] for one in sorted(kept) if fields[one] not in (None, "")}


def _token_fields(record: TokenRecord) -> dict[str, Any]:
    """Return all fields of a record but the digest."""
    fields: dict[str, Any] = msgspec.structs.asdict(record)
    del fields["digest"]
    return fields


def draw_id() -> str:
    """Draw a token's id of ID_LETTERS letters and digits. It is public, and hardly ever the same
    twice."""
    return "".join(secrets.choice(ID_ALPHABET) for _ in range(ID_LETTERS))


def draw_secret() -> str:
    """Draw a token's secret, which has 142 random bits."""
    return "".join(secrets.choice(SECRET_ALPHABET) for _ in range(SECRET_LETTERS))
