"""Who is in a run, where, and how fast: the sums are right, and nobody's queue is without users."""

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.mix import plan
from loadtests.mix.coordination import CLASSES, Phase, Progress, phase, progress, report, tell
from loadtests.mix.plan import (
    CONSUMING,
    ROLES,
    SHARES,
    Plan,
    addresses,
    counts,
    manned,
    role_of,
    shares,
)

LOCUSTFILE = Path(plan.__file__).with_name("locustfile.py")


def planned(users: int = 2000, rate: float = 500.0, **more: float) -> Plan:
    return Plan(
        "r", ["http://127.0.0.1:1"], counts(users, SHARES | more), 2, rate, 300.0, 60.0, 256, 1, 0
    )


@given(st.integers(8, 20_000), st.dictionaries(st.sampled_from(sorted(ROLES)), st.integers(0, 90)))
def test_counts_add_up_and_nobody_who_has_a_share_is_left_out(
    users: int, more: dict[str, int]
) -> None:
    wanted = SHARES | more | {"rest": 1}
    found = counts(users, wanted)
    assert sum(found.values()) == users
    assert set(found) == {role for role, share in wanted.items() if share}
    assert min(found.values()) >= 1


@pytest.mark.parametrize(
    ("users", "wanted", "why"),
    [
        (100, {"worker": 1}, "no user publishes"),
        (100, {"websocket": 1, "ghost": 1}, "no role ghost"),
        (1, {"websocket": 1, "worker": 1}, "at least 2 users"),
    ],
)
def test_a_mix_that_cannot_be_is_refused(users: int, wanted: dict[str, float], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        counts(users, wanted)


def test_shares_are_said_over_the_usual_ones_or_alone() -> None:
    assert shares(["worker=50"]) == SHARES | {"worker": 50}
    assert shares(["none", "rest=1.5"]) == {"rest": 1.5}
    for text in ("worker", "worker=", "worker=many"):
        with pytest.raises(ValueError, match="no share"):
            shares([text])


def test_each_queue_has_the_consumers_of_one_role_and_as_many_partitions() -> None:
    whole = planned()
    assert len(whole.all_queues) == len(set(whole.all_queues))
    for role in CONSUMING:
        for queue in whole.queues(role):
            assert role_of(queue) == role
        each = whole.counts[role] / len(whole.queues(role))
        assert each <= plan.CONSUMERS_MAX <= whole.partitions(role) * 2


def test_who_is_slow_is_twice_as_fast_as_what_comes() -> None:
    for rate in (10.0, 500.0, 50_000.0):
        whole = planned(rate=rate)
        coming = rate * len(whole.queues("slow")) / len(whole.all_queues)
        assert 0 < whole.slow_s <= 0.2
        assert whole.counts["slow"] / whole.slow_s >= 2 * coming * 0.999


def test_publishers_are_as_fast_as_was_asked_for() -> None:
    whole = planned(rate=500.0)
    mean = (1 + plan.MESSAGES_MAX) / 2
    assert whole.publishers * mean / whole.interval_s == pytest.approx(500.0)


def test_a_plan_comes_back_from_its_file(tmp_path: Path) -> None:
    plan.write(planned(), tmp_path / "plan")
    assert plan.read(tmp_path / "plan") == planned()


def test_processes_hear_where_the_run_is_and_say_how_far_they_are(tmp_path: Path) -> None:
    assert phase(tmp_path) == Phase("ramp")
    tell(tmp_path, Phase("measure", 7))
    assert phase(tmp_path) == Phase("measure", 7)
    one = Progress({"GroupWorker": 2, "KeyReader": 1}, 2, 1, 0, 0, 0.5, 9)
    assert one.standing == 3
    report(tmp_path, 1, one)
    assert progress(tmp_path, 3) == [one]


def test_the_locustfile_has_the_class_of_each_role() -> None:
    found = {}
    for node in ast.walk(ast.parse(LOCUSTFILE.read_text())):
        if isinstance(node, ast.ClassDef) and node.name != "MixUser":
            said = next(n for n in node.body if isinstance(n, ast.Assign))
            found[ast.literal_eval(said.value)] = node.name
    assert found == CLASSES
    assert set(found) == set(ROLES) == set(SHARES)


def test_with_more_users_each_publisher_is_as_fast_as_before_and_consumers_have_queues() -> None:
    few = Plan("r", ["http://b"], {"websocket": 2, "worker": 1}, 1, 3.0, 0.0, 0.0, 256, 1, 0)
    many = manned(few, {"websocket": 200, "rest": 40, "worker": 130, "slow": 1})
    assert many.interval_s == pytest.approx(few.interval_s)
    assert many.rate == pytest.approx(240 * 1.5)
    assert len(many.queues("worker")) == 3
    none = manned(many, {"worker": 1})
    assert manned(none, few.counts).interval_s == pytest.approx(few.interval_s)


def test_users_that_consume_in_no_group_have_no_queue_of_their_own() -> None:
    assert planned().queues("websocket") == planned().queues("reader") == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("http://127.0.0.1:8080", ["http://127.0.0.1:8080"]),
        ("https://broker.example/", ["https://broker.example"]),
        ("127.0.0.1:8080, b:1", ["http://127.0.0.1:8080", "http://b:1"]),
        ("http://[::1]:8080", ["http://[::1]:8080"]),
    ],
)
def test_addresses_are_read_as_people_write_them(text: str, found: list[str]) -> None:
    assert addresses(text) == found


@pytest.mark.parametrize(
    "text", ["", "ftp://b", "http://", "http://b:port", "http://b:99999", "http://b/v1", "a,,b"]
)
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"Write one like http://127\.0\.0\.1:8080"):
        addresses(text)
