"""Which queues and groups have labels of their own (P9). Pure.

The first that come have, up to a bound, and keep them as long as they are there: a series never
changes whom it is about. All others share one value, REST, which no queue or group can be called.
What a counter of one of these had come to when it was deleted stays in the sum, which so never
falls.
"""

from collections.abc import Mapping
from typing import Final, Generic, TypeVar

REST: Final = "(other)"
Labels = tuple[str, ...]
CountedT = TypeVar("CountedT")


class Places(Generic[CountedT]):
    """The places of one kind. `gone` begins as a counter of nothing."""

    def __init__(self, places_max: int, gone: CountedT) -> None:
        self._places_max = places_max
        self._own: dict[str, Labels] = {}
        self.gone = gone
        """What those without a place had come to that are not there any more."""

    def __len__(self) -> int:
        return len(self._own)

    def see(self, there: Mapping[str, Labels]) -> None:
        """These are there now, by id: places of others are free, and given in this order."""
        for place in [place for place in self._own if place not in there]:
            del self._own[place]
        for place, labels in there.items():
            if len(self._own) >= self._places_max:
                break
            self._own.setdefault(place, labels)

    def of(self, place: str) -> Labels | None:
        """The labels of its own; None: it has none."""
        return self._own.get(place)

    def forget(self, place: str) -> bool:
        """It is deleted. True: it had no place, and what it had come to is to be kept in `gone`."""
        return self._own.pop(place, None) is None

    def check(self) -> None:
        """Assert what always holds."""
        assert len(self._own) <= self._places_max, "P9"
