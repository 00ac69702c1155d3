"""What this gateway refuses itself holds up what is behind it (R7); the storage does the same for
what it refuses. The rule is `push.sending`, for each producer at each partition."""

from typing import Final

from gateway.publish.routing import Route
from push import limits
from push.errors import Refused, TocsinError
from push.places import Partition
from push.record import Header
from push.sending import SendingOrder

ORDERS_MAX: Final = 10_000
"""Beyond it those held up longest are forgotten."""


class SendingOrders:
    """See the module."""

    def __init__(self) -> None:
        self.held: dict[tuple[bytes, Partition], SendingOrder] = {}
        """Of those of whom something is held up; as a rule empty, and nothing is to be checked."""

    def check(self, producer: bytes, partition: Partition, sequence: int, resolved: int) -> None:
        """That this message may be stored. Raises Refused(out_of_sequence): one before it was
        refused, and has not come again."""
        order = self.held.get((producer, partition))
        if order is None:
            return
        if not order.admits(sequence, resolved):
            raise Refused("out_of_sequence")
        order.accept(sequence)
        if not order:
            del self.held[producer, partition]

    def refused(
        self, producer: bytes, route: Route, key: str | None, sequence: int, error: TocsinError
    ) -> None:
        """A message was refused here.

        One without a key has nothing behind it, nor has one with a key that cannot be.
        """
        if key and len(key) <= limits.KEY_BYTES_MAX and error.code.name != "out_of_sequence":
            self._hold(producer, route.partitions[route.place(key)[0]], sequence)

    def not_stored(self, partition: Partition, header: Header) -> None:
        """Nothing of a record of this header was stored, or nobody knows."""
        for index, sequence, hashed in zip(
            header.producer_indexes, header.sequences, header.key_hashes, strict=False
        ):
            if index and hashed:
                self._hold(header.producers[index - 1][0], partition, sequence)

    def _hold(self, producer: bytes, partition: Partition, sequence: int) -> None:
        while len(self.held) >= ORDERS_MAX:
            del self.held[next(iter(self.held))]
        self.held.setdefault((producer, partition), SendingOrder()).refuse(sequence)
