"""The process of a command: its standard streams, Ctrl-C, and its exit code.

All commands of `tocsin` end here, the server's too. So all of them behave in the same way when
their output is closed or full, their input is missing, or Ctrl-C is pressed.

    0    all went well                      130  Ctrl-C (128 + the number of the signal)
    1    it did not, and stderr says why    141  the reader of the output has gone, as `head` does
    2    the command was not understood
"""

import contextlib
import signal
import sys
from typing import Final

import click

from tocsin.cli.main import cli
from tocsin.cli.streams import InputFailed, OutputFailed, wrap_streams

EXIT_OUTPUT_GONE: Final = 128 + 13
"""The status of a process that SIGPIPE has ended."""
EXIT_INTERRUPTED: Final = 128 + signal.SIGINT


def run_command() -> int:
    """Run the command of the command line, and return its exit code. Its output is flushed by
    then."""
    wrap_streams()
    try:
        return _flushed(_run())
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run() -> int:
    try:
        result = cli.main(prog_name="tocsin", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except SystemExit as end:
        if isinstance(end.code, str):
            _tell(end.code)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort as error:
        _tell("Aborted.")
        return EXIT_INTERRUPTED if _was_interrupted(error) else 1
    except OutputFailed as error:
        return _output_failed(error)
    except InputFailed as error:
        _tell(f"Error: the input cannot be read: {error}.")
        return 1
    except OSError as error:
        _tell(
            f"Error: {error.filename}: {error.strerror}." if error.filename else f"Error: {error}."
        )
        return 1


def _was_interrupted(error: click.Abort) -> bool:
    """Whether the error stands for Ctrl-C, and not for an input that has ended."""
    return isinstance(error.__cause__ or error.__context__, KeyboardInterrupt)


def _output_failed(error: OutputFailed) -> int:
    if error.is_gone:
        return EXIT_OUTPUT_GONE
    _tell(f"Error: the output cannot be written: {error}.")
    return 1


def _flushed(code: int) -> int:
    """Flush the output. If that fails, the command has failed."""
    try:
        sys.stdout.flush()
    except OutputFailed as error:
        code = _output_failed(error)
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    return code


def _tell(text: str) -> None:
    with contextlib.suppress(OSError):
        click.echo(text, err=True)
