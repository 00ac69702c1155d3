"""How a node of the metadata service finds the rows of a shard, its own or another node's."""

from typing import Final

from metadata.service.asking_nodes import READ_TRY_S, AskingNodes, Nobody
from metadata.service.node import Node
from metadata.service.service_forms import ShardAnswer
from metadata.service.shard_ring import holders
from push.errors import Refused

HERE: Final = "here"
"""Only of the node itself: asked by another one, which looks further by itself."""
THROUGH: Final = "through"
"""From the database, if need be: none of its holders was found."""


class Shards:
    """Finds a shard's rows. `peers` asks other nodes; None: there are none to be asked."""

    def __init__(self, node: Node, peers: AskingNodes | None) -> None:
        self._node = node
        self._peers = peers

    async def shard(self, number: int, how: str = "") -> ShardAnswer:
        """The rows of a shard. Raises Refused: not_found: this node does not hold it, ask one that
        does; storage_unavailable: ask another one."""
        try:
            return self._node.shard(number)
        except Refused as error:
            if error.code.name != "not_found" or how == HERE:
                raise
            if self._node.layout != "forward" and how != THROUGH:
                raise
        if self._node.layout == "forward" and self._peers is not None:
            there = [one.url for one in self._node.nodes if one.layout != "whole"]
            others = [url for url in holders(number, there) if url != self._node.url]
            try:
                return await self._peers.ask(
                    "GET", f"/v1/shards/{number}?how={HERE}", None, ShardAnswer,
                    try_s=READ_TRY_S, urls=lambda: others,
                )  # fmt: skip
            except Nobody:
                pass
        return await self._node.shard_through(number)
