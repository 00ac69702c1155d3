"""What dead letters say of themselves, through however many deaths."""

from push.message import (
    EARLIER_DEATHS_MAX,
    dead_letter_headers,
    earlier_deaths,
    headers_without_groups,
    last_death,
    revived_headers,
)


def test_what_dies_twice_goes_back_the_way_it_came() -> None:
    """Each time it is as it was before. [It is sent back to the first dead-letter queue without
    what it said there: whoever looks from the first queue finds nothing.]"""
    own = {"trace": "7"}
    first = dead_letter_headers(own, reason="expired", queue="a", offset="3", nack=None)
    second = dead_letter_headers(first, reason="exhausted", queue="a.dead-letters", offset="0")
    assert last_death(second) == {"reason": "exhausted", "queue": "a.dead-letters", "offset": "0"}
    assert earlier_deaths(second) == [{"reason": "expired", "queue": "a", "offset": "3"}]
    assert revived_headers(second) == first
    assert revived_headers(first) == own
    assert revived_headers(dead_letter_headers(None, reason="expired")) is None


def test_what_shows_no_groups_shows_none_of_an_earlier_death() -> None:
    """P11; the publisher's own headers stay."""
    letter = dead_letter_headers({"trace": "7"}, reason="expired", queue="a", group="g", nack="why")
    twice = dead_letter_headers(letter, reason="expired", queue="b", group="h", nack="so")
    shown = {"tocsin-dead-letter-reason": "expired"}
    for headers, queue in ((letter, "a"), (twice, "b")):
        assert headers_without_groups(headers) == {
            "trace": "7", **shown, "tocsin-dead-letter-queue": queue,
        }  # fmt: skip
    assert headers_without_groups({"tocsin-dead-letter-group": "g"}) is None
    assert headers_without_groups(None) is None


def test_a_letter_that_goes_round_remembers_where_it_came_from_and_does_not_grow() -> None:
    """P9."""
    headers = dead_letter_headers({"own": "x"}, queue="first")
    for number in range(100):
        headers = dead_letter_headers(headers, queue=f"q{number}")
    earlier = earlier_deaths(headers)
    assert len(earlier) == EARLIER_DEATHS_MAX
    assert (earlier[0]["queue"], earlier[-1]["queue"]) == ("first", "q98")


def test_what_somebody_else_wrote_there_is_no_death() -> None:
    """A store of before took such headers from clients."""
    assert earlier_deaths({"tocsin-dead-letter-earlier": "no JSON"}) == []
    assert dead_letter_headers({"tocsin-dead-letter-earlier": "1"}, queue="a") == {
        "tocsin-dead-letter-queue": "a"
    }
