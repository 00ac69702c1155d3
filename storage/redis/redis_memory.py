"""How much memory a store has left, and when publishing stops and opens again (R29). Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from push import limits


@dataclass(frozen=True, slots=True)
class Memory:
    """In bytes, as the server counts for its bound."""

    used: int
    bound: int
    """0: it has none."""

    @property
    def free_share(self) -> float:
        """Of the bound; negative: acknowledgements have gone beyond it."""
        return 1 - self.used / self.bound if self.bound else 1.0


def memory_of(told: Mapping[str, str]) -> Memory:
    """By INFO memory. Buffers for replicas and the file do not count for the bound.

    Source: `getMaxmemoryState` in Redis 7.0's evict.c.
    """
    used = int(told.get("used_memory", "0")) - int(told.get("mem_not_counted_for_evict", "0"))
    return Memory(used, int(told.get("maxmemory", "0")))


class Reserve:
    """Whether there is room to publish: closed when less than `share` is free, and open again when
    RESERVE_REOPENS times as much is: else it would be both in turns while consumers catch up."""

    def __init__(self, share: float) -> None:
        self._share = share
        self.is_open = True

    def seen(self, memory: Memory) -> bool:
        """Whether there is, by what the server says now."""
        needed = self._share if self.is_open else self._share * limits.MEMORY_RESERVE_REOPENS
        self.is_open = memory.free_share >= needed
        return self.is_open
