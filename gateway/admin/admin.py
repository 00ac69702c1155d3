"""What only an operator on this machine may do: `tocsin admin …`, over a Unix socket.

The socket stands in the data folder, for its owner alone (0600): who may write the data may ask
for this, and nobody over the network can. It speaks HTTP with the same problem documents. Paths
of Unix sockets end at 107 bytes; where the data folder's is too long the socket stands in a
temporary folder and `admin.path` in the data folder says where.
"""

import asyncio
import contextlib
import http.client
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.accounting.audit import LOCAL, Audit, Who
from gateway.accounting.books import Books
from gateway.admin.admin_clusters import cluster_routes
from gateway.admin.admin_keys import key_routes
from gateway.rest.ports import BrokerPort
from gateway.rest.rest_account import shown_keys
from gateway.rest.routes.rest_parked import KEYS_DEFAULT, DecisionRequest
from metadata.catalog import Principal
from push import limits
from push.errors import Refused, TocsinError
from runtime.http_forms import decode, read_body, reply
from runtime.listening import Listener
from runtime.problems import Problems, document

ADMINISTRATOR: Final = Principal("administrator")
SOCKET_NAME: Final = "admin.sock"
POINTER_NAME: Final = "admin.path"
SOCKET_PATH_BYTES_MAX: Final = 107
"""sockaddr_un.sun_path is 108 bytes, one of them the final zero."""
TIMEOUT_S: Final = 60.0
"""Of a client: dropping a queue of many partitions takes a while."""

PROGRESS_S: Final = 0.5
"""Between two lines about a backup under way."""


class DeleteQueue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The queue's name twice: what is deleted is gone. `confirm` None: say what would go."""

    queue: str
    confirm: str | None
    tenant: str = ADMINISTRATOR.tenant


class Park(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parked keys of a group; `decide` None: list them, at most `limit`."""

    queue: str
    group: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=limits.PARKED_PER_CALL_MAX)] = KEYS_DEFAULT
    decide: DecisionRequest | None = None
    tenant: str = ADMINISTRATOR.tenant


class BackupTo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a backup goes: the absolute path of a folder that is empty or not there."""

    folder: str


_PARK: Final = msgspec.json.Decoder(Park)
_BACKUP_TO: Final = msgspec.json.Decoder(BackupTo)
_DELETE_QUEUE: Final = msgspec.json.Decoder(DeleteQueue)


class AdminError(Exception):
    """The command did nothing, and why: a sentence."""


# --- The broker's side -------------------------------------------------------------------------


class AdminSocket:
    """The socket of a running broker."""

    def __init__(
        self,
        data_dir: Path,
        broker: BrokerPort,
        routes: Sequence[BaseRoute] = (),
        books: Books | None = None,
        *,
        url: str = "",
    ) -> None:
        """`routes`: further ones. `url`: where the broker's clients find it."""
        self._url = url
        self._audit = (books or Books()).audit
        self._data_dir = data_dir
        self._routes = tuple(routes)
        self._broker = broker
        self._listener: Listener | None = None
        self._backups: set[_Backup] = set()

    async def start(self) -> None:
        """Listen. The caller holds the data folder: what is left of a dead broker is removed."""
        clear(self._data_dir)
        self._listener = Listener(self._application(), _bind(self._data_dir))
        await self._listener.start()

    async def stop(self) -> None:
        """Answer what is under way, break backups off, then take the socket away. Not started:
        nothing happens."""
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
                return reply(await broker.parking.parked(queue, group, wanted.limit))
            which, verb = wanted.decide.which(), wanted.decide.decision
            place = {"queue": wanted.queue, "group": wanted.group}
            async with audit.act("parked.decide", by, **place) as act:
                act.about(decision=verb, **shown_keys(which, queue))
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


def _administrator(tenant: str) -> tuple[Principal, Who]:
    """Who acts in this tenant, and how that is noted."""
    who = Principal(ADMINISTRATOR.name, tenant)
    return who, msgspec.structs.replace(LOCAL, principal=who)


async def _delete_queue(broker: BrokerPort, audit: Audit, request: Request) -> Response:
    wanted = decode(await read_body(request), _DELETE_QUEUE)
    who, by = _administrator(wanted.tenant)
    if wanted.confirm is None:
        return reply(await _held(broker, who, wanted.queue))
    if wanted.queue != wanted.confirm:
        raise Refused("invalid_request", "queue and confirm are not the same name")
    async with audit.act("queue.delete", by, queue=wanted.queue) as act:
        held = await _held(broker, who, wanted.queue)
        act.about(**held)
        await act.begin()
        queue = await broker.delete_queue(who, wanted.queue)
        act.about(queue_id=queue.queue_id)
    return reply({"deleted": queue.name, "queue_id": queue.queue_id, **held})


async def _held(broker: BrokerPort, who: Principal, name: str) -> dict[str, Any]:
    """How many messages and groups go with a queue; without what a storage that is away does not
    say, for the queue can be deleted all the same. Raises Refused(queue_not_found)."""
    queue = broker.find_queue(who, name)
    groups = len(broker.metadata.list_groups(who, queue))
    try:
        described = await broker.describe_queue(who, name)
    except TocsinError as error:
        if error.code.name not in {"storage_unavailable", "unknown"}:
            raise
        return {"groups": groups}
    return {"messages": described["depth"], "groups": groups}


def _bind(data_dir: Path) -> socket.socket:
    path = data_dir / SOCKET_NAME
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        path = Path(tempfile.mkdtemp(prefix="tocsin-")) / SOCKET_NAME  # a folder of mode 0700
        (data_dir / POINTER_NAME).write_text(str(path), encoding="utf-8")
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Not a chmod afterwards: for a moment anybody could connect.
    umask = os.umask(0o177)
    try:
        bound.bind(os.fspath(path))
    except OSError:
        bound.close()
        raise
    finally:
        os.umask(umask)
    return bound


def socket_path(data_dir: Path) -> Path:
    """Where the socket of a broker on this data folder stands, if it runs."""
    with contextlib.suppress(OSError):
        return Path((data_dir / POINTER_NAME).read_text(encoding="utf-8"))
    return data_dir / SOCKET_NAME


def clear(data_dir: Path) -> None:
    """Remove the socket, and the temporary folder where there is one."""
    path = socket_path(data_dir)
    path.unlink(missing_ok=True)
    (data_dir / POINTER_NAME).unlink(missing_ok=True)
    # The pointer is a file that anybody who owns the folder can write: only ours is removed.
    if path.parent != data_dir and path.parent.name.startswith("tocsin-"):
        with contextlib.suppress(OSError):
            path.parent.rmdir()


class _Backup:
    """A backup under way, told line by line: `progress` now and then, in the end `backup` with the
    manifest, or `problem`. Whoever asked goes away: it is broken off."""

    def __init__(
        self, broker: BrokerPort, audit: Audit, folder: Path, ended: Callable[["_Backup"], None]
    ) -> None:
        self._told: tuple[str, int, int] | None = None
        self._task = asyncio.create_task(self._make(broker, audit, folder))
        self._task.add_done_callback(lambda _task: ended(self))

    async def _make(self, broker: BrokerPort, audit: Audit, folder: Path) -> dict[str, object]:
        async with audit.act("broker.backup", LOCAL, subject=str(folder)):
            return await broker.backup(folder, self._note)

    def _note(self, what: str, done: int, total: int) -> None:
        self._told = (what, done, total)

    def break_off(self) -> None:
        """The broker goes down."""
        self._task.cancel()

    def _result(self) -> dict[str, object]:
        if self._task.cancelled():
            raise Refused("draining", "the broker is going down: the backup was broken off")
        return self._task.result()

    async def response(self) -> Response:
        """What is refused at once is a problem document, as everywhere."""
        await asyncio.wait((self._task,), timeout=PROGRESS_S)
        if self._task.done():
            self._result()
        return StreamingResponse(self._lines(), media_type="application/x-ndjson")

    async def _lines(self) -> AsyncIterator[bytes]:
        try:
            while not self._task.done():
                yield msgspec.json.encode({"progress": self._told}) + b"\n"
                await asyncio.wait((self._task,), timeout=PROGRESS_S)
            try:
                yield msgspec.json.encode({"backup": self._result()}) + b"\n"
            except TocsinError as error:
                yield msgspec.json.encode({"problem": document(error)}) + b"\n"
        finally:
            self._task.cancel()


# --- The command's side ------------------------------------------------------------------------


def delete_queue(
    data_dir: Path, name: str, confirm: str | None, tenant: str = ADMINISTRATOR.tenant
) -> dict[str, Any]:
    """Delete a queue of this tenant, of the broker that runs on this data folder, and say how many
    messages and groups went with it. `confirm` None: only say how many would.

    Raises:
        AdminError: no broker runs there, or it refused.
    """
    body = {"queue": name, "confirm": confirm, "tenant": tenant}
    return _ask(data_dir, "POST", "/delete-queue", body)


def parked(data_dir: Path, place: dict[str, str], limit: int) -> dict[str, Any]:
    """The parked keys of a group, as over HTTP. `place`: its queue, group and tenant. Raises
    AdminError."""
    return _ask(data_dir, "POST", "/park", {**place, "limit": limit})


def unpark(data_dir: Path, place: dict[str, str], decision: dict[str, object]) -> dict[str, Any]:
    """Decide about parked keys: the body and the answer are those of HTTP. Raises AdminError."""
    return _ask(data_dir, "POST", "/park", {**place, "decide": decision})


def url_of(data_dir: Path) -> str:
    """Where clients find the broker on this data folder. Raises AdminError."""
    return str(_ask(data_dir, "GET", "/broker", None)["url"])


def status(data_dir: Path) -> dict[str, Any]:
    """What the broker on this data folder says of itself. Raises AdminError."""
    return _ask(data_dir, "GET", "/status", None)


def master_key(data_dir: Path) -> dict[str, Any]:
    """The keys of the broker on this data folder, without a key. Raises AdminError."""
    return _ask(data_dir, "GET", "/master-key", None)


def placed(data_dir: Path, asked: dict[str, object] | None = None) -> dict[str, Any]:
    """The storage clusters, or the partitions of a queue (`PartitionsOf`). Raises AdminError."""
    method, path = ("GET", "/clusters") if asked is None else ("POST", "/partitions")
    return _ask(data_dir, method, path, asked)


def rotate_master_key(data_dir: Path, new_key: str | None) -> dict[str, Any]:
    """Let the broker on this data folder use another master key. Raises AdminError."""
    return _ask(data_dir, "POST", "/master-key", {"new_key": new_key})


def create_token(data_dir: Path, wanted: dict[str, object]) -> dict[str, Any]:
    """Make an API token (gateway.admin.admin_tokens.NewToken). Raises AdminError."""
    return _ask(data_dir, "POST", "/tokens/create", wanted)


def tokens(data_dir: Path) -> dict[str, Any]:
    """The API tokens, without what admits anybody. Raises AdminError."""
    return _ask(data_dir, "GET", "/tokens", None)


def revoke_token(data_dir: Path, token_id: str) -> dict[str, Any]:
    """Revoke an API token; what it was. Raises AdminError."""
    return _ask(data_dir, "POST", "/tokens/revoke", {"token_id": token_id})


def backup(
    data_dir: Path, folder: Path, progress: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """Let the broker that runs on this data folder make a backup in another folder of this
    machine; the backup's manifest.

    Raises:
        AdminError: no broker runs there, it refused, or it ended meanwhile.
    """
    with _asking(data_dir, "POST", "/backup", {"folder": str(folder.absolute())}) as response:
        _check(response)
        for line in response:
            told: dict[str, Any] = msgspec.json.decode(line)
            if "backup" in told:
                manifest: dict[str, Any] = told["backup"]
                return manifest
            if "problem" in told:
                raise AdminError(f"{told['problem']['code']}: {told['problem']['detail']}")
            if told["progress"]:
                progress(*told["progress"])
    raise AdminError(f"The broker on {data_dir} ended: there is no backup in {folder}.")


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("admin", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """As http.client.HTTPConnection."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(os.fspath(self._path))


def _ask(data_dir: Path, method: str, path: str, body: object) -> dict[str, Any]:
    with _asking(data_dir, method, path, body) as response:
        _check(response)
        answer: dict[str, Any] = msgspec.json.decode(response.read())
    return answer


def _check(response: http.client.HTTPResponse) -> None:
    if response.status != 200:
        problem = msgspec.json.decode(response.read())
        raise AdminError(f"{problem['code']}: {problem['detail']}")


@contextlib.contextmanager
def _asking(
    data_dir: Path, method: str, path: str, body: object
) -> Iterator[http.client.HTTPResponse]:
    connection = _Connection(socket_path(data_dir))
    try:
        connection.request(method, path, msgspec.json.encode(body) if body is not None else None)
        yield connection.getresponse()
    except (FileNotFoundError, ConnectionRefusedError):
        raise AdminError(
            f"No broker runs on {data_dir}; start it, or name its folder with --data-dir or "
            "TOCSIN_DATA_DIR."
        ) from None
    except PermissionError:
        raise AdminError(f"The broker on {data_dir} belongs to another user.") from None
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        raise AdminError(f"The broker on {data_dir} did not answer: {error!r}.") from None
    finally:
        connection.close()
