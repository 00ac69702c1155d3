"""Runs of offsets, and which of them cover each other. Pure.

A run is a row with `queue_id`, `partition`, `first` and `count`: consecutive offsets of one
partition. Comparing runs offset by offset would cost a row for each message. Here runs are compared
within blocks of offsets, so a comparison costs as much as there are runs. Runs of masks are single
messages.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.schema import KEY_BYTES

BLOCK: Final = 128
"""The number of offsets of a block. Runs meet if they touch the same block. With longer blocks more
of them meet in vain; with shorter ones each is in more blocks. A frame of 100 messages to 16
partitions makes runs of 6."""
PLACE: Final = ("queue_id", "partition")


def exploded(spans: DataFrame, runs: str = "runs") -> DataFrame:
    """Return a row for each run of each span.

    It has the columns of the span without `runs`, and `partition`, `first` and `count`. If the span
    has `keys`, each run has its own.
    """
    kept = [name for name in spans.columns if name not in (runs, "keys")]
    if "keys" in spans.columns:
        before = F.aggregate(
            F.slice(F.col(runs), F.lit(1), F.col("index")),
            F.lit(0).cast("bigint"),
            lambda sum_, run: sum_ + F.get(run, 2),
        )
        size = F.get("run", 2) * KEY_BYTES
        begin = before * KEY_BYTES + 1
        own = [F.substring(F.col("keys"), begin.cast("int"), size.cast("int")).alias("keys")]
    else:
        own = []
    rows = spans.where(F.col(runs).isNotNull())
    return rows.select("*", F.posexplode(runs).alias("index", "run")).select(
        *kept,
        *own,
        F.get("run", 0).alias("partition"),
        F.get("run", 1).alias("first"),
        F.get("run", 2).alias("count"),
    )


def _blocks(runs: DataFrame) -> DataFrame:
    first = F.floor(F.col("first") / BLOCK)
    last = F.floor((F.col("first") + F.col("count") - 1) / BLOCK)
    return runs.withColumn("block", F.explode(F.sequence(first, last)))


def met(left: DataFrame, right: DataFrame, *, on: tuple[str, ...] = PLACE) -> DataFrame:
    """Return a row for each part that a run of `left` and one of `right` share.

    It has its `first` and `count`, the columns of `left`, and those of `right` with `r_` before
    their names. `l_first` and `r_first` are the first offsets of the two runs. Offsets that no run
    of the other side covers are in no row; those that several cover are in several.
    """
    ours = _blocks(left)
    theirs = _blocks(right)
    theirs = theirs.select(*[F.col(name).alias(f"r_{name}") for name in theirs.columns])
    first = F.greatest("first", "r_first")
    end = F.least(F.col("first") + F.col("count"), F.col("r_first") + F.col("r_count"))
    same = [F.col(name) == F.col(f"r_{name}") for name in (*on, "block")]
    condition = same[0]
    for one in same[1:]:
        condition = condition & one
    joined = ours.join(theirs, on=condition, how="inner")
    # Two runs that meet in several blocks share their part once: in the block where it begins.
    parts = joined.where((first < end) & (F.floor(first / BLOCK) == F.col("block")))
    kept = [name for name in left.columns if name not in ("first", "count")]
    named = [f"r_{name}" for name in right.columns if name not in (*on, "count")]
    return parts.select(
        *kept, *named, first.alias("first"), (end - first).cast("bigint").alias("count"),
        F.col("first").alias("l_first"),
    )  # fmt: skip


def offsets(runs: DataFrame) -> DataFrame:
    """Return a row for each offset, with `offset` in place of `first` and `count`."""
    last = F.col("first") + F.col("count") - 1
    return runs.withColumn("offset", F.explode(F.sequence("first", last))).drop("first", "count")


def key_at(place: Column, keys: str = "keys") -> Column:
    """Return the hash of the key of the message at this place, from 0, among `keys`, as it is
    stored."""
    begin = (place * KEY_BYTES + 1).cast("int")
    return F.substring(F.col(keys), begin, F.lit(KEY_BYTES))


def hex_of(key: Column) -> Column:
    """Return a key's hash as the broker writes it: 16 hex digits of the number with these bytes,
    the lowest first."""
    digits = F.hex(key)
    pairs = [F.substring(digits, 2 * index + 1, 2) for index in reversed(range(KEY_BYTES))]
    return F.lower(F.concat(*pairs))
