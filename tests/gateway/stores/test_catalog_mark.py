"""What a gateway remembers of the metadata service's catalog: another one is not adopted (R30)."""

from pathlib import Path

import pytest

from gateway.stores.marks import CATALOG_MARK_FILE, catalog_keeper, check_catalog_mark
from metadata.backend import CatalogPlace
from push.errors import Refused

HERE = CatalogPlace("one", 7, "stamp")


async def test_a_catalog_that_was_there_before_is_known_again(tmp_path: Path) -> None:
    check_catalog_mark(tmp_path, HERE)
    places = [HERE]
    keeper = catalog_keeper(tmp_path, lambda: places[-1])
    await keeper.start()
    check_catalog_mark(tmp_path, HERE)
    places.append(CatalogPlace("one", 9, "later"))
    await keeper.close()
    await keeper.close()
    check_catalog_mark(tmp_path, CatalogPlace("one", 9, "later"))
    check_catalog_mark(tmp_path, CatalogPlace("one", 12, "more"))


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (CatalogPlace("two", 9, ""), "incarnation two, but .* has one"),
        (CatalogPlace("one", 6, ""), "version 6, .* has 7: it was rolled back"),
    ],
)
async def test_another_catalog_or_an_older_copy_is_refused(
    tmp_path: Path, place: CatalogPlace, why: str
) -> None:
    """Its queues are not those whose messages are in the storage: an emptied one has none."""
    keeper = catalog_keeper(tmp_path, lambda: HERE)
    await keeper.start()
    await keeper.close()
    with pytest.raises(Refused, match=why):
        check_catalog_mark(tmp_path, place)


def test_a_mark_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / CATALOG_MARK_FILE).write_bytes(b"{")
    with pytest.raises(Refused, match="cannot be read"):
        check_catalog_mark(tmp_path, HERE)
