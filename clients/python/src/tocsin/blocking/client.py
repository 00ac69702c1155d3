"""The client of programs without an event loop."""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from ssl import SSLContext
from types import TracebackType
from typing import Any, Unpack

import tocsin
from tocsin.answers import (
    ChangedGroup,
    ChangedQueue,
    CreatedGroup,
    CreatedQueue,
    GroupDescription,
    QueueDescription,
    SoughtGroup,
)
from tocsin.api.client import (
    CONNECT_TIMEOUT_S,
    CREDIT,
    LINGER_S,
    PUBLISH_TIMEOUT_S,
    SAVE_EVERY,
    SAVE_EVERY_S,
)
from tocsin.api.http import PulledMessage, Settled
from tocsin.api.positions import PositionStore
from tocsin.api.reader import OnGap
from tocsin.api.session_subscription import Start
from tocsin.blocking.admin import AdminCalls
from tocsin.blocking.loop import LoopThread
from tocsin.blocking.subscriptions import Reader, Subscription
from tocsin.io.carrier import Trace
from tocsin.io.requests import Token
from tocsin.io.session import NAME
from tocsin.proto.connect_policy import Mode, Transport
from tocsin.proto.new_message import NewMessage
from tocsin.proto.publish_lane import Receipt
from tocsin.proto.reader_opening import OnUnknown
from tocsin.proto.wire import Position
from tocsin.settings import GroupSettings, QueueChange, QueueSettings


def connect(
    url: str | None = None,
    *,
    token: Token = None,
    name: str = NAME,
    producer: str | None = None,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    transport: Mode = "auto",
    linger_s: float = LINGER_S,
    trace: Trace | None = None,
    ssl: SSLContext | None = None,
) -> "Client":
    """Return a connected client. Close it, or use it as `with tocsin.blocking.connect() as
    client:`.

    The arguments are those of `tocsin.connect`. If `token` and `trace` are functions, they are
    called in the client's thread.

    Raises:
        CannotConnect: nothing answers, or something other than a broker.
        BrokerError: the broker refused, for example with Unauthorized.
        ValueError: an argument is out of range, or the URL, the token or `ssl` is invalid.
    """
    return Client(
        tocsin.connect(
            url,
            token=token,
            name=name,
            producer=producer,
            connect_timeout_s=connect_timeout_s,
            transport=transport,
            linger_s=linger_s,
            trace=trace,
            ssl=ssl,
        )
    )


class Client(AdminCalls):
    """A connected client. Made by `connect`.

    Several threads may use it at a time; each waits for its own calls only. A client without
    references is closed when the garbage collector finds it, or when the interpreter ends.
    """

    def __init__(self, client: tocsin.Client) -> None:
        self._client = client
        self._loop = LoopThread()
        self._end = weakref.finalize(self, _stop, self._loop, client)
        try:
            self._loop.call(client.__aenter__)
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Send what is queued, then close. Calls in which other threads wait end with ClientClosed.
        Closing again does nothing."""
        self._end()

    @property
    def url(self) -> str:
        """The URL of the broker."""
        return self._client.url

    @property
    def producer(self) -> str:
        """The name under which messages are numbered."""
        return self._client.producer

    @property
    def is_connected(self) -> bool:
        """Whether a session is open now. False while a lost connection is opened again, and after
        the client has ended."""
        return self._client.is_connected

    @property
    def deferred(self) -> dict[str, int]:
        """The number of messages that the broker has refused for the moment, by error code, since
        this client was opened. Each counts once, and is sent again."""
        return self._client.deferred

    @property
    def transport(self) -> Transport | None:
        """The transport that carries the session now; None if none does."""
        return self._client.transport

    @property
    def session_id(self) -> str:
        """The broker's id of the session, as its logs and `queue show` print it; "" after the
        client is closed."""
        return self._client.session_id

    # --- publishing -----------------------------------------------------------------------------

    def publish(
        self,
        queue: str,
        body: Any,
        *,
        key: str | None = None,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
        ttl_s: float | None = None,
        content_type: str | None = None,
        delay_s: float | None = None,
        deliver_at: datetime | None = None,
        timeout_s: float | None = PUBLISH_TIMEOUT_S,
    ) -> Receipt:
        """Publish a message; it is durable when this returns.

        Each call waits for the disk, so use `publish_many` for speed. `tocsin.Client.publish`
        describes arguments and errors.
        """
        return self._loop.call(
            lambda: self._client.publish(
                queue,
                body,
                key=key,
                id=id,
                headers=headers,
                ttl_s=ttl_s,
                content_type=content_type,
                delay_s=delay_s,
                deliver_at=deliver_at,
                timeout_s=timeout_s,
            )
        )

    def publish_many(
        self,
        queue: str,
        messages: Iterable[NewMessage | Mapping[str, Any]],
        *,
        timeout_s: float | None = PUBLISH_TIMEOUT_S,
    ) -> list[Receipt]:
        """Publish messages; returns their receipts, in the same order. `tocsin.Client.publish_many`
        describes arguments and errors."""
        many = list(messages)  # an iterator of the caller runs in the caller's thread
        return self._loop.call(lambda: self._client.publish_many(queue, many, timeout_s=timeout_s))

    # --- consuming ------------------------------------------------------------------------------

    def subscribe(
        self,
        queue: str,
        group: str,
        *,
        credit: int = CREDIT,
        start: Start | None = None,
        deletes_max: int | None = 0,
        auto_extend: bool = True,
        idle_s: float | None = None,
        **settings: Unpack[GroupSettings],
    ) -> Subscription:
        """Return a place in a group, as a context manager and iterator.

            with client.subscribe("orders", group="billing") as messages:
                for message in messages:
                    message.ack()

        The iteration ends if no message has arrived for `idle_s` seconds; None waits without a
        limit. `tocsin.Client.subscribe` describes the other arguments and the errors.
        """
        make = partial(
            self._client.subscribe,
            queue,
            group,
            credit=credit,
            start=start,
            deletes_max=deletes_max,
            auto_extend=auto_extend,
            **settings,
        )
        return Subscription(self, self._loop, make, idle_s)

    def read(
        self,
        queue: str,
        keys: Sequence[str] | None = None,
        *,
        start: Start | Position = "latest",
        credit: int = CREDIT,
        on_gap: OnGap = "raise",
        on_unknown: OnUnknown = "raise",
        position_store: PositionStore | None = None,
        name: str | None = None,
        save_every: int = SAVE_EVERY,
        save_every_s: float = SAVE_EVERY_S,
        idle_s: float | None = None,
    ) -> Reader:
        """Return a reader, as a context manager and iterator.

            with client.read("orders", start="earliest") as messages:
                for message in messages: ...

        The iteration ends if no message has arrived for `idle_s` seconds; None waits without a
        limit. Callbacks and the store are called in the client's thread. `tocsin.Client.read`
        describes the other arguments and the errors.
        """
        make = partial(
            self._client.read,
            queue,
            keys,
            start=start,
            credit=credit,
            on_gap=on_gap,
            on_unknown=on_unknown,
            position_store=position_store,
            name=name,
            save_every=save_every,
            save_every_s=save_every_s,
        )
        return Reader(self, self._loop, make, idle_s)

    # --- over HTTP ------------------------------------------------------------------------------

    def create_queue(self, name: str, **settings: Unpack[QueueSettings]) -> CreatedQueue:
        """Create a queue if none of this name exists; returns its description.
        `tocsin.Client.create_queue` describes arguments and errors."""
        return self._loop.call(lambda: self._client.create_queue(name, **settings))

    def update_queue(
        self, name: str, *, deletes_max: int | None = 0, **settings: Unpack[QueueChange]
    ) -> ChangedQueue:
        """Change the named settings of a queue; returns its description, and the changes.
        `tocsin.Client.update_queue` describes arguments and errors."""
        return self._loop.call(
            lambda: self._client.update_queue(name, deletes_max=deletes_max, **settings)
        )

    def queue(self, name: str) -> QueueDescription:
        """Return a queue's description: settings, holder, partitions, depth, each group's lag.
        Raises QueueNotFound."""
        return self._loop.call(lambda: self._client.queue(name))

    def queues(self) -> list[QueueDescription]:
        """Return the descriptions of all queues on which the caller has a right, by name."""

        async def work() -> list[QueueDescription]:
            return [queue async for queue in self._client.queues()]

        return self._loop.call(work)

    def create_group(
        self,
        queue: str,
        group: str,
        *,
        start: Start | None = None,
        deletes_max: int | None = 0,
        **settings: Unpack[GroupSettings],
    ) -> CreatedGroup:
        """Create a group if it does not exist; returns its description.
        `tocsin.Client.create_group` describes arguments and errors."""
        return self._loop.call(
            lambda: self._client.create_group(
                queue, group, start=start, deletes_max=deletes_max, **settings
            )
        )

    def update_group(
        self,
        queue: str,
        group: str,
        *,
        deletes_max: int | None = 0,
        **settings: Unpack[GroupSettings],
    ) -> ChangedGroup:
        """Change the named settings of a group; returns its description, and the changes.
        `tocsin.Client.update_group` describes arguments and errors."""
        return self._loop.call(
            lambda: self._client.update_group(queue, group, deletes_max=deletes_max, **settings)
        )

    def group(self, queue: str, group: str) -> GroupDescription:
        """Return a group's description: settings, lag, owners. Raises QueueNotFound or
        GroupNotFound."""
        return self._loop.call(lambda: self._client.group(queue, group))

    def delete_group(self, queue: str, group: str, *, deletes_max: int | None = 0) -> int:
        """Delete a group; returns the number of messages deleted with it.
        `tocsin.Client.delete_group` describes arguments and errors."""
        return self._loop.call(
            lambda: self._client.delete_group(queue, group, deletes_max=deletes_max)
        )

    def seek_group(
        self, queue: str, group: str, to: Start | int, *, deletes_max: int | None = 0
    ) -> SoughtGroup:
        """Move a group to its start, its end, a time, or an offset, the same in each partition.
        `tocsin.Client.seek_group` describes arguments and errors."""
        return self._loop.call(
            lambda: self._client.seek_group(queue, group, to, deletes_max=deletes_max)
        )

    def pull(
        self, queue: str, group: str, *, messages_max: int = 10, wait_s: float = 0.0
    ) -> list[PulledMessage]:
        """Take up to `messages_max` messages without a subscription; settle them by their receipts.
        Waits up to `wait_s` seconds for the first one, and returns an empty list if none came."""
        return self._loop.call(
            lambda: self._client.pull(queue, group, messages_max=messages_max, wait_s=wait_s)
        )

    def ack_receipts(self, queue: str, group: str, receipts: Sequence[str]) -> Settled:
        """Ack pulled messages; durable when this returns."""
        return self._loop.call(lambda: self._client.ack_receipts(queue, group, receipts))

    def nack_receipts(
        self,
        queue: str,
        group: str,
        receipts: Sequence[str],
        *,
        delay_s: float | None = None,
        reason: str | None = None,
    ) -> Settled:
        """Return pulled messages to the group; durable when this returns.

        They are delivered again after `delay_s` seconds, or after the group's backoff if that is
        None, unless it was their last attempt. `reason` is stored with the attempt.
        """
        return self._loop.call(
            lambda: self._client.nack_receipts(
                queue, group, receipts, delay_s=delay_s, reason=reason
            )
        )

    def reject_receipts(
        self, queue: str, group: str, receipts: Sequence[str], *, reason: str | None = None
    ) -> Settled:
        """Return pulled messages for good: each moves to the dead letters, or its key is parked, at
        once."""
        return self._loop.call(
            lambda: self._client.reject_receipts(queue, group, receipts, reason=reason)
        )

    def extend_receipts(
        self, queue: str, group: str, receipts: Sequence[str], *, lease_s: float | None = None
    ) -> Settled:
        """Extend the leases of pulled messages to `lease_s` seconds from now; None takes the
        group's lease."""
        return self._loop.call(
            lambda: self._client.extend_receipts(queue, group, receipts, lease_s=lease_s)
        )


def _stop(loop: LoopThread, client: tocsin.Client) -> None:
    with suppress(Exception):
        loop.stop(client.close)
