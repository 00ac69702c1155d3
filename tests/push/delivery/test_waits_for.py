"""The causes for which keys wait, as operators count them: `push.delivery.waits_for`."""

from push.delivery import waits_for
from push.delivery.key_lines import Line

NOW = 100.0


def line(*waiting: int, in_flight: tuple[int, ...] = (), exclusive: bool = True) -> Line:
    """A key's line with these offsets."""
    made = Line(7, exclusive)
    made.waiting.extend(waiting)
    made.in_flight.update(in_flight)
    return made


def test_a_key_of_which_all_is_in_flight_waits_for_nothing() -> None:
    assert waits_for(line(in_flight=(3,)), NOW) is None


def test_a_key_that_may_give_now_is_ready() -> None:
    assert waits_for(line(3), NOW) == "ready"
    beside = line(4, in_flight=(3,), exclusive=False)
    beside.window = 2
    assert waits_for(beside, NOW) == "ready"


def test_a_key_behind_a_message_in_flight_waits_for_it() -> None:
    assert waits_for(line(4, in_flight=(3,)), NOW) == "gate"


def test_a_key_waits_for_its_backoff_until_it_is_over() -> None:
    made = line(3)
    made.dues[3] = NOW + 1
    assert waits_for(made, NOW) == "backoff"
    assert waits_for(made, NOW + 1) == "ready"


def test_a_key_whose_change_is_not_durable_waits_for_the_storage() -> None:
    made = line(3)
    made.dying.add(2)
    assert waits_for(made, NOW) == "commit"
    aside = line()
    aside.aside = 2
    assert waits_for(aside, NOW) == "commit"


def test_a_parked_key_waits_for_an_operator_and_then_for_the_storage() -> None:
    made = line(3)
    made.parked = True
    assert waits_for(made, NOW) == "parked"
    made.decide("retry", 3)
    assert waits_for(made, NOW) == "commit"
