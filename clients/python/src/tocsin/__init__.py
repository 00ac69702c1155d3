"""Tocsin: publish, and be pushed to, in order and without loss.

async with tocsin.connect("http://127.0.0.1:8080") as client:
    await client.create_queue("orders")
    await client.publish("orders", {"total": 12}, key="user-7")
    async with client.subscribe("orders", group="billing") as messages:
        async for message in messages:
            await message.ack()
"""

from tocsin.answers import GroupDescription, QueueDescription
from tocsin.client import Client, connect
from tocsin.errors import (
    BrokerError,
    Busy,
    CannotConnect,
    ClientClosed,
    Conflict,
    Gap,
    GroupNotFound,
    InvalidRequest,
    NotABroker,
    NotFound,
    NoToken,
    OutcomeUnknown,
    PositionDamaged,
    PositionInUse,
    PositionUnknown,
    PublishManyFailed,
    PublishTimeout,
    QueueNotFound,
    SessionEnded,
    SettingsDiffer,
    StaleDelivery,
    TocsinError,
    TooLarge,
    Unauthorized,
    UndecodableBody,
    WouldDelete,
)
from tocsin.http import Http, PulledMessage, Settled
from tocsin.message import Message, ReadMessage
from tocsin.outgoing import NewMessage
from tocsin.positions import FilePositions, MemoryPositions, PositionStore, Verdict
from tocsin.publishing import Receipt
from tocsin.reader import Reader
from tocsin.settings import GroupSettings, QueueChange, QueueSettings
from tocsin.subscription import Subscription
from tocsin.upkeep import DeadLetter, PeekedMessage
from tocsin.wire import Durability, Position

__version__ = "0.1.0"

__all__ = [
    "BrokerError",
    "Busy",
    "CannotConnect",
    "Client",
    "ClientClosed",
    "Conflict",
    "DeadLetter",
    "Durability",
    "FilePositions",
    "Gap",
    "GroupDescription",
    "GroupNotFound",
    "GroupSettings",
    "Http",
    "InvalidRequest",
    "MemoryPositions",
    "Message",
    "NewMessage",
    "NoToken",
    "NotABroker",
    "NotFound",
    "OutcomeUnknown",
    "PeekedMessage",
    "Position",
    "PositionDamaged",
    "PositionInUse",
    "PositionStore",
    "PositionUnknown",
    "PublishManyFailed",
    "PublishTimeout",
    "PulledMessage",
    "QueueChange",
    "QueueDescription",
    "QueueNotFound",
    "QueueSettings",
    "ReadMessage",
    "Reader",
    "Receipt",
    "SessionEnded",
    "SettingsDiffer",
    "Settled",
    "StaleDelivery",
    "Subscription",
    "TocsinError",
    "TooLarge",
    "Unauthorized",
    "UndecodableBody",
    "Verdict",
    "WouldDelete",
    "connect",
]
