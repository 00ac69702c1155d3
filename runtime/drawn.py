"""Random bytes for many at once."""

import os


def drawn(count: int, size: int) -> list[bytes]:
    """`count` values of `size` random bytes each, from the operating system (`os.urandom`).

    In one call: each gives up the interpreter's lock, and whoever makes one for every record has to
    get it back from another thread as often.
    """
    together = os.urandom(count * size)
    return [together[place : place + size] for place in range(0, len(together), size)]
