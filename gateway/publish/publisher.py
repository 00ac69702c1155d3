"""The publisher: messages of all producers in, answers out.

1. `submit` takes a `PendingPublish`, or refuses all of it.
2. `cut` makes its runs, one for each partition that its messages go to (`gateway.publish.batch`).
3. The group commit puts each run into the open record of its partition, hands all records that wait
   to the storage at once, and answers the publishes (`gateway.publish.commits`).
"""

import asyncio
from collections.abc import Callable
from itertools import chain

from gateway.counters import Counters, HitRate
from gateway.deliverylog.log import OFF, DeliveryLog
from gateway.publish.batch import (
    KeyCount,
    PendingPublish,
    Route,
    Run,
    SendingOrders,
    cut,
)
from gateway.publish.clock import BelievedClock
from gateway.publish.commits import GroupCommit
from gateway.publish.tail import Tail
from gateway.publish.tombstones import Tombstones
from metadata.catalog import Queue
from push import limits
from push.commit_sharing import FairShare
from push.errors import Refused
from push.storage_port import Storage


class Publisher:
    """The way in for messages of all queues. Everything happens on one event loop."""

    def __init__(
        self,
        storage: Storage,
        tail: Tail,
        counters: Counters,
        is_unmade: Callable[[Queue], bool],
        tombstones: Tombstones,
        *,
        clock: BelievedClock | None = None,
        log: DeliveryLog = OFF,
        in_parts: bool = False,
    ) -> None:
        """`clock`: the clock by which messages are due; None: its own. `is_unmade`: whether a queue
        that the storage does not have is yet to be made there. `in_parts`: whether the storage has
        several servers, whose lanes fail apart. The lanes themselves become known only when
        somebody publishes there."""
        self._counters = counters
        self._tombstones = tombstones
        self._log = log
        self._routes: dict[str, Route] = {}
        self._key_count = KeyCount()
        self._orders = SendingOrders()
        self._clock = clock or BelievedClock()
        self._share: FairShare[str] = FairShare()
        self.commits = GroupCommit(
            storage,
            tail,
            self._orders,
            self._share,
            log=log,
            is_unmade=is_unmade,
            in_parts=in_parts,
        )
        self.commit_early: Callable[[], bool] = self.commits.commit_early
        """The group commit's own method: it is called after each read of a socket."""
        self.hit_rate = HitRate()
        """Rate of look-ups in which the partition of a key was remembered."""

    def submit(self, publish: PendingPublish) -> None:
        """Take a publish. It is answered exactly once, perhaps before this returns."""
        if self._tombstones.by_queue:
            self._redirect(publish)
        messages, route = publish.messages, self._route(publish.queue)
        if publish.origin is None:
            publish.origin = self._log.internal_origin(publish.queue, len(messages))
        refused = self.commits.refusal(route, len(messages))
        if refused is None and publish.sequence is not None:
            refused = refused_sequences(
                publish.producer, publish.sequence, publish.resolved, len(messages)
            )
        if refused is not None:
            self._refuse(publish, route, refused)
            return
        refused_count = len(messages) - self._accept(publish, route)
        if refused_count or not messages:
            route.counters.refused += refused_count
            publish.settle(refused_count)

    def _redirect(self, publish: PendingPublish) -> None:
        """Redirect a publish to a deleted queue to its dead-letter queue. Publishes to others stay
        unchanged."""
        tombstone = self._tombstones.by_queue.get(publish.queue.queue_id)
        if tombstone is not None:
            tombstone.redirect(publish)

    def _refuse(self, publish: PendingPublish, route: Route, refused: Refused) -> None:
        """Refuse all of a publish."""
        producer, sequence = publish.producer, publish.sequence
        if producer is not None and sequence is not None and refused.code.retry:
            for at, message in enumerate(publish.messages, sequence):
                self._orders.on_refused(producer, route, message.key, at, refused)
        route.counters.refused += len(publish.messages)
        publish.fail_all(refused)
        publish.settle(len(publish.messages))

    def _accept(self, publish: PendingPublish, route: Route) -> int:
        """Put each partition's run into its record. Returns the number of messages that are in
        records now."""
        if publish.producer is not None and publish.sequence is not None:
            publish.context = (publish.producer, publish.resolved)
        commits, spans_clusters = self.commits, len(publish.queue.clusters) > 1
        messages = size = 0
        try:
            runs, later = cut(publish, route, self._orders, self._clock)
            for number, run in chain(runs.items(), later.items()):
                partition = route.partitions[number]
                if spans_clusters:
                    refused = commits.refusal_at(route, partition, run, messages, size)
                    if refused is not None:
                        self._refuse_run(route, run, refused)
                        continue
                messages += len(run.indexes)
                size += commits.add(route, partition, run)
        finally:  # messages in a record are given back when the record is answered
            commits.schedule(route, messages, size)
            publish.bytes += size
        return messages

    def _refuse_run(self, route: Route, run: Run, refused: Refused) -> None:
        """Refuse the messages of a publish whose storage cluster does not take them."""
        for index in run.indexes:
            run.publish.fail(index, refused)
            if run.context is not None:
                key, sequence = run.publish.messages[index].key, run.sequence + index
                self._orders.on_refused(run.context[0], route, key, sequence, refused)

    def _route(self, queue: Queue) -> Route:
        route = self._routes.get(queue.queue_id)
        if route is None or route.ring.epoch != queue.ring_epoch:
            self.forget_queue(queue.queue_id)
            counters = self._counters.queue(queue.queue_id)
            route = Route(queue, counters, self.hit_rate, self._key_count)
            self._routes[queue.queue_id] = route
        route.queue = queue
        return route

    def forget_queue(self, queue_id: str) -> None:
        """Forget the route of a queue that is deleted, or has another ring."""
        route = self._routes.pop(queue_id, None)
        if route is not None:
            route.forget()

    # --- Load ----------------------------------------------------------------------------------

    @property
    def pending_messages(self) -> int:
        """Number of messages of all queues whose commit has not ended."""
        return self.commits.pending.messages

    @property
    def pending_bytes(self) -> int:
        """Size as JSON of the messages of all queues whose commit has not ended."""
        return self.commits.pending.bytes

    @property
    def is_shared(self) -> bool:
        """Whether several queues publish, as far as the last second tells."""
        return self._share.is_shared(now=asyncio.get_running_loop().time())

    @property
    def is_skewed(self) -> bool:
        """Whether heavy queues have light ones beside them, as far as the last second tells."""
        return self._share.is_skewed(now=asyncio.get_running_loop().time())

    @property
    def has_enough(self) -> bool:
        """Whether heavy queues have light ones beside them, and nothing more of heavy ones is
        needed yet."""
        return self.commits.has_enough()

    async def drain(self) -> None:
        """Wait until everything that was accepted has its answer."""
        await self.commits.drain()


# enforces: R6
def refused_sequences(
    producer: bytes | None, sequence: int, resolved: int, count: int
) -> Refused | None:
    """Return why a publish with sequences is refused as a whole; None if it is not (R6)."""
    if producer is None:
        return Refused("invalid_request", "a sequence needs a producer: name one in hello")
    if resolved > sequence:
        return Refused("sequence_too_old", f"resolved is {resolved}, sequence {sequence}")
    if sequence + count - resolved > limits.IN_FLIGHT_PER_PRODUCER_MAX:
        return Refused(
            "too_many_in_flight",
            f"at most {limits.IN_FLIGHT_PER_PRODUCER_MAX} sequences from resolved on",
        )
    return None
