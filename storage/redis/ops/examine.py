"""Examination of a shard's servers, each with its problems.

A broker examines them before it starts, and an operator at any time (`tocsin admin doctor`). Each
server is queried, because any of them may become the primary.
"""

from dataclasses import dataclass
from typing import Literal

from push.errors import Refused
from storage.redis.connection import Address, pack
from storage.redis.ops.provision import examine
from storage.redis.replication import (
    addresses_of,
    fields,
    out_of,
    readiness,
    shortfall_of,
    without_replicas,
)
from storage.redis.shard import Settings

Role = Literal["primary", "replica"]


@dataclass(frozen=True, slots=True)
class ExaminedServer:
    """A server of a shard. `problems`: settings that break a promise, a sentence each. `unasked`:
    the reason why it could not be queried; "" if it could."""

    place: Address
    role: Role
    problems: tuple[str, ...] = ()
    unasked: str = ""


@dataclass(frozen=True, slots=True)
class ExaminedShard:
    """A shard. `incarnation`, `replicas` (how many could be elected): None before it was
    provisioned. `doubts`: the reasons why the level `all` is not met now, a sentence each. `out`:
    the places of replicas that are not counted, until they are back and whole."""

    servers: tuple[ExaminedServer, ...]
    incarnation: str | None
    replicas: int | None
    doubts: tuple[str, ...]
    out: frozenset[str] = frozenset()

    @property
    def problems(self) -> list[str]:
        """The broken promises, each with its server. With any of these no broker starts."""
        return [f"{one.place}: {why}" for one in self.servers for why in one.problems]


async def examined(settings: Settings) -> ExaminedShard:
    """Examine a shard's servers. Raises Refused(storage_unavailable) if no primary answers."""
    link = await settings.open()
    try:
        info = await settings.ask(link, pack("INFO", "replication"))
        asked = pack("HMGET", settings.key, "incarnation", "replicas", "out")
        held = await settings.ask(link, asked)
    finally:
        await link.close()
    told = fields(info) if isinstance(info, bytes) else {}
    incarnation, replicas, out = held if isinstance(held, list) else (None, None, None)
    servers = [await _server(settings, link.address, "primary")]
    for place in addresses_of(told):
        servers.append(await _server(settings, place, "replica"))
    expected = int(replicas) if replicas is not None else None
    doubts = []
    if expected is not None:
        left_out = out_of(out)
        counted = without_replicas(told, left_out)
        said = await readiness(counted, settings.reach, settings.silence_s)
        doubt = shortfall_of(told, expected, left_out)
        doubts = [*([doubt] if doubt else []), *said.unready, *said.unasked]
    return ExaminedShard(
        tuple(servers),
        incarnation.decode() if incarnation is not None else None,
        expected,
        tuple(doubts),
        out_of(out),
    )


async def _server(settings: Settings, place: Address, role: Role) -> ExaminedServer:
    try:
        problems = await examine(place, settings.reach, silence_s=settings.silence_s)
    except Refused as refused:
        return ExaminedServer(place, role, unasked=refused.detail)
    return ExaminedServer(place, role, tuple(problems))
