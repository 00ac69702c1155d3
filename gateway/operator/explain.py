"""Explaining a key: where it goes, who has it, and what it waits for, group by group.

What is in an owner's memory is exact, at the moment of the answer. What lies in the log is found by
reading it, from where the groups stand on, one bounded look for all of them (P9): what that does
not reach is said not to be known. Nothing is taken from anybody, and nothing is decided.

What a key waits for, in a sentence for people.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.delivery.groups import Groups
from gateway.delivery.owned_partition import OwnedPartition
from gateway.encryption.sealer import NackReasons
from gateway.models import (
    Explained,
    HeadDescription,
    KeyInGroup,
    KeyMessages,
    KeyWaits,
    LeaseDescription,
    OwnerDescription,
)
from gateway.operator.describe import owner_of, owner_wanted, without_room
from gateway.operator.waiting import (
    ByteBudget,
    KeyOffsets,
    MessageLookup,
    count_at_rest,
    count_owned,
    find,
    wall_unix_ms,
)
from metadata.catalog import Group, Principal, Queue
from metadata.port import Metadata
from push import limits
from push.delivery import (
    InFlight,
    Waits,
    in_flight_of,
    inherited_until,
    left_of,
    log_bound,
    waits_of,
)
from push.places import CursorPlace, Partition
from push.ranges import DeadRanges, RangeSet
from push.ring import Ring, key_hash
from push.storage_port import Cursor, Storage

REASON_SHOWN_MAX: Final = 200


def sentence(
    code: KeyWaits, head: HeadDescription | None, until_unix_ms: int | None, before: int | None
) -> str:
    """One sentence, or two. `until_unix_ms` and `before` as in KeyInGroup."""
    if head is None:
        return _NO_HEAD.get(code, "Its first message is not known; " + _WHY[code])
    which = f"Offset {head.offset}, its first message,"
    tried = f" It has failed {_times(head.attempts)}." if head.attempts else ""
    if head.nack is not None:
        tried += f" Its last nack said: “{_short(head.nack)}”."
    match code:
        case "in_flight":
            lease = head.in_flight
            until = _in(lease.lease_until_unix_ms) if lease is not None else "later"
            return f"{which} is with its consumer, whose lease ends {until}.{tried}"
        case "backoff":
            return f"{which} is tried again {_in(until_unix_ms)}.{tried}"
        case "backlog":
            return f"{which} comes behind at most {before or 0:,} other messages.{tried}"
        case "nothing":
            return f"{which} goes out in this moment.{tried}"
    return f"{which} waits: {_WHY[code]}{tried}"


def dead_letters_sentence(dying: int, why: str | None) -> str:
    """What is said besides of messages of the key that are on their way to the dead letters; `why`
    their queue does not take them. Empty: there are none, or they will be there at once."""
    if not dying or why is None:
        return ""
    what = "One message of the key is" if dying == 1 else f"{dying:,} messages of the key are"
    return f" {what} on the way to the dead letters, whose queue does not take them ({why})."


def _short(reason: str) -> str:
    """As much of it as a line takes."""
    text = " ".join(reason.split())
    return text if len(text) <= REASON_SHOWN_MAX else f"{text[: REASON_SHOWN_MAX - 1]}…"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _in(unix_ms: int | None) -> str:
    seconds = math.ceil((unix_ms or 0) / 1000 - time.time())
    return f"in {duration(seconds)}" if seconds > 0 else "at once"


def duration(seconds: int) -> str:
    """As the console writes it: `41 s`, `3 min 20 s`, `2 h 5 min`, `3 days`."""
    if seconds < 60:
        return f"{seconds} s"
    minutes, rest = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days"


_NO_HEAD: dict[KeyWaits, str] = {
    "nothing": "No message of this key waits.",
    "unknown": "None of its messages was found in the part of the log that one look reads; there "
    "may be some behind it.",
}
_WHY: dict[KeyWaits, str] = {
    "in_flight": "a consumer has it.",
    "parked": "the key is parked, until an operator retries, skips or releases it.",
    "dead_letter": "it is on its way to the dead letters.",
    "backoff": "it is tried again later.",
    "commit": "something of the key is being made durable first.",
    "behind": "what went out before it in its line is to be settled first.",
    "gate": "as many keys of its partition wait as may; one of them has to go on first.",
    "draining": "its owner hands the partition over, and settles what it holds.",
    "paused": "the queue is paused; `tocsin queue resume` ends that.",
    "no_consumer": "the group has no consumer here.",
    "absent": "its consumer was here before the broker began anew, and is waited for.",
    "moving": "the partition's next owner begins.",
    "elsewhere": "a consumer at another gateway has the partition; that gateway knows more.",
    "socket": "its consumer's connection takes no more bytes, or is gone.",
    "full": "its consumer holds as many unsettled messages as it may.",
    "credit": "its consumer takes no more messages at the moment; or nobody pulls.",
    "backlog": "other messages of the partition come first.",
    "unknown": "not all of the log was looked at.",
    "nothing": "nothing holds it up.",
}


ROUNDS_MAX = 3
"""A partition whose owner changes while it is looked at is looked at again, so often."""


@dataclass(slots=True)
class KeySnapshot:
    """What was read of a group before it is judged."""

    group: Group
    slot: OwnedPartition | None
    cursor: Cursor | None
    side_first: int | None
    start: int
    """From where on its messages are in the log."""
    gateway: str | None = None
    """Another one, whose consumer has the partition."""


@dataclass(slots=True)
class KeyState:
    """Where the key stands for a group. Times are unix milliseconds."""

    code: KeyWaits
    head: int | None = None
    attempts: int = 0
    flying: InFlight | None = None
    in_flight: int = 0
    waiting: int = 0
    dying: int = 0
    """Messages that are on their way to the dead letters."""
    dead_letters_wait: str | None = None
    """Why their queue does not take them."""
    before: int | None = None
    also: list[KeyWaits] = field(default_factory=list)
    since_unix_ms: int | None = None
    until_unix_ms: int | None = None
    is_exact: bool = True
    is_torn: bool = False
    """What was read and what is known now do not belong together."""
    owner: OwnerDescription | None = None
    epoch: int | None = None


class Explainer:
    """See the module."""

    def __init__(
        self, storage: Storage, groups: Groups, metadata: Metadata, reasons: NackReasons
    ) -> None:
        self._storage = storage
        self._reasons = reasons
        self._groups = groups
        self._metadata = metadata
        self._heads = MessageLookup(storage)

    async def explain(
        self, principal: Principal, queue: Queue, key: str, group: str | None, after: str
    ) -> Explained:
        """One group, or up to GROUPS_EXPLAINED_MAX of those whose names come behind `after`.
        Raises Refused(group_not_found)."""
        hashed = key_hash(key, queue.hash_key)
        number = Ring(queue.ring_epoch, queue.members).partition(hashed)
        partition = Partition(queue.queue_id, number)
        if group is not None:
            groups, more = [self._metadata.find_group(principal, queue, group)], False
        else:
            every = [g for g in self._metadata.list_groups(principal, queue) if g.name > after]
            every.sort(key=lambda one: one.name)
            groups = every[: limits.GROUPS_EXPLAINED_MAX]
            more = len(every) > len(groups)
        standings = await self._standings(queue, partition, groups, hashed)
        return Explained(
            queue=queue.name,
            key=key,
            key_hash=f"{hashed:016x}",
            partition=number,
            ring_epoch=queue.ring_epoch,
            paused=queue.paused,
            now_unix_ms=int(time.time() * 1000),
            groups=await self._described(partition, key, standings),
            next=groups[-1].name if more else None,
        )

    # --- Looking -------------------------------------------------------------------------------

    async def _standings(
        self, queue: Queue, partition: Partition, groups: Sequence[Group], key: int
    ) -> list[tuple[KeySnapshot, KeyState]]:
        standings: list[tuple[KeySnapshot, KeyState]] = []
        for _ in range(ROUNDS_MAX):
            seen = [await self._see(partition, group, key) for group in groups]
            start = min((one.start for one in seen), default=0)
            look = ByteBudget(limits.LOOK_BYTES_MAX)
            found = (await find(self._storage, partition, start, {key}, look))[key]
            # From here on nothing is awaited: it is one moment.
            standings = [(x, self._judge(queue, partition, x, found, key)) for x in seen]
            if not any(standing.is_torn for _, standing in standings):
                break
        return standings

    def _slot(self, partition: Partition, group: Group) -> OwnedPartition | None:
        runtime = self._groups.runtimes.get(group.group_id)
        slot = runtime.slots.get(partition.number) if runtime is not None else None
        return slot if slot is not None and not slot.ended else None

    async def _see(self, partition: Partition, group: Group, key: int) -> KeySnapshot:
        place = CursorPlace(group.group_id, partition)
        slot = self._slot(partition, group)
        if slot is None:
            cursor = await self._storage.cursor(place)
            lines = dict(cursor.lines) if cursor is not None else {}
            side = await self._storage.read_side(place, key, -1, 1) if key in lines else ()
            start = cursor.floor if cursor is not None else 0
            there = self._groups.elsewhere(await self._groups.row(group))
            gateway = there.get(partition.number)
            return KeySnapshot(group, None, cursor, side[0] if side else None, start, gateway)
        line = slot.delivery.line(key)
        cursor, first = None, None
        if line is not None and line.aside:
            side = await self._storage.read_side(place, key, line.loaded, 1)
            first = side[0] if side else None
        if line is not None and line.parked:
            cursor = await self._storage.cursor(place)
        start = slot.delivery.frontier
        dead = slot.delivery.dead_first
        return KeySnapshot(group, slot, cursor, first, start if dead is None else min(start, dead))

    # --- Judging -------------------------------------------------------------------------------

    def _judge(
        self, queue: Queue, partition: Partition, seen: KeySnapshot, found: KeyOffsets, key: int
    ) -> KeyState:
        slot = self._slot(partition, seen.group)
        if slot is not None:
            standing = _in_memory(slot, seen, found, key)
            standing.owner, standing.epoch = owner_of(slot), slot.delivery.epoch
        else:
            standing = _at_rest(seen, found, key)
        # Its owner has changed since, or its line was set aside.
        standing.is_torn = seen.slot is not slot or (standing.head is None and standing.waiting > 0)
        standing.is_exact = standing.is_exact and not standing.is_torn
        is_in_log = slot is not None and (standing.head or 0) >= slot.delivery.frontier
        blocked = self._blocked(queue, partition, seen, slot, is_in_log=is_in_log)
        if standing.before:
            blocked.append("backlog")
        if standing.code == "in_flight":
            return standing
        if standing.code == "dead_letter":
            return standing  # nothing else would let it go sooner
        if standing.head is None and standing.code != "parked":
            standing.code = "nothing" if standing.is_exact else "unknown"
            standing.also = [] if standing.is_exact else blocked
        elif standing.code == "nothing" and blocked:
            standing.code, *standing.also = blocked
        elif standing.code != "nothing":
            standing.also = blocked
        return standing

    def _blocked(
        self,
        queue: Queue,
        partition: Partition,
        seen: KeySnapshot,
        slot: OwnedPartition | None,
        *,
        is_in_log: bool,
    ) -> list[KeyWaits]:
        """What holds up everything of the partition, or all of it that has yet to be given."""
        blocked: list[KeyWaits] = ["paused"] if queue.paused else []
        if slot is None:
            runtime = self._groups.runtimes.get(seen.group.group_id)
            return [*blocked, owner_wanted(runtime, partition.number, seen.gateway)]
        if slot.delivery.draining:
            return [*blocked, "draining"]  # whatever room its owner has: the next one gives it
        if is_in_log and not slot.delivery.wants_log:  # a bound of what may wait is reached
            blocked.append(log_bound(slot.delivery))
        room = without_room(slot)
        return blocked if room is None or room in blocked else [*blocked, room]

    # --- Showing -------------------------------------------------------------------------------

    async def _nack(self, partition: Partition, group: Group, standing: KeyState) -> str | None:
        if standing.head is None or not standing.attempts:
            return None
        place = CursorPlace(group.group_id, partition)
        return await self._reasons.at(self._storage, place, standing.head)

    async def _described(
        self, partition: Partition, key: str, standings: list[tuple[KeySnapshot, KeyState]]
    ) -> list[KeyInGroup]:
        states = await self._storage.partitions(partition.queue_id)
        generations = [state.generation for state in states if state.partition == partition]
        prefix = f"{partition.queue_id}-{generations[0] if generations else 0}-{partition.number}-"
        wanted = [one.head for _, one in standings if one.head is not None]
        heads = await self._heads.read(partition, wanted, ByteBudget(limits.LOOK_BYTES_MAX))
        shown: list[KeyInGroup] = []
        for seen, standing in standings:
            head = None
            if standing.head is not None:
                facts = heads.get(standing.head)
                head = HeadDescription(
                    offset=standing.head,
                    id=facts.id or f"{prefix}{standing.head}" if facts is not None else None,
                    published_unix_ms=facts.published_unix_ms if facts is not None else None,
                    expires_unix_ms=facts.expires_unix_ms if facts is not None else None,
                    attempts=standing.attempts,
                    nack=await self._nack(partition, seen.group, standing),
                    in_flight=_lease(standing.flying) if standing.flying is not None else None,
                )
                if facts is not None and facts.key != key:
                    # Two keys of one hash are one line to the broker: they wait for each other.
                    standing.code = "behind"
            shown.append(
                KeyInGroup(
                    group=seen.group.name,
                    owner=standing.owner,
                    epoch=standing.epoch,
                    waits_for=standing.code,
                    also=standing.also,
                    text=sentence(standing.code, head, standing.until_unix_ms, standing.before)
                    + dead_letters_sentence(standing.dying, standing.dead_letters_wait),
                    since_unix_ms=standing.since_unix_ms,
                    until_unix_ms=standing.until_unix_ms,
                    head=head,
                    before=standing.before,
                    messages=KeyMessages(
                        in_flight=standing.in_flight,
                        waiting=standing.waiting,
                        dying=standing.dying,
                    ),
                    is_exact=standing.is_exact,
                )
            )
        return shown


def _lease(one: InFlight) -> LeaseDescription:
    given, until = wall_unix_ms(one.given_at, one.until)
    return LeaseDescription(
        attempt=one.attempt, push=one.push, given_unix_ms=given, lease_until_unix_ms=until
    )


def _in_memory(slot: OwnedPartition, seen: KeySnapshot, found: KeyOffsets, key: int) -> KeyState:
    """As its owner here knows it, now."""
    delivery, now = slot.delivery, asyncio.get_running_loop().time()
    flying = in_flight_of(delivery, key)
    wall_ms = int(time.time() * 1000)
    waits = waits_of(delivery, key, now, wall_ms, seen.side_first)
    log = [offset for offset in found.offsets if not delivery.has_passed(offset)]
    dead = [offset for offset in found.offsets if delivery.is_dead(offset)]
    left = left_of(delivery, key)
    standing = KeyState("nothing", in_flight=len(flying))
    standing.waiting = count_owned(slot, key, found).messages
    standing.is_exact = found.is_whole
    standing.dying = len(dead)
    if slot.dead_letters_wait is not None:
        error = slot.dead_letters_wait
        standing.dead_letters_wait = f"{error.code.name}: {error.detail}"
    if flying and (waits.first is None or flying[0].offset < waits.first):
        standing.code, standing.flying = "in_flight", flying[0]
        standing.head = flying[0].offset
        standing.since_unix_ms, standing.until_unix_ms = wall_unix_ms(
            flying[0].given_at, flying[0].until
        )
    elif left and (waits.first is None or left[0] < waits.first) and waits.reason != "parked":
        standing.head = left[0]
    elif waits.messages:
        _wait(standing, waits, seen, key)
        if left and standing.head is not None:
            standing.head = min(left[0], standing.head)
    elif log:
        standing.head = log[0]
        standing.before = len(range(delivery.frontier, log[0])) or None
        until = inherited_until(delivery, log[0], now, wall_ms)
        if until is not None:
            standing.code, standing.until_unix_ms = "backoff", wall_unix_ms(until)[0]
    elif dead:
        standing.code, standing.head = "dead_letter", dead[0]
    if standing.head is not None:
        standing.attempts = delivery.attempts_of(standing.head)
    return standing


def _wait(standing: KeyState, waits: Waits, seen: KeySnapshot, key: int) -> None:
    standing.head = waits.first
    standing.code = waits.reason or "nothing"
    if waits.until is not None:
        standing.until_unix_ms = wall_unix_ms(waits.until)[0]
    if waits.reason == "parked" and seen.cursor is not None:
        marks = {mark.key_hash: mark for mark in seen.cursor.parked}
        standing.since_unix_ms = marks[key].since_unix_ms if key in marks else None


def _at_rest(seen: KeySnapshot, found: KeyOffsets, key: int) -> KeyState:
    """As the storage knows it, where nobody here owns the partition."""
    standing = KeyState("nothing", is_exact=found.is_whole)
    cursor = seen.cursor
    if cursor is None:  # the group, or its queue, is being made or deleted
        standing.is_exact = False
        return standing
    passed, going = RangeSet(cursor.passed), DeadRanges(cursor.dead)
    unpassed = [offset for offset in found.behind(cursor.floor) if offset not in passed]
    log = [offset for offset in unpassed if offset not in going]
    dead = [offset for offset in found.offsets if offset in going]
    standing.dying = len(dead)
    heads = [*log[:1], *([seen.side_first] if seen.side_first is not None else [])]
    standing.waiting = count_at_rest(cursor, key, found).messages
    standing.head = min(heads, default=None)
    marks = {mark.key_hash: mark for mark in cursor.parked}
    if key in marks:
        standing.code, standing.since_unix_ms = "parked", marks[key].since_unix_ms
    elif standing.head is None and dead:
        standing.code, standing.head = "dead_letter", dead[0]
    if standing.head is None:
        return standing
    retry = next((one for one in cursor.retries if one.offset == standing.head), None)
    standing.attempts = retry.attempts if retry is not None else 0
    due_unix_ms = retry.due_unix_ms if retry is not None else 0
    if standing.code == "nothing" and due_unix_ms > time.time() * 1000:
        standing.code, standing.until_unix_ms = "backoff", due_unix_ms
    elif standing.code == "nothing" and standing.head != seen.side_first:
        gaps = passed.gaps(cursor.floor, standing.head - 1)
        standing.before = sum(last - first + 1 for first, last in gaps) or None
    return standing
