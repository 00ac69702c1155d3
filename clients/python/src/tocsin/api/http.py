"""The client over HTTP alone: queues, groups and pull."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from ssl import SSLContext
from types import TracebackType
from typing import Any, Final, Unpack
from urllib.parse import quote

import httpx2
import msgspec

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
from tocsin.api.session_subscription import MESSAGES_MAX, Start, start_at
from tocsin.errors import Busy, CannotConnect, InvalidRequest
from tocsin.io.carrier import SLOWEST_BYTES_PER_S
from tocsin.io.requests import (
    TIMEOUT_S,
    Token,
    bearer,
    checked_token,
    fresh_token,
    object_of,
    open_http,
    path_to,
    refusal_of,
)
from tocsin.io.tls import tls_complaint, tls_context
from tocsin.proto import wire
from tocsin.proto.message import Content
from tocsin.proto.new_message import loss_in
from tocsin.settings import GroupSettings, QueueChange, QueueSettings


class _Pulled(wire.PushedMessage, kw_only=True):
    receipt: str
    partition: int
    offset: int
    attempt: int = 1
    published_unix_ms: int = 0
    lease_until_unix_ms: int = 0


class _PullAnswer(msgspec.Struct):
    messages: list[_Pulled]


class Settled(msgspec.Struct, frozen=True):
    """The effect of an ack, nack, reject or extend of receipts."""

    settled: int
    """The number of receipts to which the call applied."""
    stale: list[str] = []
    """Receipts of deliveries that had ended before: settled, expired or delivered again."""
    invalid: list[str] = []
    """Texts that are no receipts of this group."""


class PulledMessage(Content):
    """A message that was pulled. Settle it by its `receipt`, through any connection."""

    __slots__ = ("attempt", "lease_until_unix_ms", "receipt")

    def __init__(self, pulled: _Pulled) -> None:
        head = wire.Push(
            subscription=0, partition=pulled.partition, published_unix_ms=pulled.published_unix_ms
        )
        super().__init__(head, pulled.offset, pulled)
        self.receipt = pulled.receipt
        """The name of this delivery in ack_receipts, nack_receipts and extend_receipts."""
        self.attempt = pulled.attempt
        """The number of this attempt at the message: 1, and 1 more for each earlier attempt of the
        group that counts."""
        self.lease_until_unix_ms = pulled.lease_until_unix_ms
        """The earliest end of the lease, in Unix milliseconds of the broker's clock."""


class Http(AdminCalls):
    """The broker's HTTP interface; an async context manager, or close it with `close`.

    Opens no session. Connections are opened by the first call.

    Raises:
        ValueError: the token or a certificate file is invalid, or `ssl` is given for an http URL.
    """

    def __init__(self, url: str, *, token: Token = None, ssl: SSLContext | None = None) -> None:
        self.url = url
        self._tls = tls_context(url, ssl)
        self._token = checked_token(token)
        self._client: httpx2.AsyncClient | None = None

    async def __aenter__(self) -> "Http":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Closing again does nothing."""
        if self._client is not None:
            await self._client.aclose()

    def _connections(self) -> httpx2.AsyncClient:
        if self._client is None:
            self._client = open_http(self.url, self._tls, timeout_s=TIMEOUT_S)
        return self._client

    async def request(
        self, method: str, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S
    ) -> bytes:
        """Make one call, and return the body of the answer.

        If the broker answers `rate_limited`, waits for the time that the broker names and calls
        again, as long as that ends within `timeout_s` seconds.

        Raises:
            CannotConnect: nothing answers, or something other than a broker.
            NoToken: the function that returns the token has failed.
            BrokerError: the broker's problem document.
        """
        headers = bearer(await fresh_token(self._token))
        content = None
        if body is not None:
            content = _encoded(body)
            headers["Content-Type"] = "application/json"
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + timeout_s
        while True:
            try:
                return await self._request_once(method, path, content, headers, timeout_s)
            except Busy as error:
                after_s = error.retry_after_s
                if error.code != "rate_limited" or after_s is None:
                    raise
                after_s += random.uniform(0.0, max(0.05, after_s / 10))
                if loop.time() + after_s > give_up_at:
                    raise
                await asyncio.sleep(after_s)

    async def _request_once(
        self,
        method: str,
        path: str,
        content: bytes | None,
        headers: dict[str, str],
        timeout_s: float,
    ) -> bytes:
        timeout_s += len(content or b"") / SLOWEST_BYTES_PER_S
        try:
            answer = await self._connections().request(
                method, path, content=content, headers=headers, timeout=timeout_s
            )
        except httpx2.TimeoutException as error:
            raise CannotConnect(
                f"the broker at {self.url} did not answer within {timeout_s:g} s"
            ) from error
        except httpx2.TransportError as error:
            why = tls_complaint(error) or str(error)
            raise CannotConnect(f"cannot reach a Tocsin broker at {self.url}: {why}") from error
        if answer.is_success:
            return answer.content
        raise refusal_of(answer.status_code, answer.content)

    async def _call(
        self, method: str, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S
    ) -> bytes:
        return await self.request(method, path, body, timeout_s=timeout_s)

    # --- access ---------------------------------------------------------------------------------

    async def ticket(self) -> str | None:
        """Return a ticket for a browser's address (`…/console#ticket=…`), valid once and for 30
        seconds.

        None means that this broker has no token, and that its pages need no ticket.
        """
        ticket = object_of(await self.request("POST", "/v1/tickets")).get("ticket")
        return str(ticket) if ticket is not None else None

    # --- queues ---------------------------------------------------------------------------------

    async def create_queue(self, name: str, **settings: Unpack[QueueSettings]) -> CreatedQueue:
        """Create a queue if none of this name exists; returns its description.
        `Client.create_queue` describes arguments and errors."""
        made: CreatedQueue = object_of(await self.request("PUT", path_to("queues", name), settings))
        return made

    async def update_queue(
        self, name: str, *, deletes_max: int | None = 0, **settings: Unpack[QueueChange]
    ) -> ChangedQueue:
        """Change the named settings of a queue; returns its description, and the changes.
        `Client.update_queue` describes arguments and errors."""
        path = path_to("queues", name) + _deletes(deletes_max)
        changed: ChangedQueue = object_of(await self.request("PATCH", path, settings))
        return changed

    async def queue(self, name: str) -> QueueDescription:
        """Return a queue's description: settings, holder, partitions, depth, each group's lag."""
        found: QueueDescription = object_of(await self.request("GET", path_to("queues", name)))
        return found

    async def queues(self) -> AsyncIterator[QueueDescription]:
        """Yield the descriptions of all queues on which the caller has a right, by name, page by
        page."""
        path = "/v1/queues"
        while True:
            page = object_of(await self.request("GET", path))
            for queue in page["queues"]:
                yield queue
            if not page.get("next"):
                return
            path = f"/v1/queues?after={quote(page['next'], safe='')}"

    # --- groups ---------------------------------------------------------------------------------

    async def create_group(
        self,
        queue: str,
        group: str,
        *,
        start: Start | None = None,
        deletes_max: int | None = 0,
        **settings: Unpack[GroupSettings],
    ) -> CreatedGroup:
        """Create a group if it does not exist; returns its description. `Client.create_group`
        describes arguments and errors."""
        body: dict[str, Any] = {**settings}
        if start is not None:
            body["start"] = start_at(start)
        path = path_to("queues", queue, "groups", group) + _deletes(deletes_max)
        made: CreatedGroup = object_of(await self.request("PUT", path, body))
        return made

    async def update_group(
        self,
        queue: str,
        group: str,
        *,
        deletes_max: int | None = 0,
        **settings: Unpack[GroupSettings],
    ) -> ChangedGroup:
        """Change the named settings of a group; returns its description, and the changes.
        `Client.update_group` describes arguments and errors."""
        path = path_to("queues", queue, "groups", group) + _deletes(deletes_max)
        changed: ChangedGroup = object_of(await self.request("PATCH", path, settings))
        return changed

    async def group(self, queue: str, group: str) -> GroupDescription:
        """Return a group's description: settings, lag, owners."""
        path = path_to("queues", queue, "groups", group)
        found: GroupDescription = object_of(await self.request("GET", path))
        return found

    async def delete_group(self, queue: str, group: str, *, deletes_max: int | None = 0) -> int:
        """Delete a group; returns the number of messages deleted with it. `Client.delete_group`
        describes arguments and errors."""
        path = path_to("queues", queue, "groups", group) + _deletes(deletes_max)
        return int(object_of(await self.request("DELETE", path))["deleted"])

    async def seek_group(
        self, queue: str, group: str, to: Start | int, *, deletes_max: int | None = 0
    ) -> SoughtGroup:
        """Move a group to its start, its end, a time, or an offset that is the same in every
        partition. Deliveries made before no longer count. `Client.seek_group` describes arguments
        and errors."""
        place: object = {"offset": to} if isinstance(to, int) else start_at(to)
        path = f"{path_to('queues', queue, 'groups', group)}/seek{_deletes(deletes_max)}"
        found: SoughtGroup = object_of(await self.request("POST", path, {"to": place}))
        return found

    # --- pull -----------------------------------------------------------------------------------

    async def pull(
        self, queue: str, group: str, *, messages_max: int = 10, wait_s: float = 0.0
    ) -> list[PulledMessage]:
        """Take up to `messages_max` messages. Waits up to `wait_s` seconds (the broker allows 30)
        for the first one, and returns an empty list if none came. The first pull of a group creates
        the group."""
        data = await self.request(
            "POST",
            f"{path_to('queues', queue, 'groups', group)}/pull",
            {"messages_max": messages_max, "wait_s": wait_s},
            timeout_s=TIMEOUT_S + wait_s,
        )
        return [PulledMessage(pulled) for pulled in _PULL.decode(data).messages]

    async def ack_receipts(self, queue: str, group: str, receipts: Sequence[str]) -> Settled:
        """Ack pulled messages; durable when this returns."""
        return await self._settle(queue, group, "ack", {"receipts": receipts})

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
        body = {"receipts": receipts, "delay_s": delay_s, "reason": reason}
        return await self._settle(queue, group, "nack", body)

    async def reject_receipts(
        self, queue: str, group: str, receipts: Sequence[str], *, reason: str | None = None
    ) -> Settled:
        """Return pulled messages for good: each moves to the dead letters, or its key is parked, at
        once."""
        body = {"receipts": receipts, "reason": reason, "reject": True}
        return await self._settle(queue, group, "nack", body)

    async def extend_receipts(
        self, queue: str, group: str, receipts: Sequence[str], *, lease_s: float | None = None
    ) -> Settled:
        """Extend the leases of pulled messages to `lease_s` seconds from now; None takes the
        group's lease."""
        return await self._settle(
            queue, group, "extend", {"receipts": receipts, "lease_s": lease_s}
        )

    async def _settle(
        self, queue: str, group: str, verb: str, body: Mapping[str, object]
    ) -> Settled:
        path = f"{path_to('queues', queue, 'groups', group)}/{verb}"
        return _SETTLED.decode(await self.request("POST", path, body))


def _encoded(body: object) -> bytes:
    try:
        content = wire.encode(body)
        lost = loss_in(body, "the request")
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidRequest("invalid_request", f"it has no JSON form: {error}") from error
    if lost is not None:
        raise InvalidRequest("invalid_request", lost)
    return content


_PULL: Final = msgspec.json.Decoder(_PullAnswer)
_SETTLED: Final = msgspec.json.Decoder(Settled)


def _deletes(deletes_max: int | None) -> str:
    """Return the query string for `deletes_max`: empty for 0, and a number above all others for
    None, which allows any."""
    return "" if deletes_max == 0 else f"?deletes_max={deletes_max or MESSAGES_MAX}"
