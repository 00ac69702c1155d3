"""The client: what a program talks to."""

import itertools
import os
import random
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
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
    """A client, to be used as `async with tocsin.connect() as client:`.

    Args:
        url: http or https; without it TOCSIN_URL, without that http://127.0.0.1:8080.
        token: a bearer token, or a function, also an async one, that returns a fresh one: asked at
            each attempt to connect, and before it is over. Without it TOCSIN_TOKEN, or none.
        name: what the broker's lists of sessions and owners call this client.
        producer: the name under which messages are numbered; a random one by default. Only one
            client at a time may use a name.
        connect_timeout_s: for one attempt to connect, in seconds.
        transport: "websocket", "long-poll", or "auto": a WebSocket, long poll where none gets
            through, and back to a WebSocket as soon as one does.
        linger_s: how long the broker keeps what this client holds after a lost connection;
            0 to 300. After it, or when the client is closed, it goes to the group's others.
        trace: called as `trace("sent" or "received", transport, data)` with each message of
            frames as it goes over the wire, to see what happens.
        ssl: for https, whom to trust and what certificate to show; without it what TOCSIN_CA_FILE,
            TOCSIN_CERT_FILE and TOCSIN_KEY_FILE name, without that the system's authorities.
    """
    return Client(
        url or os.environ.get("TOCSIN_URL") or URL_DEFAULT,
        token=token if token is not None else os.environ.get("TOCSIN_TOKEN") or None,
        name=name,
        producer=producer or secrets.token_hex(16),
        connect_timeout_s=connect_timeout_s,
        transport=transport,
        linger_s=linger_s,
        trace=trace,
        ssl=ssl,
    )


class Client(AdminCalls):
    """A connection to a broker. Entering it connects once, or raises CannotConnect or the broker's
    error; a connection that is lost later is opened again until the client is closed."""

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
            raise ValueError(f"transport is one of {', '.join(MODES)}, not {transport!r}")
        if not 0 <= linger_s <= LINGER_S_MAX:
            raise ValueError(f"linger_s is between 0 and {LINGER_S_MAX:g}, not {linger_s!r}")
        if not 1 <= len(name) <= NAME_CHARS_MAX:
            raise ValueError(f"name has between 1 and {NAME_CHARS_MAX} characters, not {len(name)}")
        self.name = name
        self.url = checked_url(url)
        self.producer = producer
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
        rng = random.Random()  # jitter wants no secrecy
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
        publisher = Publisher(session, rng=rng)
        try:
            await session.open()
        except BaseException:
            await session.close()
            raise
        self._session, self._publisher = session, publisher
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
        """Send what is queued and close. Publishes without an answer end with ClientClosed; what
        subscriptions have not settled returns to its group."""
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
        """Whether a session is open now; if not, one is being opened."""
        return self._session is not None and self._session.is_open

    @property
    def transport(self) -> Transport | None:
        """The transport that carries the session now; None: nothing does."""
        return None if self._session is None else self._session.transport

    @property
    def session_id(self) -> str:
        """The broker's id of the session, as its logs and `queue show` have it."""
        return "" if self._session is None else self._session.session_id

    # --- publishing -----------------------------------------------------------------------------

    @property
    def deferred(self) -> dict[str, int]:
        """The number of messages that the broker has refused for the moment (`overloaded`,
        `rate_limited`), by error code, since this client was opened. Each counts once, and is sent
        again without being asked for."""
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
        timeout_s: float | None = PUBLISH_TIMEOUT_S,
    ) -> Receipt:
        """Publish a message; it is durable when this returns.

        Calls that are made in one turn of the event loop travel together, so publish concurrently
        (`asyncio.gather`, or `publish_many`) where speed matters. Messages of a key are stored in
        the order of the calls. What the broker refuses for the moment, and a lost connection, is
        waited out, without ever reordering a key.

        Args:
            body: any JSON-able value, or `bytes` for a binary body. See NewMessage.
            key: messages of one key stay in order; without one none is promised.
            id: the same key and id within the queue's dedup window is stored once.
            ttl_s: the seconds after which the message is no longer given out.
            timeout_s: how long to wait for the final answer, in seconds; None: for ever.

        Raises:
            QueueNotFound, TooLarge, InvalidRequest, Unauthorized, ...: refused, not stored.
            PublishTimeout: no final answer in time; perhaps it was stored.
            ClientClosed, SessionEnded: likewise, and this client is of no more use.
        """
        message = NewMessage(body, key, id, headers, ttl_s, content_type)
        return await self._open_publisher().publish(queue, message, timeout_s)

    async def publish_many(
        self,
        queue: str,
        messages: Iterable[NewMessage | Mapping[str, Any]],
        *,
        timeout_s: float | None = PUBLISH_TIMEOUT_S,
    ) -> list[Receipt]:
        """Publish messages (NewMessage, or mappings with its fields); their receipts, in order.

        Cheaper than as many `publish` calls. Not atomic: each message has its own outcome.

        Raises:
            PublishManyFailed: some were not stored; `outcomes` has each one's receipt or error.
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
        """A place in a group: `async with client.subscribe("orders", group="billing") as messages:
        async for message in messages: ...; await message.ack()`.

        The group is created where it does not exist. Inside it each message goes to one consumer;
        those of a key come one after another, the next one when the one before has been settled.

        Args:
            credit: how many messages may be held here at a time.
            auto_extend: the leases of what is held here are extended until it is settled, up to
                the group's `lease_total_s`. Without it, what is not handled within a lease returns
                to the group: then choose a credit below a lease's worth of work.
            start: where a new group starts: "earliest" (default), "latest", or a time.
            deletes_max: as many messages may go; None: as many as there are. A queue without a
                retention keeps everything for its first group: where that starts at "latest", or at
                a time, what is before goes, and without this WouldDelete is raised.
            settings: of the group, as in `create_group`, which is called before joining: a group
                that is there with other ones stays as it is, and SettingsDiffer is raised.
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
        """A reader: every message, or every one of some keys, without a group and without acks.

        With a `position_store` it goes on after a restart where it was: a message counts as done
        when the next one is asked for, or the reader is closed in order, and its position is saved
        behind what is done. What was done since it was saved last comes again after a crash.

        Args:
            keys: only messages of these keys.
            start: "latest", "earliest", a time, or the `position` of an earlier reader. What is in
                the `position_store` goes before it.
            credit: how many messages may wait here at a time.
            on_gap: "raise" a Gap where messages are no longer retained, or what is called with it.
            on_unknown: "raise" a PositionUnknown where the position means nothing any more (its
                queue was deleted and made again, or the broker's data restored), or "earliest" or
                "latest" to go on there, or what is called with it and returns one of these. It is
                called when the broker says so, before what had come already is handed out.
            position_store: FilePositions, MemoryPositions, or what has their `load` and `save`.
            name: of this reader in the store; by default the queue's, and with `keys` a digest of
                them behind it. A name of your own keeps its position when the keys change.
            save_every, save_every_s: the position is saved when so many messages are done, or so
                many seconds have passed, and when the reader is closed.
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
        """Create a queue, if it is not there, with the settings that are named and the defaults of
        the others. A queue that is there never changes by this: `created` is False then.

        Raises:
            SettingsDiffer: it is there, and one of the settings that are named has another value.
            InvalidRequest: a name or a setting breaks a rule.
        """
        return await self._open_http().create_queue(name, **settings)

    async def update_queue(
        self, name: str, *, deletes_max: int | None = 0, **settings: Unpack[QueueChange]
    ) -> ChangedQueue:
        """Change the settings of a queue that are named, and no others. `changes` in the answer has
        what each of them was and is. Settings of deliveries count for a partition from its next
        owner on.

        Args:
            deletes_max: as many messages the change may delete, or move to the dead letters; None:
                as many as there are.

        Raises:
            WouldDelete: it would be more, and nothing was changed.
            Conflict: `partitions` is fixed. QueueNotFound. InvalidRequest.
        """
        return await self._open_http().update_queue(name, deletes_max=deletes_max, **settings)

    async def queue(self, name: str) -> QueueDescription:
        """A queue's description: settings, holder, partitions, depth, each group's lag."""
        return await self._open_http().queue(name)

    def queues(self) -> AsyncIterator[QueueDescription]:
        """The descriptions of all queues, by name."""
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
        """Create a group, if it is not there; the settings that are left out are the queue's. A
        group that is there never changes by this: `created` is False then, and `start`, which only
        matters when it is made, is ignored.

        Args:
            deletes_max: as many messages may go; None: as many as there are. A queue without a
                retention keeps everything for its first group: one that starts at `latest`, or at
                a time, lets go what is before.

        Raises:
            SettingsDiffer: it is there, and one of the settings that are named has another value.
            WouldDelete: more messages would go, and the group was not made.
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
        """Change the settings of a group that are named, and no others; None: the queue's. As
        `update_queue`. Raises GroupNotFound besides."""
        return await self._open_http().update_group(
            queue, group, deletes_max=deletes_max, **settings
        )

    async def group(self, queue: str, group: str) -> GroupDescription:
        """A group's description: settings, lag, owners."""
        return await self._open_http().group(queue, group)

    async def delete_group(self, queue: str, group: str, *, deletes_max: int | None = 0) -> int:
        """Delete a group; returns how many messages went with it: those that it alone had not
        settled, and that no retention keeps. The last group of a queue without a retention leaves
        everything to whoever comes next.

        Args:
            deletes_max: as many messages may go; None: as many as there are.

        Raises:
            WouldDelete: more messages would go, and the group stays.
            QueueNotFound. GroupNotFound.
        """
        return await self._open_http().delete_group(queue, group, deletes_max=deletes_max)

    async def seek_group(
        self, queue: str, group: str, to: Start | int, *, deletes_max: int | None = 0
    ) -> SoughtGroup:
        """Send a group to its start, its end, a time, or an offset, the same in each partition.
        What it skips goes where no other group needs it and no retention keeps it: `deleted` in the
        answer is how many messages that are.

        Args:
            deletes_max: as many messages may go; None: as many as there are.

        Raises:
            WouldDelete: more messages would go, and the group stays where it is.
            QueueNotFound. GroupNotFound.
        """
        return await self._open_http().seek_group(queue, group, to, deletes_max=deletes_max)

    async def pull(
        self, queue: str, group: str, *, messages_max: int = 10, wait_s: float = 0.0
    ) -> list[PulledMessage]:
        """Take messages without a subscription; settle them by their receipts. Waits up to
        `wait_s` seconds for the first one; nothing came: an empty list."""
        return await self._open_http().pull(queue, group, messages_max=messages_max, wait_s=wait_s)

    async def ack_receipts(self, queue: str, group: str, receipts: Sequence[str]) -> Settled:
        """Settle pulled messages; durable when this returns."""
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
        """Return pulled messages: they come again after `delay_s` seconds, or the backoff.
        `reason` is kept with them; durable when this returns."""
        return await self._open_http().nack_receipts(
            queue, group, receipts, delay_s=delay_s, reason=reason
        )

    async def reject_receipts(
        self, queue: str, group: str, receipts: Sequence[str], *, reason: str | None = None
    ) -> Settled:
        """Return pulled messages for good: they move to the dead letters, or their keys are parked,
        at once."""
        return await self._open_http().reject_receipts(queue, group, receipts, reason=reason)

    async def extend_receipts(
        self, queue: str, group: str, receipts: Sequence[str], *, lease_s: float | None = None
    ) -> Settled:
        """Prolong the leases of pulled messages to `lease_s` seconds from now, or the group's."""
        return await self._open_http().extend_receipts(queue, group, receipts, lease_s=lease_s)

    # --- inside ---------------------------------------------------------------------------------

    async def _call(
        self, method: str, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S
    ) -> bytes:
        return await self._open_http().request(method, path, body, timeout_s=timeout_s)

    def _open_session(self) -> Session:
        if self._session is None:
            raise ClientClosed("the client is not connected: use `async with`")
        return self._session

    def _open_publisher(self) -> Publisher:
        if self._publisher is None:
            raise ClientClosed("the client is not connected: use `async with`")
        return self._publisher

    def _open_http(self) -> Http:
        if self._http is None:
            raise ClientClosed("the client is not connected: use `async with`")
        return self._http
