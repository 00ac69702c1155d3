"""Which storage belongs to the catalog: the catalog remembers its incarnation."""

from metadata.client import STORAGE_INCARNATION, Metadata
from push.errors import Refused
from push.ports import Storage


async def recognise(storage: Storage, metadata: Metadata) -> None:
    """An emptied or exchanged storage is refused, never adopted (R30): it would begin every
    partition anew, below every cursor and position. The first one is remembered.

    Raises:
        Refused: storage_unavailable: it is not the one of this catalog (P13).
    """
    incarnation = await storage.incarnation()
    known = metadata.mark(STORAGE_INCARNATION)
    if known is None:
        await metadata.set_mark(STORAGE_INCARNATION, incarnation)
    elif known != incarnation:
        raise Refused(
            "storage_unavailable",
            f"the storage is of incarnation {incarnation}, the catalog knows {known}: one of "
            "the two was emptied or exchanged; put back the one that belongs to the "
            "other, or move both away to begin anew",
        )
