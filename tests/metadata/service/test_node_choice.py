"""Whom a gateway asks of the metadata service's nodes, by literal times."""

from collections import Counter
from itertools import cycle, repeat

from hypothesis import given
from hypothesis import strategies as st

from metadata.service.client import AWAY_S_MAX, TRIES_MIN, NodeChoice
from metadata.service.protocol import Layout, NodeInfo
from metadata.service.shards import SHARDS, holders

URLS = ["http://a", "http://b", "http://c"]


def test_the_first_one_is_asked_until_it_fails_and_then_another() -> None:
    choice = NodeChoice(URLS, repeat(0.0).__next__)
    assert choice.to_ask(now=0) == URLS
    choice.on_failure("http://a", now=0)
    assert choice.to_ask(now=0.2)[:2] == ["http://b", "http://c"]
    assert "http://a" not in choice.to_ask(now=0.2)
    assert choice.to_ask(now=0.25) == ["http://b", "http://c", "http://a"]
    choice.on_answer("http://a")
    assert choice.to_ask(now=0.25) == ["http://b", "http://c", "http://a"]  # and stays there


def test_gateways_begin_at_different_nodes() -> None:
    first = Counter(NodeChoice(URLS, repeat(n / 30).__next__).to_ask(now=0)[0] for n in range(30))
    assert set(first.values()) == {10}


def test_who_fails_again_and_again_is_asked_less_and_less_but_for_ever() -> None:
    choice, times, now = NodeChoice(["http://a"], cycle([0.0, 0.9]).__next__), [], 0.0
    for _ in range(8):
        choice.on_failure("http://a", now=now)
        until = choice._away["http://a"][1]
        times.append(until - now)
        now = until
    assert times[0] < times[2] < times[4]
    assert AWAY_S_MAX <= max(times) <= 2 * AWAY_S_MAX


def test_who_has_failed_thousands_of_times_is_asked_as_before() -> None:
    choice = NodeChoice(["http://a"], repeat(0.0).__next__)
    for _ in range(5000):
        choice.on_failure("http://a", now=0.0)
    assert choice.to_ask(now=AWAY_S_MAX) == ["http://a"] * TRIES_MIN
    assert choice._away["http://a"][1] == AWAY_S_MAX


def test_when_all_are_away_one_is_asked_and_not_all() -> None:
    """Else each call of each gateway would try every node, again and again, at the moment that the
    first one comes back."""
    choice = NodeChoice(URLS, repeat(0.0).__next__)
    for number, url in enumerate(URLS):
        choice.on_failure(url, now=number / 100)
    assert choice.to_ask(now=0.1) == ["http://a"] * TRIES_MIN


def nodes(layout: Layout, *names: str) -> list[NodeInfo]:
    return [NodeInfo(f"http://{name}", layout) for name in names]


def test_a_balancer_is_never_gone_around() -> None:
    """What is behind it cannot be reached, perhaps."""
    choice = NodeChoice(["http://balancer"], repeat(0.0).__next__)
    choice.learn(nodes("whole", "a", "b", "c"))
    assert set(choice.to_ask(now=0)) == {"http://balancer"}
    assert set(choice.to_ask_for(7, now=0)) == {"http://balancer"}


def test_a_shard_is_asked_of_its_holders_first_and_then_of_anybody() -> None:
    choice = NodeChoice(["http://a"], repeat(0.0).__next__)
    choice.learn(nodes("ring", "a", "b", "c", "d", "e"))
    everybody = [one.url for one in choice.nodes]
    for shard in range(SHARDS):
        asked = choice.to_ask_for(shard, now=0)
        assert asked[:3] == list(holders(shard, everybody))
        assert set(asked) == set(everybody)
    choice.on_failure(holders(0, everybody)[0], now=0)
    assert choice.to_ask_for(0, now=0.1)[0] == holders(0, everybody)[1]


def test_where_nodes_forward_anybody_is_asked() -> None:
    choice = NodeChoice(["http://a"], repeat(0.0).__next__)
    choice.learn(nodes("forward", "a", "b", "c"))
    assert {choice.to_ask_for(shard, now=0)[0] for shard in range(SHARDS)} == {"http://a"}


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("failed"), st.sampled_from(URLS)),
            st.tuples(st.just("answered"), st.sampled_from(URLS)),
            st.tuples(st.just("learn"), st.sampled_from("abcdef")),
            st.tuples(st.just("wait"), st.sampled_from(["0.1", "3"])),
        )
    )
)
def test_there_is_always_somebody_to_be_asked_and_who_is_well_is_first(
    acts: list[tuple[str, str]],
) -> None:
    choice, now = NodeChoice(URLS, repeat(0.5).__next__), 0.0
    for act, what in acts:
        if act == "failed":
            choice.on_failure(what, now=now)
        elif act == "answered":
            choice.on_answer(what)
        elif act == "learn":
            choice.learn(nodes("ring", *{"a", what}))
        else:
            now += float(what)
        for asked in (choice.to_ask(now=now), choice.to_ask_for(3, now=now)):
            assert len(asked) >= TRIES_MIN
            well = [url for url in URLS if choice._away.get(url, (0, 0.0))[1] <= now]
            assert not well or choice._away.get(asked[0], (0, 0.0))[1] <= now
            assert set(well) <= set(asked)
