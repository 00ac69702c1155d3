"""The first lines of the `tocsin` command: nothing is imported yet, and Ctrl-C is already quiet.

This is a module beside the package `tocsin`, because importing anything of that package imports
all of it: a third of a second in which Ctrl-C would print where Python was. Importing this module
changes how the process ends, so nothing but the command's script imports it.
"""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # built in: of the other one, three modules are read from the disk

STANDARD = ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY))
"""Descriptors, and how the null device stands in for one that is closed: input cannot be read and
output cannot be written, so that both are noticed; what goes to stderr is dropped."""


def end_quietly_on_interrupt() -> None:
    """Let Ctrl-C end the process at once with status 130, unless it is to be ignored (nohup)."""
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
    """Open those that are closed (`<&-`, `>&-`), or the next socket or file would be one of them:
    a database, say, that the interpreter's last words are written into."""
    for number, how in STANDARD:
        try:
            os.fstat(number)
        except OSError:
            if os.open(os.devnull, how) == number:  # the lowest that is free, and so this one
                os.set_inheritable(number, True)
