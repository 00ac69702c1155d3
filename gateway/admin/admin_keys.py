"""The admin socket's requests about the master key: see gateway.admin.admin."""

from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.accounting.audit import LOCAL, Audit
from gateway.encryption.key_file import parse_new_key
from gateway.rest.ports import BrokerPort, Keys
from push.errors import Refused
from runtime.http_forms import decode, read_body, reply


class RotateMasterKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key to come; None: the broker makes one."""

    new_key: str | None = None


_ROTATE: Final = msgspec.json.Decoder(RotateMasterKey)
_NOTED: Final = ("master_key_id", "master_key_id_before", "data_keys")


def key_routes(broker: BrokerPort, audit: Audit) -> list[Route]:
    """Look at the keys, without a key, and rotate the master key."""

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


def _keys(broker: BrokerPort) -> Keys:
    if broker.keyring is None:
        raise Refused("invalid_request", "this broker seals nothing: its encryption is off")
    return broker.keyring
