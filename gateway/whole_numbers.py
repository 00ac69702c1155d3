"""Whole numbers in texts that anybody may have written: queries, headers, places."""

from typing import Final

_DIGITS_MAX: Final = 18
"""int() of a long text is slow, and refuses 4,300 digits with a ValueError."""


def whole_number(text: str) -> int | None:
    """The number that these ASCII digits are, below 10^18; None: they are none."""
    if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX:
        return int(text)
    return None
