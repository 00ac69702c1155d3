"""The first lines of the `tocsin` command. Nothing is imported yet, and Ctrl-C is already quiet.

This module is beside the package `tocsin`, because importing anything of that package imports all
of it. During that time Ctrl-C would print a traceback. Importing this module changes how the
process ends, so only the command's script imports it.
"""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # built in; the other module reads three more from disk

STANDARD = ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY))
"""Descriptors, and how the null device replaces a closed one.

Input cannot be read and output cannot be written, so both are noticed. Text for stderr is dropped.
"""


def end_quietly_on_interrupt() -> None:
    """Let Ctrl-C end the process at once with status 130, unless it has to be ignored (nohup)."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, _end)


def _end(number: int, _frame: object) -> None:
    os._exit(128 + number)


end_quietly_on_interrupt()


def main() -> None:
    """Run the `tocsin` command, and end the process with its exit code."""
    open_standard_descriptors()
    from tocsin.cli.process import run_command

    code = run_command()
    end_quietly_on_interrupt()
    sys.exit(code)


def open_standard_descriptors() -> None:
    """Open standard descriptors that are closed (`<&-`, `>&-`).

    Otherwise the next socket or file would get such a number. For example, the interpreter's last
    words would be written into a database.
    """
    for number, how in STANDARD:
        try:
            os.fstat(number)
        except OSError:
            if os.open(os.devnull, how) == number:  # the lowest free number, and so this one
                os.set_inheritable(number, True)
