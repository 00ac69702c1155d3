"""Whether this gateway is ready for traffic, and if not, why."""

from gateway.delivery.presence import Presence
from metadata.client import Metadata
from push.ports import Storage


class Availability:
    """See the module. It leaves once, and is not ready from then on."""

    def __init__(self, storage: Storage, metadata: Metadata, presence: Presence) -> None:
        self._storage = storage
        self._metadata = metadata
        self._presence = presence
        self.is_leaving = False

    def leave(self) -> None:
        """The gateway is going down."""
        self.is_leaving = True

    async def reasons(self) -> list[str]:
        """What is not ready, one sentence each; empty: ready."""
        reasons: list[str] = []
        if self.is_leaving:
            reasons.append("draining: this gateway is going down")
        state = await self._storage.state()
        if not state.writable:  # one that is full is to be drained, by whoever comes (R29, R31)
            reasons += state.reasons or ("the storage does not take writes",)
        if self._presence.is_alone:
            reasons.append("this gateway is cut off, and gives nothing out until it is heard again")
        is_ready, why = await self._metadata.state()
        if not is_ready:
            reasons.append(why)
        return reasons
