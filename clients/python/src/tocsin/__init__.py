"""Client of the Tocsin message broker: publish, and be pushed to, in order and without loss.

async with tocsin.connect("http://127.0.0.1:8080") as client:
    await client.create_queue("orders")
    await client.publish("orders", {"total": 12}, key="user-7")
    async with client.subscribe("orders", group="billing") as messages:
        async for message in messages:
            await message.ack()
"""

from tocsin.answers import GroupDescription, QueueDescription, Verdict
from tocsin.api.admin import DeadLetter, PeekedMessage
from tocsin.api.client import Client, connect
from tocsin.api.http import Http, PulledMessage, Settled
from tocsin.api.positions import FilePositions, MemoryPositions, PositionStore
from tocsin.api.reader import Reader
from tocsin.api.scheduled import ScheduledList, ScheduledMessage
from tocsin.api.subscription import Subscription
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
from tocsin.proto.message import Message, ReadMessage
from tocsin.proto.new_message import NewMessage
from tocsin.proto.publish_lane import Receipt
from tocsin.proto.wire import Durability, Position
from tocsin.settings import GroupSettings, QueueChange, QueueSettings

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
    "ScheduledList",
    "ScheduledMessage",
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
