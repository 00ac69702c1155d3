"""Heartbeats where one process keeps them: in memory, as numbers that only grow (R14)."""

from collections.abc import Mapping


class KeptBeats:
    """Who is there, and what they say of themselves."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._says: dict[str, str] = {}

    def beat(
        self, name: str, number: int, forget: Mapping[str, int], says: str = ""
    ) -> dict[str, int]:
        """See Metadata.beat."""
        for other, stands_at in forget.items():
            if self._numbers.get(other) == stands_at:
                del self._numbers[other], self._says[other]
        if name and number > self._numbers.get(name, 0):
            self._numbers[name], self._says[name] = number, says
        return dict(self._numbers)

    def said(self) -> dict[str, str]:
        """See Metadata.said."""
        return dict(self._says)
