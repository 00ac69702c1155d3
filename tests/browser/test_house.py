"""The judge of these tests sees what it is there for."""

import pytest

from tests.browser.house import check

PLACES = [(0, 0), (0, 1), (0, 2), (1, 0)]
CAME = [[0, 0, "a", 0], [0, 1, "b", 1], [1, 0, "c", 3], [0, 2, "a", 2]]


def test_what_came_once_and_in_order_is_right() -> None:
    check("seen", CAME, PLACES)


@pytest.mark.parametrize(
    ("came", "said"),
    [
        (CAME[:-1], "1 of 4 never came"),
        ([*CAME, CAME[0]], "0 behind 2"),
        ([CAME[3], *CAME[:3]], "0 behind 2"),
        ([*CAME, [2, 7, "d", 9]], "5 came of 4"),
    ],
)
def test_a_gap_a_repetition_an_inversion_and_an_invention_are_seen(
    came: list[list[object]], said: str
) -> None:
    with pytest.raises(AssertionError, match=said):
        check("seen", came, PLACES)
