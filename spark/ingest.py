"""Job: the log's finished files → the lake, every line once.

The manifests of the batches are the ledger of the files that were brought. A file whose path, size
and time are in a manifest is known without being read. Any other file is read, and known by its
content. New files are brought in batches by bytes. A batch is written into its own folder in one
pass, then moved. It counts from the moment its manifest exists. An earlier try that did not end is
undone first. So a job may be killed at any moment and be begun again, with these folders or others.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark import files, lines, sources
from spark.files import File, Known, Listed
from spark.lake import Lake, LakeError, write_json
from spark.schema import KINDS, PASSED, PLACE, PLACELESS, POSITION, QUARANTINE, STAGED, UNLOGGED

MIB: Final = 1_048_576
BATCH_BYTES: Final = 512 * MIB
"""The bytes of lines in a batch, for each core. A manifest is written about every ten seconds."""
_FILES_MAX: Final = 20_000
"""The largest number of files in a batch, because Spark receives their paths one by one."""
_TRIES: Final = 5
_SETTINGS: Final = {
    "spark.sql.files.maxPartitionBytes": str(64 * MIB),
    # Small files share a task: opening one costs about as much as reading this many bytes.
    "spark.sql.files.openCostInBytes": str(32 * 1024),
    "spark.sql.files.ignoreMissingFiles": "true",
}


class _Gone(Exception):
    """Files of a batch disappeared, or changed, while it was brought."""


def ingest(
    spark: SparkSession,
    logs: str | Sequence[str],
    lake: Lake,
    *,
    batch_bytes: int | None = None,
    said: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Bring every finished file in `logs`, folders or patterns of folders, that the lake does not
    have.

    `said` is called with each batch's manifest. `batch_bytes` bounds a batch, which has at least
    one file. Returns sums of the manifests' `lines`, `messages` and `quarantined`, and `files`.
    `damaged` has the paths of files that are not as they were written. `foreign` is the number of
    files of other logs.

    Raises:
        LakeError: one of `logs` does not exist, or its files disappear faster than they are read.
    """
    places = [logs] if isinstance(logs, str) else list(logs)
    cores = spark.sparkContext.defaultParallelism
    brought: list[dict[str, Any]] = []
    known = Known(lake.manifests())
    with _set(spark, _SETTINGS | {"spark.sql.sources.parallelPartitionDiscovery.parallelism":
                                  str(cores)}):  # fmt: skip
        new = [one for one in sources.listed(spark, places) if not known.has(one)]
        for batch in batches(new, batch_bytes or BATCH_BYTES * cores):
            manifest = _bring(spark, lake, batch, known)
            if manifest is not None:
                brought.append(manifest)
                said(manifest)
    return totals(brought)


@contextlib.contextmanager
def _set(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Use other settings inside this block."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def batches(new: Sequence[Listed], bytes_max: int) -> Iterator[list[Listed]]:
    """Cut files into batches, in the order in which they were written.

    A batch of few hours is a batch of few folders. No two files of a batch have the same name,
    because rows are distinguished by it.
    """
    waiting = sorted(new, key=lambda one: (one.modified_unix_ms, one.name, one.path))
    while waiting:
        batch: dict[str, Listed] = {}
        later: list[Listed] = []
        size = 0
        for place, one in enumerate(waiting):
            if batch and (size + one.bytes > bytes_max or len(batch) == _FILES_MAX):
                later += waiting[place:]
                break
            if one.name in batch:
                later.append(one)
            else:
                batch[one.name] = one
                size += one.bytes
        yield list(batch.values())
        waiting = later


def totals(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums of several batches."""
    sums: dict[str, dict[str, int]] = {"lines": {}, "messages": {}, "quarantined": {}}
    for manifest in manifests:
        for part, counts in sums.items():
            for name, count in manifest[part].items():
                counts[name] = counts.get(name, 0) + count
    brought = [entry for manifest in manifests for entry in manifest["files"]]
    return {
        **sums,
        "files": len(brought),
        "damaged": [entry["path"] for entry in brought if entry["fault"]],
        "foreign": sum(len(manifest["foreign_files"]) for manifest in manifests),
    }


# --- One batch ----------------------------------------------------------------------------------


def _bring(
    spark: SparkSession, lake: Lake, batch: list[Listed], known: Known
) -> dict[str, Any] | None:
    """Bring the new files of a batch. Returns its manifest; None if all files have disappeared."""
    began = time.monotonic()
    number = (lake.batches() or [-1])[-1] + 1
    found = _identified(spark, batch)
    foreign = [file for file in found if file.fault == files.FOREIGN]
    fresh, repeated = known.sort(file for file in found if file.fault != files.FOREIGN)
    for _ in range(_TRIES):
        lake.forget(number)
        counts = _staged(spark, lake, fresh, known)
        if counts is not None:
            break
        fresh = [file for file in fresh if sources.is_same(spark, _listed(file))]
    else:
        raise LakeError("files of the log change while they are read; try again")
    if not fresh and not repeated and not foreign:
        return None
    lake.place(number)
    manifest = counts | {
        "batch": number,
        "files": [file.entry() for file in fresh],
        "repeated_files": [files.place_of(file) for file in repeated],
        "foreign_files": [files.place_of(file) for file in foreign],
        "seconds": round(time.monotonic() - began, 3),
    }
    write_json(lake.manifest(number), manifest)
    return manifest


def _listed(file: File) -> Listed:
    return Listed(file.path, file.bytes, file.modified_unix_ms)


def _identified(spark: SparkSession, batch: list[Listed]) -> list[File]:
    for _ in range(_TRIES):
        try:
            return [files.identify(raw) for raw in sources.read_ends(spark, batch)]
        except FileNotFoundError:
            batch = [one for one in batch if sources.exists(spark, one.path)]
    raise LakeError("files of the log go away while they are read; try again")


def _staged(
    spark: SparkSession, lake: Lake, fresh: list[File], known: Known
) -> dict[str, Any] | None:
    """Write the lines of these files, and count them for the manifest.

    None means that files have disappeared, or have not the lines that they should have. Then it has
    to be done again without them.
    """
    try:
        counts, of_file = _counted(_written(spark, lake, fresh), fresh)
    except _Gone:
        return None
    return None if _corrected(spark, fresh, of_file, known) else counts


def _written(spark: SparkSession, lake: Lake, fresh: list[File]) -> DataFrame | None:
    """Write every line of these files into the staging folder, once.

    Returns the rows, of which a few columns may be read; None if there is no line.

    Raises:
        _Gone: one of the files has disappeared.
    """
    bad = [file.name for file in fresh if file.fault]
    paths = [file.path for file in fresh if file.bytes and file.fault != files.CONTRADICTS]
    if not paths:
        return None
    try:
        text = sources.load(spark, "text", paths).select("value", sources.name().alias("file"))
    except FileNotFoundError:
        raise _Gone from None
    whole = ~F.col("file").isin(bad) if bad else F.lit(True)
    parsed = lines.parse(text.withColumn("whole", whole))
    judged = lines.judge(parsed, closed_before=lake.state()["closed_before"])
    staged = str(lake.staging)
    lines.staged(judged).write.mode("overwrite").partitionBy(*PLACE.names).parquet(staged)
    return spark.read.schema(StructType([*STAGED.fields, *PLACE.fields])).parquet(staged)


def _corrected(
    spark: SparkSession, fresh: list[File], of_file: dict[str, int], known: Known
) -> bool:
    """Find the fresh files whose number of lines is not the one that their last line states.
    Returns whether there are any. Each that is still the same in its folder gets the fault
    WRONG_COUNT."""
    wrong = [
        file for file in fresh if not file.fault and of_file.get(file.name, 0) != file.lines + 1
    ]
    for file in wrong:
        if sources.is_same(spark, _listed(file)):
            file.fault = files.WRONG_COUNT
            known.doubt(file)
    return bool(wrong)


def _counted(staged: DataFrame | None, fresh: list[File]) -> tuple[dict[str, Any], dict[str, int]]:
    """Return (the counts of a manifest, the lines of each file by its name). Sets the files' times.

    The manifest counts the lines of each kind, their messages, and the quarantined lines by reason.
    It has the hours of each kind.
    """
    manifest: dict[str, Any] = {"lines": {}, "messages": {}, "quarantined": {}}
    hours: set[tuple[str, str, int]] = set()
    of_file: dict[str, int] = {}
    by_name = {file.name: file for file in fresh}
    for row in _groups(staged) if staged is not None else ():
        of_file[row["file"]] = of_file.get(row["file"], 0) + row["lines"]
        _note(by_name[row["file"]], row)
        if row["kind"] == QUARANTINE:
            part, name = "quarantined", row["reason"]
        else:
            part, name = "lines", row["named"] if row["kind"] == PASSED else row["kind"]
        manifest[part][name] = manifest[part].get(name, 0) + row["lines"]
        if row["kind"] in KINDS:
            hours.add((name, row["date"].isoformat(), row["hour"]))
            if name != POSITION:
                sums = manifest["messages"]
                sums[name] = sums.get(name, 0) + row["messages"]
    for file in fresh:
        if file.fault and file.fault != files.CONTRADICTS:
            file.lines = of_file.get(file.name, 0)
    return manifest | {"hours": sorted(hours)}, of_file


def _groups(staged: DataFrame) -> list[Row]:
    """Return the counts of each file, folder, reason and kind."""
    # A line about lost messages has three counts of its own.
    lost = F.col("certified") + F.col("dispatched") + F.col("settled")
    # A publish answered `unknown` is not certified, or has its own line when it is. What is
    # scheduled has one when it is due.
    is_placeless = F.coalesce("outcome", F.lit("")).isin(*PLACELESS)
    certain = F.when(is_placeless, 0).otherwise(F.col("messages"))
    weight = F.when(F.col("kind") == UNLOGGED, lost).otherwise(certain * F.col("recipients"))
    is_bad = F.col("kind") == QUARANTINE
    return (
        staged.select(
            "kind", "date", "hour", "file", "named", "gateway", weight.alias("messages"),
            F.when(is_bad, F.col("reason")).alias("reason"), lines.time().alias("at_unix_us"),
        )
        .groupBy("kind", "date", "hour", "file", "named", "reason")
        .agg(
            F.count("*").alias("lines"),
            F.sum("messages").alias("messages"),
            F.min("at_unix_us").alias("since_unix_us"),
            F.max("at_unix_us").alias("until_unix_us"),
            F.max("gateway").alias("gateway"),
        )
        .collect()
    )  # fmt: skip


def _note(file: File, row: Row) -> None:
    """Add the times of some lines to those of their file."""
    since, until = row["since_unix_us"], row["until_unix_us"]
    if since is not None:
        file.since_unix_us = min(since, file.since_unix_us or since)
        file.until_unix_us = max(until, file.until_unix_us or until)
    if file.gateway is None:
        file.gateway = row["gateway"]
