"""Explain a key: its partition, its owner, and what it waits for, group by group.

Facts from an owner's memory are exact at the moment of the answer. Messages in the log are found by
reading it from the positions of the groups on, in one bounded read for all of them (P9). The answer
says if that read does not reach the end. Nothing is taken from anybody, and nothing is decided.
Each explanation ends in a sentence for people. Messages of the key that are not due yet are no
group's concern, and have a sentence of their own.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

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
    ScheduledOfKey,
)
from gateway.operator.describe import blocked_by, owner_of, owner_wanted
from gateway.operator.waiting import (
    ByteBudget,
    KeyOffsets,
    MessageLookup,
    count_owned,
    count_stored,
    find_in_log,
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
from push.message import Message
from push.places import CursorPlace, Partition
from push.ranges import DeadRanges, RangeSet
from push.ring import Ring, key_hash
from push.storage_port import Cursor, Storage

REASON_SHOWN_MAX: Final = 200
"""Number of letters of a nack's reason that are shown."""
SCHEDULED_MAX: Final = 20
"""Largest number of scheduled messages of a key that are counted."""
ROUNDS_MAX: Final = 3
"""Largest number of reads of a partition whose owner changes meanwhile."""


@dataclass(slots=True)
class KeySnapshot:
    """Data of a group that are read before the state of a key is judged."""

    group: Group
    owned: OwnedPartition | None
    cursor: Cursor | None
    side_first: int | None
    start: int
    """Offset from which on the log is searched for messages of the key."""
    gateway: str | None = None
    """Another gateway whose consumer has the partition."""


@dataclass(slots=True)
class KeyState:
    """State of the key for a group. Times are unix milliseconds."""

    code: KeyWaits
    head: int | None = None
    attempts: int = 0
    lease: InFlight | None = None
    in_flight: int = 0
    waiting: int = 0
    dying: int = 0
    """Number of messages on their way to the dead letters."""
    dead_letters_wait: str | None = None
    """Reason why the dead-letter queue does not take the dying messages; None if no reason is
    known."""
    before: int | None = None
    also: list[KeyWaits] = field(default_factory=list)
    since_unix_ms: int | None = None
    until_unix_ms: int | None = None
    is_exact: bool = True
    is_torn: bool = False
    """Whether the data that were read and the present owner do not belong together."""
    owner: OwnerDescription | None = None
    epoch: int | None = None


class Explainer:
    """Explanations of keys: what each waits for in each group."""

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
        """Explain a key for one group, or for up to GROUPS_EXPLAINED_MAX of those whose names come
        behind `after`. Raises Refused(group_not_found)."""
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
        key_states = await self._key_states(queue, partition, groups, hashed)
        return Explained(
            queue=queue.name,
            key=key,
            key_hash=f"{hashed:016x}",
            partition=number,
            ring_epoch=queue.ring_epoch,
            paused=queue.paused,
            now_unix_ms=int(time.time() * 1000),
            groups=await self._descriptions(partition, key, key_states),
            scheduled=await self._scheduled(partition, key, hashed),
            next=groups[-1].name if more else None,
        )

    # --- Looking -------------------------------------------------------------------------------

    async def _scheduled(
        self, partition: Partition, key: str, hashed: int
    ) -> ScheduledOfKey | None:
        """Return how many messages of the key wait until they are due; None: none was found.
        Another key of the same hash may take places among the SCHEDULED_MAX that are read."""
        count_max = SCHEDULED_MAX + 1
        look = await self._storage.due.look(partition, key_hash=hashed, count_max=count_max)
        is_exact = len(look.messages) < count_max
        found = [one for one in look.messages if _DECODER.decode(one.payload).key == key]
        if not found:
            return None
        count, first = min(len(found), SCHEDULED_MAX), found[0].due_unix_ms
        return ScheduledOfKey(
            messages=count,
            next_unix_ms=first,
            is_exact=is_exact,
            text=scheduled_sentence(count, first, is_exact=is_exact),
        )

    async def _key_states(
        self, queue: Queue, partition: Partition, groups: Sequence[Group], key: int
    ) -> list[tuple[KeySnapshot, KeyState]]:
        key_states: list[tuple[KeySnapshot, KeyState]] = []
        for _ in range(ROUNDS_MAX):
            snapshot = [await self._snapshot(partition, group, key) for group in groups]
            start = min((one.start for one in snapshot), default=0)
            look = ByteBudget(limits.LOOK_BYTES_MAX)
            found = (await find_in_log(self._storage, partition, start, {key}, look))[key]
            # From here on nothing is awaited: it is one moment.
            key_states = [(x, self._judge(queue, partition, x, found, key)) for x in snapshot]
            if not any(state.is_torn for _, state in key_states):
                break
        return key_states

    def _owned(self, partition: Partition, group: Group) -> OwnedPartition | None:
        runtime = self._groups.runtimes.get(group.group_id)
        owned = runtime.owned_partitions.get(partition.number) if runtime is not None else None
        return owned if owned is not None and not owned.ended else None

    async def _snapshot(self, partition: Partition, group: Group, key: int) -> KeySnapshot:
        place = CursorPlace(group.group_id, partition)
        owned = self._owned(partition, group)
        if owned is None:
            cursor = await self._storage.cursor(place)
            lines = dict(cursor.lines) if cursor is not None else {}
            side = await self._storage.read_side(place, key, -1, 1) if key in lines else ()
            start = cursor.floor if cursor is not None else 0
            if cursor is not None and cursor.dead:  # those of a side line are below the floor
                start = min(start, cursor.dead[0].first)
            there = self._groups.elsewhere(await self._groups.row(group))
            gateway = there.get(partition.number)
            return KeySnapshot(group, None, cursor, side[0] if side else None, start, gateway)
        line = owned.delivery.line(key)
        cursor, first = None, None
        if line is not None and line.aside:
            side = await self._storage.read_side(place, key, line.loaded, 1)
            first = side[0] if side else None
        if line is not None and line.parked:
            cursor = await self._storage.cursor(place)
        start = owned.delivery.frontier
        dead = owned.delivery.dead_first
        return KeySnapshot(group, owned, cursor, first, start if dead is None else min(start, dead))

    # --- Judging -------------------------------------------------------------------------------

    def _judge(
        self, queue: Queue, partition: Partition, snapshot: KeySnapshot, found: KeyOffsets, key: int
    ) -> KeyState:
        owned = self._owned(partition, snapshot.group)
        if owned is not None:
            state = _owned_state(owned, snapshot, found, key)
            state.owner, state.epoch = owner_of(owned), owned.delivery.epoch
        else:
            state = _stored_state(snapshot, found, key)
        # Its owner has changed since, or its line was set aside.
        state.is_torn = snapshot.owned is not owned or (state.head is None and state.waiting > 0)
        state.is_exact = state.is_exact and not state.is_torn
        is_in_log = owned is not None and (state.head or 0) >= owned.delivery.frontier
        blockers = self._blockers(queue, partition, snapshot, owned, is_in_log=is_in_log)
        if state.before:
            blockers.append("backlog")
        if state.code == "in_flight":
            return state
        if state.code == "dead_letter":
            return state  # nothing else would let it go sooner
        if state.head is None and state.code != "parked":
            state.code = "nothing" if state.is_exact else "unknown"
            state.also = [] if state.is_exact else blockers
        elif state.code == "nothing" and blockers:
            state.code, *state.also = blockers
        elif state.code != "nothing":
            state.also = blockers
        return state

    def _blockers(
        self,
        queue: Queue,
        partition: Partition,
        snapshot: KeySnapshot,
        owned: OwnedPartition | None,
        *,
        is_in_log: bool,
    ) -> list[KeyWaits]:
        """Return the reasons that hold up the whole partition, or all of it that was not given
        yet."""
        blockers: list[KeyWaits] = ["paused"] if queue.paused else []
        if owned is None:
            runtime = self._groups.runtimes.get(snapshot.group.group_id)
            return [*blockers, owner_wanted(runtime, partition.number, snapshot.gateway)]
        if owned.delivery.draining:
            return [*blockers, "draining"]  # whatever blocker its owner has: the next one gives it
        if is_in_log and not owned.delivery.wants_log:  # a bound of what may wait is reached
            blockers.append(log_bound(owned.delivery))
        blocker = blocked_by(owned)
        return blockers if blocker is None or blocker in blockers else [*blockers, blocker]

    # --- Showing -------------------------------------------------------------------------------

    async def _nack(self, partition: Partition, group: Group, state: KeyState) -> str | None:
        if state.head is None or not state.attempts:
            return None
        place = CursorPlace(group.group_id, partition)
        return await self._reasons.at(self._storage, place, state.head)

    async def _descriptions(
        self, partition: Partition, key: str, key_states: list[tuple[KeySnapshot, KeyState]]
    ) -> list[KeyInGroup]:
        states = await self._storage.partitions(partition.queue_id)
        generations = [state.generation for state in states if state.partition == partition]
        prefix = f"{partition.queue_id}-{generations[0] if generations else 0}-{partition.number}-"
        wanted = [one.head for _, one in key_states if one.head is not None]
        heads = await self._heads.read(partition, wanted, ByteBudget(limits.LOOK_BYTES_MAX))
        shown: list[KeyInGroup] = []
        for snapshot, state in key_states:
            head = None
            if state.head is not None:
                facts = heads.get(state.head)
                head = HeadDescription(
                    offset=state.head,
                    id=facts.id or f"{prefix}{state.head}" if facts is not None else None,
                    published_unix_ms=facts.published_unix_ms if facts is not None else None,
                    expires_unix_ms=facts.expires_unix_ms if facts is not None else None,
                    attempts=state.attempts,
                    nack=await self._nack(partition, snapshot.group, state),
                    in_flight=_lease(state.lease) if state.lease is not None else None,
                )
                if facts is not None and facts.key != key:
                    # Two keys of one hash are one line to the broker: they wait for each other.
                    state.code = "behind"
            shown.append(
                KeyInGroup(
                    group=snapshot.group.name,
                    owner=state.owner,
                    epoch=state.epoch,
                    waits_for=state.code,
                    also=state.also,
                    text=sentence(state.code, head, state.until_unix_ms, state.before)
                    + dead_letters_sentence(state.dying, state.dead_letters_wait),
                    since_unix_ms=state.since_unix_ms,
                    until_unix_ms=state.until_unix_ms,
                    head=head,
                    before=state.before,
                    messages=KeyMessages(
                        in_flight=state.in_flight,
                        waiting=state.waiting,
                        dying=state.dying,
                    ),
                    is_exact=state.is_exact,
                )
            )
        return shown


_DECODER: Final = msgspec.json.Decoder(Message)


def _lease(one: InFlight) -> LeaseDescription:
    given, until = wall_unix_ms(one.given_at, one.until)
    return LeaseDescription(
        attempt=one.attempt, push=one.push, given_unix_ms=given, lease_until_unix_ms=until
    )


def _owned_state(
    owned: OwnedPartition, snapshot: KeySnapshot, found: KeyOffsets, key: int
) -> KeyState:
    """Return the state that the owner at this gateway knows now."""
    delivery, now = owned.delivery, asyncio.get_running_loop().time()
    lease = in_flight_of(delivery, key)
    wall_ms = int(time.time() * 1000)
    waits = waits_of(delivery, key, now, wall_ms, snapshot.side_first)
    log = [offset for offset in found.offsets if not delivery.has_passed(offset)]
    dead = [offset for offset in found.offsets if delivery.is_dead(offset)]
    left = left_of(delivery, key)
    state = KeyState("nothing", in_flight=len(lease))
    state.waiting = count_owned(owned, key, found).messages
    state.is_exact = found.is_whole
    state.dying = len(dead)
    if owned.dead_letters_wait is not None:
        error = owned.dead_letters_wait
        state.dead_letters_wait = f"{error.code.name}: {error.detail}"
    if lease and (waits.first is None or lease[0].offset < waits.first):
        state.code, state.lease = "in_flight", lease[0]
        state.head = lease[0].offset
        state.since_unix_ms, state.until_unix_ms = wall_unix_ms(lease[0].given_at, lease[0].until)
    elif left and (waits.first is None or left[0] < waits.first) and waits.reason != "parked":
        state.head = left[0]
    elif waits.messages:
        _note_wait(state, waits, snapshot, key)
        if left and state.head is not None:
            state.head = min(left[0], state.head)
    elif log:
        state.head = log[0]
        state.before = len(range(delivery.frontier, log[0])) or None
        until = inherited_until(delivery, log[0], now, wall_ms)
        if until is not None:
            state.code, state.until_unix_ms = "backoff", wall_unix_ms(until)[0]
    elif dead:
        state.code, state.head = "dead_letter", dead[0]
    if state.head is not None:
        state.attempts = delivery.attempts_of(state.head)
    return state


def _note_wait(state: KeyState, waits: Waits, snapshot: KeySnapshot, key: int) -> None:
    state.head = waits.first
    state.code = waits.reason or "nothing"
    if waits.until is not None:
        state.until_unix_ms = wall_unix_ms(waits.until)[0]
    if waits.reason == "parked" and snapshot.cursor is not None:
        marks = {mark.key_hash: mark for mark in snapshot.cursor.parked}
        state.since_unix_ms = marks[key].since_unix_ms if key in marks else None


def _stored_state(snapshot: KeySnapshot, found: KeyOffsets, key: int) -> KeyState:
    """Return the state that the storage knows, for a partition without an owner here."""
    state = KeyState("nothing", is_exact=found.is_whole)
    cursor = snapshot.cursor
    if cursor is None:  # the group, or its queue, is being made or deleted
        state.is_exact = False
        return state
    passed, going = RangeSet(cursor.passed), DeadRanges(cursor.dead)
    unpassed = [offset for offset in found.behind(cursor.floor) if offset not in passed]
    log = [offset for offset in unpassed if offset not in going]
    dead = [offset for offset in found.offsets if offset in going]
    state.dying = len(dead)
    heads = [*log[:1], *([snapshot.side_first] if snapshot.side_first is not None else [])]
    state.waiting = count_stored(cursor, key, found).messages
    state.head = min(heads, default=None)
    marks = {mark.key_hash: mark for mark in cursor.parked}
    if key in marks:
        state.code, state.since_unix_ms = "parked", marks[key].since_unix_ms
    elif state.head is None and dead:
        state.code, state.head = "dead_letter", dead[0]
    if state.head is None:
        return state
    retry = next((one for one in cursor.retries if one.offset == state.head), None)
    state.attempts = retry.attempts if retry is not None else 0
    due_unix_ms = retry.due_unix_ms if retry is not None else 0
    if state.code == "nothing" and due_unix_ms > time.time() * 1000:
        state.code, state.until_unix_ms = "backoff", due_unix_ms
    elif state.code == "nothing" and state.head != snapshot.side_first:
        gaps = passed.gaps(cursor.floor, state.head - 1)
        state.before = sum(last - first + 1 for first, last in gaps) or None
    return state


# --- Sentences -----------------------------------------------------------------------------------


def sentence(
    code: KeyWaits, head: HeadDescription | None, until_unix_ms: int | None, before: int | None
) -> str:
    """Return what a key waits for, in one to three sentences. `until_unix_ms` and `before` are as
    in KeyInGroup."""
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
            return f"{which} goes out right now.{tried}"
    return f"{which} waits: {_WHY[code]}{tried}"


def scheduled_sentence(count: int, next_unix_ms: int, *, is_exact: bool) -> str:
    """Return how many messages of a key wait until they are due, and when the first of them is, in
    a sentence. `is_exact`: whether there are no more."""
    when = _in(next_unix_ms)
    if count == 1 and is_exact:
        return f"One message of this key is scheduled; it is due {when}."
    least = "" if is_exact else "At least "
    return f"{least}{count:,} messages of this key are scheduled; the next one is due {when}."


def dead_letters_sentence(dying: int, why: str | None) -> str:
    """Return a sentence about messages of the key that are on their way to the dead letters. `why`
    says why their queue does not take them. The sentence is empty if there are none, or if they
    arrive at once."""
    if not dying or why is None:
        return ""
    what = "One message of the key is" if dying == 1 else f"{dying:,} messages of the key are"
    return f" {what} on the way to the dead letters, whose queue does not take them ({why})."


def _short(reason: str) -> str:
    """Return a reason in one line, cut at REASON_SHOWN_MAX."""
    text = " ".join(reason.split())
    return text if len(text) <= REASON_SHOWN_MAX else f"{text[: REASON_SHOWN_MAX - 1]}…"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _in(unix_ms: int | None) -> str:
    seconds = math.ceil((unix_ms or 0) / 1000 - time.time())
    return f"in {duration(seconds)}" if seconds > 0 else "at once"


def duration(seconds: int) -> str:
    """Write a duration like the console: `41 s`, `3 min 20 s`, `2 h 5 min`, `3 days`."""
    if seconds < 60:
        return f"{seconds} s"
    minutes, rest = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days"


_NO_HEAD: dict[KeyWaits, str] = {
    "nothing": "No message of this key waits.",
    "unknown": "None of its messages was found in the part of the log that was read; there may be "
    "some behind that part.",
}
_WHY: dict[KeyWaits, str] = {
    "in_flight": "a consumer has it.",
    "parked": "the key is parked, until an operator retries, skips or releases it.",
    "dead_letter": "it is on its way to the dead letters.",
    "backoff": "it is tried again later.",
    "commit": "something of the key is being made durable first.",
    "behind": "an earlier message of its line has to be settled first.",
    "gate": "the number of waiting keys of its partition has reached its limit; one of them has "
    "to go on first.",
    "draining": "its owner hands the partition over, and settles what it holds.",
    "paused": "the queue is paused; `tocsin queue resume` ends that.",
    "no_consumer": "the group has no consumer here.",
    "absent": "its consumer was here before the broker restarted, and may come back.",
    "moving": "the partition's next owner begins.",
    "elsewhere": "a consumer at another gateway has the partition; that gateway knows more.",
    "socket": "its consumer's connection takes no more bytes, or is gone.",
    "full": "its consumer holds as many unsettled messages as allowed.",
    "credit": "its consumer takes no more messages at the moment, or nobody pulls.",
    "backlog": "other messages of the partition come first.",
    "unknown": "a part of the log was not read.",
    "nothing": "nothing holds it up.",
}
