"""The folders of a lake, in which a batch appears everywhere at once or not at all.

    <lake>/spans/<kind>/date=…/hour=…/batch=…/*.parquet   rows that ingest brought
    <lake>/quarantine/batch=…/*.parquet                   lines that it did not believe, verbatim
    <lake>/batches/00000007.json                          the manifest of batch 7: its files and
                                                          counts; the batch counts from the moment
                                                          this file exists
    <lake>/staging/                                       the batch that is under way
    <lake>/rollup/table=<table>/…                         tables that the other jobs made of it
    <lake>/state.json                                     which batches rollup knows, what is closed

Any folder will do that the driver and every worker see under one name. One job at a time works on a
lake. `Lake.alone` does not wait and refuses the second job. A lake of an earlier version has a
folder `checkpoint`, which is no longer read.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructType

from spark.schema import DERIVED, KINDS, QUARANTINE, stored, table

STATE: Final = "state.json"
BATCHES: Final = "batches"
ROLLUP: Final = "rollup"


class LakeError(Exception):
    """Error: a sentence says what is wrong with a lake and what to do about it."""


def write_json(path: Path, value: object) -> None:
    """Write a file that exists as a whole or not at all, even after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    with fresh.open("w") as file:
        json.dump(value, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_json(path: Path, otherwise: Any) -> Any:
    """Return the content of a JSON file; `otherwise` if the file does not exist."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return otherwise


def table_of(spark: SparkSession, rows: Sequence[dict[str, Any]], schema: StructType) -> DataFrame:
    """Return a few given rows as a table.

    Spark would make it in a Python worker. Reading it from JSON instead means that no machine of a
    cluster needs Python.
    """
    text = F.lit(json.dumps(rows, default=str))
    inside = F.from_json(text, ArrayType(schema))
    return spark.range(1).select(F.inline(inside))


class Lake:
    """A lake. Making the object creates nothing on disk."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def __repr__(self) -> str:
        return f"<Lake {self.root}: {len(self.batches())} batches>"

    def spans(self, kind: str) -> Path:
        """Return the folder of a kind's table."""
        return self.root / "spans" / kind

    @property
    def quarantine(self) -> Path:
        """The folder of the lines that ingest did not believe."""
        return self.root / "quarantine"

    @property
    def staging(self) -> Path:
        """The folder of the batch that is under way, with one folder for each that it will fill."""
        return self.root / "staging"

    def rollup(self, name: str) -> Path:
        """Return the folder of a table that another job made."""
        return self.root / ROLLUP / f"table={name}"

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only job in the lake, inside this block.

        Raises:
            LakeError: another job is at work.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise LakeError(f"{self.root} is no folder; --lake names one for the lake") from None
        with (self.root / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LakeError(f"another job is at work in {self.root}; try again later") from None
            yield

    # --- Batches --------------------------------------------------------------------------------

    def manifest(self, batch: int) -> Path:
        """Return the path of a batch's manifest."""
        return self.root / BATCHES / f"{batch:08}.json"

    def batches(self) -> list[int]:
        """Return the batches that count, in order: 0, 1, 2 … without a hole."""
        names = sorted((self.root / BATCHES).glob("[0-9]*.json"))
        return [int(name.stem) for name in names]

    def manifests(self, after: int = -1) -> list[dict[str, Any]]:
        """Return the manifests of the batches after `after`."""
        found = [read_json(self.manifest(batch), {}) for batch in self.batches() if batch > after]
        return [one for one in found if one]

    def forget(self, batch: int) -> None:
        """Undo a batch, even one that was only begun. It stops counting first, then its rows are
        removed. A batch that does not exist is left alone."""
        self.manifest(batch).unlink(missing_ok=True)
        for kind in KINDS:
            for folder in self.spans(kind).glob(f"date=*/hour=*/batch={batch}"):
                shutil.rmtree(folder)
        shutil.rmtree(self.quarantine / f"batch={batch}", ignore_errors=True)
        shutil.rmtree(self.staging, ignore_errors=True)

    def place(self, batch: int) -> None:
        """Move the staged folders to the places where they are read. They do not count yet."""
        for folder in sorted(self.staging.glob("kind=*/date=*/hour=*")):
            kind = folder.parent.parent.name.removeprefix("kind=")
            if kind in KINDS:
                target = self.spans(kind) / folder.parent.name / folder.name / f"batch={batch}"
            elif kind == QUARANTINE:
                target = self.quarantine / f"batch={batch}"
            else:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(target)
        shutil.rmtree(self.staging, ignore_errors=True)

    # --- State ----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of the lake.

        `rolled` is the last batch that rollup has seen, -1 for none. `closed_before` is the date
        before which days are closed, "" for none. `open_hours` have to be rolled up again.
        `targets` are those of the last roll-up.
        """
        kept: dict[str, Any] = read_json(self.root / STATE, {})
        return {
            "rolled": -1, "closed_before": "", "open_hours": [], "targets": [None, {}]
        } | kept  # fmt: skip

    def keep(self, **changed: object) -> None:
        """Change the state."""
        write_json(self.root / STATE, self.state() | changed)

    # --- Tables ---------------------------------------------------------------------------------

    def read(self, spark: SparkSession, kind: str) -> DataFrame:
        """Return all lines of a kind that count; no rows if there are none yet."""
        batches = self.batches()
        if not batches or not any(self.spans(kind).glob("date=*")):
            return table_of(spark, [], table(kind))
        rows = spark.read.schema(stored(kind)).parquet(str(self.spans(kind)))
        derived = {name: F.col(of) for name, of in DERIVED.get(kind, {}).items()}
        counting = rows.where(F.col("batch") <= batches[-1]).withColumns(derived)
        return counting.select(*table(kind).names)

    def read_rollup(self, spark: SparkSession, name: str, schema: StructType) -> DataFrame:
        """Return a table that another job made; no rows if it was not made yet."""
        if not any(self.rollup(name).glob("date=*")):
            return table_of(spark, [], schema)
        return spark.read.schema(schema).parquet(str(self.rollup(name)))

    def write_rollup(self, rows: DataFrame, name: str, *folders: str) -> None:
        """Replace rows of a table. `folders` are columns, by whose values the rows are in folders.
        Folders of which `rows` has a row get the new rows; other folders stay."""
        target = str(self.rollup(name))
        dynamic = rows.write.option("partitionOverwriteMode", "dynamic").mode("overwrite")
        dynamic.partitionBy(*folders).parquet(target)

    def write_rollups(self, rows: DataFrame) -> None:
        """Replace the rows of several tables at once; `table`, `date` and `hour` are their
        folders."""
        folders = ("table", "date", "hour")
        dynamic = rows.repartition(*folders).write.option("partitionOverwriteMode", "dynamic")
        dynamic.mode("overwrite").partitionBy(*folders).parquet(str(self.root / ROLLUP))
