"""Responsiveness of a consumer, against the rule as docs/protocol.md words it (R14)."""

from hypothesis import given
from hypothesis import strategies as st

from push.subscription import Responsiveness

ACTS = st.lists(
    st.tuples(st.sampled_from(["sign", "lapsed", "back", "give up"]), st.integers(0, 3)),
    max_size=30,
)


def is_unresponsive(history: list[tuple[str, float, float]]) -> bool:
    """The same from the whole history of (act, when, given at), said slowly."""
    unresponsive, begins = False, float("-inf")
    for place, (act, at, given_at) in enumerate(history):
        before = history[:place]
        signs = [when for one, when, _ in before if one == "sign" and when > given_at]
        if act == "give up" or (act == "lapsed" and not signs and given_at >= begins):
            unresponsive = True
        elif act in ("sign", "back"):
            if unresponsive:
                begins = at
            unresponsive = False
    return unresponsive


@given(ACTS)
def test_any_history_is_judged_as_it_is_worded(acts: list[tuple[str, int]]) -> None:
    consumer, history, now = Responsiveness(), list[tuple[str, float, float]](), 0.0
    for act, ago in acts:
        now += 1.0
        was = consumer.is_unresponsive
        given_at = now - ago - 0.5
        history.append((act, now, given_at))
        match act:
            case "sign":
                has_changed = consumer.on_sign(now=now)
            case "back":
                has_changed = consumer.on_activity(now=now)
            case "lapsed":
                has_changed = consumer.on_lease_end(given_at)
            case _:
                has_changed = consumer.give_up()
        assert consumer.is_unresponsive == is_unresponsive(history), history
        assert has_changed == (consumer.is_unresponsive != was)


def test_whoever_says_nothing_for_a_whole_lease_is_unresponsive() -> None:
    consumer = Responsiveness()
    assert not consumer.on_sign(now=10.0)
    assert not consumer.on_lease_end(9.0), "it was heard of while this one was under way"
    assert consumer.on_lease_end(10.0), (
        "in the same moment: which of the two came first nobody knows"
    )
    assert consumer.is_unresponsive
    assert not consumer.on_lease_end(11.0), "already"
    assert consumer.on_sign(now=50.0)
    assert not consumer.is_unresponsive


def test_whoever_grants_credit_is_back_and_begins_anew() -> None:
    consumer = Responsiveness()
    assert consumer.on_lease_end(0.0)
    assert consumer.on_activity(now=40.0)
    assert not consumer.on_lease_end(39.0), "what it was given before"
    assert not consumer.on_activity(now=41.0), "credit is no sign while it is responsive"
    assert consumer.on_lease_end(40.5)
