"""A process that schedules, moves and cancels as fast as it can and prints what was acknowledged.

Usage: scheduler.py STORE. Its lines: `waits NUMBER`, `moved NUMBER OFFSET`, `cancelled NUMBER`.
"""

import asyncio
import sys

from push.storage_port import Scheduled
from storage.sqlite.store import SqliteStorage
from tests.contract.stores import P0, append
from tests.contract.test_due import FOR_EVER, move


def say(*words: object) -> None:
    """To whoever started this."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def main(path: str) -> None:
    """Of each three messages, one is moved, one is cancelled, and one waits on."""
    store = await SqliteStorage.open(path, free_bytes_reserve=0)
    await store.create_queue("q-1", 1)
    while True:
        (appended,) = await store.append([append(messages=3, due=[1, 2, 3], size=2000)])
        numbers = [one.number for one in appended.outcomes or () if isinstance(one, Scheduled)]
        for number in numbers:
            say("waits", number)
        moved = await move(store, await store.due.find(P0, numbers[:1]))
        assert moved is not None
        say("moved", numbers[0], moved.first)
        assert await store.due.cancel(P0, numbers[1], remember_s=300)
        say("cancelled", numbers[1])
        assert (await store.due.first(P0, FOR_EVER, count_max=1, bytes_max=1)).messages


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
