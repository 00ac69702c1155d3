"""What an ack, nack or extend of pulled messages does to the slot that gave them: the one judge of
requests that come here, and of those that come through another gateway (R21, R24). And what a
decision about parked keys does that came through another gateway."""

import asyncio
from collections.abc import Iterable

from gateway.delivery.group import GroupRuntime
from gateway.delivery.slot import Slot
from push.delivery.giving import Judged
from push.letters import PERHAPS, SETTLED, STALE, Unpark, Verb
from push.ports import Storage


def slot_of(runtime: GroupRuntime | None, number: int, epoch: int) -> Slot | None:
    """The slot here that gives a partition under this epoch. None: there is none."""
    slot = runtime.slots.get(number) if runtime is not None else None
    return slot if slot is not None and not slot.ended and slot.delivery.epoch == epoch else None


def newest_here(runtime: GroupRuntime | None, number: int) -> int:
    """The newest epoch of a partition that is, or was, owned here; 0: none."""
    if runtime is None:
        return 0
    slot = runtime.slots.get(number)
    return max(runtime.ended.get(number, 0), slot.delivery.epoch if slot is not None else 0)


def has_ended(runtime: GroupRuntime | None, number: int, epoch: int) -> bool:
    """Whether it is known here that nothing of this epoch counts any more."""
    is_live = slot_of(runtime, number, epoch) is not None
    return not is_live and epoch <= newest_here(runtime, number)


def judge(
    slot: Slot, verb: Verb, delivery: tuple[int, int], seconds: float | None, now: float, *,
    reason: str | None = None, reject: bool = False,
) -> bool:  # fmt: skip
    """Whether it counted; else the (push, offset) has ended. For the others see Letter."""
    push, offset = delivery
    judged: Judged
    if verb == "ack":
        judged = slot.ack(push, offset, offset, now)
    elif verb == "nack":
        judged = slot.nack(push, offset, offset, now, delay_s=seconds, reason=reason, reject=reject)
    else:
        lease_s = seconds or slot.delivery.settings.lease_s
        judged = slot.delivery.extend(push, offset, offset, lease_s=lease_s, now=now)
    return bool(judged.settled)


async def durable(slots: Iterable[Slot], now: float) -> bool:
    """Wait until what was done to these slots is durable. False: of one of them that will never be
    known here, its epoch has ended."""
    loop = asyncio.get_running_loop()
    waits: list[asyncio.Future[bool]] = []
    for slot in slots:
        future: asyncio.Future[bool] = loop.create_future()
        waits.append(future)

        def confirmed(known: bool, future: "asyncio.Future[bool]" = future) -> None:
            if not future.done():
                future.set_result(known)

        slot.settled(now, confirmed)
    return all([await future for future in waits])


async def unpark(storage: Storage, slot: Slot, letter: Unpark) -> str:
    """Take up what is parked as the letter says, and nothing that was parked anew since, or has
    another head; the verdicts, when all of it is durable or the slot has ended. Raises
    TocsinError: nothing happened."""
    parked = {
        (f"{line.key_hash:016x}", line.since_unix_ms, line.head): line
        for line in await storage.parked(slot.place)
    }
    taken_up = [
        slot.unpark(letter.verb, line) if (line := parked.get(key)) else None for key in letter.keys
    ]
    said = ""
    for decided in taken_up:
        if decided is None:
            said += STALE
        else:
            said += SETTLED if await decided else PERHAPS
    return said
