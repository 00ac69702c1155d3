"""The table says what was found, beside what a confirmation means, and also where we are behind."""

import pytest

from loadtests.peers.medians import Middle, Run, kept_up
from loadtests.peers.report import BEGIN, END, into, markdown, number, spread
from tests.loadtests.peers.found import contest, known, runs


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (13_412, "13,400"), (999.6, "1,000"), (100.4, "100"), (99.94, "99.9"),
        (5.4321, "5.43"), (0.5, "0.5"), (0.012345, "0.0123"), (0.000012, "0.000012"),
        (1_234_567, "1,230,000"),
    ],
)  # fmt: skip
def test_three_digits_count(value: float, text: str) -> None:
    assert number(value) == text


def test_a_median_has_its_range_where_there_are_rounds_enough() -> None:
    assert spread(Middle(5.0, 4.0, 6.0, 5)) == "5 (4 to 6)"
    assert spread(Middle(5.0, 5.0, 5.001, 5)) == "5"
    assert spread(Middle(5.0, 5.0, 5.0, 1)) == "5"
    assert spread(None) == "–"


@pytest.mark.parametrize(("rate", "is_so"), [(950.0, True), (949.9, False), (1000.0, True)])
def test_who_does_less_than_is_offered_does_not_keep_up(rate: float, is_so: bool) -> None:
    found = {("nats", "open1k"): {"messages_per_s": Middle(rate, rate, rate, 1)}}
    assert kept_up(found, "nats", "open1k") is is_so
    assert not kept_up(found, "tocsin", "open1k")


def row(table: str, title: str, column: str) -> str:
    """A cell of the first table that has this column."""
    lines = table.splitlines()
    head = next(
        n for n, line in enumerate(lines) if line.startswith("| ") and f"{column} |" in line
    )
    names = [cell.strip() for cell in lines[head].split("|")]
    line = next(line for line in lines[head:] if line.startswith(f"| **{title}** |"))
    return line.split("|")[names.index(column)].strip()


def test_throughput_is_shown_beside_what_a_confirmation_means() -> None:
    table = markdown(
        contest(
            *runs("tocsin", "single", messages_per_s=50_000, server_cpu_us=16, generator_cores=0.9),
            *runs("nats", "single", messages_per_s=13_000, server_cpu_us=26, generator_cores=0.5),
        )
    )
    assert row(table, "Tocsin", "single messages/s") == "50,000 (45,000 to 55,000)"
    assert row(table, "NATS <&>", "single messages/s") == "13,000 (11,700 to 14,300)"
    assert row(table, "NATS <&>", "confirmed") == "not synced"
    assert row(table, "NATS <&>", "a confirmation means") == "not synced (2 min)"
    assert row(table, "NATS <&>", "server CPU s per million") == "26 (23.4 to 28.6)"
    assert row(table, "NATS <&>", "generator, cores") == "0.5 (0.45 to 0.55)"
    assert row(table, "NATS <&>", "by the hundred/s") == "–"


def test_latencies_are_shown_of_those_who_keep_up_alone() -> None:
    latency = {"p50_ms": 2.0, "p99_ms": 9.0, "p999_ms": 20.0}
    table = markdown(
        contest(
            *runs("tocsin", "open10k", messages_per_s=9_990, **latency),
            *runs("nats", "open10k", messages_per_s=4_000, **latency),
        )
    )
    assert row(table, "Tocsin", "10,000 messages/s") == "2 / 9 / 20"
    assert row(table, "NATS <&>", "10,000 messages/s") == "not kept up: 4,000/s"


def behind(table: str) -> list[str]:
    """The lines that say where Tocsin is behind."""
    _, _, rest = table.partition("Where Tocsin is behind:")
    return [line for line in rest.split("Left out:")[0].splitlines() if line.startswith("- ")]


def test_where_we_are_behind_is_said_both_ways_round() -> None:
    found = contest(
        *runs("tocsin", "single", messages_per_s=10_000, server_cpu_us=20),
        *runs("nats", "single", messages_per_s=15_000, server_cpu_us=5),
        *runs("tocsin", "batch", messages_per_s=100_000, server_cpu_us=5),
        *runs("nats", "batch", messages_per_s=20_000, server_cpu_us=20),
    )
    assert behind(markdown(found)) == [
        "- single messages a second: 10,000; better: NATS <&> 15,000 (1.5 times)",
        "- server CPU, single messages (µs each): 20; better: NATS <&> 5 (4 times)",
    ]


@pytest.mark.parametrize(("theirs", "is_behind"), [(10_300.0, True), (10_299.0, False)])
def test_a_little_better_is_as_good(theirs: float, is_behind: bool) -> None:
    found = contest(
        Run(1, "tocsin", "single", {"messages_per_s": 10_000.0}),
        Run(1, "nats", "single", {"messages_per_s": theirs}),
    )
    assert bool(behind(markdown(found))) is is_behind
    assert ("nowhere in this run" in markdown(found)) is not is_behind


def test_nobody_is_behind_its_own_kin() -> None:
    found = contest(
        Run(1, "tocsin", "single", {"messages_per_s": 10_000.0}),
        Run(1, "tocsin-redis", "single", {"messages_per_s": 20_000.0}),
        **{"tocsin-redis": known("Tocsin over Redis")},
    )
    assert "nowhere in this run" in markdown(found)


def test_who_does_not_keep_up_is_behind_and_nobody_is_behind_who_does_not() -> None:
    ours = Run(1, "tocsin", "open10k", {"messages_per_s": 9_990.0, "p99_ms": 9.0})
    theirs = Run(1, "nats", "open10k", {"messages_per_s": 100.0, "p99_ms": 1.0})
    assert behind(markdown(contest(ours, theirs))) == []
    slow = Run(1, "tocsin", "open10k", {"messages_per_s": 100.0, "p99_ms": 1.0})
    assert behind(markdown(contest(slow))) == ["- p99 at 10,000/s (ms): it does not keep up"]


def test_who_was_left_out_and_what_failed_is_said_with_the_reason() -> None:
    found = contest(Run(1, "nats", "single", failure="it ended:\nits log\nand why"))
    found.skipped["rabbitmq"] = "it is not here"
    found.cut = "interrupted"
    table = markdown(found)
    assert "- not measured: rabbitmq, because it is not here" in table
    assert "- failed 1 times: nats, single: it ended: … and why" in table
    assert "its log" not in table
    assert "- cut short: interrupted" in table
    assert "Tocsin did not take part." in table


def test_a_section_goes_between_its_marks_and_changes_nothing_else() -> None:
    document = f"# A\n{BEGIN}\nold\n{END}\nrest\n"
    changed = into(document, "new\n")
    assert changed == f"# A\n{BEGIN}\nnew\n{END}\nrest\n"
    assert into(changed, "new\n") == changed


@pytest.mark.parametrize("document", ["", BEGIN, END, f"{BEGIN}{END}{BEGIN}{END}"])
def test_a_document_without_one_pair_of_marks_is_refused(document: str) -> None:
    with pytest.raises(ValueError, match="has not one"):
        into(document, "new")


def test_what_a_message_costs_at_a_rate_is_shown_also_of_those_who_do_not_keep_up() -> None:
    table = markdown(
        contest(
            *runs("tocsin", "open1k", messages_per_s=1_200, server_cpu_us=400, written_per_byte=20),
            *runs("nats", "open1k", messages_per_s=500, server_cpu_us=600, written_per_byte=3),
        )
    )
    lines = [line for line in table.splitlines() if line.startswith("| **Tocsin** | fsync before")]
    assert "| **Tocsin** | fsync before each | 400 (360 to 440) |" in lines
    assert "| **Tocsin** | fsync before each | 20 (18 to 22) | – |" in lines
    assert "| **NATS <&>** | not synced | 600 (540 to 660), at 500/s |" in table
    assert "write_bytes" in table


def test_budgets_are_shown_beside_the_ratios_of_the_same_run_and_explained() -> None:
    found = contest(
        Run(1, "tocsin", "open1k", {"messages_per_s": 1000.0, "p50_ms": 3.0}),
        Run(1, "nats", "open1k", {"messages_per_s": 1000.0, "p50_ms": 2.0}),
        Run(1, "rabbitmq", "open1k", {"messages_per_s": 1000.0, "p50_ms": 6.0}),
        Run(1, "tocsin", "single", {"messages_per_s": 100_000.0}),
        rabbitmq=known("RabbitMQ"),
        **{"tocsin-redis": known("Tocsin over Redis")},
    )
    table = markdown(found)
    head = next(line for line in table.splitlines() if line.startswith("| budget |"))
    assert head.endswith("| result | to NATS <&> (not synced) | to RabbitMQ (fsync before each) |")
    assert (
        "| p50 at 1,000/s against NATS JetStream, which does not sync | ≤ 1.3× | ≤ 1× "
        "| 1.5× (3 / 2 ms) | missed | 1.5× | 0.5× |"
    ) in table
    assert ("| single messages a second | ≥ 95,000 | ≥ 145,000 | 100,000 | kept | – | – |") in table
    assert "A budget is a bound that Tocsin sets itself" in table
    assert "In this run 1 of 12 were missed." in " ".join(table.split())
