"""The delivery log as the settings want it, in the data folder."""

import asyncio
import secrets

from gateway.config import Config
from gateway.deliverylog.files import Bounds
from gateway.deliverylog.log import DeliveryLog
from gateway.deliverylog.writer import Writer


async def begin_log(log: DeliveryLog, config: Config, gateway: str) -> None:
    """Begin to log, unless the settings say no; what the start before left is finished first.
    `gateway`: this process's name among others; empty: there are none, and it gets one for the
    log. Nothing is raised: a log that cannot be written says so and counts."""
    if not config.delivery_log:
        return
    bounds = Bounds(
        bytes_max=config.delivery_log_bytes_max,
        age_s=config.delivery_log_age_s,
        file_bytes=min(config.delivery_log_file_bytes, config.delivery_log_bytes_max // 4),
        file_s=config.delivery_log_file_s,
        # Publishing stops at the reserve; the log must not be what takes it there.
        free_bytes_min=2 * config.free_bytes_reserve,
    )
    name = gateway or secrets.token_hex(8)
    log.begin(await asyncio.to_thread(Writer.open, config.data_dir, name, bounds), name)
