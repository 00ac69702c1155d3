"""Acks, nacks and extends by receipts: judged here where the partition is owned here, else by its
owner at another gateway (R24)."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.delivery.asking import Asking
from gateway.delivery.groups import Groups
from gateway.delivery.judging import durable, has_ended, judge, slot_of
from gateway.delivery.receipts import Receipt, Receipts
from gateway.delivery.slot import Slot
from gateway.pull_values import PullSettled
from metadata.catalog import Group, Queue
from push.errors import Refused, TocsinError, Unknown
from push.letters import SETTLED, Letter, Verb, runs_of
from push.places import GroupPartition, Partition

Named = list[tuple[int, Receipt]]
"""Receipts, each with its place in the request."""


@dataclass(slots=True)
class _Asked:
    """What a request comes to."""

    counted: dict[int, bool] = field(default_factory=dict)
    """By the place in the request: whether it counted, or has ended."""
    touched: dict[int, Slot] = field(default_factory=dict)
    elsewhere: dict[tuple[int, int], Named] = field(default_factory=dict)
    """By partition and epoch."""


class PullSettling:
    """See the module. `asking` None: there is no other gateway."""

    def __init__(self, groups: Groups, receipts: Receipts, asking: Asking | None) -> None:
        self._groups = groups
        self._receipts = receipts
        self._asking = asking

    async def settle(
        self, queue: Queue, group: Group, texts: list[str], verb: Verb, seconds: float | None, *,
        reason: str | None = None, reject: bool = False,
    ) -> PullSettled:  # fmt: skip
        """Judge each receipt by the slot that gave it; answer when the effect is durable.

        Raises:
            Unknown: of some of them that is not known; sending all of them again is safe.
            Refused: nothing happened.
        """
        runtime = self._groups.runtimes.get(group.group_id)
        now = asyncio.get_running_loop().time()
        asked = _Asked()
        invalid: list[str] = []
        for index, text in enumerate(texts):
            receipt = self._receipts.decode(queue.queue_id, group.group_id, text)
            if receipt is None:
                invalid.append(text)
                continue
            place = (receipt.partition, receipt.epoch)
            slot = slot_of(runtime, *place)
            if slot is not None:
                delivery = (receipt.push, receipt.offset)
                asked.counted[index] = judge(
                    slot, verb, delivery, seconds, now, reason=reason, reject=reject
                )
                asked.touched[receipt.partition] = slot
            elif self._asking is None or has_ended(runtime, *place):
                asked.counted[index] = False
            else:
                asked.elsewhere.setdefault(place, []).append((index, receipt))
        letters = [
            self._ask(
                GroupPartition(group.group_id, Partition(queue.queue_id, number)),
                named,
                Letter(
                    verb=verb,
                    epoch=epoch,
                    runs=runs_of([(one.push, one.offset) for _, one in named]),
                    seconds=seconds,
                    reason=reason,
                    reject=reject,
                ),
                asked.counted,
            )
            for (number, epoch), named in asked.elsewhere.items()
        ]
        is_partly_done = bool(asked.counted)
        await _all_of(durable(asked.touched.values(), now), letters, is_partly_done=is_partly_done)
        stale = [texts[index] for index in sorted(asked.counted) if not asked.counted[index]]
        return PullSettled(settled=sum(asked.counted.values()), stale=stale, invalid=invalid)

    async def _ask(
        self, place: GroupPartition, named: Named, letter: Letter, counted: dict[int, bool]
    ) -> None:
        assert self._asking is not None  # else nothing is elsewhere
        verdicts = await self._asking.ask(place, letter)
        for (index, _), verdict in zip(named, verdicts, strict=True):
            counted[index] = verdict == SETTLED


async def _all_of(
    mine: Coroutine[Any, Any, bool],
    theirs: Sequence[Coroutine[Any, Any, None]],
    *,
    is_partly_done: bool,
) -> None:
    """Wait for what was done here and for the owners elsewhere, all at once. One answer for the
    whole request, never a weaker yes: it is a refusal only where nothing at all happened."""
    if not theirs:
        if not await mine:
            raise Unknown
        return
    results = await asyncio.gather(mine, *theirs, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in errors:
        if not isinstance(error, TocsinError):
            raise error
    if len(errors) == len(theirs) and not is_partly_done:
        refused = [error for error in errors if isinstance(error, Refused)]
        if len(refused) == len(errors):
            raise refused[0]
    if errors or not results[0]:
        raise Unknown(str(errors[0]) if errors else "")
