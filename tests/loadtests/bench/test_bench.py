"""`tocsin bench --json` against a broker of its own: every scenario ends, and says what it must.

The figures themselves are the machine's; only `make bench` looks at them.
"""

import json
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadtests.bench import load_run, scenarios, sdk_load
from loadtests.bench.command import bench, file_system_in
from loadtests.bench.scenarios import SCENARIOS
from tests.loadtests.longer import longer

FIELDS = {
    "scenario", "messages_per_s", "p50_ms", "p99_ms", "p999_ms", "server_cpu_us_per_message",
    "conditions",
}  # fmt: skip
CONDITIONS = {
    "python", "cpu_count", "body_bytes", "seconds", "storage", "versions", "date",
}  # fmt: skip


@pytest.fixture(autouse=True)
def warms_up_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm-up makes figures steady, and nothing else."""
    for module in (load_run, scenarios, sdk_load):
        monkeypatch.setattr(module, "WARM_UP_S", 0.2)
    monkeypatch.setattr(sdk_load, "SETTLING", 2000)
    monkeypatch.setattr(sdk_load, "CLIENTS", 20)
    monkeypatch.setattr(scenarios, "IDLE_WARM_UP", 20)
    monkeypatch.setattr(scenarios, "POLLS_WARM_UP", 20)
    monkeypatch.setattr(scenarios, "QUEUES", (2, 60))
    monkeypatch.setattr(scenarios, "KEYS", (100, 5_000))
    monkeypatch.setattr(scenarios, "BLOCKS", 20)
    monkeypatch.setattr(scenarios, "PAIRS", 1)


def run(*arguments: str) -> list[dict[str, object]]:
    result = CliRunner().invoke(bench, ["--json", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_measures_and_cleans_up(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sizes = ("--connections", "40", "--backlog", "30000")
    (found,) = longer(
        lambda seconds: run("--scenario", name, "--seconds", str(seconds), *sizes),
        lambda found: found[0]["messages_per_s"],
    )
    assert found.keys() >= FIELDS
    assert found["scenario"] == name
    conditions = found["conditions"]
    assert isinstance(conditions, dict)
    assert conditions.keys() >= CONDITIONS
    if name == "idle":
        assert found["kib_per_connection"] is not None
    elif name == "polls":
        assert found["kib_per_session"] is not None
        assert isinstance(found["server_cpu_share"], float)
    else:
        assert isinstance(found["messages_per_s"], float)
        assert found["messages_per_s"] > 0
        assert found["server_cpu_us_per_message"] is not None
    if name not in {"idle", "polls", "backlog"}:
        assert isinstance(found["p50_ms"], float)
        assert isinstance(found["p999_ms"], float)
        assert 0 < found["p50_ms"] <= found["p999_ms"]
    assert list(tmp_path.iterdir()) == []


def test_pid_without_url_is_refused() -> None:
    result = CliRunner().invoke(bench, ["--pid", "1"])
    assert result.exit_code == 2
    assert "--url" in result.output


def test_nobody_at_the_url_is_a_sentence() -> None:
    result = CliRunner().invoke(
        bench, ["--url", "http://127.0.0.1:9", "--scenario", "single", "--seconds", "0.5"]
    )
    assert result.exit_code == 1
    assert "Error:" in result.output
    assert "Traceback" not in result.output


def test_table_for_people_has_a_line_for_each_scenario() -> None:
    result = CliRunner().invoke(
        bench, ["--scenario", "batch100", "--scenario", "single", "--seconds", "0.5"]
    )
    assert result.exit_code == 0, result.output
    heads = [line.split()[0] for line in result.stdout.splitlines()]
    assert heads == ["scenario", "batch100", "single"]


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/data", "xfs"), ("/data/store", "xfs"), ("/data2", "ext4"), ("/data2/store", "ext4"),
        ("/", "ext4"), ("/a b/store", "btrfs"), ("/over/store", "tmpfs"),
    ],
)  # fmt: skip
def test_a_file_system_is_that_of_the_mount_over_the_folder(folder: str, kind: str) -> None:
    """[`/data2` was measured, and the report said that of `/data`.] Of two mounts on one place the
    later one counts, and blanks are written as /proc does."""
    mounts = [
        "/dev/a / ext4 rw 0 0", "/dev/b /data xfs rw 0 0", "/dev/c /a\\040b btrfs rw 0 0",
        "/dev/d /over ext4 rw 0 0", "none /over tmpfs rw 0 0",
    ]  # fmt: skip
    assert file_system_in(Path(folder), "\n".join(mounts)) == kind
    assert file_system_in(Path(folder), "") == "unknown file system"
