"""Options of trials, written once: a field of a trial's Plan is an option of its command.

A Plan is a dataclass whose docstring is the command's help. A field such as `rate: int =
options.whole(RATE, "Messages a second.", 1, 1_000)` is an option, with its default, help and range;
a field with an ordinary default is no option, and is set by tests.
"""

from collections.abc import Sequence
from dataclasses import field, fields
from typing import Any, Final

import click

_OPTION: Final = "option"


def option(
    default: Any, text: str, flag: str = "", /, *, shown: bool = True, **settings: Any
) -> Any:
    """Return a field with this default and help; `settings` are those of click.

    `flag` is `--name`, or `--name parameter` where the parameter has another name. Without a flag
    the field's name makes one. `shown`: the help names the default.
    """
    if shown:
        settings |= {"default": default, "show_default": True}
    return field(default=default, metadata={_OPTION: (flag, {"help": text, **settings})})


def whole(default: int, text: str, least: int, most: int | None = None, flag: str = "") -> Any:
    """Return a field of whole numbers from `least` to `most`."""
    return option(default, text, flag, type=click.IntRange(least, most))


def wholes(default: Sequence[int], text: str, least: int, most: int, flag: str) -> Any:
    """Return a field of several whole numbers."""
    return option(default, text, flag, type=click.IntRange(least, most), multiple=True)


def seconds(
    default: float, text: str, least: float = 1, most: float = 3600, flag: str = "--seconds"
) -> Any:
    """Return a field of seconds."""
    return option(default, text, flag, type=click.FloatRange(least, most))


def seed() -> Any:
    """Return the field of a seed."""
    return whole(1, "Seed of the faults. The same seed gives the same faults.", 0)


def some_of(every: Sequence[str], text: str, flag: str) -> Any:
    """Return a field that holds the named ones of `every`; all of them if none is named."""
    return option(tuple(every), text, flag, shown=False, type=click.Choice(every), multiple=True)


def number_of(default: int, every: Sequence[int], text: str) -> Any:
    """Return a field that is one of these numbers."""
    kind, said = _Number(every), str(default)
    return option(default, text, shown=False, type=kind, default=said, show_default=True)


class _Number(click.Choice[str]):
    """A choice between whole numbers."""

    def __init__(self, every: Sequence[int]) -> None:
        super().__init__([str(one) for one in every])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return int(super().convert(value, param, ctx))


def of(plan: type) -> dict[str, click.Option]:
    """Return the options of a Plan by field."""
    found = {}
    for one in fields(plan):
        if _OPTION in one.metadata:
            flag, settings = one.metadata[_OPTION]
            flag = flag or f"--{one.name.replace('_', '-')}"
            found[one.name] = click.Option(flag.split(), **settings)
    return found
