"""The broker that trials and tests start: what is left when it is killed."""

from pathlib import Path

from gateway.deliverylog.counts import left_in, memory, page_of
from loadtests.server import Server
from tests.waiting import becomes


async def test_a_killed_broker_leaves_nothing_outside_its_folder(tmp_path: Path) -> None:
    """Its counts outlive it, for who starts on its folder again; not when nobody will."""
    folder = tmp_path / "data" / "delivery"
    with Server(tmp_path / "data", level="warning") as server:
        await becomes(lambda: left_in(folder) is not None)
        server.kill()
        left, place = left_in(folder), memory()
        assert left is not None
        page = (place or tmp_path) / page_of(left.gateway)
        assert page.exists() == (place is not None)
    assert not page.exists()
