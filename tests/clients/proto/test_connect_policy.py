"""Which transport is tried next, and when a WebSocket is tried again beside a long poll."""

from random import Random

import pytest
from tocsin.proto.connect_policy import (
    DIED_YOUNG_MAX,
    RETURN_S,
    RETURN_S_MAX,
    YOUNG_S,
    Mode,
    Transport,
    TransportChoice,
)


def choice(mode: Mode = "auto") -> TransportChoice:
    return TransportChoice(mode, rng=Random(7))


def upcoming(chosen: TransportChoice) -> str:
    return chosen.next


def test_a_websocket_that_was_kept_out_is_followed_by_a_long_poll_at_once() -> None:
    chosen = choice()
    assert upcoming(chosen) == "websocket"
    assert chosen.on_failure("websocket", reached=True)
    assert upcoming(chosen) == "long-poll"


def test_where_nobody_is_there_the_transport_is_not_to_blame() -> None:
    chosen = choice()
    assert not chosen.on_failure("websocket", reached=False)
    assert upcoming(chosen) == "websocket"


def test_a_long_poll_that_fails_is_followed_by_a_websocket() -> None:
    chosen = choice()
    chosen.on_failure("websocket", reached=True)
    chosen.on_welcome("long-poll")
    assert upcoming(chosen) == "long-poll"  # what worked last comes first
    assert not chosen.on_failure("long-poll", reached=True)
    assert upcoming(chosen) == "websocket"


def test_websockets_that_die_young_in_a_row_give_way_to_a_long_poll() -> None:
    chosen = choice()
    for _ in range(DIED_YOUNG_MAX):
        assert upcoming(chosen) == "websocket"
        chosen.on_welcome("websocket")
        chosen.on_loss("websocket", lived_s=YOUNG_S - 1, had_reason=False)
    assert upcoming(chosen) == "long-poll"


@pytest.mark.parametrize(("lived_s", "had_reason"), [(YOUNG_S, False), (0.0, True)])
def test_one_that_lived_or_was_closed_with_a_word_did_not_die_young(
    lived_s: float, had_reason: bool
) -> None:
    chosen = choice()
    for _ in range(DIED_YOUNG_MAX - 1):
        chosen.on_loss("websocket", lived_s=1.0, had_reason=False)
    chosen.on_loss("websocket", lived_s=lived_s, had_reason=had_reason)
    chosen.on_loss("websocket", lived_s=1.0, had_reason=False)
    assert upcoming(chosen) == "websocket"


@pytest.mark.parametrize("mode", ["websocket", "long-poll"])
def test_where_one_transport_is_asked_for_the_other_is_never_tried(mode: Transport) -> None:
    chosen = choice(mode)
    for _ in range(5):
        assert not chosen.on_failure(mode, reached=True)
        chosen.on_welcome(mode)
        chosen.on_loss(mode, lived_s=0.1, had_reason=False)
        assert upcoming(chosen) == mode


def test_a_websocket_is_tried_ever_more_seldom_until_one_gets_through() -> None:
    chosen = choice()
    delays = [chosen.next_return_delay_s() for _ in range(8)]
    bounds = [min(RETURN_S_MAX, RETURN_S * 2**n) for n in range(8)]
    assert all(0.75 * bound <= delay <= bound for delay, bound in zip(delays, bounds, strict=True))
    chosen.on_welcome("websocket")
    assert chosen.next_return_delay_s() <= RETURN_S
