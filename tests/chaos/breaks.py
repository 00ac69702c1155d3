"""What is broken on purpose, so that the checker must turn red: the negative controls.

Each is planted in a gateway's process before it serves (`tests.chaos.gateway`), or in the store's
nodes; the product has no switch for any of them.
"""

from collections.abc import Callable
from typing import Final

BREAKS: Final[dict[str, Callable[[], None]]] = {}


def plant(name: str) -> None:
    """Break it, in this process. Raises KeyError: there is no such break."""
    BREAKS[name]()
