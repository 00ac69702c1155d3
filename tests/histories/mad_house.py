"""A house whose metadata and storage stall, fail and lie, in virtual time."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

from metadata.port import Metadata
from push.storage_port import Storage
from tests.conformance.virtual import run
from tests.histories.house import House, Session
from tests.mad import MadMetadata, MadStorage


class MadHouse(House):
    """A house with both, which work well unless told to fail."""

    metadata: MadMetadata
    storage: MadStorage

    async def open(self) -> None:
        """Open the broker over them."""

        def around_metadata(real: Metadata) -> Metadata:
            self.metadata = MadMetadata(real)
            return cast(Metadata, self.metadata)

        def around_storage(real: Storage) -> Storage:
            self.storage = MadStorage(real)
            return cast(Storage, self.storage)

        self.around_metadata, self.around_storage = around_metadata, around_storage
        await super().open()

    @property
    def guard(self) -> dict[str, Any]:
        """Return the state of the metadata's guard."""
        return self.broker.metadata.facts()

    async def settled(self, session: Session, consumer: Any, count: int) -> None:
        """Wait for `count` messages in total and settle the last one."""
        place = (await session.take(count))[-1][0]
        assert await self.confirm(consumer, [[*place, place[3]]]) == (1, 0)


def mad(test: Callable[[MadHouse], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """Make a test in virtual time, with the shipped timeouts. In the end both work well."""

    def in_virtual_time(folder: Path) -> None:
        async def main() -> None:
            house = MadHouse(folder, "memory")
            await house.open()
            await test(house)
            house.metadata.well()
            house.storage.well()
            house.storage.unstuck.set()
            await house.stop()

        run(main())

    in_virtual_time.__name__, in_virtual_time.__doc__ = test.__name__, test.__doc__
    return in_virtual_time
