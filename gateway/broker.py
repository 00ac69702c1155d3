"""Composition of a broker: the module that makes all its parts, and has the calls that need several
of them."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from gateway.accounting.audit import BROKER, Actor, Audit
from gateway.catalog.guarded import GuardedMetadata
from gateway.catalog.lookups import find_queue
from gateway.catalog.reconcile import Changes, Reconciler
from gateway.config import Config
from gateway.counters import Counters, HitRateSource, describe_hit_rates
from gateway.delivery.cursor_writer import CursorWriter
from gateway.delivery.dead_letters import DeadLetters
from gateway.delivery.groups import Groups
from gateway.delivery.janitor import Expiry, Janitor, OrphanedLetters
from gateway.delivery.mover import Mover
from gateway.delivery.overflow import Overflow
from gateway.delivery.owned_partition import DeliveryContext
from gateway.delivery.presence import Availability
from gateway.delivery.pull import Pulls
from gateway.delivery.readers import Readers
from gateway.delivery.remote_owner import OwnerClient, OwnerServer
from gateway.delivery.temporary_owner import TemporaryOwner
from gateway.deliverylog.files import Bounds
from gateway.deliverylog.log import DeliveryLog
from gateway.deliverylog.writer import LogWriter
from gateway.encryption.keyring import Keyring
from gateway.encryption.sealer import NackReasons
from gateway.limits.limiter import Limiter
from gateway.limits.shared import SharedLimits
from gateway.limits.spec import OF_ADDRESS, OF_PRINCIPAL, OF_QUEUE, OF_SESSION, parse_limits
from gateway.models import BackupProgress, ClusterDescription, ClusterList, SeekTo
from gateway.operator.alerts import AlertEvaluator
from gateway.operator.describe import Describer
from gateway.operator.explain import Explainer
from gateway.operator.metrics import GatewayMetrics, Sources
from gateway.operator.operations import QueueOperations
from gateway.operator.parking import ParkingDecisions
from gateway.operator.removal import Begin, RemovalCounter, Removed, check_agreed
from gateway.operator.scheduled import ScheduledMessages, stopped_notes
from gateway.operator.settings_change import SettingsChanges
from gateway.operator.stats import QueueStatsCache
from gateway.operator.waiting import WaitingKeys
from gateway.publish.clock import BelievedClock
from gateway.publish.publisher import Publisher
from gateway.publish.tail import Tail
from gateway.publish.tombstones import Tombstones, any_storable, missing_queue
from gateway.stores.backup import Backups
from gateway.stores.marks import check_storage
from gateway.stores.open import open_stores, with_read_deadline
from metadata.catalog import (
    Group,
    GroupSettings,
    GroupStart,
    Membership,
    Principal,
    Queue,
    QueueSettings,
    dead_letter_name,
)
from metadata.port import Metadata
from push import limits
from push.errors import Refused, TocsinError
from push.message import Message
from push.places import Partition, check_name
from push.rates.shared import RatePool
from push.receipts import Receipts
from push.storage_port import PLAIN, Sealer, Storage
from runtime.loop.end_of_turn import Deadlines, EndOfTurn


def _letters(
    storage: Storage, looking: Storage, groups: Groups
) -> tuple[OwnerServer | None, OwnerClient | None]:
    """Make the server that answers other gateways' requests to the owners at this gateway, and the
    client that sends requests to the owners at other gateways. (None, None) if there are never
    other gateways."""
    inbox = storage.inbox
    if inbox is None:
        return None, None
    return OwnerServer(inbox, looking, groups), OwnerClient(inbox)


def _limiter_of(config: Config, pool: RatePool | None, counters: Counters) -> Limiter:
    return Limiter(
        parse_limits(config.limit_principal, OF_PRINCIPAL),
        parse_limits(config.limit_address, OF_ADDRESS),
        parse_limits(config.limit_queue, OF_QUEUE),
        parse_limits(config.limit_session, OF_SESSION),
        shared=SharedLimits(pool) if pool is not None else None,
        counters=counters,
    )


async def begin_log(log: DeliveryLog, config: Config, gateway: str) -> None:
    """Begin the delivery log in the data folder, unless the settings switch it off; files of the
    previous start are finished first. `gateway`: this gateway's name among several. It is empty if
    there is only one gateway, which then gets a random name for the log. Nothing is raised: the log
    itself reports and counts what it cannot write."""
    if not config.delivery_log:
        return
    bounds = Bounds(
        bytes_max=config.delivery_log_bytes_max,
        age_s=config.delivery_log_age_s,
        file_bytes=min(config.delivery_log_file_bytes, config.delivery_log_bytes_max // 4),
        file_s=config.delivery_log_file_s,
        # Publishing stops at the reserve, and the log must not use up the disk until then.
        free_bytes_min=2 * config.free_bytes_reserve,
    )
    name = gateway or secrets.token_hex(8)
    log.begin(await asyncio.to_thread(LogWriter.open, config.data_dir, name, bounds), name)


class Broker:
    """The parts of one gateway. `on_fatal` of `open` is called when the storage or the catalog can
    no longer be trusted (R31): the process must end and start again. `pool`: the place where rates
    are shared with other gateways; None: they are not shared. `may_be_away`: whether the broker
    starts although a part of the storage does not answer. `sealer` seals the reasons of nacks;
    payloads are sealed by the storage."""

    _clusters: Callable[[Principal | None], Awaitable[list[ClusterDescription]]] | None = None

    def __init__(
        self,
        config: Config,
        metadata: Metadata,
        storage: Storage,
        pool: RatePool | None = None,
        *,
        may_be_away: bool = False,
        sealer: Sealer = PLAIN,
    ) -> None:
        self.config = config
        self.metadata = metadata = GuardedMetadata(metadata)
        self.storage = storage
        self.started_unix_ms = int(time.time() * 1000)
        self.clock = BelievedClock()
        self.changes = Changes(metadata, storage)
        self.reconciler = Reconciler(metadata, storage, may_wait=may_be_away)
        self.tail, self.delivery_log = Tail(storage), DeliveryLog()
        looking = with_read_deadline(storage)
        self.deadlines, self.counting = Deadlines(), Counters()
        self.nack_reasons = NackReasons(sealer)
        self.limiter = _limiter_of(config, pool, self.counting)
        self.queue_stats = QueueStatsCache(looking, is_shared=metadata.is_shared)
        log = self.delivery_log
        self._tombstones = Tombstones(metadata, self._dead_letter_queue)
        self.publisher = self._publisher_of(in_parts=may_be_away)
        self.cursor_writer = CursorWriter(storage, self.publisher.commits)
        self.dead_letters = DeadLetters(looking, self.publisher, self._dead_letter_queue)
        context = self._context_of(looking)
        self.groups = Groups(context, metadata)
        self._describer = Describer(self.queue_stats, metadata, self.groups, self.counting)
        self._availability = Availability(storage, metadata, self.groups.presence)
        self.alerting = self._alerting_of(config)
        temporary_owner = TemporaryOwner(context, self.groups, metadata)
        self.owner_server, owner_client = _letters(storage, looking, self.groups)
        self.parking = ParkingDecisions(
            looking, self.groups, temporary_owner, owner_client, self.nack_reasons
        )
        self._removing = RemovalCounter(looking, metadata)
        self.upkeep = self._operations_of(looking)
        self.settings = SettingsChanges(
            looking, metadata, self.changes, self.groups, self._removing
        )
        self.explainer = Explainer(looking, self.groups, metadata, self.nack_reasons)
        self.waiting_keys = WaitingKeys(looking, self.groups, self.nack_reasons)
        self.readers = Readers(looking, self.tail, log, self.counting)
        self.pulls = Pulls(self.groups, Receipts(metadata.secret("receipts")), owner_client)
        self.janitor = self._janitor_of(context, temporary_owner)
        self.scheduled, self.mover = self._scheduling_of(looking)
        self.tail.watch(self.janitor.touched)
        self.hit_rates: dict[str, HitRateSource] = self._caches()
        """Hit rates of all caches; the server adds those of its own parts."""
        self.metrics = self._measuring_of(config)
        self.backups: Backups | None = None  # None: no data is in files of this machine
        self.keyring: Keyring | None = None  # None: nothing here is sealed
        self.audit = Audit(None, None, wall=time.time)
        """Audit trail, in which the broker notes the queues that it creates and the groups that
        expire. This one keeps nothing; `Server` puts its own in its place."""
        self._rest = AsyncExitStack()
        """Other resources, which `stop` closes last."""

    def _context_of(self, looking: Storage) -> DeliveryContext:
        """Compose the context that all owned partitions of this gateway share."""
        return DeliveryContext(
            looking,
            self.tail,
            self.cursor_writer,
            self.delivery_log,
            self.deadlines,
            self.dead_letters.move,
            self.counting,
            self.nack_reasons,
        )

    def _scheduling_of(self, looking: Storage) -> tuple[ScheduledMessages, Mover]:
        """Compose the acts on scheduled messages, and what moves them when they are due."""
        changed = self.queue_stats.on_change
        presence, log = self.groups.presence, self.delivery_log
        mover = Mover(
            looking, self.metadata, presence, self.clock, self.tail, log=log, changed=changed
        )
        return ScheduledMessages(looking, self.clock, changed=changed), mover

    def _operations_of(self, looking: Storage) -> QueueOperations:
        """Compose the acts of operators on queues, such as pause, seek, purge, peek and redrive."""
        return QueueOperations(
            looking,
            self.metadata,
            self.changes,
            self.groups,
            self._removing,
            publisher=self.publisher,
            touched=self._touch,
        )

    def _publisher_of(self, *, in_parts: bool) -> Publisher:
        return Publisher(
            self.storage,
            self.tail,
            self.counting,
            self.reconciler.is_unmade,
            self._tombstones,
            clock=self.clock,
            log=self.delivery_log,
            in_parts=in_parts,
        )

    def _caches(self) -> dict[str, HitRateSource]:
        return {
            "tail": self.tail.hit_rate,
            "places_of_keys": self.publisher.hit_rate,
            "frames_of_readers": self.readers.encoded,
            **self.metadata.hit_rates,
        }

    def _alerting_of(self, config: Config) -> AlertEvaluator:
        presence, webhooks = self.groups.presence, config.alert_webhooks
        return AlertEvaluator(self.metadata, presence, self.queue_stats, self.publisher, webhooks)

    def _measuring_of(self, config: Config) -> GatewayMetrics:
        return GatewayMetrics(
            Sources(self.queue_stats, self.metadata, self.groups, self.counting),
            storage=self.storage,
            publisher=self.publisher,
            pulls=self.pulls,
            readers=self.readers,
            dead_letters=self.dead_letters,
            mover=self.mover,
            limiter=self.limiter,
            log=self.delivery_log,
            alerting=self.alerting,
            availability=self._availability,
            hit_rates=self.hit_rates,
            queues_max=config.metrics_queues_max,
            groups_max=config.metrics_groups_max,
        )

    def _janitor_of(self, context: DeliveryContext, temporary_owner: TemporaryOwner) -> Janitor:
        return Janitor(
            self.storage,
            self.metadata,
            Overflow(context.storage, self.groups, self.metadata, temporary_owner),
            Expiry(self.groups, self.metadata, self._delete_expired),
            OrphanedLetters(
                context.storage, context.orphans, self.groups, self.metadata, temporary_owner
            ),
            cursor_writer=self.cursor_writer,
            changed=self.queue_stats.on_change,
        )

    @classmethod
    async def open(cls, config: Config, *, on_fatal: Callable[[str], None]) -> "Broker":
        """Open and start a broker over the stores that the settings name.

        Raises:
            TocsinError: a store cannot be opened, or `start` has failed; the text says what to do.
            OSError: the data folder cannot be made or used.
        """
        stores = await open_stores(config, on_fatal=on_fatal)
        broker = cls(
            config,
            stores.metadata,
            stores.storage,
            stores.pool,
            may_be_away=stores.may_be_away,
            sealer=stores.keyring.sealer if stores.keyring is not None else PLAIN,
        )
        broker.keyring, broker.backups, broker._rest = stores.keyring, stores.backups, stores.rest
        broker._clusters = stores.clusters
        if broker.keyring is not None:
            broker.keyring.guard(broker.metadata.data_keys)
            if broker.metadata.is_shared:
                presence = broker.groups.presence
                presence.announce(broker.keyring.report)
                broker.keyring.set_others(presence.announcements)
        try:
            await begin_log(broker.delivery_log, config, broker.gateway)
            await broker.start()
        except BaseException:
            await broker.stop()
            raise
        return broker

    @property
    def gateway(self) -> str:
        """Name of this gateway; "" if there are never others."""
        return self.groups.presence.gateway

    @property
    def gateways(self) -> tuple[str, ...]:
        """Names of all living gateways, this one included; empty if there are never others."""
        return self.groups.presence.live()

    @property
    def draining(self) -> bool:
        """Whether this gateway is going down."""
        return self._availability.is_leaving

    @property
    def end_of_turn(self) -> EndOfTurn:
        """The queue of work for the end of the present callback of the event loop."""
        return self.tail.end_of_turn

    # --- Life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Finish the changes of queues and groups that a crash interrupted, then begin to work.

        Raises:
            Refused: storage_unavailable when the storage is not the one of this catalog (P13).
            TocsinError: an interrupted change cannot be finished. If a part of the storage may be
                away, it is tried again later instead.
        """
        await check_storage(self.storage, self.metadata)
        self.storage.on_certified(self.publisher.commits.on_certified)
        self.metadata.on_queue_changed(self._changed)
        await self.reconciler.start()
        await self.limiter.start()
        self.groups.start()
        self.janitor.start()
        self.mover.start()
        self.alerting.start()

    def _changed(self, queue: Queue, group: Group | None, *, deleted: bool) -> None:
        self.reconciler.on_change(queue, group, deleted=deleted)
        self.groups.changed(queue, group, deleted=deleted)
        if deleted:
            self.counting.forget(queue.queue_id, group.group_id if group is not None else None)
            self.queue_stats.on_change(queue.queue_id)
        if deleted and group is not None:
            self._touch(queue)  # messages that only this group had not settled may go
        if deleted and group is None:
            self.readers.queue_deleted(queue.queue_id)
            self.publisher.forget_queue(queue.queue_id)
            self.limiter.forget_queue(queue.queue_id)
            self.mover.forget(queue.queue_id)
            for number in queue.members:
                self.tail.forget(Partition(queue.queue_id, number))

    def _touch(self, queue: Queue) -> None:
        for number in queue.members:
            self.janitor.touched(Partition(queue.queue_id, number))

    def leave(self) -> None:
        """Be `draining`, and so not ready, from now on; everything else goes on."""
        self._availability.leave()

    async def drain(self) -> None:
        """Be not ready, and answer the waiting pulls. The server sends sessions away at the same
        time."""
        self._availability.leave()
        self.pulls.drain()

    async def stop(self) -> None:
        """Answer every publish, write every cursor, close the stores."""
        self._availability.leave()
        if self.backups is not None:
            await self.backups.close()
        await self.alerting.stop()
        self.pulls.close()
        if self.owner_server is not None:
            self.owner_server.close()
        await self.reconciler.stop()
        await self.mover.stop()
        await self.janitor.stop()
        await self.publisher.drain()
        await self.groups.close()
        await self.cursor_writer.drain()
        await self.changes.finish()
        self.metrics.close()
        await self.delivery_log.stop()
        self.deadlines.close()
        await self.limiter.close()
        await self.storage.close()
        if self.keyring is not None:
            await self.keyring.close()
        await self.metadata.close()
        await self._rest.aclose()

    async def ready(self) -> list[str]:
        """Return why this gateway is not ready for traffic, one sentence for each reason; [] if it
        is ready."""
        return await self._availability.reasons()

    def notes(self) -> list[str]:
        """Return what rests at this gateway although it is ready, one sentence for each thing; []
        if nothing does."""
        clock = self.clock
        return stopped_notes(clock.doubt_s, clock.jump_s, is_apart=clock.is_apart)

    # --- Queues --------------------------------------------------------------------------------

    def find_queue(self, principal: Principal, name: str) -> Queue:
        """Return the queue of this name. Raises Refused(queue_not_found)."""
        return self.metadata.find_queue(principal, name)

    async def queue_for_publish(
        self, principal: Principal, name: str, messages: Sequence[Message]
    ) -> Queue:
        """Return the queue of this name, for a publish of these messages. With auto_create, a
        missing queue is created if at least one of the messages can be stored. Otherwise nothing is
        created, and the returned queue only serves to refuse each message with its reason (P12).
        Without auto_create, a name whose queue was deleted lately gives that deleted queue, so that
        its dead letters take the messages. Raises Refused: queue_not_found, or an error of
        Metadata.put_queue."""
        try:
            return await find_queue(self.metadata, principal, name)
        except Refused as error:
            if not self.config.auto_create:
                return await self._tombstones.take(error, principal, name, messages)
        check_name(name, "queue")
        settings = QueueSettings()
        if not any_storable(messages, settings.message_bytes_max):
            return missing_queue(principal, name, settings)
        queue, _ = await self.create_queue(principal, name, settings)
        self.audit.note("queue.create", Actor(principal), queue=name)
        return queue

    async def create_queue(
        self,
        principal: Principal,
        name: str,
        settings: QueueSettings,
        named: frozenset[str] = frozenset(),
    ) -> tuple[Queue, bool]:
        """Create a queue (True), or return the existing one unchanged (False). `named`: the
        settings that an existing queue must have. Raises Refused like Metadata.put_queue."""
        return await self.changes.create_queue(principal, name, settings, named)

    async def delete_queue(self, principal: Principal, name: str) -> Queue:
        """Delete a queue with its messages and groups; return the deleted queue."""
        return await self.changes.delete_queue(principal, name)

    async def _dead_letter_queue(self, queue: Queue) -> Queue:
        """Find the queue for dead letters of a queue, or create it."""
        principal = Principal(queue.holder, queue.tenant)
        name = dead_letter_name(queue)
        try:
            return self.metadata.find_queue(principal, name)
        except Refused:
            settings = QueueSettings(
                partitions=1, on_exhausted="park", message_bytes_max=limits.MESSAGE_BYTES_MAX_MAX
            )
            made, _ = await self.create_queue(principal, name, settings)
            self.audit.note("queue.create", BROKER, queue=name)
            return made

    # --- Groups --------------------------------------------------------------------------------

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
        """Create a group (True), durably with all its cursors (R11), or return the existing one
        unchanged (False). `start` None: that of the settings. `named`: the settings that an
        existing group must have. Messages that the queue kept for its first group are removed if
        that group starts behind them. Raises Refused(would_delete) if these are more than
        `deletes_max`; with None there is no such check."""
        asked = settings.start if start is None else start
        if deletes_max is not None and asked != "earliest":
            await self._check_beginning(principal, queue, name, asked, deletes_max)
        return await self.changes.put_group(principal, queue, name, settings, start, named=named)

    async def _check_beginning(
        self, principal: Principal, queue: Queue, name: str, start: GroupStart, deletes_max: int
    ) -> None:
        if any(one.name == name for one in self.metadata.list_groups(principal, queue)):
            return
        removed = await self._removing.count_beginning(principal, queue, start)
        check_agreed(
            f"starting the first group of {queue.name!r}, {name!r}, behind what it holds",
            removed,
            deletes_max,
            "; one that starts at earliest gets them, and a retention of the queue keeps them",
        )

    async def delete_group(
        self,
        principal: Principal,
        queue: Queue,
        name: str,
        row: Membership | None = None,
        *,
        deletes_max: int | None = None,
        begin: Begin | None = None,
    ) -> Removed:
        """Delete a group with its cursors. With a `deletes_max`, messages that would go with it are
        counted first: the numbers are returned, and more of them than `deletes_max` raise
        Refused(would_delete). With None nothing is counted, and the numbers are 0. `begin` is
        awaited with the numbers after that check, before the deletion. `row`: as in
        Metadata.delete_group."""
        removed = Removed()
        if deletes_max is not None:
            group = self.metadata.find_group(principal, queue, name)
            removed = await self._removing.count_group(principal, queue, group)
            check_agreed(f"deleting the group {name!r}", removed, deletes_max)
        if begin is not None:
            await begin(removed)
        await self.changes.delete_group(principal, queue, name, row)
        return removed

    async def _delete_expired(
        self, principal: Principal, queue: Queue, name: str, row: Membership
    ) -> None:
        await self.delete_group(principal, queue, name, row)
        self.audit.note("group.expire", BROKER, queue=queue.name, group=name)

    async def seek_group(
        self,
        principal: Principal,
        queue: Queue,
        name: str,
        to: SeekTo,
        *,
        deletes_max: int | None = None,
        begin: Begin | None = None,
    ) -> Removed:
        """Set a group's cursors anew; acks of earlier deliveries are then stale. With a
        `deletes_max`, messages that this removes are counted first: the numbers are returned, and
        more of them than `deletes_max` raise Refused(would_delete). With None nothing is counted,
        and the numbers are 0. `begin` is awaited with the numbers after that check, before the
        change."""
        return await self.upkeep.seek(
            principal, queue, name, to, deletes_max=deletes_max, begin=begin
        )

    # --- Looking -------------------------------------------------------------------------------

    async def describe_queue(self, principal: Principal, name: str) -> dict[str, object]:
        """Describe a queue: its settings, figures and groups."""
        return await self._describer.queue(principal, name)

    async def describe_group(
        self, principal: Principal, queue: Queue, name: str
    ) -> dict[str, object]:
        """Describe a group: its settings, figures and cursors."""
        return await self._describer.group(principal, queue, name)

    async def backup(self, folder: Path, progress: BackupProgress) -> dict[str, object]:
        """Back the store and the catalog up to this folder, while work goes on; return the
        manifest, with the folder. Raises Refused(invalid_request) if the data is not in files of
        this machine, else like Backups.make."""
        if self.backups is None:
            raise Refused("invalid_request", "this broker keeps nothing in files of this machine")
        return await self.backups.make(folder, progress)

    async def clusters(self, who: Principal | None) -> ClusterList:
        """Describe the storage clusters; none if messages are in files of this machine. `who`: the
        principal whose tenant's queues are counted; None: the queues of all tenants are."""
        return ClusterList(clusters=await self._clusters(who) if self._clusters is not None else [])

    async def describe(self) -> dict[str, object]:
        """Describe this gateway and its stores, for `tocsin admin status`."""
        try:
            not_ready = await self.ready()
        except TocsinError as error:
            not_ready = [str(error)]
        state = await self.storage.state()
        return {
            "started_unix_ms": self.started_unix_ms,
            "not_ready": not_ready,
            "storage": {key: said for key, said in state.detail.items() if key != "damage_reports"},
            "storage_waits_for": list(state.reasons),
            "incarnation": await self.storage.incarnation(),
            "messages_published": self.publisher.commits.messages_total,
            "commits": self.publisher.commits.total,
            "messages_pending": self.publisher.pending_messages,
            "pulls_waiting": self.pulls.waiting,
            **self.groups.facts(),
            "dead_letters_moved": self.dead_letters.moved_total,
            "scheduled": self.mover.facts(),
            "damage_reports": int(state.detail.get("damage_reports", "0")),
            "caches": describe_hit_rates(self.hit_rates),
            "limits": self.limiter.status(),
            "delivery_log": self.delivery_log.status() or {},
            "metadata": self.metadata.facts(),
        }
