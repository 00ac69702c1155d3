"""A process that appends as fast as it can and prints what was acknowledged: `sequence offset`.

Usage: writer.py STORE [FILE_BYTES_MAX]. With a limit, the kernel refuses to let files grow beyond
it; the writer then says on stderr what the storage said, and exits with 3.
"""

import asyncio
import resource
import sys
from itertools import count

from push.errors import Refused, Unknown
from push.storage_port import Stored
from storage.sqlite.store import SqliteStorage
from tests.contract.stores import ANN, append


def say(sentence: str) -> None:
    """To whoever started this."""
    sys.stderr.write(sentence + "\n")


async def write(store: SqliteStorage, sequences: range) -> None:
    """One record; its acknowledged messages go to stdout."""
    record = append(runs=[(ANN, max(0, sequences[0] - 500), sequences)], size=200)
    (appended,) = await store.append([record])
    outcomes = appended.outcomes or tuple(Stored(appended.first + n) for n in range(len(sequences)))
    lines = [
        f"{sequence} {outcome.offset}\n"
        for sequence, outcome in zip(sequences, outcomes, strict=True)
        if isinstance(outcome, Stored)
    ]
    sys.stdout.write("".join(lines))
    sys.stdout.flush()


async def main(path: str, file_bytes_max: int) -> int:
    """Write until killed, or until the storage stops."""
    store = await SqliteStorage.open(
        path, free_bytes_reserve=0, on_fatal=lambda why: say(f"fatal {why}")
    )
    await store.create_queue("q-1", 1)
    first = (await store.partitions("q-1"))[0].end
    if file_bytes_max:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, file_bytes_max))
    for start in count(first, 35):
        frames = [range(start + n, start + n + 7) for n in range(0, 35, 7)]
        answers = await asyncio.gather(*(write(store, f) for f in frames), return_exceptions=True)
        if any(isinstance(answer, Unknown) for answer in answers):
            say("unknown")
            break
        for answer in answers:
            if answer is not None:
                raise answer
    try:
        await store.append([append(messages=1)])
    except Refused as error:
        say(f"refused {error.code.name}")
    say("alive" if (await store.state()).writable else "dead")
    await store.close()
    return 3


if __name__ == "__main__":
    limit = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    sys.exit(asyncio.run(main(sys.argv[1], limit)))
