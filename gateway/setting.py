"""One setting: its name, what it may be and what it is for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "TOCSIN_"


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table. `parse` raises ValueError for what is not `allowed`."""

    field: str
    parse: Callable[[str], object]
    allowed: str
    help: str
    is_flag: bool = False
    """A switch: `--name` and `--no-name`."""
    is_secret: bool = False
    """Its value is never shown."""
    has_flag: bool = True
    """False: it stands in the environment only, where other users of the machine do not see it."""

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return PREFIX + self.field.upper()

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.field.replace("_", "-")
