"""Percentiles that can be merged: histograms whose buckets grow with the duration.

A sketch is an array of (bucket, messages) in the order of the buckets. Bucket b has the durations
from GROWTH^b - 1 up to GROWTH^(b + 1) - 1 microseconds. So an answer is off by at most half a
bucket of its own value, at every rank and whatever the distribution is. Sketches are merged by
adding. A day of hours is exactly what it would be of the log, and a repeated run changes nothing.

Source: https://www.vldb.org/pvldb/vol12/p2195-masson.pdf (DDSketch).
"""

import math
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, IntegerType, LongType

from spark.schema import struct

PER_OCTAVE: Final = 128
"""The number of buckets up to twice a duration. An answer is off by at most 0.28 % of it."""
GROWTH: Final = 2 ** (1 / PER_OCTAVE)
ERROR: Final = math.sqrt(GROWTH) - 1
RANKS: Final = {"p50_us": 0.5, "p90_us": 0.9, "p99_us": 0.99, "p999_us": 0.999}
SKETCH: Final = ArrayType(struct(bucket=IntegerType(), messages=LongType()))


def bucket(duration: Column) -> Column:
    """Return the bucket of a duration, which is not negative."""
    return F.floor(F.log1p(duration) * (1 / math.log(GROWTH))).cast("int")


def sketch(bucket_: str, messages: str) -> Column:
    """Aggregate rows of one bucket each, no bucket twice, into a sketch."""
    return F.sort_array(F.collect_list(F.struct(bucket_, messages)))


def positions(bucket_: str, messages: str) -> Column:
    """Aggregate rows of one bucket each into the places of RANKS among their buckets.

    The result is an array. A place between two messages of different buckets is between these
    buckets.
    """
    ranks = F.array(*[F.lit(rank) for rank in RANKS.values()])
    return F.percentile(bucket_, ranks, F.col(messages))


def percentiles(positions_: str, sketch_: str, shortest: str, longest: str) -> list[Column]:
    """Return the durations at RANKS. A place between two messages has the duration of the shorter
    one. None is outside the shortest and the longest."""

    def duration(place: Column) -> Column:
        buckets = F.filter(F.col(sketch_)["bucket"], lambda one: one <= place)
        middle = F.exp((F.array_max(buckets) + 0.5) * math.log(GROWTH)) - 1
        return F.greatest(shortest, F.least(longest, F.round(middle).cast("bigint")))

    return [duration(F.get(positions_, index)).alias(name) for index, name in enumerate(RANKS)]


def ranks(sketch_: str, durations_us: list[int]) -> Column:
    """Return the part of a sketch's messages that took at most each of these durations, as an
    array."""

    def messages(of: Column) -> Column:
        zero = F.lit(0).cast("bigint")
        return F.aggregate(of, zero, lambda sum_, one: sum_ + one["messages"])

    def part(most: Column) -> Column:
        within = F.filter(sketch_, lambda one: one["bucket"] <= most)
        return messages(within) / messages(F.col(sketch_))

    buckets = [bucket(F.lit(duration)) for duration in durations_us]
    return F.transform(F.array(*buckets), part)
