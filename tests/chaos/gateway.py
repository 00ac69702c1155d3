"""A gateway on a host of its own: `tocsin serve` inside its network, as shipped or broken.

`python gateway.py --inside=PID [--break=NAME] …` enters the network of that process, plants what is
to be broken (tests.chaos.breaks), and runs `tocsin` with the rest of the arguments. The product
itself has no switch for any of it.
"""

import asyncio
import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

CLONE_NEWNET: Final = 0x40000000
"""Source: https://man7.org/linux/man-pages/man2/setns.2.html"""
PR_SET_PDEATHSIG: Final = 1
"""Source: https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html"""


def enter(pid: str) -> None:
    """Be in the network of that process from now on, and end with whoever started this."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with open(f"/proc/{pid}/ns/net") as net:
        if libc.setns(net.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


def write_down(*_: object) -> None:
    """What every task waits for, in the log: for who looks why something does not go on."""
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)
    sys.stderr.flush()


def main() -> None:
    """See the module."""
    signal.signal(signal.SIGUSR1, write_down)
    pid, broken, *rest = sys.argv[1:]
    enter(pid.removeprefix("--inside="))
    if os.getppid() == 1:
        sys.exit("whoever started this has gone")
    name = broken.removeprefix("--break=")
    if name:
        from tests.chaos.breaks import plant

        plant(name)
    sys.argv[1:] = rest
    from tocsin_command import main as tocsin

    tocsin()


if __name__ == "__main__":
    main()
