"""Operators' calls: pause and purge queues, inspect them, and send dead letters back."""

from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, Literal

import msgspec

from tocsin.answers import (
    Decided,
    Explanation,
    HeldKey,
    Lease,
    ParkedKeys,
    QueueDescription,
    SessionDescription,
)
from tocsin.api.scheduled import ScheduledCalls
from tocsin.errors import CannotConnect
from tocsin.io.requests import decoded_as, object_of, path_to, query_of
from tocsin.proto import wire
from tocsin.proto.message import Content

PER_CALL_MAX: Final = 1000
"""The largest number of messages that the broker returns in one peek, or sends back in one
redrive."""
PURGE_TIMEOUT_S: Final = 300.0
"""The time limit of a purge, in seconds. A queue of a thousand partitions and groups takes long."""
Decision = Literal["retry", "skip", "release"]


class _StoredMessage(wire.PushedMessage, kw_only=True):
    partition: int
    offset: int
    published_unix_ms: int = 0
    expires_unix_ms: int = 0
    attempts: int = 0


class _Peeked(_StoredMessage, kw_only=True):
    state: str | None = None


class Origin(msgspec.Struct, frozen=True):
    """The queue, group, partition and offset at which a dead letter was a message."""

    queue: str
    partition: int
    offset: int
    group: str | None = None
    """None if the caller's rights show no groups."""


class _Letter(_StoredMessage, kw_only=True):
    origin: Origin
    reason: str = ""
    nack: str | None = None


class _PeekAnswer(msgspec.Struct):
    messages: list[_Peeked]
    next: str | None = None


class _DeadLettersAnswer(msgspec.Struct):
    messages: list[_Letter]
    next: str | None = None


class _RedriveAnswer(msgspec.Struct):
    messages: int
    next: str | None = None


class PeekedMessage(Content):
    """A message as it is stored in its queue. Peeking delivers it to no consumer."""

    __slots__ = ("attempts", "expires_unix_ms", "state")

    def __init__(self, shown: _Peeked) -> None:
        super().__init__(_head(shown), shown.offset, shown)
        self.state = shown.state
        """The state for the group that was named: "ready", "in_flight", "waiting" (for its retry,
        or behind an earlier message of its key), "parked" or "dying". None if no group was
        named."""
        self.attempts = shown.attempts
        """The number of failed attempts by the named group that count; 0 if no group was named."""
        self.expires_unix_ms = shown.expires_unix_ms
        """The time at which the message expires, in Unix milliseconds; 0 if it never does."""


class DeadLetter(Content):
    """A message among the dead letters.

    `partition`, `offset` and `published_unix_ms` belong to the letter. Key, id, body and headers
    are those of the original message.
    """

    __slots__ = ("attempts", "nack", "origin", "reason")

    def __init__(self, letter: _Letter) -> None:
        super().__init__(_head(letter), letter.offset, letter)
        self.origin = letter.origin
        self.reason = letter.reason
        """The reason why the message is a dead letter: "exhausted", "rejected", "expired",
        "overflow", "skipped" or, if the message was published after its queue was deleted,
        "queue_deleted"."""
        self.attempts = letter.attempts
        self.nack = letter.nack
        """The reason that the message's last nack gave; None if there was none."""


def _head(shown: _StoredMessage) -> wire.Push:
    return wire.Push(
        subscription=0, partition=shown.partition, published_unix_ms=shown.published_unix_ms
    )


_PEEK: Final = msgspec.json.Decoder(_PeekAnswer)
_DEAD_LETTERS: Final = msgspec.json.Decoder(_DeadLettersAnswer)
_REDRIVE: Final = msgspec.json.Decoder(_RedriveAnswer)


class AdminCalls(ScheduledCalls):
    """The operators' calls of `Client` and `Http`.

    Each raises CannotConnect if no broker answers, and otherwise the broker's error.
    """

    async def pause_queue(self, name: str) -> QueueDescription:
        """Stop giving messages of a queue to groups, durably, until `resume_queue`; returns the
        queue's description. Publishing continues, and so do readers. Pausing a paused queue does
        nothing."""
        path = f"{path_to('queues', name)}/pause"
        found: QueueDescription = object_of(await self._call("POST", path))
        return found

    async def resume_queue(self, name: str) -> QueueDescription:
        """End a pause; returns the queue's description. Resuming a queue that is not paused does
        nothing."""
        path = f"{path_to('queues', name)}/resume"
        found: QueueDescription = object_of(await self._call("POST", path))
        return found

    async def purge_queue(self, name: str, *, group: str | None) -> int:
        """Drop the messages that are in a queue at this moment; durable and final when this
        returns.

        With a group, drops the messages that this group has not settled. With None, drops all
        messages, for all groups and readers, and those that are scheduled. Returns the number of
        messages that the group had not settled, or that the queue retained and had scheduled.
        """
        body = {"all": True} if group is None else {"group": group}
        path = f"{path_to('queues', name)}/purge"
        answer = await self._call("POST", path, body, timeout_s=PURGE_TIMEOUT_S)
        return int(object_of(answer)["messages"])

    async def peek(
        self,
        queue: str,
        *,
        group: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        key: str | None = None,
        limit: int = 10,
    ) -> list[PeekedMessage]:
        """Return messages of a queue, by partition and offset, without taking them.

        Args:
            group: return only messages that this group has not settled, with the `state` of each.
            partition: return only messages of this partition.
            offset: begin here, in that partition or in the key's partition.
            key: return only messages of this key. The broker reads the partition for it, 16 MiB a
                call.
            limit: return at most this many.
        """
        wanted = {"group": group, "partition": partition, "offset": offset, "key": key}
        path = f"{path_to('queues', queue)}/messages"
        found: list[PeekedMessage] = []
        after: str | None = None
        while len(found) < limit:
            count = min(limit - len(found), PER_CALL_MAX)
            query = query_of({**wanted, "limit": count, "after": after})
            answer = decoded_as(_PEEK, await self._call("GET", path + query))
            found += map(PeekedMessage, answer.messages)
            after = answer.next
            if after is None:
                break
        return found

    async def dead_letters(
        self, queue: str, *, key: str | None = None, reason: str | None = None
    ) -> AsyncGenerator[DeadLetter, None]:
        """Yield the dead letters of a queue that have not been sent back, oldest first.

        `key` and `reason` restrict them. Letters are fetched page by page.
        """
        path = f"{path_to('queues', queue)}/dead-letters"
        after: str | None = None
        while True:
            query = query_of({"key": key, "reason": reason, "after": after})
            answer = decoded_as(_DEAD_LETTERS, await self._call("GET", path + query))
            for letter in answer.messages:
                yield DeadLetter(letter)
            after = answer.next
            if after is None:
                return

    async def redrive_dead_letters(
        self,
        queue: str,
        *,
        key: str | None = None,
        reason: str | None = None,
        limit: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Send dead letters of a queue back into it, in the order of their keys; returns their
        number.

        They become new messages for all groups and readers of the queue. Each is stored durably in
        the queue before it leaves the dead letters. After an error or a cancellation, call this
        again: within the queue's `dedup_window_s` no message is stored twice.

        Args:
            key: send only letters of this key.
            reason: send only letters with this reason: exhausted, rejected, expired, overflow,
                skipped, queue_deleted.
            limit: send at most this many; None sends all.
            progress: called after each page with the number of letters sent up to then.
        """
        path = f"{path_to('queues', queue)}/dead-letters/redrive"
        done = 0
        body: dict[str, object] = {"key": key, "reason": reason}
        while limit is None or done < limit:
            left = PER_CALL_MAX if limit is None else min(limit - done, PER_CALL_MAX)
            answer = decoded_as(_REDRIVE, await self._call("POST", path, {**body, "limit": left}))
            done += answer.messages
            if progress is not None:
                progress(done)
            if answer.next is None:
                break
            body["after"] = answer.next
        return done

    async def parked_keys(self, queue: str, group: str, *, limit: int = 100) -> ParkedKeys:
        """Return up to `limit` (at most 1,000) keys of a group that wait for an operator.

        The answer has them in `keys`, and in `keys_parked` the number of all parked keys.
        """
        path = path_to("queues", queue, "groups", group)
        found: ParkedKeys = object_of(await self._call("GET", f"{path}/parked?limit={limit}"))
        return found

    async def explain(self, queue: str, key: str, *, group: str | None = None) -> Explanation:
        """Explain why a key waits.

        The answer has the key's `partition`, and `groups` with an entry for each group, or for the
        named one. An entry has the owner, the time until which the key waits, the number of
        attempts at its first message, a stable code, `waits_for`, and a sentence, `text`. For a key
        that was never used, the answer says to which partition it would go. docs/http.md describes
        all fields.

        Raises:
            GroupNotFound, QueueNotFound, InvalidRequest: the key has more than 1,024 bytes.
        """
        path = f"{path_to('queues', queue)}/explain"
        query: dict[str, object] = {"key": key, "group": group}
        answer = object_of(await self._call("GET", path + query_of(query)))
        groups, after = _listed(answer, "groups"), answer.pop("next", None)
        while after is not None:
            more = object_of(await self._call("GET", path + query_of({**query, "after": after})))
            groups += _listed(more, "groups")
            after = more.get("next")
        explained: Explanation = answer
        return explained

    async def held_keys(self, queue: str, group: str) -> AsyncGenerator[HeldKey, None]:
        """Yield the keys of a group that have waiting messages, as far as the broker has found
        them.

        Each has its `reason`. Keys come by partition and are fetched page by page.
        """
        path = f"{path_to('queues', queue, 'groups', group)}/held"
        async for key in self._pages(path, "keys"):
            yield key

    async def leases(self, queue: str, group: str) -> AsyncGenerator[Lease, None]:
        """Yield the deliveries in flight of a group at the gateway that answers, by partition and
        offset, page by page."""
        path = f"{path_to('queues', queue, 'groups', group)}/leases"
        async for lease in self._pages(path, "leases"):
            yield lease

    async def sessions(self) -> AsyncGenerator[SessionDescription, None]:
        """Yield the sessions at the gateway that answers, by id, page by page: this principal's or,
        with the right `manage` on all queues, all those of the tenant."""
        async for session in self._pages("/v1/sessions", "sessions"):
            yield session

    async def _pages(self, path: str, name: str) -> AsyncGenerator[Any, None]:
        after: str | None = None
        while True:
            page = object_of(await self._call("GET", path + query_of({"after": after})))
            for one in _listed(page, name):
                yield one
            after = page.get("next")
            if after is None:
                return

    async def decide_parked(
        self,
        queue: str,
        group: str,
        decision: Decision,
        *,
        key: str | None = None,
        key_hash: str | None = None,
    ) -> Decided:
        """Retry, skip or release a parked key, named by its text or its hash; durable when this
        returns.

        With neither, decides on all parked keys, as many as one call reaches. `keys_parked` in the
        answer is the number of keys that this call was to decide on and did not, because they were
        too many or were refused.

        Raises:
            Conflict: the key is not parked, or no longer parked.
        """
        which: dict[str, object] = {"key": key, "key_hash": key_hash}
        if key is None and key_hash is None:
            which = {"all": True}
        path = path_to("queues", queue, "groups", group)
        decided: Decided = object_of(
            await self._call("POST", f"{path}/parked", {"decision": decision, **which})
        )
        return decided


def _listed(page: Any, name: str) -> list[Any]:
    found: list[Any] | None = page.get(name)
    if not isinstance(found, list):
        raise CannotConnect(f"the server is not a Tocsin broker: no {name}")
    return found
