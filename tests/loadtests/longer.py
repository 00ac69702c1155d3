"""Benchmarks in tests measure for as long as it takes until something arrives."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LONGER_S = (0.5, 4.0, 30.0)
"""A busy machine may stand still for half a second."""


def longer(measure: Callable[[float], T], rate: Callable[[T], object]) -> T:
    """What `measure` found in so many seconds: in the fewest in which its `rate` is not zero, or in
    the most."""
    for seconds in LONGER_S:
        found = measure(seconds)
        if rate(found) != 0:
            break
    return found
