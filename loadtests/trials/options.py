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
    """Return a dataclass field with this default; its option has the help `text`, and `settings`
    are further arguments of click.Option.

    `flag` is `--name`, or `--name parameter` where the parameter has another name. Without a flag
    the field's name makes one. `shown` False: click does not get the default, and help does not
    name it.
    """
    if shown:
        settings |= {"default": default, "show_default": True}
    return field(default=default, metadata={_OPTION: (flag, {"help": text, **settings})})


def whole(default: int, text: str, least: int, most: int | None = None, flag: str = "") -> Any:
    """Return a field of whole numbers from `least` to `most`."""
    return option(default, text, flag, type=click.IntRange(least, most))


def wholes(default: Sequence[int], text: str, least: int, most: int, flag: str) -> Any:
    """Return a field of several whole numbers from `least` to `most`, whose option is
    repeatable."""
    return option(default, text, flag, type=click.IntRange(least, most), multiple=True)


def seconds(
    default: float, text: str, least: float = 1, most: float = 3600, flag: str = "--seconds"
) -> Any:
    """Return a field of a duration from `least` to `most`, in seconds."""
    return option(default, text, flag, type=click.FloatRange(least, most))


def seed() -> Any:
    """Return the field of the seed of a trial's faults; its default is 1."""
    return whole(1, "Seed of the faults. The same seed gives the same faults.", 0)


def some_of(every: Sequence[str], text: str, flag: str) -> Any:
    """Return a field that holds those of `every` that its repeatable option names; all of them if
    the option is not given."""
    return option(tuple(every), text, flag, shown=False, type=click.Choice(every), multiple=True)


def number_of(default: int, every: Sequence[int], text: str) -> Any:
    """Return a field that is one of the numbers `every`."""
    kind, said = _Number(every), str(default)
    return option(default, text, shown=False, type=kind, default=said, show_default=True)


class _Number(click.Choice[str]):
    """A choice between whole numbers."""

    def __init__(self, every: Sequence[int]) -> None:
        super().__init__([str(one) for one in every])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return int(super().convert(value, param, ctx))


def of(plan: type) -> dict[str, click.Option]:
    """Return the options of a Plan by field name. A field with an ordinary default has none."""
    found = {}
    for one in fields(plan):
        if _OPTION in one.metadata:
            flag, settings = one.metadata[_OPTION]
            flag = flag or f"--{one.name.replace('_', '-')}"
            found[one.name] = click.Option(flag.split(), **settings)
    return found
