"""What a gateway remembers of the catalog behind a metadata service, outside of it (R30, P13): its
incarnation, and how far it had come. Another one, or one that has gone back, is refused at the
start, never adopted: its queues are not those whose messages are in the storage.

See `gateway.stores.mark_file`. While a gateway runs it knows better, by the stamps of single
changes (`metadata.service.remote_database`).
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway.stores.mark_file import FileKeeper, read_file
from metadata.databases import Place
from push.errors import Refused

FILE: Final = "catalog.mark"
_WHAT: Final = (
    "it says which catalog belongs to this gateway; remove it when you know that the metadata "
    "service has the right one"
)
_LOG: Final = logging.getLogger("tocsin.metadata")


def check_mark(data_dir: Path, place: Place) -> None:
    """That this is the catalog that was here, or there was none. Raises Refused
    (storage_unavailable), with what to do."""
    path = data_dir / FILE
    before = read_file(path, Place, _WHAT)
    if before is None:
        return
    if before.incarnation != place.incarnation:
        what = f"the incarnation {place.incarnation}, and {path} knows {before.incarnation}"
    elif before.version > place.version:
        what = f"version {place.version} and {path} knows {before.version}: it was rolled back"
    else:
        return
    raise Refused(
        "storage_unavailable",
        f"the catalog of the metadata service is of {what}; start the service over the right "
        f"database, or remove {path} to begin with this one",
    )


def catalog_keeper(data_dir: Path, place: Callable[[], Place]) -> FileKeeper[Place]:
    """Keeps how far the catalog has come, from its `start` on."""
    return FileKeeper(data_dir / FILE, place, _LOG)
