"""What an ack, nack or extend did."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from gateway.delivery.delivery_ports import DeliveryList
from gateway.delivery.slot import Slot
from push.delivery.giving import Judged


@dataclass(slots=True)
class Settled:
    """What an ack, nack or extend did: a count, and delivery lists of what it did not touch."""

    settled: int = 0
    stale: DeliveryList = field(default_factory=list)
    not_delivered: DeliveryList = field(default_factory=list)
    durable: bool = True
    """False: whether it is durable will never be known here (the owner changed meanwhile)."""

    def add(self, place: tuple[int, int, int], judged: Judged) -> None:
        """Count what was judged of (partition, epoch, push)."""
        for first, last in judged.settled:
            self.settled += last - first + 1
        for ranges, out in (
            (judged.stale, self.stale), (judged.not_delivered, self.not_delivered),
        ):  # fmt: skip
            if ranges:
                out.append([*place, *(number for pair in ranges for number in pair)])


def when_durable(
    touched: Mapping[int, Slot],
    now: float,
    settled: Settled,
    confirmed: Callable[[Settled], None] | None,
) -> None:
    """Let these slots write what was settled in them. `confirmed` is called once, when all of it
    is durable, or it is known that it will not be; where nothing was touched, at once."""
    if confirmed is None:
        for slot in touched.values():
            slot.settled(now)
        return
    if not touched:
        confirmed(settled)
        return
    left = len(touched)

    def one(durable: bool) -> None:
        nonlocal left
        left -= 1
        settled.durable = settled.durable and durable
        if not left:
            confirmed(settled)

    for slot in touched.values():
        slot.settled(now, one)


def when_written(slots: Collection[Slot], answered: Callable[[Settled], None]) -> None:
    """`answered` is called once, when what was settled in these slots before is durable, or
    somebody else owns it by then. It is written no sooner for that."""
    left = len(slots)

    def one(_: bool = True) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            answered(Settled())

    if not slots:
        one()
    for slot in slots:
        slot.ask(one)
