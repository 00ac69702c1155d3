"""A catalog in a test's folder."""

from collections.abc import Callable
from pathlib import Path

from metadata.catalog_service import CatalogService
from metadata.sqlite.catalog import FILE, SqliteCatalog


async def open_catalog(
    folder: Path, *, on_fatal: Callable[[str], None] | None = None
) -> CatalogService:
    """Open the catalog of the file in this folder; the file is created if it does not exist."""
    return CatalogService(*await SqliteCatalog.open(folder / FILE, on_fatal=on_fatal))
