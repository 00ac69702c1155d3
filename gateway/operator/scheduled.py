"""Scheduled messages for operators and publishers: list them, find one by its id, cancel it, change
it.

A message waits in the due store of its key's partition (`push.due`). Its id is the client's, which
is one per key (R8), or its ticket, which says where it is. A client's id is looked for with its
key. Without the key, all partitions are asked, and several messages may have it.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from gateway.operator.explain import duration
from gateway.operator.peek import content_of
from gateway.publish.clock import BelievedClock
from metadata.catalog import Queue
from metadata.rights import KeyScope
from push import limits
from push.due import (
    DueMessage,
    DuePlace,
    DueRead,
    due_unix_ms,
    id_hash,
    parse_ticket,
    scheduled,
    ticket_text,
)
from push.errors import Refused
from push.message import (
    Message,
    check_message,
    encode_message,
    id_digest,
)
from push.places import Partition
from push.ring import Ring, key_hash
from push.storage_port import NotStored, Scheduled, Storage

TRIES_MAX: Final = 10
"""Number of times that a change is tried if others change the message at the same time."""
REMEMBER_S_MIN: Final = 300.0
"""Least time in seconds for which a cancelled id is remembered."""
_DECODER: Final = msgspec.json.Decoder(Message)
_LAST: Final = limits.OFFSET_MAX + 1
NOTHING: Final = KeyScope(())
"""The scope of no key."""


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
    is_apart: bool
    """Whether that was a jump between this clock and that of the store, which it is further ahead
    of since then."""
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
    def has_time(self) -> bool:
        """Whether the message gets another time."""
        return self.deliver_at_unix_ms is not None or self.delay_s is not None

    @property
    def has_content(self) -> bool:
        """Whether the message gets another content."""
        return self.body is not msgspec.UNSET or self.body_base64 is not None

    def made_of(self, before: Message) -> Message:
        """Return the message that this makes of one. Raises Refused(invalid_request)."""
        has_time = self.has_time
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
        self, storage: Storage, clock: BelievedClock, *, changed: Callable[[str], None]
    ) -> None:
        """`clock`: by which messages are due. `changed`: called with the id of a queue in which a
        message was cancelled."""
        self._storage = storage
        self._clock = clock
        self._changed = changed

    # --- Listing -------------------------------------------------------------------------------

    async def list_messages(
        self,
        queue: Queue,
        *,
        key: str | None,
        after: str | None,
        limit: int,
        may_see: KeyScope,
        may_read: KeyScope,
    ) -> ScheduledList:
        """List up to `limit` messages by (due time, partition, number); with `key` those of this
        key. `after`: `next` of the answer before. `may_see`: the keys whose messages may be listed;
        `may_read`: those of which the content is shown.

        Raises:
            Refused: invalid_request: `after` is none. forbidden: `may_see` covers some keys only,
                and `key` is none of them, or is None.
        """
        check_scope(may_see, key, "list scheduled messages")
        hashed = key_hash(key, queue.hash_key) if key is not None else None
        numbers = sorted(queue.members)
        if hashed is not None:
            numbers = [Ring(queue.ring_epoch, queue.members).partition(hashed)]
        page = _Page(_parse_after(after) if after is not None else None, limit)
        bytes_max = max(1, limits.LOOK_BYTES_MAX // len(numbers))
        for number in numbers:
            read = await self._storage.due.look(
                Partition(queue.queue_id, number),
                key_hash=hashed,
                after=page.after_in(number),
                count_max=limit + 1,
                bytes_max=bytes_max,
            )
            page.add(number, read)
        prefixes = await self._prefixes(queue)
        shown = [_shown(one, prefixes[number], may_read) for number, one in page.messages()]
        states = await self._storage.due.states(queue.queue_id)
        return ScheduledList(
            messages=[one for one in shown if key in (None, one.key)],  # others have the same hash
            count=sum(state.messages for state in states),
            next=page.next(),
        )

    async def _prefixes(self, queue: Queue) -> dict[int, str]:
        """Return the id prefix of each partition."""
        states = await self._storage.partitions(queue.queue_id)
        return {state.partition.number: f"{queue.queue_id}-{state.generation}-" for state in states}

    # --- One message ---------------------------------------------------------------------------

    async def show(
        self,
        queue: Queue,
        message_id: str,
        key: str | None,
        *,
        may_see: KeyScope,
        may_read: KeyScope,
    ) -> ScheduledMessage:
        """Show one message. Raises Refused as `_find` does, and forbidden as `list_messages`."""
        check_scope(may_see, key, "see a scheduled message")
        found = await self._find(queue, message_id, key)
        return await self._shown(queue, found, may_read)

    async def cancel(
        self, queue: Queue, message_id: str, key: str | None, may: KeyScope
    ) -> ScheduledMessage:
        """Cancel a message for good; returns what it was, without its content. From then on its id
        is answered `cancelled`, for `dedup_window_s`, and REMEMBER_S_MIN at least. `may`: the keys
        whose messages may be cancelled.

        Raises:
            Refused: id_unknown, ambiguous, already_due, cancelled; forbidden.
        """
        check_scope(may, key, "cancel a scheduled message")
        found = await self._find(queue, message_id, key)
        shown = await self._shown(queue, found, NOTHING)
        remember_s = max(queue.settings.dedup_window_s, REMEMBER_S_MIN)
        if not await self._storage.due.cancel(found.partition, found.number, remember_s=remember_s):
            raise await self._gone(found.partition, found.number)
        self._changed(queue.queue_id)
        return shown

    async def change(
        self, queue: Queue, message_id: str, key: str | None, change: ScheduledChange, may: KeyScope
    ) -> ScheduledMessage:
        """Give a message another time, another content, or both; returns what it is now, without
        its content. With a time that has passed, it comes at once. `may`: the keys whose messages
        may be changed.

        Raises:
            Refused: id_unknown, ambiguous, already_due, cancelled; forbidden; invalid_message,
                message_too_large, invalid_request; queue_full, schedule_full, storage_full: it
                would be larger, and there is no room; clock_in_doubt.
        """
        check_scope(may, key, "change a scheduled message")
        for _ in range(TRIES_MAX):
            found = await self._find(queue, message_id, key)
            now_unix_ms = self._clock.wall() * 1000
            message = change.made_of(_DECODER.decode(found.payload))
            check_message(message, queue.settings.message_bytes_max)
            due = found.due_unix_ms
            if change.has_time:
                self._clock.check()
                due = due_unix_ms(message, now_unix_ms) or int(now_unix_ms)
            payload = encode_message(scheduled(message, due))
            changed = replace(found, due_unix_ms=due, payload=payload)
            settings = queue.settings
            if await self._storage.due.change(
                changed,
                bytes_max=settings.bytes_max if settings.overflow == "reject" else 0,
                due_bytes_max=settings.due_bounds[1],
            ):
                return await self._shown(queue, changed, NOTHING)
        raise Refused("overloaded", "others change the message at the same time, again and again")

    async def _shown(self, queue: Queue, found: DueMessage, may_read: KeyScope) -> ScheduledMessage:
        prefixes = await self._prefixes(queue)
        return _shown(found, prefixes[found.partition.number], may_read)

    async def _find(self, queue: Queue, message_id: str, key: str | None) -> DueMessage:
        """Find a message that waits.

        Raises:
            Refused: id_unknown: no such message is known, or not any more. ambiguous: several have
                this id, with different keys, and `key` is None. already_due: it is in the log.
                cancelled.
        """
        ticket = parse_ticket(message_id)
        if ticket is not None:
            prefix, number, counted = ticket
            if prefix == (await self._prefixes(queue)).get(number):
                partition = Partition(queue.queue_id, number)
                found = await self._waiting(partition, counted)
                if key is not None and _DECODER.decode(found.payload).key != key:
                    raise Refused("id_unknown", "the message with this ticket has another key")
                return found
        if key is None:
            all_found = await self._with_id(queue, message_id)
            if len(all_found) > 1:
                raise Refused("ambiguous", "messages of several keys have this id: name the key")
            if all_found:
                return all_found[0]
        ring = Ring(queue.ring_epoch, queue.members)
        number = ring.partition(key_hash(key if key is not None else message_id, queue.hash_key))
        partition = Partition(queue.queue_id, number)
        known = await self._storage.due.known(partition, id_digest(queue.hash_key, key, message_id))
        if isinstance(known, Scheduled):
            return await self._waiting(partition, known.number)
        if isinstance(known, NotStored):
            raise Refused("cancelled")
        if known is not None:
            raise Refused("already_due")
        hint = "" if key is not None else "; if its message has a key, name that, too"
        raise Refused("id_unknown", f"no message with this id is scheduled{hint}")

    async def _with_id(self, queue: Queue, message_id: str) -> list[DueMessage]:
        """Return messages with this id, of whatever keys: two, if there are more."""
        found: list[DueMessage] = []
        hashed = id_hash(queue.hash_key, message_id)
        for number in queue.members:
            partition = Partition(queue.queue_id, number)
            read = await self._storage.due.look(partition, id_hash=hashed, count_max=10)
            found += [one for one in read.messages if _DECODER.decode(one.payload).id == message_id]
            if len(found) > 1:
                break
        return found[:2]

    async def _waiting(self, partition: Partition, number: int) -> DueMessage:
        """Return the message of this number, if it waits. Raises Refused as `_gone` says."""
        for found in await self._storage.due.find(partition, [number]):
            return found
        raise await self._gone(partition, number)

    async def _gone(self, partition: Partition, number: int) -> Refused:
        """Return the error of a ticket whose message does not wait any more."""
        fate = await self._storage.due.fate(partition, number)
        if isinstance(fate, NotStored):
            return Refused("cancelled")
        if fate is not None:
            return Refused("already_due")
        states = await self._storage.due.states(partition.queue_id)
        given = {state.partition: state.next_number for state in states}
        if number < given.get(partition, 0):
            detail = "it waits no more: it was due, cancelled or purged, and that is forgotten"
            return Refused("id_unknown", detail)
        return Refused("id_unknown", "no message with this id is scheduled")


def check_scope(scope: KeyScope, key: str | None, what: str) -> None:
    """Raise Refused(forbidden) if a right covers some keys only, and the key that a request names
    is none of them, or it names none."""
    if scope.is_all or (key is not None and scope.allow(key)):
        return
    which = f"the key {key!r}" if key is not None else "all keys: name the key"
    raise Refused("forbidden", f"the right to {what} covers some keys, but not {which}")


Entry = tuple[int, int, int]
"""(due time, partition, number): the place of a message in the order of a list."""


class _Page:
    """A page of a list over several partitions, of which each is read by itself."""

    def __init__(self, after: Entry | None, limit: int) -> None:
        self._after = after
        self._limit = limit
        self._found: dict[Entry, DueMessage] = {}
        self._known_to: Entry | None = None
        """The place behind which not all is known, because a partition was read up to there; None:
        all was read."""

    def after_in(self, number: int) -> DuePlace | None:
        """Return the place behind which partition `number` is to be read. Of messages that are due
        together, those of lower partitions come first."""
        if self._after is None:
            return None
        due, at, counted = self._after
        if number == at:
            return DuePlace(due, counted)
        return DuePlace(due, _LAST) if number < at else DuePlace(due, -1)

    def add(self, number: int, read: DueRead) -> None:
        """Take what was read of a partition. What the page cannot show is not kept."""
        for one in read.messages:
            self._found[one.due_unix_ms, number, one.number] = one
        if read.messages and read.next_unix_ms is not None:
            last = read.messages[-1]
            to = (last.due_unix_ms, number, last.number)
            self._known_to = to if self._known_to is None else min(self._known_to, to)
        size, kept = 0, dict[Entry, DueMessage]()
        for place in sorted(self._found):
            one = self._found[place]
            size += len(one.payload)
            is_full = len(kept) == self._limit or (kept and size > limits.LOOK_ANSWER_BYTES_MAX)
            if is_full or (self._known_to is not None and place > self._known_to):
                last_place = max(kept, default=place)
                known_to = self._known_to or last_place
                self._known_to = min(known_to, last_place)
                break
            kept[place] = one
        self._found = kept

    def messages(self) -> list[tuple[int, DueMessage]]:
        """Return (partition, message) of each message of the page, in order."""
        return [(place[1], one) for place, one in self._found.items()]

    def next(self) -> str | None:
        """Return the place to go on from; None: that was all."""
        if self._known_to is None or not self._found:
            return None
        due, number, counted = max(self._found)
        return f"{due}-{number}-{counted}"


def stopped_notes(doubt_s: float, jump_s: float, *, is_apart: bool) -> list[str]:
    """Return a sentence for operators if a gateway moves no scheduled messages; else []. `doubt_s`:
    seconds for which its clock is not believed. `jump_s`: the jump of the clock, in seconds;
    `is_apart`: between it and the clock of the store."""
    if doubt_s <= 0:
        return []
    size = duration(round(abs(jump_s)))
    if is_apart:
        way = "ahead of" if jump_s > 0 else "behind"
        why = f"the clock of this gateway is {way} the store's by {size} more than before"
    else:
        way = "ahead" if jump_s > 0 else "back"
        why = f"the clock of this gateway was set {way} by {size}"
    return [
        f"scheduled messages are not moved for {duration(math.ceil(doubt_s))}, because {why}; "
        "`tocsin scheduled believe-clock` moves them now, if the clock is right"
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


def _shown(one: DueMessage, id_prefix: str, may_read: KeyScope) -> ScheduledMessage:
    message = _DECODER.decode(one.payload)
    ticket = ticket_text(id_prefix, one.partition.number, one.number)
    content = content_of(message)
    if not may_read.allow(message.key):
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
