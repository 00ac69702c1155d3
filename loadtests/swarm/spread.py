"""How many processes and addresses a swarm needs, and what each of them has. Pure."""

import math
from typing import Final

FILES_SPARE: Final = 500
"""Of a process, beside its sockets."""
PER_PROCESS_MAX: Final = 15_000
"""A process may have 20,000 files open where nobody has raised that."""
PER_ADDRESS: Final = 8_000
"""There are some 28,000 ports for an address, and one that was closed is not free for a minute:
two storms of all sockets within that minute fit."""
ADDRESSES_MAX: Final = 254


def processes(sockets: int) -> int:
    """So many it takes; two at least, so that it is never one core that is measured."""
    return max(2, math.ceil(sockets / PER_PROCESS_MAX))


def shares(many: int, parts: int) -> list[int]:
    """`many`, dealt out as evenly as it goes."""
    return [many // parts + (part < many % parts) for part in range(parts)]


def addresses(process: int, sockets: int) -> list[str]:
    """Those of this machine that a process's sockets come from: 127.0.<process + 1>.1 and on. No
    two processes have one in common.

    Raises:
        ValueError: there are not as many; take more processes.
    """
    many = max(1, math.ceil(sockets / PER_ADDRESS))
    if process >= ADDRESSES_MAX or many > ADDRESSES_MAX:
        raise ValueError(f"{sockets} sockets in process {process} are too many for 127.0.0.0/16")
    return [f"127.0.{process + 1}.{number + 1}" for number in range(many)]
