"""A broker in a page: `gateway.rest.broker_api.BrokerPort` in memory, without clock, disk or
sessions.

It is not a mock: it stores, gives out, settles and takes back for real, so that the tests of the
outside assert behaviour. Leases never expire here and partitions have no owners.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gateway.accounting.audit import Audit
from gateway.accounting.usage import Counter
from gateway.counters import Shown
from gateway.delivery.ports import Link, StartFrom
from gateway.delivery.pull import Receipt, Receipts
from gateway.deliverylog.log import DeliveryLog
from gateway.deliverylog.spans import Origin
from gateway.limits.limiter import Limiter
from gateway.models import (
    BackupProgress,
    ClusterList,
    Decided,
    Explained,
    FoundDeadLetters,
    HeldKeys,
    HeldPlace,
    LeaseList,
    Look,
    ParkedKeys,
    Peeked,
    Place,
    PulledMessage,
    PullSettled,
    Purged,
    Redriven,
    SeekTo,
    WhichKey,
)
from gateway.operator.removal import Begin, Removed
from gateway.operator.settings_change import ChangedSettings
from gateway.publish.batch import Outcome
from gateway.rest.broker_api import Answered
from gateway.session.transport import Consumer, Reader
from gateway.wire.frames import Position
from metadata.catalog import (
    ANYBODY,
    Group,
    GroupSettings,
    GroupStart,
    Membership,
    Principal,
    Queue,
    QueueSettings,
    check_name,
)
from metadata.data_keys import DataKey, DataKeys, Still
from metadata.port import Metadata, QueueListener
from metadata.rights import ALL_KEYS, Keys
from metadata.settings import (
    Named,
    change_group_settings,
    change_queue_settings,
    changes,
    differences,
    settings_differ,
)
from push.errors import Refused, TocsinError
from push.message import Message, check_message
from push.places import Verb
from runtime.loop.end_of_turn import Soon
from runtime.metrics.exposition import Samples
from tests.gateway.plain_tokens import PlainTokens

NOW_UNIX_MS = 1_700_000_000_000


class PlainMetadata:
    """The catalog as dicts."""

    is_shared = False
    age_s = 0.0

    async def beat(
        self, gateway: str, number: int, forget: Mapping[str, int], says: str = ""
    ) -> dict[str, int]:
        return {}

    async def said(self) -> dict[str, str]:
        return {}

    def on_membership_changed(self, listener: Callable[[str, int], None]) -> None: ...

    async def catch_up(self) -> None: ...

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.groups: dict[tuple[str, str], Group] = {}
        self.numbers = itertools.count(1)
        self.tokens = PlainTokens()

    @property
    def data_keys(self) -> DataKeys:
        """As Metadata.data_keys: nothing is sealed here."""

        async def write(_rows: list[DataKey], _still: Still) -> None: ...

        return DataKeys([], write)

    def find_queue(self, principal: Principal, name: str) -> Queue:
        if name not in self.queues:
            raise Refused("queue_not_found", f"no queue {name}")
        return self.queues[name]

    def find_group(self, principal: Principal, queue: Queue, name: str) -> Group:
        if (queue.queue_id, name) not in self.groups:
            raise Refused("group_not_found", f"no group {name}")
        return self.groups[queue.queue_id, name]

    def queue_by_id(self, queue_id: str) -> Queue | None:
        return next((q for q in self.queues.values() if q.queue_id == queue_id), None)

    def list_queues(self, principal: Principal) -> list[Queue]:
        return [self.queues[name] for name in sorted(self.queues)]

    def list_all_queues(self) -> list[Queue]:
        return list(self.queues.values())

    def list_groups(self, principal: Principal, queue: Queue) -> list[Group]:
        return [g for (queue_id, _), g in sorted(self.groups.items()) if queue_id == queue.queue_id]

    async def put_queue(
        self,
        principal: Principal,
        name: str,
        settings: QueueSettings,
        named: frozenset[str] = frozenset(),
    ) -> tuple[Queue, bool]:
        check_name(name, "queue")
        old = self.queues.get(name)
        if old is not None:
            if differences(old.settings, settings, named):
                raise settings_differ(f"the queue {name!r}", old.settings, settings, named)
            return old, False
        self.queues[name] = Queue(
            queue_id=f"q{next(self.numbers)}",
            name=name,
            tenant=principal.tenant,
            holder=principal.name,
            created_unix_ms=NOW_UNIX_MS,
            settings=settings,
            ring_epoch=1,
            members=tuple(range(settings.partitions)),
            hash_key=bytes(16),
        )
        return self.queues[name], True

    async def pause_queue(self, principal: Principal, name: str, *, paused: bool) -> Queue:
        queue = msgspec.structs.replace(self.find_queue(principal, name), paused=paused)
        self.queues[name] = queue
        return queue

    async def delete_queue(self, principal: Principal, name: str) -> Queue:
        queue = self.find_queue(principal, name)
        del self.queues[name]
        return queue

    async def put_group(
        self,
        principal: Principal,
        queue: Queue,
        name: str,
        settings: GroupSettings,
        start: GroupStart | None = None,
        *,
        named: frozenset[str] = frozenset(),
    ) -> tuple[Group, bool]:
        check_name(name, "group")
        old = self.groups.get((queue.queue_id, name))
        if old is not None:
            if differences(old.settings, settings, named, queue.settings):
                what = f"the group {name!r}"
                raise settings_differ(what, old.settings, settings, named, queue.settings)
            return old, False
        group = Group(
            group_id=f"g{next(self.numbers)}",
            name=name,
            queue_id=queue.queue_id,
            created_unix_ms=NOW_UNIX_MS,
            settings=settings,
        )
        self.groups[queue.queue_id, name] = group
        return group, True

    async def change_queue(
        self, principal: Principal, name: str, named: Named, *, was: Queue | None = None
    ) -> tuple[QueueSettings, Queue] | None:
        old = self.find_queue(principal, name)
        settings = change_queue_settings(name, old.settings, named)
        self.queues[name] = msgspec.structs.replace(old, settings=settings)
        return old.settings, self.queues[name]

    async def change_group(
        self, principal: Principal, queue: Queue, name: str, named: Named,
        *, was: Group | None = None,
    ) -> tuple[GroupSettings, Group] | None:  # fmt: skip
        old = self.find_group(principal, queue, name)
        settings = change_group_settings(old.settings, named)
        new = msgspec.structs.replace(old, settings=settings)
        self.groups[queue.queue_id, name] = new
        return old.settings, new

    async def delete_group(
        self, principal: Principal, queue: Queue, name: str, *, row: Membership | None = None
    ) -> Group:
        self.find_group(principal, queue, name)
        return self.groups.pop((queue.queue_id, name))

    def dropped(self) -> list[tuple[str, str | None]]:
        return []

    async def forget(self, queue_id: str, group_id: str | None) -> None:
        return None

    async def membership(self, group_id: str) -> Membership:
        return Membership(group_id=group_id, generation=0, members=(), assignment={})

    async def glance(self, group_id: str) -> Membership:
        return await self.membership(group_id)

    async def change_membership(self, new: Membership, *, expected_generation: int) -> bool:
        return True

    def secret(self, name: str) -> bytes:
        return name.encode().ljust(32, b".")

    def mark(self, name: str) -> str | None:
        return None

    async def set_mark(self, name: str, value: str) -> None:
        return None

    def on_queue_changed(self, listener: QueueListener) -> None:
        return None

    async def state(self) -> tuple[bool, str]:
        return True, ""

    async def close(self) -> None:
        return None


@dataclass
class PlainAnswer:
    """gateway.rest.broker_api.Answered."""

    messages: Sequence[Message]
    outcomes: list[Outcome]
    prefix: str
    durability: dict[str, object] = field(default_factory=lambda: {"level": "all", "copies": 1})

    @property
    def id_prefix(self) -> str:
        return self.prefix

    def counted_in(self, counter: Counter) -> None:
        counter.stored(len(self.outcomes), 0)

    def ids(self, index: int) -> str:
        outcome = self.outcomes[index]
        assert not isinstance(outcome, TocsinError)
        return self.messages[index].id or f"{self.prefix}-1-{outcome[0]}-{outcome[1]}"


@dataclass
class PlainGroup:
    """What a group has done in its queue's one log."""

    settled: set[int] = field(default_factory=set)
    given: dict[int, int] = field(default_factory=dict)
    """Offset → number of the give-out that holds it."""
    attempts: dict[int, int] = field(default_factory=dict)


class NothingParked:
    """Attempts are never exhausted here."""

    async def parked(self, queue: Queue, group: Group, keys_max: int) -> ParkedKeys:
        return ParkedKeys(keys=[], keys_parked=0)

    async def decide(self, queue: Queue, group: Group, verb: Verb, which: WhichKey) -> Decided:
        if not which.every:
            raise Refused("not_parked", f"{which} is not parked")
        return Decided(decision=verb, keys=[], keys_parked=0)


class NothingToLookAfter:
    """gateway.models.Upkeeping: no queue holds anything that an operator could see."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    async def explain(
        self, principal: Principal, queue: Queue, key: str, group: str | None, after: str
    ) -> Explained:
        return Explained(
            queue=queue.name,
            key=key,
            key_hash="0" * 16,
            partition=0,
            ring_epoch=1,
            paused=False,
            now_unix_ms=NOW_UNIX_MS,
            groups=[],
        )

    async def held(
        self, queue: Queue, group: Group, limit: int, after: HeldPlace | None
    ) -> HeldKeys:
        return HeldKeys(keys=[])

    async def leases(
        self, queue: Queue, group: Group, limit: int, after: Place | None
    ) -> LeaseList:
        return LeaseList(leases=[])

    async def pause(self, principal: Principal, name: str, *, paused: bool) -> Queue:
        return await self._metadata.pause_queue(principal, name, paused=paused)

    async def purge(self, principal: Principal, queue: Queue, group: str | None) -> Purged:
        return Purged(messages=0)

    async def peek(
        self, principal: Principal, queue: Queue, look: Look, group: str | None
    ) -> Peeked:
        return Peeked(messages=[])

    async def dead_letters(
        self, principal: Principal, queue: Queue, look: Look
    ) -> FoundDeadLetters:
        return FoundDeadLetters(queue=queue.name, messages=[])

    async def redrive(self, principal: Principal, queue: Queue, look: Look) -> Redriven:
        return Redriven(messages=0)


class NoSessions:
    """link.Groups and link.Readers: sessions may publish here, and nothing else."""

    def consumer(
        self,
        link: Link,
        subscription: int,
        queue: Queue,
        group: Group,
        credit: int,
        *,
        held: bool = False,
    ) -> Consumer:
        raise Refused("group_not_found")

    async def open(
        self,
        link: Link,
        subscription: int,
        queue: Queue,
        *,
        keys: list[str] | None,
        start: StartFrom | None,
        position: Position | None,
        credit: int,
    ) -> Reader:
        raise Refused("queue_not_found")


class PlainSettings:
    """Changes settings; no change removes anything here."""

    def __init__(self, metadata: PlainMetadata) -> None:
        self.metadata = metadata

    async def queue(
        self, principal: Principal, name: str, named: Named, *, deletes_max: int, begin: Begin
    ) -> ChangedSettings:
        done = await self.metadata.change_queue(principal, name, named)
        assert done is not None
        return ChangedSettings(changes(done[0], done[1].settings), Removed())

    async def group(
        self, principal: Principal, queue: Queue, name: str, named: Named,
        *, deletes_max: int, begin: Begin,
    ) -> ChangedSettings:  # fmt: skip
        done = await self.metadata.change_group(principal, queue, name, named)
        assert done is not None
        return ChangedSettings(changes(done[0], done[1].settings), Removed())


class PlainMetrics:
    """gateway.rest.broker_api.ProcessMetrics: how much stands in each queue."""

    def __init__(self, broker: "PlainBroker") -> None:
        self._broker = broker
        self.parts: list[Callable[[Samples], None]] = []

    def start(self) -> None: ...

    async def everything(self) -> Samples:
        samples = Samples()
        for queue in self._broker.metadata.list_all_queues():
            self._put(samples, queue)
        for part in self.parts:
            part(samples)
        return samples

    async def of_queue(self, queue: Queue, *, sees_dead_letters: bool) -> Samples:
        samples = Samples()
        self._put(samples, queue)
        return samples

    def _put(self, samples: Samples, queue: Queue) -> None:
        depth = len(self._broker.logs.get(queue.queue_id, ()))
        samples.put("tocsin_queue_depth_messages", depth, queue.tenant, queue.name)


class PlainBroker:
    """gateway.rest.broker_api.BrokerPort, gateway.rest.broker_api.Publishing and
    gateway.rest.broker_api.Pulling in one."""

    def __init__(self, *, auto_create: bool = False) -> None:
        self.metadata: Metadata = PlainMetadata()
        self.delivery_log = DeliveryLog()
        self.soon = Soon()
        self.hit_rates: dict[str, Shown] = {}
        self.audit = Audit(None, None, wall=time.time)
        self.limiter = Limiter()
        self.draining = False
        self.not_ready: list[str] = []
        self.gateway = ""
        self.gateways: tuple[str, ...] = ()
        self.auto_create = auto_create
        self.logs: dict[str, list[Message]] = {}
        self.progress: dict[str, PlainGroup] = {}
        self.arrived = asyncio.Event()
        self.receipts = Receipts(self.metadata.secret("receipts"))
        self.pushes = itertools.count(1)
        self.pulling: set[str] = set()
        """Ids of groups that somebody pulls from, or has."""
        self.steps: list[str] = []
        self.metrics = PlainMetrics(self)

    @property
    def has_company(self) -> bool:
        """Never."""
        return False

    @property
    def is_crowded(self) -> bool:
        """Never."""
        return False

    @property
    def is_storing(self) -> bool:
        """Never."""
        return False

    @property
    def has_enough(self) -> bool:
        """Never."""
        return False

    def hurry(self) -> None:
        """What is published is stored at once."""

    @property
    def publisher(self) -> "PlainBroker":
        return self

    @property
    def pulls(self) -> "PlainBroker":
        return self

    @property
    def keyring(self) -> None:
        """As BrokerPort.keyring."""
        return None

    @property
    def parking(self) -> "NothingParked":
        return NothingParked()

    @property
    def explaining(self) -> "NothingToLookAfter":
        return NothingToLookAfter(self.metadata)

    @property
    def holding(self) -> "NothingToLookAfter":
        return NothingToLookAfter(self.metadata)

    @property
    def upkeep(self) -> "NothingToLookAfter":
        return NothingToLookAfter(self.metadata)

    @property
    def groups(self) -> "NoSessions":
        return NoSessions()

    @property
    def readers(self) -> "NoSessions":
        return NoSessions()

    def leave(self) -> None:
        self.draining = True

    async def drain(self) -> None:
        self.draining = True
        self.steps.append("drain")
        self.arrived.set()

    async def stop(self) -> None:
        self.steps.append("stop")

    async def ready(self) -> list[str]:
        return self.not_ready

    async def backup(self, folder: Path, progress: BackupProgress) -> dict[str, object]:
        raise Refused("invalid_request", f"a broker in a page has nothing for {folder}")

    async def clusters(self, who: Principal | None) -> ClusterList:
        return ClusterList(clusters=[])

    async def describe(self) -> dict[str, object]:
        return {"queues": len(self.metadata.list_queues(Principal("anybody")))}

    @property
    def settings(self) -> "PlainSettings":
        assert isinstance(self.metadata, PlainMetadata)
        return PlainSettings(self.metadata)

    async def create_queue(
        self,
        principal: Principal,
        name: str,
        settings: QueueSettings,
        named: frozenset[str] = frozenset(),
    ) -> tuple[Queue, bool]:
        return await self.metadata.put_queue(principal, name, settings, named)

    async def delete_queue(self, principal: Principal, name: str) -> Queue:
        return await self.metadata.delete_queue(principal, name)

    async def put_group(
        self,
        principal: Principal,
        queue: Queue,
        name: str,
        settings: GroupSettings,
        start: GroupStart | None,
        *,
        named: frozenset[str] = frozenset(),
        deletes_max: int | None = None,
    ) -> tuple[Group, bool]:
        group, created = await self.metadata.put_group(
            principal, queue, name, settings, named=named
        )
        if created:
            place = self.progress[group.group_id] = PlainGroup()
            if (start or settings.start) == "latest":
                place.settled.update(range(len(self._log(queue))))
        return group, created

    async def delete_group(
        self, principal: Principal, queue: Queue, name: str,
        *, deletes_max: int | None = None, begin: Begin | None = None,
    ) -> Removed:  # fmt: skip
        await self.metadata.delete_group(principal, queue, name)
        return Removed()

    async def seek_group(
        self, principal: Principal, queue: Queue, name: str, to: SeekTo,
        *, deletes_max: int | None = None, begin: Begin | None = None,
    ) -> Removed:  # fmt: skip
        group = self.metadata.find_group(principal, queue, name)
        end = len(self._log(queue))
        floors = {"earliest": 0, "latest": end}
        floor = floors[to] if isinstance(to, str) else to[1] if to[0] == "offset" else 0
        self.progress[group.group_id] = PlainGroup(settled=set(range(min(floor, end))))
        return Removed()

    def find_queue(self, principal: Principal, name: str) -> Queue:
        return self.metadata.find_queue(principal, name)

    async def queue_for_publish(
        self, principal: Principal, name: str, messages: Sequence[Message]
    ) -> Queue:
        if self.auto_create:
            await self.metadata.put_queue(principal, name, QueueSettings())
        return self.find_queue(principal, name)

    async def describe_queue(self, principal: Principal, name: str) -> dict[str, object]:
        queue = self.find_queue(principal, name)
        groups = self.metadata.list_groups(principal, queue)
        return {
            "name": queue.name,
            "queue_id": queue.queue_id,
            "settings": msgspec.to_builtins(queue.settings),
            "holder": queue.holder,
            "created_unix_ms": queue.created_unix_ms,
            "paused": queue.paused,
            "partitions": [],
            "depth": len(self._log(queue)),
            "bytes": 0,
            "oldest_unix_ms": None,
            "counters": {},
            "dead_letters": {"queue": f"{queue.name}.dead-letters", "messages": None},
            "groups": [await self.describe_group(principal, queue, g.name) for g in groups],
        }

    async def describe_group(
        self, principal: Principal, queue: Queue, name: str
    ) -> dict[str, object]:
        group = self.metadata.find_group(principal, queue, name)
        settled = self.progress[group.group_id].settled
        return {
            "name": group.name,
            "group_id": group.group_id,
            "queue": queue.name,
            "settings": group.settings,
            "created_unix_ms": group.created_unix_ms,
            "lag": len(self._log(queue)) - len(settled),
            "consumers": 0,
            "in_flight": 0,
            "aside": 0,
            "keys_parked": 0,
            "oldest_unix_ms": None,
            "counters": {},
            "members": ["pulls"] if group.group_id in self.pulling else [],
            "absent": [],
            "partitions": [],
        }

    def submit(
        self,
        queue: Queue,
        messages: Sequence[Message],
        answer: Callable[[Answered], None],
        *,
        producer: bytes | None = None,
        sequence: int | None = None,
        resolved: int = 0,
        keys: Keys = ALL_KEYS,
        origin: Origin | None = None,
    ) -> None:
        log = self._log(queue)
        outcomes: list[Outcome] = []
        for message in messages:
            try:
                check_message(message, queue.settings.message_bytes_max)
            except Refused as error:
                outcomes.append(error)
                continue
            same = [
                i for i, m in enumerate(log) if m.id and (m.id, m.key) == (message.id, message.key)
            ]
            if same:
                outcomes.append((0, same[0], True))
                continue
            outcomes.append((0, len(log)))
            log.append(message)
        answer(PlainAnswer(messages, outcomes, queue.queue_id))
        self.arrived.set()

    async def pull(
        self,
        queue: Queue,
        group: Group,
        messages_max: int,
        wait_s: float,
        *,
        who: Principal = ANYBODY,
    ) -> list[PulledMessage]:
        self.pulling.add(group.group_id)
        try:
            async with asyncio.timeout(wait_s):
                while not (pulled := self._give(queue, group, messages_max)):
                    if wait_s == 0 or self.draining:
                        break
                    self.arrived.clear()
                    await self.arrived.wait()
                return pulled
        except TimeoutError:
            return []

    def _give(self, queue: Queue, group: Group, messages_max: int) -> list[PulledMessage]:
        place = self.progress[group.group_id]
        given: list[PulledMessage] = []
        for offset, message in enumerate(self._log(queue)):
            if offset in place.settled or offset in place.given or len(given) == messages_max:
                continue
            push = place.given[offset] = next(self.pushes)
            place.attempts[offset] = place.attempts.get(offset, 0) + 1
            receipt = Receipt(generation=1, partition=0, epoch=1, push=push, offset=offset)
            given.append(
                PulledMessage(
                    receipt=self.receipts.encode(queue.queue_id, group.group_id, receipt),
                    id=message.id or f"{queue.queue_id}-1-0-{offset}",
                    partition=0,
                    offset=offset,
                    attempt=place.attempts[offset],
                    published_unix_ms=NOW_UNIX_MS,
                    lease_until_unix_ms=NOW_UNIX_MS + 30_000,
                    key=message.key,
                    body=message.body if len(message.body) else None,
                    body_base64=message.body_base64,
                    content_type=message.content_type,
                    headers=message.headers,
                )
            )
        return given

    def hand_over(
        self,
        queue: Queue,
        group: Group,
        messages: Sequence[PulledMessage],
        size: int,
        taken_bytes: Callable[[], int | None],
    ) -> None:
        """No lease ends here."""

    def release(self, queue: Queue, group: Group, messages: Sequence[PulledMessage]) -> None:
        place = self.progress[group.group_id]
        for message in messages:
            del place.given[message.offset]
            place.attempts[message.offset] -= 1
        self.arrived.set()

    async def ack(self, queue: Queue, group: Group, receipts: list[str]) -> PullSettled:
        return self._judge(queue, group, receipts, settle=True, give_back=True)

    async def nack(
        self, queue: Queue, group: Group, receipts: list[str], delay_s: float | None, *,
        reason: str | None = None, reject: bool = False,
    ) -> PullSettled:  # fmt: skip
        return self._judge(queue, group, receipts, settle=False, give_back=True)

    async def extend(
        self, queue: Queue, group: Group, receipts: list[str], lease_s: float | None
    ) -> PullSettled:
        return self._judge(queue, group, receipts, settle=False, give_back=False)

    def _judge(
        self, queue: Queue, group: Group, receipts: list[str], *, settle: bool, give_back: bool
    ) -> PullSettled:
        place = self.progress[group.group_id]
        settled, stale, invalid = 0, [], []
        for text in receipts:
            receipt = self.receipts.decode(queue.queue_id, group.group_id, text)
            if receipt is None:
                invalid.append(text)
            elif place.given.get(receipt.offset) != receipt.push:
                stale.append(text)
            else:
                settled += 1
                if give_back:
                    del place.given[receipt.offset]
                if settle:
                    place.settled.add(receipt.offset)
        self.arrived.set()
        return PullSettled(settled=settled, stale=stale, invalid=invalid)

    def _log(self, queue: Queue) -> list[Message]:
        return self.logs.setdefault(queue.queue_id, [])
