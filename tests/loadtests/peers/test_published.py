"""What docs/benchmarks/peers.md shows is what its results say, and nothing else."""

from pathlib import Path

from click.testing import CliRunner

from loadtests.peers import medians, report
from loadtests.peers.__main__ import PUBLISHED, peers
from loadtests.peers.pictures import pictures
from tests.layout.tree import ROOT
from tests.loadtests.peers.found import contest, runs


def shown(document: str) -> str:
    """Return the text between the marks."""
    return document.partition(report.BEGIN)[2].partition(report.END)[0].strip()


PAGE = ROOT / "docs/benchmarks/peers.md"


def test_the_page_shows_the_published_results() -> None:
    page = PAGE.read_text()
    assert (page.count(report.BEGIN), page.count(report.END)) == (1, 1)
    published = PAGE.parent / PUBLISHED
    results = medians.read((published / "results.json").read_bytes())
    drawn = pictures(results)
    places = {name: f"{PUBLISHED}/{name}.svg" for name in drawn}
    assert shown(page) == report.section(results, places).strip()
    for name, svg in drawn.items():
        assert (published / f"{name}.svg").read_text() == svg


def test_the_command_puts_results_into_a_document_and_keeps_them_with_their_plots(
    tmp_path: Path,
) -> None:
    results = contest(*runs("tocsin", "single", messages_per_s=50_000.0))
    file, document = tmp_path / "found.json", tmp_path / "peers.md"
    file.write_bytes(medians.written(results))
    document.write_text(f"before\n{report.BEGIN}\n{report.END}\nbehind\n")
    ran = CliRunner().invoke(peers, ["readme", str(file), str(document)], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith("behind\n")
    assert f"]({PUBLISHED}/throughput.svg)" in shown(text)
    assert "50,000" in shown(text)
    assert (tmp_path / PUBLISHED / "throughput.svg").exists()
    assert medians.read((tmp_path / PUBLISHED / "results.json").read_bytes()) == results


def test_a_document_without_marks_is_a_sentence_and_changes_nothing(tmp_path: Path) -> None:
    file, document = tmp_path / "found.json", tmp_path / "peers.md"
    file.write_bytes(medians.written(contest()))
    document.write_text("nothing")
    ran = CliRunner().invoke(peers, ["readme", str(file), str(document)])
    assert ran.exit_code == 1
    assert "has not one" in ran.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found.json", "peers.md"]
