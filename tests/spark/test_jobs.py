"""The jobs on a real Spark: every line once, figures as exact as they say, every promise checked.

All in one file: each process that runs one of these tests starts a JVM.
"""

import base64
import datetime
import json
import os
import random
import shutil
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark import files, latency, lines, losses, matching, order, periods, sketches, sources
from spark.figures import COLUMNS_MAX, ROWS_MAX, USED_MAX, collect
from spark.ingest import ingest
from spark.lake import Lake, LakeError, write_json
from spark.order_audit import audit
from spark.progress import Progress
from spark.report import Wanted, at_once, parse_targets, report
from spark.rollup import NO_TARGETS, Targets, close, rollup
from spark.schema import CERTIFIED, DISPATCHED, KINDS, PLACELESS, SETTLED, SPANS, UNLOGGED
from spark.synthetic import Answers, Plan, Synthetic
from spark.usage import SCHEMA, TABLE, usage
from spark.usage import read as read_usage
from tests.histories.accused import (
    Case,
    Finding,
    cases_of_any,
    findings_of,
    healthy_cases,
    planted_cases,
    wrong,
)
from tests.memory import in_memory
from tests.spark.judged import (
    BEGAN_MS,
    GATEWAY,
    T0,
    certified,
    dispatched,
    percentile_us,
    position,
    settled,
    write_log,
)

soak = pytest.mark.skipif(
    not os.environ.get("TOCSIN_SOAK"), reason="each is seconds of a JVM: make soak has all of them"
)
FAULTS = ("gap", "repetition", "inversion", "overtaken", "hole")
TARGET_US = 5_000


@dataclass
class Run:
    """A synthetic log, its answers, and the lake that the jobs made of it."""

    folder: Path
    answers: Answers
    lake: Lake
    done: dict[str, Any]
    is_stepped: bool


@pytest.fixture(scope="session", params=["whole", pytest.param("stepped", marks=soak)])
def run(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[Run]:
    """One fault of each kind; also, a clock that was stepped a day on and back over a month's
    end, in many files: three days to be rolled up."""
    plan = Plan(messages=4_000, faults=FAULTS, redeliveries=4)
    if request.param == "stepped":
        plan = replace(plan, lines_max=60, steps=((0.4, 86_400), (0.7, -86_400)))
    with in_memory() as folder:
        answers = Synthetic(plan).write(folder)
        lake = Lake(folder / "lake")
        logs = str(folder / "delivery")
        done = {
            "ingest": ingest(spark, logs, lake, batch_bytes=70_000 if plan.steps else None),
            "rollup": rollup(spark, lake, targets=Targets(None, {"orders": TARGET_US})),
            "usage": usage(spark, lake, folder / "usage"),
            "audit": audit(spark, lake),
        }
        yield Run(folder, answers, lake, done, is_stepped=bool(plan.steps))


def table(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    return lake.read_rollup(spark, name, periods.SCHEMAS[name])


def by_hour(spark: SparkSession, lake: Lake) -> Counter[tuple[str, str, int]]:
    """(kind, date, hour) → messages in the lake."""
    found: Counter[tuple[str, str, int]] = Counter()
    for kind in (CERTIFIED, DISPATCHED, SETTLED):
        lines = lake.read(spark, kind)
        if kind == CERTIFIED:
            lines = lines.where(~F.coalesce("outcome", F.lit("")).isin(*PLACELESS))
        rows = lines.groupBy("date", "hour").agg(F.sum("messages").alias("n"))
        for row in rows.collect():
            found[kind, row["date"].isoformat(), row["hour"]] = row["n"]
    return found


def sums(spark: SparkSession, lake: Lake) -> dict[str, int]:
    return {
        kind: lake.read(spark, kind).agg(F.coalesce(F.sum("messages"), F.lit(0))).collect()[0][0]
        for kind in (CERTIFIED, DISPATCHED, SETTLED)
    }


# --- Ingest -------------------------------------------------------------------------------------


def test_every_line_is_in_the_lake_once_in_the_hour_of_its_clock(
    spark: SparkSession, run: Run
) -> None:
    assert run.done["ingest"]["messages"] == dict(run.answers.messages)
    assert run.done["ingest"]["quarantined"] == {}
    found = by_hour(spark, run.lake)
    assert found == run.answers.by_hour
    if run.is_stepped:
        assert len(run.lake.batches()) > 2
        assert {date for _, date, _ in found} >= {"2026-01-31", "2026-02-01", "2026-02-02"}


@soak
def test_a_second_ingest_brings_what_is_new_alone(spark: SparkSession, tmp_path: Path) -> None:
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "delivery"
    write_log(logs, 1, [certified([[0, 0, 3]])])
    assert ingest(spark, str(logs), lake)["messages"] == {CERTIFIED: 3}
    assert ingest(spark, str(logs), lake)["files"] == 0
    write_log(logs, 2, [certified([[0, 3, 2]])])
    assert ingest(spark, str(logs), lake)["messages"] == {CERTIFIED: 2}
    assert sums(spark, lake)[CERTIFIED] == 5


@soak
def test_an_old_file_that_comes_late_is_not_passed_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "delivery"
    write_log(logs, 2, [certified([[0, 3, 2]])])
    ingest(spark, str(logs), lake)
    old = write_log(logs, 1, [certified([[0, 0, 3]])])
    os.utime(old, (1_600_000_000, 1_600_000_000))
    assert ingest(spark, str(logs), lake)["messages"] == {CERTIFIED: 3}


def lost(lake: Lake) -> list[tuple[str, int | None]]:
    """(reason, number) of the files that the log lacks."""
    found = losses.losses(lake.manifests(), [])
    return [(loss.reason, loss.number) for loss in found if loss.reason != losses.NOT_YET]


def test_a_file_is_known_by_its_content_under_any_name_and_in_any_folder(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Renamed, with another number, copied to another folder, touched: each is read once more, and
    brings nothing; and is not read again."""
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "logs"
    first = write_log(logs / "a", 1, [certified([[0, 0, 3]])])
    ingest(spark, str(logs), lake)
    (logs / "b").mkdir()
    copies = ["renamed.jsonl", first.name.replace("000001", "000007"), f"b/{first.name}"]
    for copy in copies:
        shutil.copy(first, logs / copy)
    os.utime(first, (1_600_000_000, 1_600_000_000))
    again = ingest(spark, str(logs), lake)
    assert (again["files"], again["messages"]) == (0, {})
    repeated = [one["path"] for made in lake.manifests(after=0) for one in made["repeated_files"]]
    assert sorted(repeated) == sorted(
        f"file:{path}" for path in (first, *[logs / copy for copy in copies])
    )
    count = len(lake.batches())
    ingest(spark, str(logs), lake)
    assert len(lake.batches()) == count
    assert sums(spark, lake)[CERTIFIED] == 3
    entries = [one for made in lake.manifests() for one in made["files"]]
    assert [(one["number"], one["lines"]) for one in entries] == [(1, 1)]
    assert lost(lake) == []


def test_a_damaged_copy_is_no_loss_any_more_when_a_whole_one_comes(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "logs"
    whole = write_log(tmp_path / "kept", 1, [certified([[0, 0, 3]]), certified([[0, 3, 3]])])
    (logs / "torn").mkdir(parents=True)
    one_line = whole.read_bytes().index(b"\n") + 1
    for size, name in ((-40, whole.name), (one_line, "x.jsonl")):
        (logs / "torn" / name).write_bytes(whole.read_bytes()[:size])
    came = ingest(spark, str(logs), lake)
    assert (came["messages"], came["quarantined"]) == ({}, {lines.DAMAGED_FILE: 4})
    entries = lake.manifests()[0]["files"]
    assert lost(lake) == [(losses.DAMAGED, 1)]
    assert losses.quarantined(lake.manifests()) == {lines.DAMAGED_FILE: 4}
    assert len(came["damaged"]) == 2
    assert {one["gateway"] for one in entries} == {GATEWAY}
    assert {(one["since_unix_us"], one["until_unix_us"]) for one in entries} == {(T0, T0)}
    (logs / "whole").mkdir()
    shutil.copy(whole, logs / "whole")
    (logs / "torn again").mkdir()
    shutil.copy(logs / "torn" / whole.name, logs / "torn again")
    came = ingest(spark, str(logs), lake)
    assert (came["messages"], came["quarantined"]) == ({CERTIFIED: 6}, {})
    assert lost(lake) == []
    # Nobody knows which number the one had whose name and last line are lost.
    assert losses.quarantined(lake.manifests()) == {lines.DAMAGED_FILE: 1}


def test_logs_come_from_any_folders_at_any_time(spark: SparkSession, tmp_path: Path) -> None:
    """Dated, named as partitions, of several machines, with marks and spaces in their names."""
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "logs"
    places = [
        "2026-01-31", "dt=2026-02-01/host=a b", "kind=x/hour=7", "100%/[a]{b,c}*", "é+%2F",
        "_hidden", "one/two/three",
    ]  # fmt: skip
    for number, place in enumerate(places, 1):
        write_log(logs / place, number, [certified([[0, number, 1]])])
    odd = write_log(logs / "é+%2F", 20, [certified([[0, 20, 1]])], name="a b+%41[é].jsonl")
    assert ingest(spark, str(logs / "2026-01-31"), lake)["messages"] == {CERTIFIED: 1}
    some = [str(logs / "100%/[a]{b,c}*"), str(logs / "dt=*/host=a*"), str(logs / "100%")]
    assert ingest(spark, some, lake)["messages"] == {CERTIFIED: 2}
    assert ingest(spark, f"file:{logs}", lake)["messages"] == {CERTIFIED: 4}
    found = {row["file"] for row in lake.read(spark, CERTIFIED).collect()}
    assert len(found) == len(places)
    assert odd.name in found
    assert not any("_hidden" in one["path"] for m in lake.manifests() for one in m["files"])
    for name, said in (("none", "no folder .*none"), ("no*", "nothing matches")):
        with pytest.raises(LakeError, match=said):
            ingest(spark, [str(logs), str(logs / name)], lake)
    (tmp_path / "empty").mkdir()
    assert ingest(spark, str(tmp_path / "empty"), lake)["files"] == 0


def test_files_of_something_else_are_no_damage(spark: SparkSession, tmp_path: Path) -> None:
    """Whoever names the data folder has the usage log and the audit trail in it, too. A damaged
    file of a delivery log is one under any name."""
    lake, data = Lake(tmp_path / "lake"), tmp_path / "data"
    Synthetic(Plan(messages=100)).write(data)
    (data / "audit").mkdir()
    (data / "audit" / "audit-2026-01-31T22-000001.jsonl").write_text('{"schema":1,"act":"x"}\n')
    came = ingest(spark, str(data), lake)
    assert (came["foreign"], came["quarantined"], came["damaged"]) == (2, {}, [])
    assert came["messages"][CERTIFIED] == 100
    assert lost(lake) == []
    ingest(spark, str(data), lake)
    assert lake.batches() == [0]
    for number, text in enumerate(('{"schema":1,"kind":"x"}\n', "no JSON\n", '{"schema":1')):
        (data / f"torn{number}.jsonl").write_text(text)
    came = ingest(spark, str(data), lake)
    assert (came["foreign"], len(came["damaged"])) == (0, 3)


def test_empty_files_are_in_the_manifest(spark: SparkSession, tmp_path: Path) -> None:
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "logs"
    write_log(logs, 1, [])
    (logs / f"{GATEWAY}-{BEGAN_MS}-000002.jsonl").touch()
    write_log(logs, 3, [certified([[0, 0, 3]])])
    assert ingest(spark, str(logs), lake)["messages"] == {CERTIFIED: 3}
    (manifest,) = lake.manifests()
    entries = {one["number"]: one for one in manifest["files"]}
    assert {number: one["fault"] for number, one in entries.items()} == {
        1: "", 2: files.NO_END, 3: "",
    }  # fmt: skip
    assert [entries[number]["lines"] for number in (1, 2, 3)] == [0, 0, 1]
    assert [entries[number]["since_unix_us"] for number in (1, 2, 3)] == [None, None, T0]
    assert lost(lake) == [(losses.DAMAGED, 2)]
    ingest(spark, str(logs), lake)
    assert lake.batches() == [0]


def test_many_small_files_are_a_few_tasks_and_a_few_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "logs"
    for number in range(1, 301):
        write_log(logs, number, [certified([[0, number, 1]], T0 + number)])
    assert ingest(spark, str(logs), lake)["messages"] == {CERTIFIED: 300}
    assert lake.batches() == [0]
    written = list(lake.spans(CERTIFIED).rglob("*.parquet"))
    assert len(written) <= 2 * spark.sparkContext.defaultParallelism


def test_a_file_whose_last_line_lies_is_quarantined(spark: SparkSession, tmp_path: Path) -> None:
    """The sum is right, and the count is not: not before all is read can that be seen."""
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "logs"
    write_log(logs, 1, [certified([[0, 0, 3]])], lines=2)
    write_log(logs, 2, [certified([[0, 3, 3]])])
    came = ingest(spark, str(logs), lake)
    assert (came["messages"], came["quarantined"]) == ({CERTIFIED: 3}, {lines.DAMAGED_FILE: 2})
    found = {one["number"]: one["fault"] for one in lake.manifests()[0]["files"]}
    assert found == {1: files.WRONG_COUNT, 2: ""}


def test_of_two_files_of_one_number_one_is_brought(spark: SparkSession, tmp_path: Path) -> None:
    """A copy of the folder was recovered while its last file was still written."""
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "logs"
    log = [certified([[0, offset, 1]]) for offset in range(3)]
    write_log(logs / "a", 1, log[:2])
    assert ingest(spark, str(logs), lake)["messages"] == {CERTIFIED: 2}
    write_log(logs / "b", 1, log[:1])
    write_log(logs / "c", 1, log)
    came = ingest(spark, str(logs), lake)
    assert (came["messages"], came["quarantined"]) == ({}, {})
    entries = [one for made in lake.manifests() for one in made["files"]]
    assert [one["fault"] for one in entries] == ["", files.CONTRADICTS]
    assert lost(lake) == [(losses.DAMAGED, 1)]


def test_a_file_that_goes_away_meanwhile_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "logs"
    paths = [write_log(logs, number, [certified([[0, number, 1]])]) for number in (1, 2, 3)]
    came = ingest(
        spark, str(logs), lake, batch_bytes=1,
        said=lambda manifest: paths[1].unlink(missing_ok=True),
    )  # fmt: skip
    assert (came["files"], came["messages"]) == (2, {CERTIFIED: 2})
    assert lake.batches() == [0, 1]


@pytest.mark.parametrize("streamed_from", [0, 1 << 30])
def test_files_are_read_whole_or_as_a_stream_with_the_same_result(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streamed_from: int
) -> None:
    monkeypatch.setattr(sources, "STREAMED_FROM", streamed_from)
    (tmp_path / "n.jsonl").write_bytes(b"\xff\n" + 9_000 * b"x")
    (tmp_path / "o.jsonl").write_bytes(b"one line")
    (tmp_path / "p.jsonl").write_bytes(b"\n")
    write_log(tmp_path, 1, [certified([[0, 0, 600]]), dispatched([[0, 0, 600]])])
    for raw in sources.read_ends(spark, sources.listed(spark, [str(tmp_path)])):
        data = Path(raw.listed.path.removeprefix("file:")).read_bytes()
        assert data.endswith(raw.last)
        assert zlib.crc32(data[: len(data) - len(raw.last)]) == raw.crc32
        assert bool(files.identify(raw).fault) == (len(raw.listed.name) < 10)


def test_ingest_needs_no_python_on_a_worker(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/there/is/no/python")
    write_log(tmp_path / "logs", 1, [certified([[0, 0, 3]])])
    assert ingest(spark, str(tmp_path / "logs"), Lake(tmp_path / "lake"))["files"] == 1


@soak
def test_files_that_are_not_finished_are_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "delivery"
    done = write_log(logs, 1, [certified([[0, 0, 3]])])
    done.rename(done.with_name(done.name + ".part"))
    (logs / "counts").write_bytes(b"\0\1")
    write_log(logs, 2, [certified([[0, 3, 2]])])
    assert ingest(spark, str(logs), lake)["messages"] == {CERTIFIED: 2}


def test_a_batch_that_did_not_end_is_begun_anew_and_counts_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Killed while it was written, while it was moved, and before its manifest was there."""
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "delivery"
    write_log(logs, 1, [certified([[0, number, 1]], T0 + number) for number in range(4)])
    ingest(spark, str(logs), lake)
    lake.manifest(0).unlink()
    moved = next(lake.spans(CERTIFIED).glob("date=*/hour=*")) / "batch=0"
    shutil.copytree(moved, lake.spans(CERTIFIED) / "date=2026-02-01/hour=5/batch=0")
    shutil.copytree(moved, lake.staging / "kind=certified/date=2026-02-01/hour=6")
    assert sums(spark, lake)[CERTIFIED] == 0
    ingest(spark, str(logs), lake)
    assert lake.batches() == [0]
    assert sums(spark, lake)[CERTIFIED] == 4
    assert not lake.staging.exists()


def test_a_lake_of_an_earlier_version_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """Its manifests have names, and its deliveries a column that is not stored any more."""
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "delivery"
    log = [certified([[0, 0, 3]]), dispatched([[0, 0, 3]]), settled([[0, 0, 3]])]
    old = write_log(logs, 1, log, number=None, began_unix_ms=None)
    torn = write_log(logs, 3, [certified([[0, 5, 3]])], number=None, began_unix_ms=None)
    whole = torn.read_bytes()
    torn.write_bytes(whole[:-5])
    ingest(spark, str(logs), lake)
    (manifest,) = lake.manifests()
    manifest["files"] = [
        {name: one[name] for name in ("name", "lines", "fault", "recovered")}
        for one in manifest["files"]
    ]
    write_json(lake.manifest(0), manifest)
    (folder,) = lake.spans(DISPATCHED).glob("date=*/hour=*/batch=0")
    shutil.rmtree(lake.quarantine)
    rows = lake.read(spark, DISPATCHED).drop("date", "hour", "batch").collect()
    shutil.rmtree(folder)
    shape = SPANS[DISPATCHED]
    spark.createDataFrame(rows, shape).write.parquet(str(folder))
    assert lake.read(spark, DISPATCHED).collect()[0]["dispatched_unix_us"] == T0 + 100

    shutil.copytree(logs, tmp_path / "copy")
    write_log(logs, 2, [certified([[0, 3, 2]]), dispatched([[0, 3, 2]])])
    came = ingest(spark, [str(logs), str(tmp_path / "copy")], lake)
    assert (came["messages"], came["quarantined"]) == ({CERTIFIED: 2, DISPATCHED: 2}, {})
    assert sums(spark, lake) == {CERTIFIED: 5, DISPATCHED: 5, SETTLED: 3}
    assert lost(lake) == [(losses.DAMAGED, 3)]
    torn.write_bytes(whole)
    assert ingest(spark, str(logs), lake)["messages"] == {CERTIFIED: 3}
    assert lost(lake) == []
    entries = [one for made in lake.manifests() for one in made["files"]]
    assert old.name not in {one["name"] for one in entries[2:]}


@soak
def test_a_batch_does_not_count_before_its_manifest_is_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "delivery"
    write_log(logs, 1, [certified([[0, 0, 3]])])
    ingest(spark, str(logs), lake)
    write_log(logs, 2, [certified([[0, 3, 2]])])
    ingest(spark, str(logs), lake)
    lake.manifest(1).unlink()
    assert sums(spark, lake)[CERTIFIED] == 3


def test_two_jobs_do_not_work_in_one_lake(tmp_path: Path) -> None:
    with (
        Lake(tmp_path).alone(),
        pytest.raises(LakeError, match="another job"),
        Lake(tmp_path).alone(),
    ):
        pass


DAMAGED = {
    lines.NOT_JSON: b'{"schema":1,"kind":"certif\n',
    lines.WRONG_SCHEMA: certified([[0, 0, 1]], schema=4),
    lines.MISSING: {k: v for k, v in certified([[0, 0, 1]]).items() if k != "queue_id"},
    lines.WRONG_RUNS: dispatched([[0, 0, 0]]),
    lines.WRONG_KEYS: certified([[0, 0, 2]], keys="AAAAAAAAAAA="),
    lines.WRONG_TIME: settled([[0, 0, 1]], at=7),
}


def test_damaged_lines_are_quarantined_each_with_its_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "delivery"
    no_runs: Any = "all"
    more = [
        b'"text"\n', b"[]\n", dispatched([[0, 1]]), dispatched(no_runs), certified([[0, 1, 1]],
        keys="not base64"), certified([[0, 2, 1]], bytes="many"),
        settled([], pushes=[[0, 1]]), settled([], pushes=[[0, 1, 2]]), settled([], pushes="all"),
        settled([], pushes=[[0, 1, 5, 4]]), settled([], pushes=[[0, 1, 2, None]]),
        settled([], pushes=[[0, 1, -(2**63) + 1, 2**63 - 1]]),
        *[settled([], pushes=[[0, 1, 2, mask]]) for mask in ("0x", "0x0", "0xg", "1f", "0x01")],
        settled([], pushes=[[0, 1, "0x1", 1]]), settled([], pushes=[[0, 1, 2, "0x1", 3, 4]]),
        settled([], pushes=[[0, 1, 2**63 - 1, "0x3"]]), settled([], pushes=[[0, 1, 2.5, 3]]),
        settled([], pushes=[[0, 1, -1, "0x2"]]), settled([], pushes=[[0, 1, 2, "0x1\n"]]),
        settled([], pushes=[[0, 1, 2, "0x1" + 256 * "0"]]), settled([], pushes=[[0, 1, [2], 3]]),
        *[settled([], pushes=[[0, at, 2, 2]]) for at in ("soon", 1.5, 2**63, "0x1", [1], True)],
    ]  # fmt: skip
    passed = [{"schema": 1, "kind": "clock", "gateway": "x"}, {"schema": 1, "kind": "of tomorrow"}]
    write_log(logs, 1, [*DAMAGED.values(), *more, *passed, certified([[0, 9, 1]], new_field=1)])
    came = ingest(spark, str(logs), lake)
    assert came["messages"] == {CERTIFIED: 1}
    assert set(came["quarantined"]) == set(DAMAGED)
    assert sum(came["quarantined"].values()) == len(DAMAGED) + len(more)
    kept = spark.read.parquet(str(lake.quarantine))
    texts = {row["value"] for row in kept.collect()}
    assert '{"schema":1,"kind":"certif' in texts
    assert len(texts) == len(DAMAGED) + len(more)


def test_what_a_line_settled_is_in_the_lake_by_the_run(spark: SparkSession, tmp_path: Path) -> None:
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "delivery"
    pushes = [[4, T0, 0, 2, 7, 7], [5, None, 1, 1], [6, T0 + 1, 100, "0x8000000000000000000a"]]
    long = [[0, None, 0, "0x8" + 255 * "0"]]
    some = [settled([], pushes=few, schema=2) for few in (pushes, long)]
    write_log(logs, 1, [*some, settled([], pushes=pushes[:1])])
    came = ingest(spark, str(logs), lake)
    assert came["messages"] == {"settled": 13}
    row, old, last = lake.read(spark, "settled").orderBy("messages", ascending=False).collect()
    assert row["runs"] == [
        [4, 0, 3], [4, 7, 1], [5, 1, 1], [6, 101, 1], [6, 103, 1], [6, 179, 1],
    ]  # fmt: skip
    assert row["dispatched_unix_us"] == [T0, T0, None, T0 + 1, T0 + 1, T0 + 1]
    assert old["runs"] == [[4, 0, 3], [4, 7, 1]]
    assert last["runs"] == [[0, 1023, 1]]


def test_a_file_that_is_not_as_it_was_written_is_quarantined_whole(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "delivery"
    flipped = write_log(logs, 1, [certified([[0, 0, 3]]), certified([[0, 3, 3]])])
    flipped.write_bytes(flipped.read_bytes().replace(b'"bytes": 30', b'"bytes": 31', 1))
    torn = write_log(logs, 2, [certified([[0, 6, 3]]), certified([[0, 9, 3]])])
    torn.write_bytes(torn.read_bytes()[:-40])
    write_log(logs, 3, [certified([[0, 12, 3]])])
    came = ingest(spark, str(logs), lake)
    assert came["messages"] == {CERTIFIED: 3}
    assert set(came["quarantined"]) == {lines.DAMAGED_FILE}
    faults = {file["name"]: file["fault"] for file in lake.manifests()[0]["files"]}
    assert {name[-12:-6]: fault for name, fault in faults.items()} == {
        "000001": "checksum", "000002": "no good last line", "000003": "",
    }  # fmt: skip


@soak
def test_what_comes_for_a_closed_day_is_quarantined_and_its_figures_stay(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "delivery"
    day = 86_400_000_000
    write_log(logs, 1, [certified([[0, 0, 3]], T0), certified([[0, 3, 4]], T0 + day)])
    ingest(spark, str(logs), lake)
    rollup(spark, lake)
    assert close(lake, before=datetime.date(2026, 2, 1))["folders"] > 0
    again = close(lake, before=datetime.date(2026, 1, 1))
    assert again == {"folders": 0, "closed_before": "2026-02-01"}
    write_log(logs, 2, [certified([[0, 7, 5]], T0 + 5), certified([[0, 12, 6]], T0 + day)])
    came = ingest(spark, str(logs), lake)
    assert came["quarantined"] == {lines.LATE: 1}
    rollup(spark, lake)
    days = table(spark, lake, "count_day").groupBy("date").agg(F.sum("messages").alias("n"))
    assert {row["date"].isoformat(): row["n"] for row in days.collect()} == {
        "2026-01-31": 3, "2026-02-01": 10,
    }  # fmt: skip


def test_a_day_that_is_not_rolled_up_is_not_closed_and_says_why(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "delivery"
    write_log(logs, 1, [certified([[0, 0, 3]])])
    ingest(spark, str(logs), lake)
    with pytest.raises(LakeError, match="1 of 1 batches have not been rolled up; run rollup"):
        close(lake, before=datetime.date(2027, 1, 1))
    assert sums(spark, lake)[CERTIFIED] == 3


# --- Rollup -------------------------------------------------------------------------------------


def test_counts_of_minutes_hours_and_days_are_those_of_the_log(
    spark: SparkSession, run: Run
) -> None:
    days: Counter[tuple[str, str]] = Counter()
    for (kind, date, _), count in run.answers.by_hour.items():
        days[kind, date] += count
    hours = {key: count for key, count in run.answers.by_hour.items() if count}
    for name in ("count_minute", "count_hour"):
        placed = table(spark, run.lake, name).where(~F.col("what").isin(*PLACELESS))
        rows = placed.groupBy("kind", "date", "hour").agg(F.sum("messages").alias("n")).collect()
        found = {(row["kind"], row["date"].isoformat(), row["hour"]): row["n"] for row in rows}
        assert found == hours, name
    placed = table(spark, run.lake, "count_day").where(~F.col("what").isin(*PLACELESS))
    rows = placed.groupBy("kind", "date").agg(F.sum("messages").alias("n")).collect()
    assert {(row["kind"], row["date"].isoformat()): row["n"] for row in rows} == days


@pytest.mark.parametrize("stage", [*latency.STAGES, latency.DELIVERY, latency.WHOLE])
def test_percentiles_of_merged_sketches_are_within_a_third_of_a_percent(
    spark: SparkSession, run: Run, stage: str
) -> None:
    rows = table(spark, run.lake, "latency_day").where(F.col("stage") == stage)
    found = {row["queue"]: row for row in periods.over(rows, "queue").collect()}
    for queue in ("orders", "emails"):
        durations = run.answers.durations[stage, queue]
        row = found[queue]
        assert row["messages"] == sum(count for _, count in durations)
        assert row["total_us"] == sum(us * count for us, count in durations)
        assert row["max_us"] == max(us for us, _ in durations)
        for name, rank in sketches.RANKS.items():
            exact = percentile_us(durations, rank)
            assert row[name] == pytest.approx(exact, rel=0.0033, abs=1), name


def test_deliveries_that_miss_their_queues_target_are_counted(
    spark: SparkSession, run: Run
) -> None:
    rows = table(spark, run.lake, "latency_day").groupBy("queue").agg(F.sum("missed").alias("n"))
    slow = sum(
        count for us, count in run.answers.durations[latency.DELIVERY, "orders"] if us > TARGET_US
    )
    assert slow > 0
    assert {row["queue"]: row["n"] for row in rows.collect()} == {"orders": slow, "emails": 0}


@soak
def test_rolling_up_again_changes_nothing(spark: SparkSession, run: Run) -> None:
    names = ("count_minute", "count_hour", "count_day", "latency_hour", "latency_day", "key_hour")

    def snapshot() -> dict[str, list[tuple[Any, ...]]]:
        found = {}
        for name in names:
            exact = [c for c in periods.SCHEMAS[name].names if c not in (*sketches.RANKS, "sketch")]
            rows = table(spark, run.lake, name).select(*exact).collect()
            found[name] = sorted((tuple(row) for row in rows), key=repr)
        return found

    before = snapshot()
    assert rollup(spark, run.lake) == {"hours": 0, "uncovered": 0}
    run.lake.keep(rolled=-1)
    rollup(spark, run.lake, targets=Targets(None, {"orders": TARGET_US}))
    assert snapshot() == before


@soak
def test_a_delivery_whose_publish_comes_later_is_rolled_up_when_it_has_come(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Two gateways, whose files are not ingested together."""
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "delivery"
    other = "00000000000000bb"
    given = dispatched([[0, 0, 3]], T0 + 5_000, gateway=other)
    write_log(logs, 1, [given], gateway=other)
    ingest(spark, str(logs), lake)
    assert rollup(spark, lake)["uncovered"] == 3
    write_log(logs, 1, [certified([[0, 0, 3]])])
    ingest(spark, str(logs), lake)
    assert rollup(spark, lake)["uncovered"] == 0
    rows = table(spark, lake, "latency_hour").where(F.col("stage") == latency.DELIVERY).collect()
    assert [(row["messages"], row["max_us"]) for row in rows] == [(3, 5_910)]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_day_has_what_was_rolled_up_of_its_other_hours_before(
    spark: SparkSession, tmp_path: Path, *, at_once: bool
) -> None:
    """Also in two passes of one job."""
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "delivery"
    hour = 3_600_000_000
    slow = certified([[0, 3, 2]], T0 + hour, asked_unix_us=T0 + hour - 5_000)
    for number, line in enumerate((certified([[0, 0, 3]]), slow), 1):
        write_log(logs, number, [line])
        ingest(spark, str(logs), lake)
        if not at_once:
            assert rollup(spark, lake)["hours"] == 1
    if at_once:
        passes: list[str] = []
        assert rollup(spark, lake, pass_bytes=1, said=passes.append)["hours"] == 2
        assert passes == ["2026-01-31", "2026-01-31"]
    (day,) = table(spark, lake, "count_day").collect()
    assert (day["lines"], day["messages"], day["bytes"]) == (2, 5, 50)
    stored = table(spark, lake, "latency_day").where(F.col("stage") == latency.STORING)
    (row,) = stored.collect()
    assert (row["messages"], row["total_us"], row["min_us"]) == (5, 3 * 800 + 2 * 5_000, 800)
    assert row["p50_us"] == pytest.approx(800, rel=0.0033)
    assert row["p99_us"] == pytest.approx(5_000, rel=0.0033)


def test_a_step_of_the_clock_between_publish_and_delivery_is_no_latency(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "delivery"
    day = 86_400_000_000
    given = dispatched([[0, 0, 3]], T0 + 5_000 + day, stepped_us=day)
    write_log(logs, 1, [certified([[0, 0, 3]]), given])
    ingest(spark, str(logs), lake)
    assert rollup(spark, lake)["uncovered"] == 0
    rows = table(spark, lake, "latency_day").where(F.col("stage") == latency.DELIVERY).collect()
    assert [(row["date"].isoformat(), row["max_us"]) for row in rows] == [("2026-02-01", 5_910)]


@soak
def test_the_slowest_keys_are_those_whose_messages_waited_longest(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "delivery"

    hashes = [0x1122334455667788, 7, 0]
    keys = base64.b64encode(b"".join(one.to_bytes(8, "little") for one in hashes)).decode()
    given = [
        dispatched([[0, offset, 1]], T0 + wait, certified_unix_us=T0)
        for offset, wait in enumerate((9_000, 50, 80_000))
    ]
    write_log(logs, 1, [certified([[0, 0, 3]], keys=keys), *given])
    ingest(spark, str(logs), lake)
    rollup(spark, lake)
    rows = table(spark, lake, "key_hour").orderBy(F.desc("waited_us")).collect()
    assert [(row["key"], row["messages"], row["waited_us"]) for row in rows] == [
        ("1122334455667788", 1, 9_000), ("0000000000000007", 1, 50),
    ]  # fmt: skip


@soak
def test_readers_count_as_many_times_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "delivery"
    fan_out = dispatched([[0, 0, 4]], recipients=50, sessions=["a"] * 50)
    del fan_out["group"], fan_out["session"]
    write_log(logs, 1, [certified([[0, 0, 4]]), fan_out])
    came = ingest(spark, str(logs), lake)
    assert came["messages"] == {CERTIFIED: 4, DISPATCHED: 200}
    rollup(spark, lake)
    rows = table(spark, lake, "latency_day").where(F.col("stage") == latency.DELIVERY).collect()
    assert [(row["group"], row["messages"]) for row in rows] == [(None, 200)]


# --- Usage --------------------------------------------------------------------------------------


def test_both_books_of_usage_agree(run: Run) -> None:
    done = run.done["usage"]
    assert done["messages_in"] == run.answers.messages[CERTIFIED] == done["used_messages_in"]
    assert done["messages_out"] == run.answers.messages[DISPATCHED] == done["used_messages_out"]
    assert done["unlogged_in"] == run.answers.unlogged > 0
    assert (done["explained_in"], done["left_in"], done["left_out"]) == (0, 0, 0)


def test_the_last_minute_of_a_killed_gateway_is_explained_and_nothing_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, logs, used = Lake(tmp_path / "lake"), tmp_path / "delivery", tmp_path / "usage"
    minute = 60_000_000
    lost = {
        "schema": 1,
        "kind": "unlogged",
        "gateway": GATEWAY,
        "certified": 2,
        "dispatched": 0,
        "since_unix_us": T0 + minute,
        "until_unix_us": T0 + minute,
        "reason": "killed",
    }
    write_log(logs, 1, [certified([[0, 0, 3]]), certified([[0, 3, 4]], T0 + minute), lost])
    other = [certified([[0, 9, 5]], T0 + step * minute, gateway=OTHER) for step in (1, 5)]
    write_log(logs, 1, other, gateway=OTHER, recovered=None)
    ingest(spark, str(logs), lake)
    rollup(spark, lake)
    used.mkdir()

    def differences(*messages_in: int) -> tuple[int, int, str]:
        """(explained, left, why) with a usage log of this many in these minutes."""
        lines = [
            {"schema": 1, "minute_unix_ms": (T0 // minute + step) * 60_000, "tenant": "default",
             "messages_in": count, "messages_out": 0}
            for step, count in zip((0, 1, 5), messages_in, strict=True)
        ]  # fmt: skip
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (used / "usage-2026-01-31T22-1.jsonl").write_text(text)
        done = usage(spark, lake, used)
        (row,) = lake.read_rollup(spark, TABLE, SCHEMA).collect()
        assert done["explained_in"] == abs(row["explained_in"])
        assert done["left_in"] == abs(row["left_in"])
        return row["explained_in"], row["left_in"], row["why"]

    assert differences(3, 9, 5) == (0, 0, "")
    assert differences(3, 5, 5) == (4, 0, "killed")
    assert differences(2, 5, 5) == (4, 1, "killed")
    assert differences(4, 10, 5) == (-2, 0, "unlogged")
    assert differences(6, 10, 5) == (-2, -2, "unlogged")
    assert differences(3, 9, 7) == (-2, 0, "unlogged")
    assert differences(3, 9, 9) == (-4, 0, "unlogged,unfinished")
    assert differences(3, 5, 0) == (9, 0, "killed,unfinished")
    assert usage(spark, lake, None)["left_in"] == 0
    (row,) = lake.read_rollup(spark, TABLE, SCHEMA).collect()
    assert (row["left_in"], row["explained_in"], row["why"]) == (None, None, None)


def test_usage_of_a_later_version_is_not_added_up(spark: SparkSession, tmp_path: Path) -> None:
    """[A field that has another meaning by now was added to what it meant before.]"""
    line = {"schema": 1, "minute_unix_ms": T0 // 60_000_000 * 60_000, "messages_in": 5}
    later = line | {"schema": 2, "messages_in": 7}
    text = "\n".join([json.dumps(line), json.dumps(later), '{"schema": 1, "minu'])
    (tmp_path / "usage-2026-01-31T22-1.jsonl").write_text(text)
    assert [row["messages_in"] for row in read_usage(spark, tmp_path).collect()] == [5]


@soak
def test_where_the_books_differ_both_are_shown(
    spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "usage"
    folder.mkdir()
    line = {"schema": 1, "minute_unix_ms": T0 // 60_000_000 * 60_000, "tenant": "default",
            "messages_in": 5, "messages_out": 6, "websocket_s": 1.5}  # fmt: skip
    stranger = line | {"tenant": None, "refusals": 3}
    text = "\n".join([json.dumps(line), json.dumps(stranger), '{"schema": 1, "minu'])
    (folder / "usage-2026-01-31T22-1.jsonl").write_text(text)
    done = usage(spark, run.lake, folder)
    assert (done["used_messages_in"], done["used_messages_out"]) == (10, 12)
    assert done["messages_in"] == run.answers.messages[CERTIFIED]
    usage(spark, run.lake, run.folder / "usage")


# --- Order --------------------------------------------------------------------------------------


def test_every_planted_fault_is_found_and_nothing_else(spark: SparkSession, run: Run) -> None:
    found = spark.read.parquet(str(run.lake.root / "audit")).collect()
    faults = {
        (row["what"], row["queue_id"], row["group"], row["partition"], row["first"])
        for row in found
        if row["certain"]
    }
    assert faults == set(run.answers.planted)
    assert run.done["audit"]["holes"] == run.answers.unlogged
    assert run.done["audit"]["unlogged"]["certified"] == run.answers.unlogged
    assert run.done["audit"]["uncertain"] == {}
    assert run.done["audit"]["missing_files"] == {}


@soak
def test_a_log_without_faults_has_none(spark: SparkSession, tmp_path: Path) -> None:
    """With redeliveries, and a clock that goes back by a day in their midst."""
    plan = Plan(
        seed=7, messages=4_000, redeliveries=12, keys=40, steps=((0.3, 86_400), (0.6, -86_400))
    )
    Synthetic(plan).write(tmp_path)
    lake = Lake(tmp_path / "lake")
    ingest(spark, str(tmp_path / "delivery"), lake)
    done = audit(spark, lake)
    assert set(done["faults"].values()) == {0}, done["examples"]
    assert done["uncertain"] == {}
    assert done["holes"] == 0


KEY = "AAAAAAAAAAc="
"""One key's hash, of one message."""
OTHER = "00000000000000bb"
DAY_US = 86_400_000_000
OWNED = position("owned", 0)


def keyed(count: int) -> list[dict[str, Any]]:
    """Return this many messages of one key, each certified by itself."""
    return [certified([[0, offset, 1]], T0 + offset, keys=KEY) for offset in range(count)]


def acked(offset: int, given: int, at: int, **more: Any) -> dict[str, Any]:
    """A delivery that ended with its ack."""
    return settled([], at, pushes=[[0, given, offset, offset]], **more)


def returned(offset: int, given: int, at: int, **more: Any) -> dict[str, Any]:
    return acked(offset, given, at, **{"outcome": "nacked", **more})


def set_back() -> list[dict[str, Any]]:
    """The clock is set back by a day between the first delivery and the nack."""
    back = {"stepped_us": -DAY_US}
    log = [OWNED, *keyed(1), dispatched([[0, 0, 1]], T0 + 10)]
    log += [returned(0, T0 + 10 - DAY_US, T0 + 2_000 - DAY_US, **back)]
    log += [dispatched([[0, 0, 1]], T0 + 3_000 - DAY_US, attempt=2, cause="key_backoff", **back)]
    return [*log, acked(0, T0 + 3_000 - DAY_US, T0 + 4_000 - DAY_US, **back)]


def waits() -> list[dict[str, Any]]:
    """The head of a key was nacked, tried again and acked; the second message of the key, which
    was passed meanwhile, waits for credit, while one of another key behind it goes out."""
    return [
        OWNED, *keyed(2), certified([[0, 2, 1]], T0 + 2),
        dispatched([[0, 0, 1]], T0 + 10), returned(0, T0 + 10, T0 + 2_000),
        dispatched([[0, 2, 1]], T0 + 3_000), acked(2, T0 + 3_000, T0 + 4_000),
        dispatched([[0, 0, 1]], T0 + 5_000, attempt=2), acked(0, T0 + 5_000, T0 + 6_000),
    ]  # fmt: skip


def overtakes(out: int) -> list[dict[str, Any]]:
    """The head of a key is back from 2.0 to 5.0 ms; the second one goes out at `out`."""
    return [
        OWNED, *keyed(2), dispatched([[0, 0, 1]], T0 + 10), returned(0, T0 + 10, T0 + 2_000),
        dispatched([[0, 1, 1]], T0 + out),
        dispatched([[0, 0, 1]], T0 + 5_000, attempt=2), acked(0, T0 + 5_000, T0 + 6_000),
        acked(1, T0 + out, T0 + 7_000),
    ]  # fmt: skip


def overtakes_after_long(*, again: bool) -> list[dict[str, Any]]:
    """The head of a key is back for 40 s, or for ever; the second one goes out after 25 s. What is
    back meanwhile without a key is not in its way."""
    late, last = T0 + 25_000_000, T0 + 40_000_000
    log = [OWNED, *keyed(2), certified([[0, 2, 1]], T0 + 2)]
    log += [dispatched([[0, 0, 1]], T0 + 10), returned(0, T0 + 10, T0 + 2_000)]
    log += [dispatched([[0, 2, 1]], T0 + 20), returned(2, T0 + 20, T0 + 3_000)]
    log += [dispatched([[0, 2, 1]], T0 + 4_000, attempt=2), acked(2, T0 + 4_000, T0 + 5_000)]
    log += [dispatched([[0, 1, 1]], late), acked(1, late, late + 1_000)]
    if again:
        log += [dispatched([[0, 0, 1]], last, attempt=2), acked(0, last, last + 1_000)]
    return log


def goes_to_the_dead(*, decided: int) -> list[dict[str, Any]]:
    """The head of a key is exhausted; the second one goes out 0.2 s later, and the dead letters
    take the head after a minute. That it goes there was `decided` then."""
    out, end = T0 + 200_000, T0 + 60_000_000
    return [
        OWNED, *keyed(2), dispatched([[0, 0, 1]], T0 + 10), returned(0, T0 + 10, T0 + 2_000),
        settled([[0, 0, 1]], T0 + decided, outcome="dying", reason="exhausted"),
        dispatched([[0, 1, 1]], out), acked(1, out, out + 1_000),
        settled([[0, 0, 1]], end, outcome="dead_lettered", reason="exhausted"),
    ]  # fmt: skip


def without_its_beginning(*lost: int) -> list[dict[str, Any]]:
    """One gateway has two epochs, and gives and settles a message in each, the second one of which
    goes back to the first. The first line of the second is not there."""
    log = [
        OWNED, *keyed(2), dispatched([[0, 0, 2]], T0 + 10), acked(0, T0 + 10, T0 + 20),
        acked(1, T0 + 10, T0 + 20), position("released", 2, T0 + 30),
        position("owned", 0, T0 + 40, epoch=2),
        dispatched([[0, 0, 2]], T0 + 50), acked(0, T0 + 50, T0 + 60), acked(1, T0 + 50, T0 + 60),
        position("released", 2, T0 + 200_000, epoch=2),
    ]  # fmt: skip
    return [line for place, line in enumerate(log) if place not in lost]


def two_owners(**released: Any) -> list[dict[str, Any]]:
    """Return the lines of a message that one owner gave and settled, and the next gives again."""
    other = {"gateway": OTHER}
    return [
        OWNED, *keyed(1), dispatched([[0, 0, 1]], T0 + 10), acked(0, T0 + 10, T0 + 20),
        position("released", 1, T0 + 30, **released),
        position("owned", 0, T0 + 40, epoch=2, ahead=1, **other),
        dispatched([[0, 0, 1]], T0 + 50, **other), acked(0, T0 + 50, T0 + 60, **other),
    ]  # fmt: skip


def passed(*more: dict[str, Any], **position_: Any) -> list[dict[str, Any]]:
    """The first of three messages without keys is in no other line; the others are settled."""
    return [
        OWNED, certified([[0, 0, 3]]), *more, dispatched([[0, 1, 2]]),
        settled([], pushes=[[0, T0 + 100, 1, 2]]), position("kept", 3, T0 + 900, **position_),
    ]  # fmt: skip


LOGS: dict[str, list[dict[str, Any]]] = {
    "waits": waits(),
    "waits, says the position": passed(open=1),
    "passed": passed(),
    "passed, given": passed(dispatched([[0, 0, 1]], T0 + 90)),
    "passed, gone": passed(settled([[0, 0, 1]], outcome="gone")),
    "passed, dead": passed(settled([[0, 0, 1]], outcome="dead_lettered")),
    "overdue": [
        OWNED, *keyed(2), dispatched([[0, 1, 1]]), position("kept", 2, T0 + 900, open=2),
    ],
    "may be dying": [
        OWNED, *keyed(2), dispatched([[0, 1, 1]]), position("kept", 2, T0 + 900, open=2, dying=1),
    ],
    "sought": [
        OWNED, *keyed(2), position("owned", 1, T0 + 90, epoch=3), dispatched([[0, 1, 1]]),
        acked(1, T0 + 100, T0 + 200), position("kept", 2, T0 + 900, epoch=3),
    ],
    "lost beginning": [
        OWNED, *keyed(2), dispatched([[0, 0, 1]], T0 + 10), returned(0, T0 + 10, T0 + 2_000),
        position("released", 1, T0 + 2_500, open=1),
        dispatched([[0, 1, 1]], T0 + 200_000), acked(1, T0 + 200_000, T0 + 200_010),
    ],
    "sought behind": [*waits(), position("owned", 3, T0 + 9_000, epoch=3)],
    "moved": [
        OWNED, *keyed(2), position("owned", 1, T0 + 90, epoch=2), dispatched([[0, 1, 1]]),
        acked(1, T0 + 100, T0 + 200), position("kept", 2, T0 + 900, epoch=2),
    ],
    "set-back": set_back(),
    "repeated": [*set_back(), dispatched([[0, 0, 1]], T0 + 5_000 - DAY_US, stepped_us=-DAY_US)],
    "acked-before": [
        OWNED, certified([[0, 0, 2]]), settled([[0, 0, 2]], T0 + 5),
        dispatched([[0, 0, 2]], T0 + 9),
    ],
    "clean end": two_owners(is_clean=True),
    "sudden end": two_owners(),
    "overtaken": overtakes(3_000),
    "overtaken late": overtakes_after_long(again=True),
    "overtaken for ever": overtakes_after_long(again=False),
    "in one turn": overtakes(2_400),
    "behind it": overtakes(5_000),
    "given again, its end alone says": [
        OWNED, *keyed(2), dispatched([[0, 0, 1]], T0 + 10), returned(0, T0 + 10, T0 + 2_000),
        dispatched([[0, 1, 1]], T0 + 3_000), acked(1, T0 + 3_000, T0 + 4_000),
        acked(0, T0 + 3_000, T0 + 500_000),
    ],
    "overtaken, the nack's time is shared": [
        OWNED, *keyed(2), dispatched([[0, 0, 1]], T0 + 2_100), returned(0, T0 + 2_100, T0 + 2_000),
        dispatched([[0, 1, 1]], T0 + 5_000), acked(1, T0 + 5_000, T0 + 6_000),
        dispatched([[0, 0, 1]], T0 + 9_000, attempt=2), acked(0, T0 + 9_000, T0 + 10_000),
    ],
    "given behind its end": [
        OWNED, *keyed(1), dispatched([[0, 0, 1]], T0 + 10), returned(0, T0 + 10, T0 + 2_000),
        settled([[0, 0, 1]], T0 + 10_000, outcome="dying", reason="exhausted"),
        dispatched([[0, 0, 1]], T0 + 400_000, attempt=2),
    ],
    "in the moment of its end": [
        OWNED, *keyed(1), dispatched([[0, 0, 1]], T0 + 10), returned(0, T0 + 10, T0 + 2_000),
        acked(0, T0 + 3_000, T0 + 2_500), dispatched([[0, 0, 1]], T0 + 3_000, attempt=2),
    ],
    "a clean end, then a sudden one": [
        *two_owners(is_clean=True)[:-2],
        position("owned", 0, T0 + 400_000, epoch=3), dispatched([[0, 0, 1]], T0 + 400_010),
        acked(0, T0 + 400_010, T0 + 400_020),
    ],
    "to full dead letters": goes_to_the_dead(decided=10_000),
    "before that is decided": goes_to_the_dead(decided=300_001),
    "two epochs": without_its_beginning(),
    "the beginning is lost": without_its_beginning(7),
    "inverted": [
        OWNED, certified([[0, 0, 2]], keys="AAAAAAAAAAcAAAAAAAAABw=="),
        dispatched([[0, 1, 1]], T0 + 1_000), acked(1, T0 + 1_000, T0 + 1_500),
        dispatched([[0, 0, 1]], T0 + 2_000), acked(0, T0 + 2_000, T0 + 2_500),
    ],
    "inverted, in the middle of a log": [
        position("owned", 0, epoch=5), certified([[0, 0, 2]], keys="AAAAAAAAAAcAAAAAAAAABw=="),
        dispatched([[0, 1, 1]], T0 + 1_000), acked(1, T0 + 1_000, T0 + 1_500),
        dispatched([[0, 0, 1]], T0 + 2_000), acked(0, T0 + 2_000, T0 + 2_500),
    ],
    "overdue, in the middle of a log": [
        position("owned", 0, epoch=5), *keyed(2), dispatched([[0, 1, 1]]),
        position("kept", 2, T0 + 900, open=2, epoch=5),
    ],
    "new, in the middle of a log": [
        position("owned", 0, T0 - 20_000_000, epoch=5, certified_below=0),
        certified([[0, 0, 2]], keys="AAAAAAAAAAcAAAAAAAAABw=="),
        dispatched([[0, 1, 1]], T0 + 1_000), acked(1, T0 + 1_000, T0 + 1_500),
        dispatched([[0, 0, 1]], T0 + 2_000), acked(0, T0 + 2_000, T0 + 2_500),
    ],
    "old, by a clock that was late": [
        position("owned", 0, T0 - 20_000_000, epoch=5, certified_below=2),
        certified([[0, 0, 2]], keys="AAAAAAAAAAcAAAAAAAAABw=="),
        dispatched([[0, 1, 1]], T0 + 1_000), acked(1, T0 + 1_000, T0 + 1_500),
        dispatched([[0, 0, 1]], T0 + 2_000), acked(0, T0 + 2_000, T0 + 2_500),
    ],
    "two owners, one slow clock": [
        OWNED, certified([[0, 0, 2]], keys="AAAAAAAAAAcAAAAAAAAABw=="),
        dispatched([[0, 0, 1]], T0 + 2_000), acked(0, T0 + 2_000, T0 + 2_500),
        position("owned", 1, T0 + 500, epoch=2, gateway=OTHER),
        dispatched([[0, 1, 1]], T0 + 1_000, gateway=OTHER),
        acked(1, T0 + 1_000, T0 + 1_500, gateway=OTHER),
    ],
    "nobody owns": [
        certified([[0, 0, 1]]), dispatched([[0, 0, 1]], T0 + 10), dispatched([[0, 0, 1]], T0 + 20),
    ],
    "ungiven": [OWNED, *keyed(1), acked(0, T0 + 10, T0 + 20)],
    "settled twice": [
        OWNED, *keyed(1), dispatched([[0, 0, 1]], T0 + 10), acked(0, T0 + 10, T0 + 20),
        acked(0, T0 + 10, T0 + 30),
    ],
    "returned twice": [
        OWNED, *keyed(1), dispatched([[0, 0, 1]], T0 + 10), returned(0, T0 + 10, T0 + 2_000),
        returned(0, T0 + 10, T0 + 2_100),
    ],
    "acked late": [
        OWNED, *keyed(1), dispatched([[0, 0, 1]], T0 + 10),
        returned(0, T0 + 10, T0 + 2_000, outcome="expired"), acked(0, T0 + 10, T0 + 2_100),
    ],
    "settled early": [
        OWNED, *keyed(1), dispatched([[0, 0, 1]], T0 + 2_000), acked(0, T0 + 2_000, T0 + 1_499),
    ],
    "a moment early": [
        OWNED, *keyed(1), dispatched([[0, 0, 1]], T0 + 2_000), acked(0, T0 + 2_000, T0 + 1_500),
    ],
    "certified twice": [OWNED, *keyed(1), *keyed(1)],
    "certified twice, in order": [
        OWNED, certified([[0, 0, 2]], T0 + 9), certified([[0, 0, 1]], T0 + 8),
        position("owned", 2, T0 + 12),
    ],
    "out of order": [OWNED, certified([[0, 0, 1]], T0 + 9), certified([[0, 1, 1]], T0 + 8)],
}  # fmt: skip
"""What happened in a queue each: all are judged in one go, which takes as long as one of them."""
JUDGED: dict[str, set[tuple[str, int, str | None]]] = {
    "waits": {(order.WAITING, 1, None)},
    "waits, says the position": {(order.WAITING, 1, None)},
    "passed": {(order.GAP, 1, None)},
    "passed, given": {(order.UNSETTLED, 1, None)},
    "overdue": {(order.GAP, 1, None)},
    "may be dying": {(order.WAITING, 1, None)},
    "moved": {(order.GAP, 1, None)},
    "repeated": {(order.REPETITION, 1, None)},
    "clean end": {(order.REPETITION, 1, None)},
    "overtaken": {(order.OVERTAKEN, 1, None)},
    "overtaken late": {(order.OVERTAKEN, 1, None)},
    "overtaken for ever": {(order.OVERTAKEN, 1, None)},
    "overtaken, the nack's time is shared": {(order.OVERTAKEN, 1, None)},
    "given behind its end": {(order.REPETITION, 1, None)},
    "a clean end, then a sudden one": {(order.REPETITION, 1, None)},
    "given again, its end alone says": {(order.UNGIVEN, 1, None)},
    "before that is decided": {(order.OVERTAKEN, 1, None)},
    "the beginning is lost": {
        (order.REPETITION, 1, order.UNOWNED),
        (order.SETTLED_TWICE, 1, order.UNOWNED),
    },
    "inverted": {(order.INVERSION, 1, None)},
    "new, in the middle of a log": {(order.INVERSION, 1, None)},
    "old, by a clock that was late": {(order.INVERSION, 1, order.UNOWNED)},
    "inverted, in the middle of a log": {(order.INVERSION, 1, order.UNOWNED)},
    "overdue, in the middle of a log": {(order.WAITING, 1, None)},
    "nobody owns": {(order.REPETITION, 1, order.UNOWNED)},
    "ungiven": {(order.UNGIVEN, 1, None)},
    "settled twice": {(order.SETTLED_TWICE, 1, None)},
    "returned twice": {(order.SETTLED_TWICE, 1, None)},
    "settled early": {(order.SETTLED_EARLY, 1, None)},
    "certified twice": {(order.TWICE, 1, None)},
    "certified twice, in order": {(order.TWICE, 1, None)},
    "out of order": {(order.DISORDER, 1, None)},
}
"""(what, messages, why it is not certain); the others are as they should be."""


@pytest.fixture(scope="session")
def lake_of_logs(spark: SparkSession) -> Iterator[Lake]:
    lines = [line | {"queue_id": name} for name, log in LOGS.items() for line in log]
    with in_memory() as folder:
        write_log(folder / "delivery", 1, lines)
        lake = Lake(folder / "lake")
        ingest(spark, str(folder / "delivery"), lake)
        yield lake


def found(spark: SparkSession, lake: Lake) -> dict[str, set[tuple[str, int, str | None]]]:
    """Queue → (what, messages, why it is not certain)."""
    by_queue: dict[str, set[tuple[str, int, str | None]]] = {}
    for row in spark.read.parquet(str(lake.root / "audit")).collect():
        finding = (row["what"], row["count"], row["unsure"])
        by_queue.setdefault(row["queue_id"], set()).add(finding)
    return by_queue


def test_each_history_is_judged_as_it_was(spark: SparkSession, lake_of_logs: Lake) -> None:
    audit(spark, lake_of_logs)
    assert found(spark, lake_of_logs) == JUDGED


def elsewhere(log: list[dict[str, Any]], by_us: int, gateway: str) -> list[dict[str, Any]]:
    """The same at another time, and at this gateway."""
    moved = []
    for line in log:
        times = {name: at + by_us for name, at in line.items() if name.endswith("_unix_us")}
        pushes = [
            [push[0], push[1] and push[1] + by_us, *push[2:]] for push in line.get("pushes", [])
        ]
        moved.append(line | times | ({"pushes": pushes} if pushes else {}) | {"gateway": gateway})
    return moved


def test_lost_lines_explain_what_their_gateway_did_at_that_time_and_nothing_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A gateway lost lines, and one that it gave out is in none. What the next owner passed is
    the next owner's, but what its cursor had passed already."""
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "delivery"
    slack = order.CLOCKS_US
    lost = {"schema": 1, "kind": "unlogged", "gateway": GATEWAY, "dispatched": 1,
            "since_unix_us": T0, "until_unix_us": T0 + 1, "reason": "full"}  # fmt: skip
    stood = passed()[-1]["at_unix_us"] - T0
    cases = {
        "then": (0, GATEWAY), "at the other": (0, OTHER),
        "just before": (-slack - stood, GATEWAY), "before": (-slack - stood - 1, GATEWAY),
        "just after": (slack + 1, GATEWAY), "after": (slack + 2, GATEWAY),
    }  # fmt: skip
    told = {name: elsewhere(passed(), *case) for name, case in cases.items()}
    second = {"epoch": 2, "gateway": OTHER}
    log = elsewhere(passed(epoch=2), 0, OTHER)[1:]
    told["taken over"] = [OWNED, position("owned", 0, T0 + 50, **second), *log]
    told["taken over behind it"] = [OWNED, position("owned", 1, T0 + 50, **second), *log]
    lines = [line | {"queue_id": name} for name, log in told.items() for line in log]
    for gateway, more in ((GATEWAY, [lost]), (OTHER, [])):
        of = [line for line in lines if line["gateway"] == gateway]
        write_log(logs, 1, [*of, *more], gateway=gateway)
    ingest(spark, str(logs), lake)
    done = audit(spark, lake)
    certain = {name for name, rows in found(spark, lake).items() if rows == {(order.GAP, 1, None)}}
    assert certain == {"at the other", "before", "after", "taken over"}
    assert done["faults"][order.GAP] == 4
    assert done["uncertain"] == {order.GAP: 4}
    assert done["unjudged"] == [
        {"what": order.GAP, "reason": order.LOST_LINES, "gateway": GATEWAY, "messages": 4}
    ]
    assert done["lossy_gateways"] == [GATEWAY]
    assert [loss["reason"] for loss in done["losses"]] == ["full"]


def test_a_closed_day_neither_accuses_a_broker_nor_excuses_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One message is overtaken on the first day, and one on the second, in an epoch of the first;
    another one is given before midnight and acked behind it."""
    lake, logs, other = Lake(tmp_path / "lake"), tmp_path / "delivery", "AAAAAAAAAAg="
    midnight = datetime.datetime(2026, 2, 1, tzinfo=datetime.UTC)
    night = int(midnight.timestamp()) * 1_000_000
    log = [OWNED, *[certified([[0, offset, 1]], T0 + offset, keys=KEY) for offset in range(2)]]
    log += [dispatched([[0, 0, 1]], T0 + 10), returned(0, T0 + 10, T0 + 2_000)]
    log += [dispatched([[0, 1, 1]], T0 + 3_000), acked(1, T0 + 3_000, T0 + 4_000)]
    log += [dispatched([[0, 0, 1]], T0 + 5_000, attempt=2), acked(0, T0 + 5_000, T0 + 6_000)]
    log += [
        certified([[0, 2, 1]], night - 3_000, keys=other),
        dispatched([[0, 2, 1]], night - 2_000),
    ]
    log += [acked(2, night - 2_000, night + 2_000)]
    day = night + 3_600_000_000
    log += [certified([[0, 3 + n, 1]], day + n, keys=other) for n in range(2)]
    log += [dispatched([[0, 3, 1]], day + 10), returned(3, day + 10, day + 2_000)]
    log += [dispatched([[0, 4, 1]], day + 3_000), acked(4, day + 3_000, day + 4_000)]
    log += [dispatched([[0, 3, 1]], day + 5_000, attempt=2), acked(3, day + 5_000, day + 6_000)]
    log += [position("released", 5, day + 9_000)]
    write_log(logs, 1, log)
    ingest(spark, str(logs), lake)
    rollup(spark, lake)
    before = audit(spark, lake)
    assert {what: n for what, n in before["faults"].items() if n} == {order.OVERTAKEN: 2}
    assert close(lake, before=datetime.date(2026, 2, 1))["folders"] > 0
    for is_killed in (False, True):
        if is_killed:  # in the moment in which one folder takes the place of the other
            (lake.root / "audit").rename(lake.root / "audit.old")
        after = audit(spark, lake)
        assert after["faults"] == before["faults"]
        assert set(after["uncertain"]) <= {order.UNGIVEN}
        assert {row["reason"] for row in after["unjudged"]} <= {losses.CLOSED}
        assert (after["holes"], after["losses"]) == (0, before["losses"])


@soak
def test_a_missing_file_is_recognized_by_the_names_of_the_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, logs = Lake(tmp_path / "lake"), tmp_path / "delivery"
    write_log(logs, 2, [certified([[0, 0, 3]])])
    write_log(logs, 5, [certified([[0, 3, 3]])])
    ingest(spark, str(logs), lake)
    assert audit(spark, lake)["missing_files"] == {"00000000000000aa": [1, 3, 4]}


def test_runs_meet_as_their_offsets_do(spark: SparkSession) -> None:

    rng = random.Random(5)

    def some(longest: int) -> list[tuple[str, int, int, int]]:
        return [
            ("q", rng.randrange(2), rng.randrange(2_000), rng.randrange(1, longest))
            for _ in range(60)
        ]

    shape = "queue_id string, partition bigint, first bigint, count bigint"
    left, right = some(700), some(20)
    met = matching.met(spark.createDataFrame(left, shape), spark.createDataFrame(right, shape))
    found = Counter(
        (row["partition"], row["l_first"], row["r_first"], offset)
        for row in met.collect()
        for offset in range(row["first"], row["first"] + row["count"])
    )
    expected = Counter(
        (p, first, other, offset)
        for _, p, first, count in left
        for _, q, other, length in right
        if p == q
        for offset in range(max(first, other), min(first + count, other + length))
    )
    assert found == expected


# --- Histories of real brokers -------------------------------------------------------------------


@dataclass
class Judged:
    """Histories in one lake, and what one audit says of them all."""

    cases: list[Case]
    certain: list[Finding]
    result: dict[str, Any]

    def wrong(self, *, is_planted: bool) -> list[str]:
        """What it says wrongly, or does not say, of those with a fault or of the healthy ones."""
        cases = [case for case in self.cases if (case.planted is not None) == is_planted]
        ids = {queue_id for case in cases for queue_id in case.queue_ids}
        certain = [one for one in self.certain if one.queue_id in ids]
        gateways = {gateway for case in cases for gateway in case.gateways}
        missing = {
            gateway: numbers
            for gateway, numbers in self.result["missing_files"].items()
            if gateway in gateways
        }
        return wrong(cases, certain, missing)


def judge(spark: SparkSession, make: Callable[[Path], list[Case]]) -> Judged:
    """Make histories, and audit the logs of all of them at once."""
    with in_memory() as folder:
        logs, lake = folder / "logs", Lake(folder / "lake")
        cases = make(logs)
        ingest(spark, str(logs / "*" / "delivery"), lake)
        result = audit(spark, lake)
        rows = [row.asDict() for row in spark.read.parquet(str(lake.root / "audit")).collect()]
        return Judged(cases, findings_of(rows), result)


@pytest.fixture(scope="session")
def judged(spark: SparkSession) -> Judged:
    """In the short form some of both, in the long one all of them."""
    is_whole = bool(os.environ.get("TOCSIN_SOAK"))
    return judge(
        spark,
        lambda logs: (
            healthy_cases(logs, is_whole=is_whole) + planted_cases(logs, is_whole=is_whole)
        ),
    )


def test_a_healthy_broker_is_accused_of_nothing(judged: Judged) -> None:
    """Behind, nacked, parked, paused, stopped, killed, sought, expired, overflowed, redriven: what
    waits is no fault, and what cannot be known is not certain."""
    said = judged.wrong(is_planted=False)
    assert not said, "\n".join(said)


def test_each_fault_among_healthy_histories_is_found_in_its_place(judged: Judged) -> None:
    """Lines lost, doubled and moved, files lost and damaged; also at one of two gateways while the
    lines of the other one are lost. Nothing else is certain."""
    said = judged.wrong(is_planted=True)
    assert not said, "\n".join(said)


@soak
@pytest.mark.parametrize("seed", [11, 12])
def test_any_fault_in_any_history_is_found_where_it_is_and_nowhere_else(
    spark: SparkSession, seed: int
) -> None:
    """Each fault in each history that has a place for it, and each without a fault."""
    judged = judge(spark, lambda logs: cases_of_any(logs, seed=seed))
    said = judged.wrong(is_planted=False) + judged.wrong(is_planted=True)
    assert not said, "\n".join(said)


def test_other_targets_are_of_all_days_that_are_not_closed(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    Synthetic(Plan(messages=300)).write(tmp_path)
    ingest(spark, str(tmp_path / "delivery"), lake)

    def missed(targets: Targets) -> tuple[int, int | None]:
        hours = rollup(spark, lake, targets=targets)["hours"]
        rows = lake.read_rollup(spark, "latency_day", periods.SCHEMAS["latency_day"])
        of_delivery = rows.where("stage = 'delivery' AND target_us IS NOT NULL")
        ((late,),) = of_delivery.agg(F.sum("missed")).collect()
        return hours, late

    every, nothing = missed(NO_TARGETS)
    assert nothing is None
    hours, late = missed(Targets(1, {}))
    assert hours == every
    assert late
    assert missed(Targets(1, {})) == (0, late)
    assert missed(Targets(1, {"orders": 10**12}))[1] != late
    assert missed(NO_TARGETS) == (every, None)


# --- Report -------------------------------------------------------------------------------------


def test_the_report_is_one_page_that_loads_nothing(
    spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    wanted = Wanted(
        logs=str(run.folder / "delivery"), lake=run.lake.root, out=out, usage=run.folder / "usage"
    )
    with (tmp_path / "said").open("w") as said:
        done = report(spark, wanted, Progress(said, spark.sparkContext, line_every_s=600))
    assert done["ingest"]["files"] == 0
    text = out.read_text()
    assert "http" not in text.replace("http-equiv", "")
    assert "<script" not in text
    drawn = text.count("<svg")
    assert drawn == 2
    for part in text.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + part.partition("</svg>")[0] + "</svg>")
    for expected in ("orders", "billing", "inversion: 1", "100 certified", "p99.9", "handling"):
        assert expected in text, expected
    # A step says more than once what it is at, where it takes long.
    steps = [line.split()[0] for line in (tmp_path / "said").read_text().splitlines()]
    assert list(dict.fromkeys(steps)) == ["ingest", "rollup", "usage", "order-audit", "report"]


def test_the_page_has_the_figures_of_the_log_in_utc_whatever_zone_this_machine_is_in(
    spark: SparkSession, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        figures = collect(spark, run.lake, since=None, until=None)
    finally:
        monkeypatch.undo()
        time.tzset()
    for kind in (CERTIFIED, DISPATCHED, SETTLED):
        assert figures.totals[kind] == run.answers.messages[kind]
        assert sum(one[kind] for one in figures.stretches) == run.answers.messages[kind]
    assert figures.judged == sum(run.answers.messages[kind] for kind in (CERTIFIED, DISPATCHED,
                                                                         SETTLED))  # fmt: skip
    hours = sorted((date, hour) for _, date, hour in run.answers.by_hour)
    first, last = (
        datetime.datetime.fromisoformat(f"{date}T{hour:02}:00:00+00:00").timestamp()
        for date, hour in (hours[0], hours[-1])
    )
    assert first <= figures.stretches[0]["first"] < first + 3600
    assert last < figures.stretches[-1]["end"] <= last + 3600
    assert len(figures.over_time) <= COLUMNS_MAX
    inside = {at for one in figures.stretches for at in range(one["first"], one["end"])}
    for row in figures.over_time:
        assert row["start"] % figures.step == 0
        assert inside & set(range(row["start"], row["start"] + figures.step))
        assert sum(row["cells"]) == pytest.approx(row["messages"])
    assert sorted(row["queue"] for row in figures.stages.rows) == ["emails", "orders"]
    assert figures.queues.total == 4
    slowest = [row["p99_us"] for row in figures.queues.rows]
    assert slowest == sorted(slowest, reverse=True)
    assert figures.usage.total["messages_in"] == run.answers.messages[CERTIFIED]
    assert figures.usage.total["left_in"] == figures.usage.total["left_out"] == 0


def test_of_many_queues_and_tenants_the_first_are_shown_and_all_are_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines_ = [
        certified([[0, 0, 1]], queue=f"q{n:03}", queue_id=f"q{n}", tenant=f"t{n % 50}")
        for n in range(200)
    ] + [
        dispatched([[0, 0, 1]], T0 + 100 + n, queue=f"q{n:03}", queue_id=f"q{n}",
                   tenant=f"t{n % 50}")
        for n in range(200)
    ]  # fmt: skip
    write_log(tmp_path / "delivery", 1, lines_)
    lake = Lake(tmp_path / "lake")
    ingest(spark, str(tmp_path / "delivery"), lake)
    rollup(spark, lake)
    usage(spark, lake, None)
    figures = collect(spark, lake, since=None, until=None)
    assert (len(figures.queues.rows), figures.queues.total) == (ROWS_MAX, 200)
    assert (len(figures.stages.rows), figures.stages.total) == (ROWS_MAX, 200)
    assert figures.queues.rows[0]["queue"] == "q199"
    assert (len(figures.usage.pairs.rows), figures.usage.pairs.total) == (USED_MAX, 50)
    assert (len(figures.usage.tenants.rows), figures.usage.tenants.total) == (USED_MAX, 50)
    assert figures.usage.days.total == 1
    assert figures.usage.total["messages_out"] == 200


@soak
def test_when_one_of_two_works_fails_the_other_is_cancelled(spark: SparkSession) -> None:
    ended: list[BaseException] = []

    def fails() -> dict[str, int]:
        raise ZeroDivisionError

    def lasts() -> dict[str, int]:
        try:
            while True:  # also what is begun after the first is cancelled is
                spark.range(10**13).selectExpr("sum(id % 7)").collect()
        except Exception as error:
            ended.append(error)
            raise

    with pytest.raises(ZeroDivisionError):
        at_once(spark, fails, lasts)
    assert len(ended) == 1
    assert at_once(spark, lambda: {"one": 1}, lambda: {"two": 2}) == [{"one": 1}, {"two": 2}]


def test_an_empty_log_makes_a_report_too(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "delivery").mkdir()
    wanted = Wanted(
        logs=str(tmp_path / "delivery"), lake=tmp_path / "lake", out=tmp_path / "report.html"
    )
    with (tmp_path / "said").open("w") as said:
        done = report(spark, wanted, Progress(said))
    assert done["rollup"] == {"hours": 0, "uncovered": 0}
    text = (tmp_path / "report.html").read_text()
    assert "Nothing was delivered." in text
    assert "There is nothing to judge yet." in text


def test_targets_are_shown_by_queue() -> None:
    def seconds(text: str) -> float:
        return float(text)

    assert parse_targets(["0.2", "a=b=0.05"], seconds) == Targets(200_000, {"a=b": 50_000})
    with pytest.raises(ValueError, match="orders=soon"):
        parse_targets(["orders=soon"], seconds)


def test_every_kind_has_a_table(spark: SparkSession, run: Run) -> None:
    for kind in KINDS:
        assert run.lake.read(spark, kind).count() > 0, kind
    assert run.lake.read(spark, UNLOGGED).collect()[0]["reason"] == "full"
