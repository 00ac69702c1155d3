"""A catalog in a folder of a test."""

from collections.abc import Callable
from pathlib import Path

from metadata.catalog_service import CatalogService
from metadata.sqlite.catalog import FILE, SqliteCatalog


async def open_catalog(
    folder: Path, *, on_fatal: Callable[[str], None] | None = None
) -> CatalogService:
    """The catalog of the file in this folder, which is made when it is not there."""
    return CatalogService(*await SqliteCatalog.open(folder / FILE, on_fatal=on_fatal))
