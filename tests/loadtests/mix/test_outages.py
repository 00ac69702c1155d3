"""A broker that cannot be reached is named, soon and once, and so is its return."""

import queue
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.mix import outages
from loadtests.mix.outages import Change, Outage, Outages, Watch
from loadtests.server import Server, free_port

NAMED_S = 5.0
"""Within which people are told of an outage."""
RETURN_S = 60.0
"""Within which a broker is ready again, on a machine that does much else."""
A, B = "http://a", "http://b"


def test_an_outage_is_named_once_and_its_end_with_how_long_it_took() -> None:
    seen = Outages()
    assert seen.seen(A, 1.0, 100.0, None) is None
    assert seen.seen(A, 2.0, 101.0, "refused") == Change(
        A, True, "http://a cannot be reached: refused"
    )
    assert seen.seen(A, 3.0, 102.0, "timed out") is None
    assert seen.out_s(5.0) == 3.0
    assert seen.seen(A, 22.0, 121.0, None) == Change(A, False, "http://a is back, after 20.0 s")
    assert seen.out_s(23.0) is None
    assert seen.all(23.0) == [Outage(A, "refused", 101.0, 2.0, 20.0, True)]


def test_an_outage_that_lasts_to_the_end_says_so() -> None:
    seen = Outages()
    seen.seen(A, 2.0, 0.0, "refused")
    (found,) = seen.all(12.5)
    assert (found.lasted_s, found.is_over) == (10.5, False)
    assert str(found) == (
        "http://a from 00:00:00 to 00:00:10, the end of the run (UTC), 10.5 s: refused"
    )


def test_brokers_are_distinguished_and_the_longest_outage_counts() -> None:
    seen = Outages()
    seen.seen(B, 1.0, 0.0, "refused")
    seen.seen(A, 2.0, 1.0, "refused")
    assert seen.out_s(5.0) == 4.0
    seen.seen(B, 6.0, 5.0, None)
    assert seen.out_s(7.0) == 5.0
    assert [one.url for one in seen.all(7.0)] == [B, A]
    assert outages.figures(seen.all(7.0)) == {"outages": 2, "outage_s": 10.0}


def test_who_knows_why_a_broker_is_out_says_so_without_making_two_of_it() -> None:
    seen = Outages()
    seen.seen(A, 2.0, 1.0, "reset")
    assert seen.blame(A, 2.5, 1.5, "it ended with -9").is_out
    (found,) = seen.all(3.0)
    assert (found.why, found.began_s) == ("it ended with -9", 2.0)


def test_outages_survive_their_file_and_none_is_no_file(tmp_path: Path) -> None:
    place = tmp_path / outages.FILE
    assert outages.read(place) == []
    kept = [Outage(A, "refused", 101.0, 2.0, 20.0, True)]
    outages.write(kept, place)
    assert outages.read(place) == kept


class Watched:
    """A broker that is watched, and what is said of it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._said: queue.Queue[Change] = queue.Queue()
        self.watch = Watch([server.url], None, self._said.put, began_s=time.monotonic())

    def says(self, within_s: float) -> Change:
        return self._said.get(timeout=within_s)

    def says_nothing(self) -> bool:
        return self._said.empty()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with Server(tmp_path / "data", level="warning") as server:
        made = Watched(server)
        with made.watch:
            yield made


def test_a_broker_that_is_killed_is_named_within_five_seconds_and_so_is_its_return(
    watched: Watched,
) -> None:
    watched.server.kill()
    change = watched.says(NAMED_S)
    assert change.is_out
    assert watched.watch.out_s() is not None
    watched.server.start()
    assert not watched.says(RETURN_S).is_out
    assert watched.watch.out_s() is None
    (found,) = watched.watch.outages()
    assert found.is_over
    assert watched.says_nothing()


def test_a_broker_that_hangs_is_named_when_it_owes_an_answer(watched: Watched) -> None:
    assert outages.ASK_EVERY_S + outages.ANSWER_S < NAMED_S
    watched.server.freeze()
    change = watched.says(RETURN_S)
    assert change.text.endswith("no answer in time")
    watched.server.thaw()
    assert not watched.says(RETURN_S).is_out


def test_a_broker_that_was_never_there_is_named_too() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    said: queue.Queue[Change] = queue.Queue()
    with Watch([url], None, said.put, began_s=time.monotonic()) as watch:
        assert said.get(timeout=NAMED_S).text == f"{url} cannot be reached: Connection refused"
    watch.stop()
    (found,) = watch.outages()
    assert not found.is_over
