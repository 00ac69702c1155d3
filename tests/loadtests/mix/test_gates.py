"""Gates say no where a figure is beyond its bound, and where there is no such figure."""

import pytest

from loadtests.mix.gates import ALWAYS, USUAL, Gate, NoGate, gate, gates, held


@pytest.mark.parametrize(
    ("text", "found", "ok"),
    [
        ("p99_ms<=50", 50.0, True), ("p99_ms<=50", 50.001, False),
        ("p99_ms<50", 49.9, True), ("p99_ms<50", 50.0, False),
        ("certified_per_s>=100", 100.0, True), ("certified_per_s>=100", 99.9, False),
        ("certified_per_s > 100", 100.1, True), ("certified_per_s>100", 100.0, False),
        ("lost=0", 0.0, True), ("lost=0", 1.0, False),
    ],
)  # fmt: skip
def test_a_gate_is_judged_on_both_sides_of_its_bound(text: str, found: float, ok: bool) -> None:
    one = gate(text)
    (judged,) = held([one], {one.figure: found})
    assert judged.ok is ok
    assert str(judged).startswith("kept" if ok else "BROKEN")


def test_a_figure_that_there_is_not_breaks_its_gate() -> None:
    (judged,) = held([gate("delivery_p99_m<=50")], {"delivery_p99_ms": 1.0})
    assert not judged.ok
    assert "no such figure" in str(judged)


@pytest.mark.parametrize("text", ["", "p99", "p99<=", "<=5", "p99=<5", "p99<=fast", "P99<=5"])
def test_what_is_no_gate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(NoGate, match="delivery_p99_ms<=50"):
        gate(text)


def test_nobody_can_loosen_what_every_run_is_held_to() -> None:
    asked = [str(one) for one in gates(["lost<=10", "delivery_p99_ms<=1"])]
    assert asked == [*ALWAYS, "lost<=10", "delivery_p99_ms<=1"]
    assert not all(one.ok for one in held(gates(["lost<=10"]), {"lost": 5.0}))


def test_without_others_the_usual_gates_hold() -> None:
    assert [str(one) for one in gates([])] == [*ALWAYS, *USUAL]
    assert gate("a<=0.5") == Gate("a", "<=", 0.5)
