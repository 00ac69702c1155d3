"""Which dead letters are there whose append was answered `unknown`.

Sent again each would be a second one as soon as its id is forgotten, and a queue may remember no
ids at all. So they are looked for first, in what was appended since: as soon as all of that is
certified, which it is not while a copy is away (R8, R10).

    [A replica is away for an hour, and a letter is tried every second: with a window of 300 s there
    would be twelve of it, with none 3,600.]
"""

from collections.abc import Callable, Sequence

import msgspec

from metadata.catalog import Queue
from push import limits
from push.errors import Unknown
from push.message import Message
from push.places import Partition
from push.ports import PartitionState, Storage

_MESSAGES = msgspec.json.Decoder(list[Message])


class LetterSearch:
    """For letters of these ids that were sent together. `before`: how the partitions stood before
    they were sent first; `gave_up_on`: whether a commit to a queue, by its id, goes on though it
    was answered."""

    def __init__(
        self,
        storage: Storage,
        target: Queue,
        letter_ids: set[str],
        before: Sequence[PartitionState],
        gave_up_on: Callable[[str], bool],
    ) -> None:
        self._storage = storage
        self._target = target
        self._letter_ids = letter_ids
        self._gave_up_on = gave_up_on
        self._before = {state.partition: state for state in before}
        self._ends: dict[Partition, int] = {}
        """Where what may hold it ends."""

    async def found(self) -> set[str]:
        """Those that are there. A queue that is gone holds nothing.

        Raises:
            Unknown: that cannot be told yet: ask again.
            Refused: the storage does not answer.
        """
        if self._gave_up_on(self._target.queue_id):
            raise Unknown("it may be there soon: its commit has not ended")
        states = await self._storage.partitions(self._target.queue_id)
        for state in states:
            # Less than before: what a primary had alone was lost with it.
            known = self._ends.get(state.partition, state.end)
            self._ends[state.partition] = min(known, state.end)
        if any(state.certified < self._ends[state.partition] for state in states):
            raise Unknown("it may be there, where not all is certified: a copy is away")
        found: set[str] = set()
        for state in states:
            found |= await self._in(state)
        return found

    async def _in(self, state: PartitionState) -> set[str]:
        found: set[str] = set()
        before, end = self._before.get(state.partition), self._ends[state.partition]
        offset = state.start
        if before is not None and before.generation == state.generation:
            offset = max(offset, before.certified)
        while offset < end:
            read = await self._storage.read(state.partition, offset, limits.READ_BYTES_MAX)
            for record in read.records:
                messages = _MESSAGES.decode(b"[" + record.payload + b"]")
                found.update(self._letter_ids.intersection(one.id for one in messages if one.id))
            if not read.records:
                break
            offset = read.records[-1].last + 1
        return found
