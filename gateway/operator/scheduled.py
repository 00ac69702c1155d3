"""Scheduled messages for operators and publishers: list them, find one by its id, cancel it, change
it.

A message waits in the due store of its key's partition (`push.due`). Its id is the client's, which
is one per key (R8), or its ticket, which says where it is. A client's id is looked for with its
key. Without the key, all partitions are asked, and several messages may have it.
"""

import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from gateway.operator.explain import duration
from gateway.operator.peek import content_of
from gateway.publish.batch import id_digest, id_hash
from metadata.catalog import Queue
from push import limits
from push.due import DueMessage, DuePlace, parse_ticket, ticket_text
from push.errors import Refused
from push.message import Message, check_message, due_unix_ms, encode_message, scheduled
from push.places import Partition
from push.ring import Ring, key_hash
from push.storage_port import NotStored, Scheduled, Storage

TRIES_MAX: Final = 10
"""Number of times that a change is tried if others change the message at the same time."""
REMEMBER_S_MIN: Final = 300.0
"""Least time in seconds for which a cancelled id is remembered."""
_DECODER: Final = msgspec.json.Decoder(Message)
_LAST: Final = limits.OFFSET_MAX + 1
May = Callable[[str | None], bool]
"""Whether a client may do something with messages of this key; None: without a key."""


class ScheduledMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that waits until it is due. Of its content, a client that may not read it gets
    nothing but key and id."""

    id: str
    ticket: str
    partition: int
    due_unix_ms: int
    published_unix_ms: int
    bytes: int
    """Size as JSON, in bytes."""
    key: str | None = None
    body: msgspec.Raw | None = None
    body_base64: str | None = None
    content_type: str | None = None
    headers: dict[str, str] | None = None
    ttl_s: float | None = None
    sent_unix_ms: int | None = None


class ScheduledList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Scheduled messages by due time. `count`: number of all that wait in the queue."""

    messages: list[ScheduledMessage]
    count: int
    next: str | None = None
    """Value for `after` to go on; left out if there are no more."""


class Believed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer when a gateway believes its clock."""

    jump_s: float
    """The last jump of the clock, in seconds; negative if it was set back, 0 if there was none."""
    moving: bool
    """Whether this gateway moves scheduled messages now."""


class ScheduledChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Change of a scheduled message: another time, another content, or both. What is left out
    stays. A body takes the place of the whole content (body, `content_type`, headers, `ttl_s`)."""

    deliver_at_unix_ms: int | None = None
    delay_s: float | None = None
    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    body_base64: str | None = None
    content_type: str | None = None
    headers: dict[str, str] | None = None
    ttl_s: float | None = None

    @property
    def has_content(self) -> bool:
        """Whether the message gets another content."""
        return self.body is not msgspec.UNSET or self.body_base64 is not None

    def made_of(self, before: Message) -> Message:
        """Return the message that this makes of one. Raises Refused(invalid_request)."""
        has_time = self.deliver_at_unix_ms is not None or self.delay_s is not None
        if not (has_time or self.has_content):
            raise Refused("invalid_request", "a change names a time, or a body, or both")
        changed = before
        if self.has_content:
            changed = Message(
                key=before.key,
                body=self.body if isinstance(self.body, msgspec.Raw) else msgspec.Raw(),
                body_base64=self.body_base64,
                content_type=self.content_type,
                id=before.id,
                headers=self.headers,
                ttl_s=self.ttl_s,
                sent_unix_ms=before.sent_unix_ms,
                deliver_at_unix_ms=before.deliver_at_unix_ms,
            )
        elif self.content_type is not None or self.headers is not None or self.ttl_s is not None:
            raise Refused("invalid_request", "content_type, headers and ttl_s come with a body")
        if has_time:
            changed = msgspec.structs.replace(
                changed, deliver_at_unix_ms=self.deliver_at_unix_ms, delay_s=self.delay_s
            )
        return changed


class ScheduledMessages:
    """The scheduled messages of all queues."""

    def __init__(
        self,
        storage: Storage,
        *,
        changed: Callable[[str], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`changed`: called with the id of a queue in which a message was cancelled."""
        self._storage = storage
        self._changed = changed
        self._wall = wall

    # --- Listing -------------------------------------------------------------------------------

    async def list_messages(
        self, queue: Queue, *, key: str | None, after: str | None, limit: int, may_read: May
    ) -> ScheduledList:
        """List up to `limit` messages by (due time, partition, number); with `key` those of this
        key. `after`: `next` of the answer before. `may_read`: whether the content of a key's
        messages is shown. Raises Refused(invalid_request): `after` is none."""
        hashed = key_hash(key, queue.hash_key) if key is not None else None
        numbers = sorted(queue.members)
        if hashed is not None:
            numbers = [Ring(queue.ring_epoch, queue.members).partition(hashed)]
        place = _parse_after(after) if after is not None else None
        found: list[tuple[int, int, int, DueMessage]] = []
        seen_to: list[tuple[int, int, int]] = []
        for number in numbers:
            read = await self._storage.due.look(
                Partition(queue.queue_id, number),
                key_hash=hashed,
                after=_after_in(number, place),
                count_max=limit + 1,
                bytes_max=max(1, limits.LOOK_BYTES_MAX // len(numbers)),
            )
            found += [(one.due_unix_ms, number, one.number, one) for one in read.messages]
            if read.messages and read.next_unix_ms is not None:
                last_read = read.messages[-1]
                seen_to.append((last_read.due_unix_ms, number, last_read.number))
        found.sort(key=lambda entry: entry[:3])
        # Of the partition that was read least far, nothing is known behind this place.
        known = [entry for entry in found if not seen_to or entry[:3] <= min(seen_to)]
        prefixes = await self._prefixes(queue)
        shown: list[ScheduledMessage] = []
        size = 0
        for _, number, _, one in known[:limit]:
            size += len(one.payload)
            if shown and size > limits.LOOK_ANSWER_BYTES_MAX:
                break
            shown.append(_shown(one, prefixes[number], may_read))
        has_more = bool(seen_to) or len(shown) < len(found)
        last = known[len(shown) - 1] if shown and has_more else None
        states = await self._storage.due.states(queue.queue_id)
        count = sum(state.messages for state in states)
        if key is not None:  # another key may have the same hash
            shown = [one for one in shown if one.key == key]
        next_ = f"{last[0]}-{last[1]}-{last[2]}" if last is not None else None
        return ScheduledList(messages=shown, count=count, next=next_)

    async def _prefixes(self, queue: Queue) -> dict[int, str]:
        """Return the id prefix of each partition."""
        states = await self._storage.partitions(queue.queue_id)
        return {state.partition.number: f"{queue.queue_id}-{state.generation}-" for state in states}

    # --- One message ---------------------------------------------------------------------------

    async def show(
        self, queue: Queue, message_id: str, key: str | None, may_read: May
    ) -> ScheduledMessage:
        """Show one message. Raises Refused as `_find` does."""
        found = await self._find(queue, message_id, key)
        prefixes = await self._prefixes(queue)
        return _shown(found, prefixes[found.partition.number], may_read)

    async def cancel(
        self, queue: Queue, message_id: str, key: str | None, may_cancel: May
    ) -> ScheduledMessage:
        """Cancel a message for good; returns what it was, without its content. From then on its id
        is answered `cancelled`.

        Raises:
            Refused: id_unknown, ambiguous, already_due, cancelled; forbidden by `may_cancel`.
        """
        found = await self._find(queue, message_id, key)
        shown = await self._checked(queue, found, may_cancel, "cancel")
        remember_s = max(queue.settings.dedup_window_s, REMEMBER_S_MIN)
        if not await self._storage.due.cancel(found.partition, found.number, remember_s=remember_s):
            raise await self._gone(found.partition, found.number)
        self._changed(queue.queue_id)
        return shown

    async def change(
        self,
        queue: Queue,
        message_id: str,
        key: str | None,
        change: ScheduledChange,
        may_change: May,
    ) -> ScheduledMessage:
        """Give a message another time, another content, or both; returns what it is now, without
        its content. With a time that has passed, it comes at once.

        Raises:
            Refused: id_unknown, ambiguous, already_due, cancelled; forbidden by `may_change`;
                invalid_message, message_too_large, invalid_request.
        """
        for _ in range(TRIES_MAX):
            found = await self._find(queue, message_id, key)
            await self._checked(queue, found, may_change, "change")
            now_unix_ms = self._wall() * 1000
            message = change.made_of(_DECODER.decode(found.payload))
            check_message(message, queue.settings.message_bytes_max)
            due = due_unix_ms(message, now_unix_ms) or int(now_unix_ms)
            payload = encode_message(scheduled(message, due))
            changed = replace(found, due_unix_ms=due, payload=payload)
            if await self._storage.due.change(changed):
                return await self._checked(queue, changed, may_change, "change")
        raise Refused("overloaded", "others change the message at the same time, again and again")

    async def _checked(
        self, queue: Queue, found: DueMessage, may: May, what: str
    ) -> ScheduledMessage:
        """Return the message without its content. Raises Refused(forbidden)."""
        prefixes = await self._prefixes(queue)
        shown = _shown(found, prefixes[found.partition.number], lambda key: False)
        if not may(shown.key):
            raise Refused(
                "forbidden",
                f"to {what} it needs the right to manage the queue {queue.name!r}, or to publish "
                "to it under the message's key",
            )
        return shown

    async def _find(self, queue: Queue, message_id: str, key: str | None) -> DueMessage:
        """Find a message that waits.

        Raises:
            Refused: id_unknown: no such message is known, or not any more. ambiguous: several have
                this id, with different keys, and `key` is None. already_due: it is in the log.
                cancelled.
        """
        ticket = parse_ticket(message_id)
        if ticket is not None and key is None:
            prefix, number, counted = ticket
            if prefix == (await self._prefixes(queue)).get(number):
                partition = Partition(queue.queue_id, number)
                for found in await self._storage.due.find(partition, [counted]):
                    return found
                raise await self._gone(partition, counted)
        if key is not None:
            return await self._find_in_key(queue, message_id, key)
        hashed = id_hash(queue, message_id)
        all_found = [one async for one in self._with_id(queue, queue.members, message_id, hashed)]
        if len(all_found) > 1:
            raise Refused("ambiguous", "messages of several keys have this id: name the key")
        if all_found:
            return all_found[0]
        number = Ring(queue.ring_epoch, queue.members).partition(
            key_hash(message_id, queue.hash_key)
        )
        raise await self._unknown(queue, number, message_id, None)

    async def _find_in_key(self, queue: Queue, message_id: str, key: str) -> DueMessage:
        hashed = key_hash(key, queue.hash_key)
        number = Ring(queue.ring_epoch, queue.members).partition(hashed)
        async for one in self._with_id(queue, [number], message_id, id_hash(queue, message_id)):
            if _DECODER.decode(one.payload).key == key:
                return one
        raise await self._unknown(queue, number, message_id, key)

    async def _with_id(
        self, queue: Queue, numbers: Sequence[int], message_id: str, hashed: int
    ) -> AsyncIterator[DueMessage]:
        for number in numbers:
            partition = Partition(queue.queue_id, number)
            for one in (await self._storage.due.look(partition, id_hash=hashed)).messages:
                if _DECODER.decode(one.payload).id == message_id:
                    yield one

    async def _unknown(
        self, queue: Queue, number: int, message_id: str, key: str | None
    ) -> Refused:
        """Return the error of an id with which nothing waits, by what is remembered of it."""
        partition = Partition(queue.queue_id, number)
        known = await self._storage.due.known(partition, id_digest(queue, key, message_id))
        if isinstance(known, NotStored):
            return Refused("cancelled")
        if isinstance(known, Scheduled):
            return await self._gone(partition, known.number)
        if known is not None:
            return Refused("already_due")
        hint = "" if key is not None else "; if its message has a key, name that, too"
        return Refused("id_unknown", f"no message with this id is scheduled{hint}")

    async def _gone(self, partition: Partition, number: int) -> Refused:
        """Return the error of a ticket whose message does not wait any more."""
        fate = await self._storage.due.fate(partition, number)
        if isinstance(fate, NotStored):
            return Refused("cancelled")
        states = await self._storage.due.states(partition.queue_id)
        given = {state.partition: state.next_number for state in states}
        if number < given.get(partition, 0):
            return Refused("already_due")
        return Refused("id_unknown", "no message with this id is scheduled")


def stopped_notes(doubt_s: float, jump_s: float) -> list[str]:
    """Return a sentence for operators if a gateway moves no scheduled messages; else []. `doubt_s`:
    seconds for which its clock is not believed. `jump_s`: the jump of the clock, in seconds."""
    if doubt_s <= 0:
        return []
    way = "ahead" if jump_s > 0 else "back"
    return [
        f"scheduled messages are not moved for {duration(math.ceil(doubt_s))}, because the clock "
        f"of this gateway was set {way} by {duration(round(abs(jump_s)))}; `tocsin scheduled "
        "believe-clock` moves them now, if the clock is right"
    ]


def _parse_after(text: str) -> tuple[int, int, int]:
    """Decode the place after which a list goes on. Raises Refused(invalid_request)."""
    parts = text.split("-")
    if len(parts) != 3 or not all(part.isascii() and part.isdecimal() for part in parts):
        raise Refused("invalid_request", "after: a value from `next` of the last answer")
    due, number, counted = map(int, parts)
    if due >= 1 << 53 or number > limits.PARTITIONS_MAX or counted > limits.OFFSET_MAX:
        raise Refused("invalid_request", "after: a value from `next` of the last answer")
    return due, number, counted


def _after_in(number: int, place: tuple[int, int, int] | None) -> DuePlace | None:
    """Return where a list that goes on after a place goes on in partition `number`."""
    if place is None:
        return None
    due, at, counted = place
    if number == at:
        return DuePlace(due, counted)
    return DuePlace(due, _LAST) if number < at else DuePlace(due, -1)


def _shown(one: DueMessage, id_prefix: str, may_read: May) -> ScheduledMessage:
    message = _DECODER.decode(one.payload)
    ticket = ticket_text(id_prefix, one.partition.number, one.number)
    content = content_of(message)
    if not may_read(message.key):
        content = {"key": message.key}
    else:
        content["ttl_s"] = message.ttl_s
        del content["deliver_at_unix_ms"]  # it is `due_unix_ms`
    return ScheduledMessage(
        **{
            **content,
            "id": message.id or ticket,
            "ticket": ticket,
            "partition": one.partition.number,
            "due_unix_ms": one.due_unix_ms,
            "published_unix_ms": one.published_unix_ms,
            "bytes": len(one.payload),
        }
    )
