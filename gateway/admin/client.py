"""Client of the admin socket: the requests of `tocsin admin` to the broker on a data folder.

Each function is one request over the admin socket (gateway.admin.server). It raises AdminError with
a sentence if no broker runs there, or if the broker refuses.
"""

import contextlib
import http.client
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from metadata.catalog import Principal

SOCKET_NAME: Final = "admin.sock"
POINTER_NAME: Final = "admin.path"
"""The file that says where the socket is, if the path in the data folder would be too long."""
TIMEOUT_S: Final = 60.0
"""Seconds without a byte of the answer after which a request fails. Dropping a queue of many
partitions takes a while."""
ADMINISTRATOR: Final = Principal("administrator")
"""Principal of acts over the admin socket."""


class AdminError(Exception):
    """Error: no broker runs, it refused, or no whole answer came; only then it may have done what
    was requested. The text is a sentence that says why."""


def socket_path(data_dir: Path) -> Path:
    """Return the path of the socket of a broker on this data folder, if one runs."""
    with contextlib.suppress(OSError):
        return Path((data_dir / POINTER_NAME).read_text(encoding="utf-8"))
    return data_dir / SOCKET_NAME


def delete_queue(
    data_dir: Path, name: str, confirm: str | None, tenant: str = ADMINISTRATOR.tenant
) -> dict[str, Any]:
    """Delete a queue of this tenant at the broker that runs on this data folder. Returns how many
    messages and groups were deleted with it. `confirm`: the queue's name again; None: nothing is
    deleted, and the numbers are those that would be.

    Raises:
        AdminError: no broker runs there, it refused, or it did not answer.
    """
    body = {"queue": name, "confirm": confirm, "tenant": tenant}
    return _ask(data_dir, "POST", "/delete-queue", body)


def list_parked(data_dir: Path, place: dict[str, str], limit: int) -> dict[str, Any]:
    """Return the parked keys of a group, as over HTTP. `place`: its queue, group and tenant. Raises
    AdminError."""
    return _ask(data_dir, "POST", "/park", {**place, "limit": limit})


def unpark(data_dir: Path, place: dict[str, str], decision: dict[str, object]) -> dict[str, Any]:
    """Decide about parked keys of a group. `place`: its queue, group and tenant. `decision` and the
    answer are as over HTTP. Raises AdminError."""
    return _ask(data_dir, "POST", "/park", {**place, "decide": decision})


def broker_url(data_dir: Path) -> str:
    """Return the URL at which clients find the broker on this data folder. Raises AdminError."""
    return str(_ask(data_dir, "GET", "/broker", None)["url"])


def status(data_dir: Path) -> dict[str, Any]:
    """Return the status of the broker on this data folder. Raises AdminError."""
    return _ask(data_dir, "GET", "/status", None)


def master_key(data_dir: Path) -> dict[str, Any]:
    """Describe the keys of the broker on this data folder, without any secret. Raises
    AdminError."""
    return _ask(data_dir, "GET", "/master-key", None)


def describe_placement(data_dir: Path, asked: dict[str, object] | None = None) -> dict[str, Any]:
    """Return the storage clusters, or with `asked` (`PartitionsOf`) the partitions of a queue.
    Raises AdminError."""
    method, path = ("GET", "/clusters") if asked is None else ("POST", "/partitions")
    return _ask(data_dir, method, path, asked)


def rotate_master_key(data_dir: Path, new_key: str | None) -> dict[str, Any]:
    """Let the broker on this data folder use another master key. Without `new_key` it makes one.
    Raises AdminError."""
    return _ask(data_dir, "POST", "/master-key", {"new_key": new_key})


def create_token(data_dir: Path, wanted: dict[str, object]) -> dict[str, Any]:
    """Make an API token with the properties `wanted` (gateway.admin.server.NewToken). Returns its
    text and its record. Raises AdminError."""
    return _ask(data_dir, "POST", "/tokens/create", wanted)


def tokens(data_dir: Path) -> dict[str, Any]:
    """Return the records of the API tokens, without any secret. Raises AdminError."""
    return _ask(data_dir, "GET", "/tokens", None)


def revoke_token(data_dir: Path, token_id: str) -> dict[str, Any]:
    """Revoke an API token. Returns the record that it had. Raises AdminError."""
    return _ask(data_dir, "POST", "/tokens/revoke", {"token_id": token_id})


def backup(
    data_dir: Path, folder: Path, progress: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """Let the broker that runs on this data folder make a backup in another folder of this machine.
    Returns the backup's manifest.

    Raises:
        AdminError: no broker runs there, it refused, or it ended meanwhile.
    """
    with _answer(data_dir, "POST", "/backup", {"folder": str(folder.absolute())}) as response:
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
    raise AdminError(
        f"The broker on {data_dir} ended, so there is no backup in {folder}. Start the broker and "
        "try again."
    )


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("admin", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Connect to the Unix socket at the path."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(os.fspath(self._path))


def _ask(data_dir: Path, method: str, path: str, body: object) -> dict[str, Any]:
    with _answer(data_dir, method, path, body) as response:
        _check(response)
        answer: dict[str, Any] = msgspec.json.decode(response.read())
    return answer


def _check(response: http.client.HTTPResponse) -> None:
    if response.status != 200:
        problem = msgspec.json.decode(response.read())
        raise AdminError(f"{problem['code']}: {problem['detail']}")


@contextlib.contextmanager
def _answer(
    data_dir: Path, method: str, path: str, body: object
) -> Iterator[http.client.HTTPResponse]:
    connection = _Connection(socket_path(data_dir))
    try:
        connection.request(method, path, msgspec.json.encode(body) if body is not None else None)
        yield connection.getresponse()
    except (FileNotFoundError, ConnectionRefusedError):
        raise AdminError(
            f"No broker runs on {data_dir}. Start it, or name its folder with --data-dir or "
            "TOCSIN_DATA_DIR."
        ) from None
    except PermissionError:
        raise AdminError(
            f"The broker on {data_dir} belongs to another user. Run this command as that user."
        ) from None
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        raise AdminError(f"The broker on {data_dir} did not answer: {error!r}.") from None
    finally:
        connection.close()
