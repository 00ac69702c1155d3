"""When a threshold of a queue's holder is breached, and when that is over. Pure.

A value has to be above it for as long as the alert says before it fires, and not above it for as
long (CLEARS_S at most) before it clears: what goes to and fro says nothing each time.
"""

from typing import Final, Literal

CLEARS_S: Final = 60.0
Change = Literal["fires", "clears"]


class Alarm:
    """One alert. `fires` True: it did so when it was looked at last, perhaps elsewhere."""

    __slots__ = ("_since", "fires")

    def __init__(self, *, fires: bool = False) -> None:
        self.fires = fires
        self._since: float | None = None
        """Since when the value is on the other side."""

    def __repr__(self) -> str:
        return f"Alarm(fires={self.fires}, other side since {self._since})"

    def look(self, value: float, above: float, lasts_s: float, *, now: float) -> Change | None:
        """What changes with this value. None: nothing does."""
        if (value > above) is self.fires:
            self._since = None
            return None
        if self._since is None:
            self._since = now
        needed_s = min(lasts_s, CLEARS_S) if self.fires else lasts_s
        if now - self._since < needed_s:
            return None
        self.fires, self._since = not self.fires, None
        return "fires" if self.fires else "clears"
