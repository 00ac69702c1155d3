"""The time of messages, by stage: spans → stages. Pure.

A stage is a part of a message's way. A row here is a duration that some messages share:

    produced ─ arriving ─ accepted ─ gathering ─ asked ─ storing ─ certified
    due ────── late ───────────────────────────── asked, instead, of scheduled messages
        certified ─ waiting (for its cause) ─ dispatched ─ writing ─ written      each group's own
            dispatched ─ handling ─ acked
    delivery: accepted → written          whole: produced → written
    of scheduled messages both are: due → written

The first seven are differences inside a line. They are exact, except `waiting` of messages that
were read from the storage. `delivery` and `whole` are differences of two lines. They are exact if
one gateway did both, whatever happened to its clock meanwhile. Otherwise they are as good as two
machines' clocks agree, and 0 if these would say less. They are of first deliveries, because
redeliveries, and deliveries to a reader that started in the past or fell behind, say nothing about
the broker's speed.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark import matching
from spark.schema import ACKED, AGAIN, REPLAY, UNKNOWN

ARRIVING: Final = "arriving"
LATE: Final = "late"
GATHERING: Final = "gathering"
STORING: Final = "storing"
WAITING: Final = "waiting"
WRITING: Final = "writing"
HANDLING: Final = "handling"
DELIVERY: Final = "delivery"
WHOLE: Final = "whole"
STAGES: Final = (ARRIVING, LATE, GATHERING, STORING, WAITING, WRITING, HANDLING)
"""The parts, in their order; DELIVERY and WHOLE cover several of them."""

DIMENSIONS: Final = ("tenant", "queue", "group", "transport", "gateway", "cause")
"""The columns by which durations are grouped. `group` and `cause` are null if there is none."""
_ROW: Final = (*DIMENSIONS, "stage", "at_unix_us", "duration_us", "messages")


def _stages(spans: DataFrame, durations: dict[str, Column], weight: Column) -> DataFrame:
    """Return a row for each stage whose duration is known."""
    parts = [
        F.struct(F.lit(name).alias("stage"), duration.cast("bigint").alias("duration_us"))
        for name, duration in durations.items()
    ]
    absent = [F.lit(None).cast("string").alias(n) for n in DIMENSIONS if n not in spans.columns]
    given = [F.col(name) for name in DIMENSIONS if name in spans.columns]
    rows = spans.select(
        *given, *absent, "at_unix_us", weight.cast("bigint").alias("messages"),
        F.explode(F.array(*parts)).alias("part"),
    )  # fmt: skip
    known = rows.select("*", "part.stage", "part.duration_us").where(
        F.col("duration_us").isNotNull() & (F.col("messages") > 0)
    )
    duration = F.greatest(F.col("duration_us"), F.lit(0).cast("bigint"))
    return known.withColumn("duration_us", duration).select(*_ROW)


def of_publishing(certified: DataFrame) -> DataFrame:
    """Return arriving, late, gathering and storing of certified messages. A producer's own time
    counts only if its clock's offset is known."""
    stored = certified.where(F.coalesce("outcome", F.lit("")) != UNKNOWN)
    produced = F.when(F.col("clock_offset_us").isNotNull(), F.col("produced_unix_us"))
    return _stages(
        stored,
        {
            ARRIVING: F.col("accepted_unix_us") - produced,
            LATE: F.col("asked_unix_us") - F.col("due_unix_us"),
            GATHERING: F.when(
                F.col("due_unix_us").isNull(), F.col("asked_unix_us") - F.col("accepted_unix_us")
            ),
            STORING: F.col("certified_unix_us") - F.col("asked_unix_us"),
        },
        F.col("messages"),
    )


def _is_first() -> Column:
    """Return the condition for a first delivery of its messages that is no replay."""
    cause = F.coalesce("cause", F.lit(""))
    return (F.col("attempt") == 1) & ~cause.isin(AGAIN, REPLAY)


def of_giving(dispatched: DataFrame) -> DataFrame:
    """Return rows of the stages `waiting` (certified → dispatched) and `writing` (dispatched →
    written). Messages that a gateway read from the storage have no time of certification. Their
    waiting counts from the beginning of their commit, by the clock of the gateway that stored
    them."""
    certified = F.coalesce("certified_unix_us", F.col("published_unix_ms") * 1000)
    waited = F.col("dispatched_unix_us") - certified
    return _stages(
        dispatched,
        {
            WAITING: F.when(_is_first(), waited),
            WRITING: F.col("written_unix_us") - F.col("dispatched_unix_us"),
        },
        F.col("messages") * F.col("recipients"),
    )


def of_handling(settled: DataFrame) -> DataFrame:
    """Return handling: from dispatch to ack."""
    acked = settled.where((F.col("outcome") == ACKED) & F.col("dispatched_unix_us").isNotNull())
    times = acked.select(
        *[name for name in DIMENSIONS if name in acked.columns], "at_unix_us",
        F.explode(F.arrays_zip("runs", "dispatched_unix_us")).alias("one"),
    )  # fmt: skip
    given = F.col("one.dispatched_unix_us")
    # At most once: settled before it was given. No handling can be seen.
    handled = F.when(given <= F.col("at_unix_us"), F.col("at_unix_us") - given)
    return _stages(times, {HANDLING: handled}, F.get("one.runs", 2))


def first_deliveries(dispatched: DataFrame) -> DataFrame:
    """Return the lines of first deliveries that a socket or a request took."""
    return dispatched.where(_is_first() & F.col("written_unix_us").isNotNull())


def deliveries(dispatched: DataFrame, certified: DataFrame) -> DataFrame:
    """Return first deliveries joined with their publishes.

    A row is a part of a run that shares all its times. It has `delivery_us`, `whole_us`,
    `waiting_us` and the span's columns that matter. Of the publish it has `keys` (hashes of its
    whole run) and `key_place` (of the part's first message). Messages that no line of `certified`
    covers are in no row.
    """
    given = first_deliveries(dispatched).select(
        *DIMENSIONS, "queue_id", "stepped_us", "at_unix_us", "written_unix_us", "recipients",
        "dispatched_unix_us", "certified_unix_us", "published_unix_ms", "runs",
    )  # fmt: skip
    produced = F.when(F.col("clock_offset_us").isNotNull(), F.col("produced_unix_us"))
    published = certified.where(F.col("runs").isNotNull()).select(
        "queue_id", "gateway", "stepped_us", "keys", "runs",
        F.coalesce("due_unix_us", "accepted_unix_us").alias("accepted_unix_us"),
        F.coalesce("due_unix_us", produced).alias("produced_unix_us"),
    )  # fmt: skip
    met = matching.met(
        matching.exploded(given),
        matching.exploded(published),
    )
    same = F.col("gateway") == F.col("r_gateway")
    steps = F.when(same, F.col("stepped_us") - F.col("r_stepped_us")).otherwise(0)
    known = F.coalesce("certified_unix_us", F.col("published_unix_ms") * 1000)
    return met.select(
        *DIMENSIONS, "queue_id", "partition", "first", "count", "recipients", "at_unix_us",
        (F.col("written_unix_us") - F.col("r_accepted_unix_us") - steps).alias("delivery_us"),
        (F.col("written_unix_us") - F.col("r_produced_unix_us") - steps).alias("whole_us"),
        (F.col("dispatched_unix_us") - known).alias("waiting_us"),
        F.col("r_keys").alias("keys"),
        (F.col("first") - F.col("r_first")).alias("key_place"),
    )  # fmt: skip


def of_deliveries(joined: DataFrame) -> DataFrame:
    """Return delivery and whole, given the rows of `deliveries`."""
    return _stages(
        joined,
        {DELIVERY: F.col("delivery_us"), WHOLE: F.col("whole_us")},
        F.col("count") * F.col("recipients"),
    )
