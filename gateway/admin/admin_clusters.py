"""Where partitions are, over the admin socket: `tocsin admin clusters` and `partitions`."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.rest.ports import BrokerPort
from metadata.catalog import Principal
from runtime.http_forms import decode, read_body, reply

ADMINISTRATOR: Final = Principal("administrator")


class PartitionsOf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A queue."""

    queue: str
    tenant: str = ADMINISTRATOR.tenant


_PARTITIONS_OF: Final = msgspec.json.Decoder(PartitionsOf)


def cluster_routes(broker: BrokerPort) -> list[BaseRoute]:
    """Both only look."""

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
