"""The metadata of a gateway whose storage others share: its rows are in the storage itself, or
behind the nodes of the metadata service, as the settings say."""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from random import Random
from typing import Final

from gateway.config import Config
from gateway.stores.catalog_mark import catalog_keeper, check_mark
from metadata.inprocess import InProcessMetadata
from metadata.redis.redis_database import RedisDatabase
from metadata.redis.shards import Shard
from metadata.row_store import RowStore
from metadata.service.asking_nodes import AskingNodes
from metadata.service.http_client import HttpAsker
from metadata.service.node_choice import NodeChoice
from metadata.service.remote_database import RemoteDatabase
from metadata.service.service_forms import BODY_BYTES_MAX
from push.errors import Refused

_CHANCE: Final = Random()


async def open_metadata(
    config: Config, shard: Shard, opened: AsyncExitStack, on_fatal: Callable[[str], None]
) -> InProcessMetadata:
    """`shard`: of the storage; `opened` closes it. Who is there is said to the storage in any case:
    it is what fences owners, and a metadata service that is away must not make gateways look gone.

    Raises:
        Refused: nobody answers, or it is not the catalog that was here before; a file of the
            settings cannot be read.
        Unknown: too few copies answer in time.
        OSError: the data folder fails.
    """
    database = RedisDatabase(shard)
    if not config.metadata_urls:
        metadata = InProcessMetadata(*await RowStore.open(database, on_fatal=on_fatal))
        opened.push_async_callback(metadata.close)
        return metadata
    remote = RemoteDatabase(
        asking_nodes(config, config.metadata_urls), beats=database.memberships()
    )
    try:
        store, contents = await RowStore.open(remote, on_fatal=on_fatal)
        await asyncio.to_thread(check_mark, config.data_dir, store.place)
    except BaseException:
        await remote.close()
        raise
    metadata = InProcessMetadata(store, contents)
    opened.push_async_callback(metadata.close)
    keeper = catalog_keeper(config.data_dir, lambda: store.place)
    await keeper.start()
    opened.push_async_callback(keeper.close)
    return metadata


def asking_nodes(config: Config, urls: tuple[str, ...]) -> AskingNodes:
    """Nodes of the metadata service at these addresses, as the settings say. Raises Refused."""
    context = None
    if config.metadata_ca_file is not None:
        try:
            context = ssl.create_default_context(cafile=config.metadata_ca_file)
        except OSError as error:
            raise Refused(
                "storage_unavailable",
                f"TOCSIN_METADATA_CA_FILE is {config.metadata_ca_file}, which cannot be used: "
                f"{error}",
            ) from None
    asker = HttpAsker(config.metadata_token, context, body_bytes_max=BODY_BYTES_MAX)
    return AskingNodes(asker, NodeChoice(urls, _CHANCE.random))
