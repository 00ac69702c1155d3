"""Job: the log's finished files → the lake, every line once.

Spark's file source remembers in the checkpoint which files make up a batch, before it reads them,
and gives a batch that did not end again, under its number and with the same files. So a batch may
be begun any number of times: whatever an earlier try left goes first, and it counts from the moment
its manifest is there. A file that comes a second time, in another folder, is passed over by name.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StringType

from spark import files, lines
from spark.lake import CHECKPOINT, Lake, LakeError, write_json
from spark.schema import END, KINDS, POSITION, UNKNOWN, UNLOGGED, struct

FILES_MAX: Final = 16
"""In a batch: a gigabyte of lines at most, since a file has 64 MiB."""
_VERDICT: Final = struct(path=StringType(), file=StringType(), whole=BooleanType())
_FOLDERS: Final = ("date", "hour", "batch")


def ingest(
    spark: SparkSession,
    logs: str,
    lake: Lake,
    *,
    files_max: int = FILES_MAX,
    said: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Bring every finished file that is in `logs` now, a folder or a pattern of folders, and is not
    in the lake yet. `said` hears each batch's manifest.

    Returns what came: sums of the manifests' `lines`, `messages` and `quarantined`, and `files`.

    Raises:
        LakeError: the lake is not one, or another job is at work in it.
    """
    lake.check()
    brought: list[dict[str, Any]] = []
    known: set[str] = set()
    problems: list[LakeError] = []

    def one(batch: DataFrame, number: int) -> None:
        try:
            bring(batch, number)
        except LakeError as problem:  # Spark tells of it in a page of Java
            problems.append(problem)
            raise

    def bring(batch: DataFrame, number: int) -> None:
        lake.forget(number)
        if not known:
            known.update(file["name"] for one in lake.manifests() for file in one["files"])
        manifest = _bring(lake, batch, number, known)
        known.update(file["name"] for file in manifest["files"])
        brought.append(manifest)
        said(manifest)

    query = (
        _lines(spark, logs, files_max)
        .writeStream.foreachBatch(one)
        .option("checkpointLocation", str(lake.root / CHECKPOINT))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except StreamingQueryException:
        if problems:
            raise problems[0] from None
        raise
    return totals(brought)


def _lines(spark: SparkSession, logs: str, files_max: int) -> DataFrame:
    """The stream of all lines, with the files that they are from."""
    return (
        spark.readStream.format("text")
        .option("lineSep", "\n")
        .option("pathGlobFilter", files.PATTERN)
        .option("maxFilesPerTrigger", files_max)
        # Else files that are a week older than the newest are passed over in silence.
        .option("maxFileAge", "36500d")
        .load(logs)
        .select("value", F.col("_metadata.file_path").alias("path"))
    )


def totals(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    """The sums of several batches."""
    sums: dict[str, dict[str, int]] = {"lines": {}, "messages": {}, "quarantined": {}}
    for manifest in manifests:
        for part, counts in sums.items():
            for name, count in manifest[part].items():
                counts[name] = counts.get(name, 0) + count
    return {**sums, "files": sum(len(manifest["files"]) for manifest in manifests)}


def _bring(lake: Lake, batch: DataFrame, number: int, known: set[str]) -> dict[str, Any]:
    """Write one batch, then its manifest, which is returned. `known` names files of others."""
    began = time.monotonic()
    text = batch.persist()
    try:
        verdicts, taken, repeated = _verdicts(text, known)
        marked = text.join(F.broadcast(verdicts), on="path", how="inner")
        judged = lines.judge(
            lines.parse(marked), closed_before=lake.state()["closed_before"]
        ).persist()
        try:
            manifest = _counted(judged) | {
                "batch": number, "files": taken, "repeated_files": repeated,
            }  # fmt: skip
            for kind in KINDS:
                if manifest["lines"].get(kind):
                    rows = lines.rows(judged, kind).withColumn("batch", F.lit(number))
                    rows.write.mode("append").partitionBy(*_FOLDERS).parquet(str(lake.spans(kind)))
            if manifest["quarantined"]:
                bad = lines.faulty(judged).withColumn("batch", F.lit(number))
                bad.write.mode("append").partitionBy("batch").parquet(str(lake.quarantine))
        finally:
            judged.unpersist()
    finally:
        text.unpersist()
    manifest["seconds"] = round(time.monotonic() - began, 3)
    write_json(lake.manifest(number), manifest)
    return manifest


def _verdicts(
    text: DataFrame, known: set[str]
) -> tuple[DataFrame, list[dict[str, Any]], list[str]]:
    """(path, file, whole) of each file to be taken, what the manifest says of them, and the names
    of those that were taken before."""
    may_be = F.col("value").contains(f'"{END}"')
    last = F.when(may_be & (F.get_json_object("value", "$.kind") == END), F.lit(1))
    read = text.groupBy("path").agg(
        F.count("*").alias("lines"), F.count(last).alias("ends")
    ).collect()  # fmt: skip
    names = {row["path"]: unquote(Path(row["path"]).name) for row in read}
    fresh: dict[str, Any] = {}
    repeated = []
    for row in sorted(read, key=lambda row: str(row["path"])):
        name = names[row["path"]]
        if name in known or name in (names[path] for path in fresh):
            repeated.append(name)
        else:
            fresh[row["path"]] = row
    spark = text.sparkSession
    paths = spark.sparkContext.parallelize(list(fresh), max(1, len(fresh)))
    rows, taken = [], []
    for one in paths.map(files.check).collect():
        came = fresh[one.path]
        fault = one.fault
        if fault == "gone" and came["ends"]:
            fault = ""  # removed behind us, after it was read to its end
        elif not fault and came["lines"] != one.lines + 1:
            raise LakeError(f"{one.path} was read in part; try again")
        rows.append((one.path, names[one.path], not fault))
        taken.append(
            {"name": names[one.path], "lines": came["lines"], "fault": fault,
             "recovered": one.recovered}
        )  # fmt: skip
    return spark.createDataFrame(rows, _VERDICT), taken, repeated


def _counted(judged: DataFrame) -> dict[str, Any]:
    """What a manifest says of the lines: how many of each kind, of how many messages, how many
    are quarantined for what, and which hours of which kind they belong to."""
    # What was never logged counts messages of its own: three numbers in a line.
    lost = F.col("certified") + F.col("dispatched") + F.col("settled")
    # What was answered `unknown` is not certified, or stands in a line of its own when it is.
    told = F.when(F.coalesce("outcome", F.lit("")) == UNKNOWN, 0).otherwise(F.col("messages"))
    kind = F.when(F.col("fault").isNull(), F.coalesce("kind", F.lit("none")))
    groups = (
        judged.select(kind.alias("kind"), "fault", "date", "hour", "recipients",
                      told.alias("messages"),
                      F.when(F.col("kind") == UNLOGGED, lost).otherwise(0).alias("lost"))
        .groupBy("kind", "fault", "date", "hour")
        .agg(
            F.count("*").alias("lines"),
            F.sum(F.col("messages") * F.col("recipients") + F.col("lost")).alias("messages"),
        )
        .collect()
    )  # fmt: skip
    manifest: dict[str, Any] = {"lines": {}, "messages": {}, "quarantined": {}}
    hours: set[tuple[str, str, int]] = set()
    for row in groups:
        if row["kind"] is None:
            part, name = "quarantined", row["fault"]
        else:
            part, name = "lines", row["kind"]
            if name in KINDS:
                hours.add((name, row["date"].isoformat(), row["hour"]))
                sums = manifest["messages"]
                if name != POSITION:
                    sums[name] = sums.get(name, 0) + row["messages"]
        manifest[part][name] = manifest[part].get(name, 0) + row["lines"]
    return manifest | {"hours": sorted(hours)}
