"""The client of a broker: publish, subscribe, read and administer."""

import itertools
import os
import random
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from ssl import SSLContext
from types import TracebackType
from typing import Any, Final, Unpack

from tocsin.answers import (
    ChangedGroup,
    ChangedQueue,
    CreatedGroup,
    CreatedQueue,
    GroupDescription,
    QueueDescription,
    SoughtGroup,
)
from tocsin.api.admin import AdminCalls
from tocsin.api.http import Http, PulledMessage, Settled
from tocsin.api.positions import PositionStore
from tocsin.api.publisher import Publisher
from tocsin.api.reader import OnGap, Reader
from tocsin.api.session_subscription import Start
from tocsin.api.subscription import Subscription
from tocsin.errors import ClientClosed
from tocsin.io.carrier import Trace
from tocsin.io.requests import TIMEOUT_S, Token, checked_text, checked_token, checked_url
from tocsin.io.session import NAME, Session
from tocsin.io.tls import tls_context
from tocsin.proto import wire
from tocsin.proto.connect_policy import MODES, Mode, Transport
from tocsin.proto.new_message import NewMessage
from tocsin.proto.publish_lane import Receipt
from tocsin.proto.reader_opening import OnUnknown
from tocsin.settings import GroupSettings, QueueChange, QueueSettings

URL_DEFAULT: Final = "http://127.0.0.1:8080"
PUBLISH_TIMEOUT_S: Final = 60.0
CONNECT_TIMEOUT_S: Final = 10.0
CREDIT: Final = 1000
NAME_CHARS_MAX: Final = 128
LINGER_S: Final = 30.0
LINGER_S_MAX: Final = 300.0
SAVE_EVERY: Final = 1000
SAVE_EVERY_S: Final = 5.0


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
    """Return a client, for use as `async with tocsin.connect() as client:`.

    Nothing is sent before the block is entered. Entering raises CannotConnect, or the broker's
    error.

    Args:
        url: http or https. By default TOCSIN_URL, and without that http://127.0.0.1:8080.
        token: a bearer token, or a function, plain or async, that returns a fresh one. The function
            is called at each attempt to connect, and before a token expires. By default
            TOCSIN_TOKEN, and without that no token.
        name: the name of this client in the broker's lists of sessions and owners.
        producer: the name under which messages are numbered; random by default. Several runs of a
            program may use the same name one after the other, but never at the same time. Under a
            name of yours, numbers begin at the clock of this machine, so it must not go back
            between two runs by more than the pause between them. Otherwise the broker takes new
            messages for old ones and does not store them.
        connect_timeout_s: the time limit of one attempt to connect, in seconds.
        transport: "websocket", "long-poll" or "auto". "auto" uses a WebSocket, falls back to long
            poll while no WebSocket gets through, and returns to a WebSocket as soon as one does.
        linger_s: the time for which the broker keeps this client's deliveries after a lost
            connection, in seconds, 0 to 300. After that time, or when the client is closed, they go
            to the group's other consumers.
        trace: called as `trace("sent" or "received", transport, data)` with each message of frames
            as it goes over the wire, for debugging.
        ssl: for https, the authorities to trust and the certificate to present. By default the
            files that TOCSIN_CA_FILE, TOCSIN_CERT_FILE and TOCSIN_KEY_FILE name, and without these
            the system's authorities.

    Raises:
        ValueError: an argument is out of range, or the URL, the token or `ssl` is invalid.
    """
    return Client(
        url or os.environ.get("TOCSIN_URL") or URL_DEFAULT,
        token=token if token is not None else os.environ.get("TOCSIN_TOKEN") or None,
        name=name,
        producer=producer or "",
        connect_timeout_s=connect_timeout_s,
        transport=transport,
        linger_s=linger_s,
        trace=trace,
        ssl=ssl,
    )


class Client(AdminCalls):
    """A connection to a broker. Made by `connect`; an async context manager.

    Entering it connects once, or raises CannotConnect or the broker's error. A connection that is
    lost later is opened again until the client is closed.
    """

    def __init__(
        self,
        url: str,
        *,
        token: Token,
        name: str,
        producer: str,
        connect_timeout_s: float,
        transport: Mode,
        linger_s: float,
        trace: Trace | None,
        ssl: SSLContext | None = None,
    ) -> None:
        if transport not in MODES:
            raise ValueError(f"transport must be one of {', '.join(MODES)}, not {transport!r}")
        if not 0 <= linger_s <= LINGER_S_MAX:
            raise ValueError(f"linger_s must be between 0 and {LINGER_S_MAX:g}, not {linger_s!r}")
        if not 1 <= len(name) <= NAME_CHARS_MAX:
            raise ValueError(f"name must have 1 to {NAME_CHARS_MAX} characters, not {len(name)}")
        self.name = name
        self.url = checked_url(url)
        self.producer = producer or secrets.token_hex(16)
        self._was_named_before = bool(producer)
        """Whether earlier messages may have been numbered under the name of the producer."""
        self._ssl = tls_context(self.url, ssl)
        self._token = checked_token(token)
        self._connect_timeout_s = connect_timeout_s
        self._mode: Mode = transport
        self._linger_s = linger_s
        self._trace = trace
        self._numbers = itertools.count(1)
        self._session: Session | None = None
        self._publisher: Publisher | None = None
        self._http: Http | None = None

    async def __aenter__(self) -> "Client":
        rng = random.Random()  # jitter needs no secrecy
        session = Session(
            self.url,
            token=self._token,
            name=self.name,
            producer=self.producer,
            rng=rng,
            connect_timeout_s=self._connect_timeout_s,
            mode=self._mode,
            linger_s=self._linger_s,
            trace=self._trace,
            tls=self._ssl,
        )
        first_sequence = time.time_ns() // 1000 if self._was_named_before else 0
        publisher = Publisher(session, rng=rng, first_sequence=first_sequence)
        try:
            await session.open()
        except BaseException:
            await session.close()
            raise
        self._session, self._publisher = session, publisher
        self._was_named_before = True  # if it is entered again
        self._http = Http(self.url, token=self._token, ssl=self._ssl)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Send what is queued, then close. Closing again does nothing.

        Publishes without an answer end with ClientClosed. Deliveries that subscriptions have not
        settled return to their groups.
        """
        session, self._session = self._session, None
        http, self._http = self._http, None
        self._publisher = None
        try:
            if session is not None:
                await session.close()
        finally:
            if http is not None:
                await http.close()

    @property
    def is_connected(self) -> bool:
        """Whether a session is open now. False before the client is entered, while a lost
        connection is opened again, and after the client has ended."""
        return self._session is not None and self._session.is_open

    @property
    def transport(self) -> Transport | None:
        """The transport that carries the session now; None if none does."""
        return None if self._session is None else self._session.transport

    @property
    def session_id(self) -> str:
        """The broker's id of the session, as its logs and `queue show` print it; "" without a
        session."""
        return "" if self._session is None else self._session.session_id

    # --- publishing -----------------------------------------------------------------------------

    @property
    def deferred(self) -> dict[str, int]:
        """The number of messages that the broker has refused for the moment, by error code (such as
        `overloaded` or `rate_limited`), since this client was opened. Each message counts once. The
        client sends it again by itself."""
        return {} if self._publisher is None else self._publisher.deferred

    async def publish(
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

        Calls that are made in one turn of the event loop travel together. For speed, publish
        concurrently with `asyncio.gather` or `publish_many`. Messages of a key are stored in the
        order of the calls. If the broker refuses a message for the moment, or the connection is
        lost, the client waits and sends again, and never reorders a key.

        Args:
            body: any value with a JSON form, or `bytes` for a binary body. See NewMessage.
            key: messages of one key stay in order. Messages without a key have no promised order.
            id: two messages of the same key and id within the queue's dedup window are stored once.
            ttl_s: the time after which the message is no longer delivered, in seconds.
            delay_s: the time before which the message is not delivered, in seconds, up to 400 days.
                It counts from the moment at which the broker receives the message. If the client
                sends it again after a lost connection, it keeps its first ticket and time, if the
                broker had stored it. Otherwise the delay counts from the resend.
            deliver_at: the same as a datetime with a time zone. A time that has passed means at
                once. Not both.
            timeout_s: the time to wait for the final answer, in seconds; None waits forever.

        Raises:
            QueueNotFound, TooLarge, InvalidRequest, Unauthorized, ...: refused, not stored.
            PublishTimeout: no final answer came in time; the message may have been stored.
            ClientClosed, SessionEnded: likewise, and this client cannot be used any more.
        """
        message = NewMessage(body, key, id, headers, ttl_s, content_type, None, deliver_at, delay_s)
        return await self._open_publisher().publish(queue, message, timeout_s)

    async def publish_many(
        self,
        queue: str,
        messages: Iterable[NewMessage | Mapping[str, Any]],
        *,
        timeout_s: float | None = PUBLISH_TIMEOUT_S,
    ) -> list[Receipt]:
        """Publish messages; returns their receipts, in the same order.

        A message is a NewMessage, or a mapping with its fields. One call costs less than as many
        `publish` calls. It is not atomic: each message has its own outcome. An empty iterable
        returns an empty list.

        Raises:
            PublishManyFailed: some messages have no receipt; `outcomes` has each one's receipt or
                error.
        """
        return await self._open_publisher().publish_many(queue, messages, timeout_s)

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
        **settings: Unpack[GroupSettings],
    ) -> Subscription:
        """Return a place in a group, as an async context manager and iterator.

          async with client.subscribe("orders", group="billing") as messages:
              async for message in messages:
                  await message.ack()

        Entering the context creates the group if it does not exist, and joins it. Each message goes
        to one consumer of the group. Messages of a key come one after another, each after the one
        before it has been settled.

        Args:
            credit: the largest number of messages that this consumer holds at a time.
            auto_extend: extend the leases of held messages until they are settled, up to the
                group's `lease_total_s`. Without it, a message that is not settled within its lease
                returns to the group; then choose a credit that one lease is long enough to handle.
            start: where a new group starts: "earliest" (default), "latest", or a time.
            deletes_max: the number of messages that creating the group may delete; None allows any
                number. A queue without a retention keeps everything for its first group. If that
                group starts at "latest" or at a time, earlier messages are deleted, or WouldDelete
                is raised.
            settings: settings of the group. With any, `create_group` is called before joining. An
                existing group with other values stays as it is, and SettingsDiffer is raised.

        Raises:
            ClientClosed: the client is not open.
            QueueNotFound, Unauthorized, SettingsDiffer, WouldDelete, ...: by entering the context.
        """
        session = self._open_session()
        for text in (queue, group):
            checked_text(text)

        async def create_group() -> None:
            await self._open_http().create_group(
                queue, group, start=start, deletes_max=deletes_max, **settings
            )

        return Subscription(
            session,
            next(self._numbers),
            queue,
            group,
            credit=credit,
            start=start,
            deletes_max=deletes_max,
            prepare=create_group if settings else None,
            auto_extend=auto_extend,
        )

    def read(
        self,
        queue: str,
        keys: Sequence[str] | None = None,
        *,
        start: Start | wire.Position = "latest",
        credit: int = CREDIT,
        on_gap: OnGap = "raise",
        on_unknown: OnUnknown = "raise",
        position_store: PositionStore | None = None,
        name: str | None = None,
        save_every: int = SAVE_EVERY,
        save_every_s: float = SAVE_EVERY_S,
    ) -> Reader:
        """Return a reader of all messages of a queue, or of some keys, without group and acks.

        With a `position_store` the reader continues after a restart from its saved position. A
        message is done when the next one is requested, or when the reader is closed in order.
        Messages that were done after the last save come again after a crash.

        Args:
            keys: read only messages of these keys; None reads all.
            start: "latest", "earliest", a time, or the `position` of an earlier reader. A position
                in the `position_store` takes precedence.
            credit: the largest number of messages that wait here at a time.
            on_gap: what happens if messages are no longer retained: "raise" raises Gap; a function
                is called with the Gap, and reading continues.
            on_unknown: what happens if the position has lost its meaning, because its queue was
                deleted and created again, or the broker's data was restored. "raise" raises
                PositionUnknown; "earliest" and "latest" continue there; a function is called with
                the PositionUnknown and returns one of these. The function is called when the broker
                reports the loss, before messages that had arrived already are handed out.
            position_store: FilePositions, MemoryPositions, or an object with their `load` and
                `save`.
            name: the name of this reader in the store. By default the queue's name, followed by a
                digest of `keys` if there are any. With a name of your own, the position survives a
                change of keys.
            save_every, save_every_s: save the position after this number of messages or seconds. It
                is also saved when the reader is closed.

        Raises:
            ClientClosed: the client is not open.
            ValueError: `save_every` is below 1, or `save_every_s` is not positive.
        """
        for text in (queue, *(keys or ())):
            checked_text(text)
        return Reader(
            self._open_session(),
            next(self._numbers),
            queue,
            keys=keys,
            start=start,
            credit=credit,
            on_gap=on_gap,
            on_unknown=on_unknown,
            position_store=position_store,
            name=name,
            save_every=save_every,
            save_every_s=save_every_s,
        )

    # --- over HTTP ------------------------------------------------------------------------------

    async def create_queue(self, name: str, **settings: Unpack[QueueSettings]) -> CreatedQueue:
        """Create a queue if none of this name exists, and return its description.

        Settings that are left out have their defaults. An existing queue is never changed; then
        `created` in the answer is False.

        Raises:
            SettingsDiffer: the queue exists, and a setting of this call has another value.
            InvalidRequest: a name or a setting breaks a rule.
        """
        return await self._open_http().create_queue(name, **settings)

    async def update_queue(
        self, name: str, *, deletes_max: int | None = 0, **settings: Unpack[QueueChange]
    ) -> ChangedQueue:
        """Change the named settings of a queue, and no others; returns its description.

        `changes` in the answer has the value before and after of each changed setting. Settings of
        deliveries apply to a partition from its next owner on.

        Args:
            deletes_max: the number of messages that the change may delete or move to the dead
                letters; None allows any number.

        Raises:
            WouldDelete: the change would delete more, and was not made.
            Conflict: `partitions` is fixed. QueueNotFound. InvalidRequest.
        """
        return await self._open_http().update_queue(name, deletes_max=deletes_max, **settings)

    async def queue(self, name: str) -> QueueDescription:
        """Return a queue's description: settings, holder, partitions, depth, each group's lag.

        Raises:
            QueueNotFound.
        """
        return await self._open_http().queue(name)

    def queues(self) -> AsyncIterator[QueueDescription]:
        """Yield the descriptions of all queues on which the caller has a right, by name."""
        return self._open_http().queues()

    async def create_group(
        self,
        queue: str,
        group: str,
        *,
        start: Start | None = None,
        deletes_max: int | None = 0,
        **settings: Unpack[GroupSettings],
    ) -> CreatedGroup:
        """Create a group if it does not exist, and return its description.

        Settings that are left out are the queue's. An existing group is never changed; then
        `created` in the answer is False, and `start` is ignored.

        Args:
            start: where the new group starts: "earliest" (default), "latest", or a time.
            deletes_max: the number of messages that the call may delete; None allows any number. A
                queue without a retention keeps everything for its first group. If that group starts
                at "latest" or at a time, earlier messages are deleted.

        Raises:
            SettingsDiffer: the group exists, and a setting of this call has another value.
            WouldDelete: the call would delete more messages, and the group was not created.
            QueueNotFound. InvalidRequest.
        """
        return await self._open_http().create_group(
            queue, group, start=start, deletes_max=deletes_max, **settings
        )

    async def update_group(
        self,
        queue: str,
        group: str,
        *,
        deletes_max: int | None = 0,
        **settings: Unpack[GroupSettings],
    ) -> ChangedGroup:
        """Change the named settings of a group, and no others; returns its description.

        A value of None restores the queue's value. `changes` in the answer has the value before and
        after of each changed setting.

        Raises:
            WouldDelete: the change would delete more than `deletes_max` messages, and was not made.
            QueueNotFound. GroupNotFound. InvalidRequest.
        """
        return await self._open_http().update_group(
            queue, group, deletes_max=deletes_max, **settings
        )

    async def group(self, queue: str, group: str) -> GroupDescription:
        """Return a group's description: settings, lag, owners.

        Raises:
            QueueNotFound. GroupNotFound.
        """
        return await self._open_http().group(queue, group)

    async def delete_group(self, queue: str, group: str, *, deletes_max: int | None = 0) -> int:
        """Delete a group; returns the number of messages that were deleted with it.

        These are messages that only this group had not settled, and that no retention keeps. The
        last group of a queue without a retention deletes nothing: its messages wait for the next
        group.

        Args:
            deletes_max: the number of messages that the call may delete; None allows any number.

        Raises:
            WouldDelete: the call would delete more messages, and the group was not deleted.
            QueueNotFound. GroupNotFound.
        """
        return await self._open_http().delete_group(queue, group, deletes_max=deletes_max)

    async def seek_group(
        self, queue: str, group: str, to: Start | int, *, deletes_max: int | None = 0
    ) -> SoughtGroup:
        """Move a group to "earliest", "latest", a time, or an offset, the same in each partition.

        Deliveries made before no longer count. Skipped messages are deleted if no other group needs
        them and no retention keeps them; `deleted` in the answer is their number.

        Args:
            deletes_max: the number of messages that the call may delete; None allows any number.

        Raises:
            WouldDelete: the call would delete more messages, and the group was not moved.
            QueueNotFound. GroupNotFound.
        """
        return await self._open_http().seek_group(queue, group, to, deletes_max=deletes_max)

    async def pull(
        self, queue: str, group: str, *, messages_max: int = 10, wait_s: float = 0.0
    ) -> list[PulledMessage]:
        """Take up to `messages_max` messages without a subscription; settle them by their receipts.

        Waits up to `wait_s` seconds (the broker allows 30) for the first message. Returns an empty
        list if none came. The first pull of a group creates the group.
        """
        return await self._open_http().pull(queue, group, messages_max=messages_max, wait_s=wait_s)

    async def ack_receipts(self, queue: str, group: str, receipts: Sequence[str]) -> Settled:
        """Ack pulled messages; durable when this returns. Receipts whose deliveries had ended are
        returned in `stale`, and raise nothing."""
        return await self._open_http().ack_receipts(queue, group, receipts)

    async def nack_receipts(
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
        return await self._open_http().nack_receipts(
            queue, group, receipts, delay_s=delay_s, reason=reason
        )

    async def reject_receipts(
        self, queue: str, group: str, receipts: Sequence[str], *, reason: str | None = None
    ) -> Settled:
        """Return pulled messages for good: each moves to the dead letters, or its key is parked, at
        once."""
        return await self._open_http().reject_receipts(queue, group, receipts, reason=reason)

    async def extend_receipts(
        self, queue: str, group: str, receipts: Sequence[str], *, lease_s: float | None = None
    ) -> Settled:
        """Extend the leases of pulled messages to `lease_s` seconds from now; None takes the
        group's lease."""
        return await self._open_http().extend_receipts(queue, group, receipts, lease_s=lease_s)

    # --- inside ---------------------------------------------------------------------------------

    async def _call(
        self, method: str, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S
    ) -> bytes:
        return await self._open_http().request(method, path, body, timeout_s=timeout_s)

    def _open_session(self) -> Session:
        if self._session is None:
            raise ClientClosed(
                "the client is not connected; use it as `async with tocsin.connect() as client:`"
            )
        return self._session

    def _open_publisher(self) -> Publisher:
        if self._publisher is None:
            raise ClientClosed(
                "the client is not connected; use it as `async with tocsin.connect() as client:`"
            )
        return self._publisher

    def _open_http(self) -> Http:
        if self._http is None:
            raise ClientClosed(
                "the client is not connected; use it as `async with tocsin.connect() as client:`"
            )
        return self._http
