"""The promises, checked from the broker's own log of certified, dispatched and settled messages.

Ownership orders everything. A gateway owns a partition of a group for an **epoch**. It logs the
group's position when the epoch begins, now and then, and when it ends (`position`). Epochs with
neighboring numbers make a **segment**: nobody has moved the group in between, because a seek or a
purge raises the epoch by itself. Within an epoch one clock orders events; within a segment the
numbers of the epochs do. No check rests on two machines' clocks alone.

The rules (in parentheses the promise that is broken otherwise):

gap              Everything below a position is settled except the messages that the position
                 counts as open. A message that was passed, never given and never settled is lost
                 (P1). This is certain if a position without open messages is above it, or if a
                 later message of its key was given while nothing was dying. Until then it waits for
                 credit, a retry or an operator; a waiting message is no finding.
unsettled        The same of a given message: it was passed, though no line settles it (P1).
repetition       A given message is given again only after it came back. An epoch gives a message at
                 most once more than it returned it. It gives nothing after its end, and nothing
                 that an earlier epoch with a clean end has settled (P5).
inversion        First deliveries of a key are in the order of its offsets (P3).
overtaken        While a message is back and waits, no later message of its key is given (P3). A
                 message on its way to the dead letters no longer waits.
ungiven          A message settled as given at a time was given at that time.
settled_twice    A delivery comes back once, and a message to one end in an epoch. A delivery that
                 came back may still be acked (R21).
settled_early    Nothing is settled before it is given.
certified_twice  An offset is new once.
disorder         A gateway certifies the offsets of a partition in their order.

In addition, *holes* are offsets that no line certifies. They are the log's own loss, because
offsets are dense.

A finding rests on the lines of certain gateways during a certain time. If lines of one of them were
lost in that time, or have not come yet, it is not certain, and states why (`unsure`). If no
position names the owner of a partition (an older log), each gateway counts as an owner by itself
and nothing is certain.

Times of lines may be earlier than their events, because a span has the time of its first message. A
`dispatched` span continues for a turn of the gateway's loop, unless another one begins; a `settled`
one for SETTLED_US. Each check states how it allows for that.

The checks have two steps. The first finds suspects among runs, in one pass; in a log without
redeliveries there are none. The second examines the suspects message by message.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, LongType, StringType

from spark import matching
from spark.losses import EVER, NOT_YET
from spark.schema import DYING, FINAL, GONE, KEY_BYTES, PARKED, RETURNED, struct

HOLE: Final = "hole"
GAP: Final = "gap"
UNSETTLED: Final = "unsettled"
REPETITION: Final = "repetition"
INVERSION: Final = "inversion"
OVERTAKEN: Final = "overtaken"
UNGIVEN: Final = "ungiven"
SETTLED_TWICE: Final = "settled_twice"
SETTLED_EARLY: Final = "settled_early"
TWICE: Final = "certified_twice"
DISORDER: Final = "disorder"
WAITING: Final = "waiting"
"""No finding: messages that a group has passed and may still give. Nothing waits in a segment that
another one follows, because an operator has moved the group."""

UNOWNED: Final = "unowned"
"""The doubt of a finding if no position names the owner of the partition, or states since when the
gateway has owned it."""
LOST_LINES: Final = "lost_lines"
"""The doubt of a finding if lines of its gateway at that time are lost. NOT_YET means that they
have not come yet, CLOSED that their day is closed."""

SETTLED_US: Final = 500
"""The time within which settled messages may share their time, in microseconds."""
TURN_US: Final = 100_000
"""More than the time of a turn of a gateway's loop. Messages given within it may share their
time."""
CLOCKS_US: Final = 10_000_000
"""The distance in time up to which a loss may concern a finding, in microseconds. Clocks differ,
and some lines are about earlier events."""
SLICE_US: Final = 10_000_000
"""The length of the slices of time in which given messages are examined, in microseconds."""

FINDING: Final = struct(
    what=StringType(), queue=StringType(), queue_id=StringType(), group=StringType(),
    partition=LongType(), first=LongType(), count=LongType(), key=StringType(),
    gateway=StringType(), at_unix_us=LongType(), certain=BooleanType(), unsure=StringType(),
)  # fmt: skip
"""The columns of a finding. `unsure` is the reason why it is not certain; null if it is."""

LOST: Final = struct(
    lossy=StringType(), doubt=StringType(), lost_since_us=LongType(), lost_until_us=LongType()
)
"""Lost lines of a gateway, in Unix microseconds of its clock. `doubt` is LOST_LINES, NOT_YET or
CLOSED."""

Keep = Callable[[DataFrame], DataFrame]
"""Function that computes rows once and stores them; the rows that it returns are read from the
store."""

_PLACE: Final = ("queue_id", "group", "partition")
_NAMES: Final = ("queue", *_PLACE, "gateway")
_EPOCH: Final = ("epoch_id", "segment_id", "nth", "is_known")
"""`epoch_id` and `segment_id` are hashes of their names; `nth` orders epochs."""
_NO_KEY: Final = bytes(KEY_BYTES)
_OF_SEGMENT: Final = (GAP, UNSETTLED, INVERSION, WAITING)
"""Findings that rest on all epochs of a segment. Other findings about a group rest on their own
epoch."""


class Lines(NamedTuple):
    """The log as the checks need it. Each table is computed already."""

    runs: DataFrame
    """The rows of `published`."""
    epochs: DataFrame
    """The rows of `epochs`."""
    gave: DataFrame
    """The rows of `given`."""
    settles: DataFrame
    """The rows of `settlements`."""


# --- The log's lines as rows of runs ------------------------------------------------------------


def published(certified: DataFrame) -> DataFrame:
    """Return the runs of certified messages, also of duplicates (whose own line may be lost)."""
    told = certified.select(
        "queue_id", "queue", "gateway", "keys", "at_unix_us", "runs", "duplicate_runs",
        (F.col("asked_unix_us") - F.col("stepped_us")).alias("asked_us"),
    )  # fmt: skip
    new = matching.exploded(told.drop("duplicate_runs"))
    old = told.drop("runs").withColumn("keys", F.lit(None).cast("binary"))
    return new.withColumn("is_new", F.lit(True)).unionByName(
        matching.exploded(old, "duplicate_runs").withColumn("is_new", F.lit(False))
    )


def epochs(positions: DataFrame) -> DataFrame:
    """Return a row for each epoch, with its place and owner, `epoch_id`, `segment_id`, `is_known`
    (true) and:

        nth              its number in the order of epochs
        from_us          its begin, by the gateway's clock without its steps
        until_us         its end, by the same clock: when the gateway owned the place again, or a
                         moment after it gave the place up; EVER if neither
        began_unix_us    -EVER if its first line is lost
        ended_unix_us    null if no line states it
        is_told          its first line exists, and that of the epoch that the gateway has had
                         there next, so that its begin and end are known
        is_clean         everything that was settled in it is durable
        owned_from       where it began; null if its first line is lost
        reach            how far it came
        previous_reach   how far the epochs before had come that had a clean end; null if none had
        told_below, told_unix_us  everything below was settled by then, as one of its lines states

    and of its segment, the same in each of its epochs:

        start            below it nothing is judged
        judged_from      what is new to it; see _judged_from
        settled_below, settled_unix_us  everything from `start` to there was settled by then; null
                         if nothing states it
        undying_nth, undying_us, undying_unix_us  its last position at which nothing was dying
        is_last          it is the last one of its place
    """
    at = F.col("at_unix_us") - F.col("stepped_us")
    is_owned = F.col("event") == "owned"
    is_released = F.col("event") == "released"
    each = positions.withColumn("steady_us", at).groupBy(
        "queue_id", "group", "group_id", "partition", "epoch", "gateway"
    ).agg(
        F.first("queue").alias("queue"),
        F.min(F.when(is_owned, F.col("steady_us"))).alias("owned_us"),
        F.min("steady_us").alias("seen_us"),
        F.min("at_unix_us").alias("seen_unix_us"),
        F.min(F.when(is_owned, F.col("at_unix_us"))).alias("owned_unix_us"),
        F.max(F.when(is_released, F.col("at_unix_us"))).alias("ended_unix_us"),
        F.max(F.when(is_released, F.col("steady_us"))).alias("released_us"),
        F.coalesce(F.max(F.when(is_released, F.col("is_clean"))), F.lit(False)).alias("is_clean"),
        F.max(F.when(is_owned, F.greatest("frontier", "ahead"))).alias("owned_from"),
        F.max(F.when(is_owned, F.col("certified_below"))).alias("certified_below"),
        F.min("frontier").alias("seen_from"),
        F.max("frontier").alias("reach"),
        F.max(F.when(F.col("open") == 0, F.struct("frontier", "at_unix_us"))).alias("settled"),
        F.max(F.when(F.col("dying") == 0, F.col("steady_us"))).alias("undying_us"),
        F.max(F.when(F.col("dying") == 0, F.col("at_unix_us"))).alias("undying_unix_us"),
    )  # fmt: skip
    line = Window.partitionBy("queue_id", "group_id", "partition").orderBy("epoch", "seen_us")
    before = F.lag("epoch").over(line)
    is_first = before.isNull() | (F.col("epoch") != before + 1)
    counted = each.withColumns({
        "nth": F.row_number().over(line).cast("bigint"),
        "part": F.sum(is_first.cast("int")).over(line),
    })  # fmt: skip
    earlier = Window.partitionBy("queue_id", "group_id", "partition", "part").orderBy("nth")
    clean = F.max(F.when(F.col("is_clean"), F.col("reach"))).over(earlier.rowsBetween(*_BEFORE))
    return _segments(_intervals(counted.withColumn("previous_reach", clean)))


def _intervals(each: DataFrame) -> DataFrame:
    mine = Window.partitionBy("gateway", *_PLACE).orderBy("seen_us")
    begins = F.coalesce(
        "owned_us", F.when(F.lag("seen_us").over(mine).isNotNull(), F.col("seen_us"))
    )
    with_begin = each.withColumn("from_us", F.coalesce(begins, F.lit(-EVER)))
    after = F.lead("from_us").over(mine)
    until = F.least(after, F.col("released_us") + TURN_US)
    is_told = F.col("owned_us").isNotNull()
    return with_begin.withColumns({
        "until_us": F.coalesce(until, F.lit(EVER)),
        "is_told": is_told & F.coalesce(F.lead(is_told).over(mine), F.lit(True)),
    })  # fmt: skip


def _segments(each: DataFrame) -> DataFrame:
    named = each.withColumns({
        "epoch_id": F.xxhash64("queue_id", "group_id", "partition", "epoch", "gateway"),
        "segment_id": F.xxhash64("queue_id", "group_id", "partition", "part", F.lit("segment")),
        "is_known": F.lit(True),
        "began_unix_us": F.coalesce("owned_unix_us", F.lit(-EVER)),
    })  # fmt: skip
    whole = Window.partitionBy("segment_id")
    latest = F.max(F.struct("seen_unix_us", "nth", F.col("segment_id").alias("id")))
    first = F.struct(
        "nth",
        F.coalesce("owned_from", "seen_from").alias("start"),
        "epoch",
        "began_unix_us",
        "certified_below",
    )
    undying = F.when(
        F.col("undying_us").isNotNull(), F.struct("nth", "undying_us", "undying_unix_us")
    )
    return named.withColumns({
        "head": F.min(first).over(whole),
        "told": F.col("settled"),
        "settled": F.max("settled").over(whole),
        "undying": F.max(undying).over(whole),
        "is_last": latest.over(Window.partitionBy(*_PLACE))["id"] == F.col("segment_id"),
    }).select(
        *_PLACE, "queue", "gateway", *_EPOCH, "from_us", "until_us", "began_unix_us", "is_told",
        "ended_unix_us", "is_clean", "owned_from", "previous_reach", "reach",
        F.col("head.start").alias("start"), _judged_from(F.col("head")).alias("judged_from"),
        F.col("told.frontier").alias("told_below"), F.col("told.at_unix_us").alias("told_unix_us"),
        F.col("settled.frontier").alias("settled_below"),
        F.col("settled.at_unix_us").alias("settled_unix_us"),
        F.col("undying.nth").alias("undying_nth"), F.col("undying.undying_us").alias("undying_us"),
        F.col("undying.undying_unix_us").alias("undying_unix_us"), "is_last",
    )  # fmt: skip


def _judged_from(head: Column) -> Column:
    """Return (offset, unix_us): messages at or after this offset, certified at this time or later,
    are new to the segment.

    They were given in no epoch before the segment's first one. Either value alone would suffice, if
    the gateway knew everything that is certified, and if clocks agreed. Everything is new to the
    group's first epoch. Nothing is new if the epoch's first line is lost, or does not state it.
    """
    began, below = head["began_unix_us"], head["certified_below"]
    is_known = (began != -EVER) & below.isNotNull()
    later = F.struct(below.alias("offset"), (began + CLOCKS_US).alias("unix_us"))
    every, none = (
        F.struct(F.lit(at).alias("offset"), F.lit(at).alias("unix_us")) for at in (-EVER, EVER)
    )
    return F.when(head["epoch"] == 1, every).when(is_known, later).otherwise(none)


def _is_new() -> Column:
    """Return the condition for a message that is new to its segment."""
    of, at = F.col("judged_from"), F.col("certified_unix_us")
    return F.coalesce((at >= of["unix_us"]) & (F.col("offset") >= of["offset"]), F.lit(False))


def given(dispatched: DataFrame, owned: DataFrame) -> DataFrame:
    """Return the runs that groups were given, each in its epoch.

    They have `epoch_id`, `segment_id`, `nth`, `is_known`, `steady_us`, `first`, `count`,
    `previous_reach`, and their place and time.
    """
    spans = dispatched.where(F.col("group").isNotNull()).select(
        "queue", "queue_id", "group", "gateway", "at_unix_us",
        (F.col("at_unix_us") - F.col("stepped_us")).alias("steady_us"), "runs",
    )  # fmt: skip
    return _in_epochs(matching.exploded(spans), owned)


def settlements(settled: DataFrame, owned: DataFrame) -> DataFrame:
    """Return the runs that came to an end, or came back, each in its epoch.

    They have `outcome`, and in `given_us` the time at which they were given, by the clock without
    its steps; null if that is unknown.
    """
    stepped = F.col("stepped_us")
    parts = settled.select(
        "queue", "queue_id", "group", "gateway", "outcome", "at_unix_us",
        (F.col("at_unix_us") - stepped).alias("steady_us"), stepped,
        F.explode(F.arrays_zip("runs", "dispatched_unix_us")).alias("one"),
    )  # fmt: skip
    kept = [name for name in parts.columns if name not in ("one", "stepped_us")]
    runs = parts.select(
        *kept,
        (F.col("one.dispatched_unix_us") - stepped).alias("given_us"),
        F.get("one.runs", 0).alias("partition"),
        F.get("one.runs", 1).alias("first"),
        F.get("one.runs", 2).alias("count"),
    )
    return _in_epochs(runs, owned)


def _in_epochs(runs: DataFrame, owned: DataFrame) -> DataFrame:
    """Return each run with the epoch of its gateway, at its place, that lasted at its time.

    If none did, the gateway and the place have an epoch of their own, which is not known
    (`is_known`).
    """
    names = ("gateway", *_PLACE)
    wanted = [F.col(name).alias(f"o_{name}") for name in names]
    of = owned.select(*wanted, "from_us", "until_us", *_EPOCH, "previous_reach")
    same = [F.col(name) == F.col(f"o_{name}") for name in names]
    during = (F.col("steady_us") >= F.col("from_us")) & (F.col("steady_us") < F.col("until_us"))
    joined = runs.join(of, on=[*same, during], how="left")
    alone = F.xxhash64(*names, F.lit(UNOWNED))
    filled = joined.withColumns({
        "epoch_id": F.coalesce("epoch_id", alone), "segment_id": F.coalesce("segment_id", alone),
        "nth": F.coalesce("nth", F.lit(0)), "is_known": F.coalesce("is_known", F.lit(False)),
    })  # fmt: skip
    return filled.drop(*[f"o_{name}" for name in names], "from_us", "until_us")


# --- What is certified --------------------------------------------------------------------------


def of_log(runs: DataFrame) -> DataFrame:
    """Return the faults of each partition's log, whichever group reads it, as rows of _MESSAGE.

    HOLE are offsets that no line certifies, TWICE are those that were new twice. DISORDER are those
    that a gateway requested before lower offsets.
    """
    place = Window.partitionBy("queue_id", "partition")
    told = runs.withColumns({
        "reached": _highest(F.lit(True), place.orderBy("first", "count")),
        "reached_new": _highest(F.col("is_new"), place.orderBy("first", "count")),
        # Of lower offsets, not of those of runs that begin at the same one.
        "before_us": F.max(F.when(F.col("is_new"), F.col("asked_us"))).over(
            Window.partitionBy("queue_id", "partition", "gateway").orderBy("first")
            .rangeBetween(*_BEFORE)
        ),
    })  # fmt: skip
    found = _told(told, [
        _Case(HOLE, *_gap("reached")),
        _Case(TWICE, *_again("reached_new", F.col("is_new"))),
        _Case(DISORDER, F.col("is_new") & (F.col("asked_us") < F.col("before_us"))),
    ])  # fmt: skip
    is_hole = F.col("what") == HOLE
    names = {name: F.when(~is_hole, F.col(name)) for name in ("queue", "gateway")}
    return _message(found.withColumns(
        names | {"is_known": F.lit(True), "group": F.lit(None).cast("string"),
                 "segment_id": F.lit(None).cast("bigint")}
    ))  # fmt: skip


# --- Suspects: what may be a fault, by the run --------------------------------------------------

_SUSPECT: Final = (
    "what", "queue", *_PLACE, "gateway", *_EPOCH, "steady_us", "at_unix_us", "given_us", "first",
    "count",
)  # fmt: skip
_BACK: Final = "back"
"""No fault: returned messages, which others may have overtaken."""
_BELOW: Final = "below"
"""A gap of unsettled messages below settled ones."""
_BEFORE: Final = (Window.unboundedPreceding, -1)
"""The rows before this one; in a range, the rows that are less than it."""
_GIVEN, _SETTLED, _START, _END = range(4)


class _Case(NamedTuple):
    """A suspicion: the rows that have it, and the offsets concerned; None for those of the row."""

    what: str
    is_so: Column
    first: Column | None = None
    messages: Column | None = None

    def told(self) -> Column:
        """Return a struct; null for a row that does not have this suspicion."""
        first = F.col("first") if self.first is None else self.first
        count = F.col("count") if self.messages is None else self.messages
        return F.when(self.is_so, F.struct(
            F.lit(self.what).alias("what"), first.cast("bigint").alias("first"),
            count.cast("bigint").alias("count"),
        ))  # fmt: skip


def _told(rows: DataFrame, cases: Sequence[_Case]) -> DataFrame:
    """Return a row for each case of each row, with its `what`, `first` and `count`."""
    found = [one.told() for one in cases]
    kept = [name for name in rows.columns if name not in ("what", "first", "count")]
    some = rows.where(reduce(or_, [F.coalesce(one.is_so, F.lit(False)) for one in cases]))
    return some.select(*kept, F.inline(F.array_compact(F.array(*found))))


def _last() -> Column:
    return F.col("first") + F.col("count") - 1


def _highest(which: Column, order: WindowSpec) -> Column:
    """Return the highest offset of such rows before this one; null if there is none."""
    return F.max(F.when(which, _last())).over(order.rowsBetween(*_BEFORE))


def _gap(reached: str, which: Column | None = None) -> tuple[Column, Column, Column]:
    """Return the parts of a case: the offsets between the reached one and this row."""
    begin = F.col(reached) + 1
    is_so = F.col("first") > begin
    return is_so if which is None else which & is_so, begin, F.col("first") - begin


def _again(reached: str, which: Column) -> tuple[Column, Column, Column]:
    """Return the parts of a case: the offsets of this row that were reached before."""
    end = F.least(_last(), F.col(reached))
    is_so = which & (F.col("first") <= F.col(reached))
    return is_so, F.col("first"), end - F.col("first") + 1


def suspects(lines: Lines) -> DataFrame:
    """Return runs with the fault that they may be, in `what`.

    The faults are REPETITION, INVERSION, UNGIVEN, SETTLED_TWICE, SETTLED_EARLY and GAP (passed by
    its group; some turn out to be UNSETTLED, or to wait). Runs that came back are included. All are
    found in one pass over given and settled messages, sorted in four ways, each within a segment.
    """
    is_given, is_settled = F.col("row") == _GIVEN, F.col("row") == _SETTLED
    is_start, is_end = F.col("row") == _START, F.col("row") == _END
    outcome = F.col("outcome")
    ends = is_settled & outcome.isin(*FINAL)
    is_final = ends & (outcome != GONE)
    is_back = is_settled & outcome.isin(*RETURNED)
    settles = F.col("is_known") & (ends | is_start | is_end)
    touches = F.col("is_known") & (ends | is_start | is_given)
    segment, epoch = Window.partitionBy("segment_id"), Window.partitionBy("segment_id", "epoch_id")
    moment = Window.partitionBy("segment_id", "epoch_id", "moment_us").orderBy("first", "row")
    sorted_ = {
        "higher": _highest(is_given, segment.orderBy("nth", "steady_us", "first")),
        "given": _highest(is_given, epoch.orderBy("first", "count")),
        "final": _highest(is_final, epoch.orderBy("first", "count")),
        "settled": _highest(settles, segment.orderBy("first", "count")),
        "touched": _highest(touches, segment.orderBy("first", "count")),
        # Given at the same time and beginning no later; it may be in the order of this row.
        "given_then": F.max(F.when(is_given, _last())).over(
            moment.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        ),
        "back": F.coalesce(*[
            F.when(outcome == one, _highest(outcome == one, moment)) for one in RETURNED
        ]),
    }  # fmt: skip
    is_timed = is_settled & F.col("given_us").isNotNull()
    was_given = F.coalesce(F.col("given_then") >= _last(), F.lit(False))
    cases = [
        _Case(REPETITION, *_again("given", is_given)),
        _Case(REPETITION, is_given & (F.col("first") < F.col("previous_reach"))),
        _Case(INVERSION, is_given & (F.col("first") < F.col("higher"))),
        _Case(_BACK, is_back),
        _Case(UNGIVEN, is_timed & F.col("is_known") & ~was_given),
        _Case(SETTLED_TWICE, *_again("final", is_final)),
        _Case(SETTLED_TWICE, *_again("back", is_timed & is_back)),
        _Case(
            SETTLED_EARLY, is_settled & (F.col("steady_us") + SETTLED_US < F.col("given_us"))
        ),
        _Case(GAP, *_gap("touched", touches)),
        _Case(_BELOW, *_gap("settled", settles)),
    ]  # fmt: skip
    return _cut(_told(_rows(lines).withColumns(sorted_), cases), lines.epochs)


def _rows(lines: Lines) -> DataFrame:
    """Return given and settled runs, and two end rows of each segment; `row` says which one is.

    A segment is a row of epochs with neighboring numbers, in which nobody has moved the group. The
    end rows are the offset before the segment's start (_START), and the first offset above those
    that a position counts as settled (_END). A search for gaps between runs needs both.
    """
    # Rows of known epochs have their names from the epoch, because these rows are sorted four
    # times.
    place = F.when(~F.col("is_known"), F.struct(*_NAMES)).alias("place")
    kept = (place, *_EPOCH, "previous_reach", "steady_us", "at_unix_us", "first", "count")
    gave = lines.gave.select(
        *kept, F.lit(_GIVEN).alias("row"), F.col("steady_us").alias("moment_us")
    )
    settles = lines.settles.select(
        *kept, "outcome", "given_us", F.lit(_SETTLED).alias("row"),
        F.col("given_us").alias("moment_us"),
    )  # fmt: skip
    ends = _segments_of(lines.epochs).select(
        "segment_id", F.lit(True).alias("is_known"), F.lit(1).alias("count"),
        F.inline(F.array(
            F.struct(F.lit(_START).alias("row"), (F.col("start") - 1).alias("first")),
            F.struct(F.lit(_END).alias("row"), F.col("settled_below").alias("first")),
        )),
    ).where("first IS NOT NULL")  # fmt: skip
    return settles.unionByName(gave, allowMissingColumns=True).unionByName(
        ends, allowMissingColumns=True
    )


def _cut(found: DataFrame, owned: DataFrame) -> DataFrame:
    """Return rows of _SUSPECT.

    Gaps belong to a segment, and count only from its start on. Gaps of unsettled messages count
    only up to the offset below which the segment states that everything is settled.
    """
    is_below = F.col("what") == _BELOW
    is_gap = is_below | (F.col("what") == GAP)
    ends = _segments_of(owned).select(
        "segment_id", "start", F.col("settled_below").alias("below"),
        *[F.col(name).alias(f"s_{name}") for name in ("queue", *_PLACE)],
    )  # fmt: skip
    gateways = owned.select("epoch_id", F.col("gateway").alias("s_gateway"))
    first = F.when(is_gap, F.greatest("first", "start")).otherwise(F.col("first"))
    end = F.col("first") + F.col("count")
    limit = F.when(is_below, F.least(end, F.col("below"))).otherwise(end)
    of_row = ("epoch_id", "nth", "steady_us", "at_unix_us", "given_us")
    placed = found.join(F.broadcast(ends), on="segment_id", how="left").join(
        F.broadcast(gateways), on="epoch_id", how="left"
    )
    cut = placed.withColumns(
        {name: F.coalesce(f"place.{name}", f"s_{name}") for name in _NAMES}
        | {name: F.when(~is_gap, F.col(name)) for name in of_row}
        | {"first": first, "count": (limit - first).cast("bigint")}
        | {"what": F.when(is_gap, GAP).otherwise(F.col("what"))}
    ).withColumn("gateway", F.when(~is_gap, F.col("gateway")))
    return cut.where("count > 0").select(*_SUSPECT)


def _segments_of(owned: DataFrame) -> DataFrame:
    """Return a row for each segment."""
    same = (
        "start", "settled_below", "settled_unix_us", "undying_nth", "undying_us", "undying_unix_us",
        "is_last", "judged_from",
    )  # fmt: skip
    return owned.groupBy("segment_id").agg(
        *[F.first(name).alias(name) for name in (*_PLACE, "queue", *same)]
    )


# --- Findings: suspects looked at message by message --------------------------------------------

_MESSAGE: Final = (
    "what", "queue", *_PLACE, "first", "count", "key", "gateway", "at_unix_us", "epoch_id",
    "segment_id", "is_known", "since_unix_us", "until_unix_us",
)  # fmt: skip
"""A finding before it is judged. It rests on lines from `since_unix_us` to `until_unix_us`. Null
means from the beginning of its epoch, and to its own time."""


def findings(lines: Lines, found: DataFrame, whats: Sequence[str], keep: Keep) -> DataFrame:
    """Examine the suspects: returns rows of _MESSAGE, with those that wait.

    `whats` are the kinds that occur.
    """

    def of(what: str) -> DataFrame:
        return found.where(F.col("what") == what)

    looked: list[DataFrame] = []
    if SETTLED_EARLY in whats:
        looked.append(_message(of(SETTLED_EARLY), SETTLED_EARLY))
    if SETTLED_TWICE in whats:
        looked.append(_message(of(SETTLED_TWICE), SETTLED_TWICE))
    if UNGIVEN in whats:
        looked.append(_message(_never_given(lines.gave, of(UNGIVEN)), UNGIVEN))
    if REPETITION in whats:
        looked += _repetitions(lines, of(REPETITION), keep)
    of_keys = [what for what in (GAP, INVERSION, _BACK) if what in whats]
    if of_keys:
        looked += _of_keys(lines, {what: of(what) for what in of_keys}, keep)
    nothing = _message(found.withColumn("key", F.lit(None).cast("binary")).limit(0), None)
    return reduce(DataFrame.unionByName, looked, nothing)


def _of_keys(lines: Lines, found: dict[str, DataFrame], keep: Keep) -> list[DataFrame]:
    """Return the findings that concern keys."""
    of_run = ("epoch_id", "steady_us", "given_us", "first", "count")
    names = ("queue", *_PLACE, "segment_id", *of_run)
    runs = reduce(DataFrame.unionByName, [rows.select("what", *names) for rows in found.values()])
    messages = keep(_each(runs, lines.runs))
    has_key = F.col("key") != F.lit(_NO_KEY)
    looked = []
    if GAP in found or INVERSION in found:
        keys = messages.where(has_key & F.col("what").isin(GAP, INVERSION))
        given = keep(_of_keys_in(lines.gave, lines.runs, keys, "segment_id"))
        if GAP in found:
            looked.append(_gaps(lines, messages.where(F.col("what") == GAP), given))
        if INVERSION in found:
            looked.append(_inversions(given, lines.epochs))
    if _BACK in found:
        looked.append(_overtaken(lines, messages.where(has_key & (F.col("what") == _BACK)), keep))
    return looked


def _message(rows: DataFrame, what: str | None = None) -> DataFrame:
    types = {"key": "binary", "gateway": "string"} | dict.fromkeys(
        ("epoch_id", "since_unix_us", "until_unix_us"), "bigint"
    )
    absent = {n: F.lit(None).cast(t) for n, t in types.items() if n not in rows.columns}
    full = rows.withColumns(absent)
    if what is not None:
        full = full.withColumn("what", F.lit(what))
    return full.select(*_MESSAGE)


def _single(offsets: DataFrame) -> DataFrame:
    """Return offsets as runs of one."""
    one = F.lit(1).cast("bigint")
    return offsets.withColumn("first", F.col("offset")).withColumn("count", one).drop("offset")


def _never_given(gave: DataFrame, suspects_: DataFrame) -> DataFrame:
    """Return messages settled as given at a time, and not given at that time."""
    each = matching.offsets(suspects_).alias("s")
    given = gave.select("epoch_id", "steady_us", "first", "count").alias("g")
    inside = F.col("s.offset") < F.col("g.first") + F.col("g.count")
    same = (
        (F.col("s.epoch_id") == F.col("g.epoch_id"))
        & (F.col("s.given_us") == F.col("g.steady_us"))
        & (F.col("s.offset") >= F.col("g.first"))
        & inside
    )
    return _single(each.join(given, on=same, how="left_anti"))


def _repetitions(lines: Lines, suspects_: DataFrame, keep: Keep) -> list[DataFrame]:
    """Return messages that were given too often.

    Within an epoch these were given at least twice more often than they came back, each return
    naming the delivery that it ends; or they were given after their end. Over a clean end these
    were given although they were settled before it.
    """
    spans = keep(
        _single(matching.offsets(suspects_.select("epoch_id", "first", "count")).distinct())
    )
    of = ("epoch_id",)
    places = ("queue", *_PLACE, "gateway", "segment_id", "is_known", "nth", "previous_reach")
    gave = lines.gave.select("epoch_id", "at_unix_us", "steady_us", *places, "first", "count")
    outs = matching.offsets(matching.met(gave, spans, on=of).drop("l_first", "r_first"))
    given = outs.groupBy("epoch_id", "offset").agg(
        F.count("*").alias("gave"), F.max("at_unix_us").alias("at_unix_us"),
        F.min("at_unix_us").alias("since_unix_us"), F.max("steady_us").alias("last_us"),
        *[F.first(name).alias(name) for name in places],
    )  # fmt: skip
    came = F.col("outcome").isin(*RETURNED) & (F.col("outcome") != PARKED)
    backs = matching.met(
        lines.settles.where(came).select("epoch_id", "first", "count"), spans, on=of
    )
    returned = matching.offsets(backs.drop("l_first", "r_first")).groupBy("epoch_id", "offset").agg(
        F.count("*").alias("came")
    )  # fmt: skip
    done = lines.settles.where(F.col("outcome").isin(DYING, *FINAL) & (F.col("outcome") != GONE))
    ends = matching.met(done.select("epoch_id", "steady_us", "first", "count"), spans, on=of)
    ended = matching.offsets(ends.drop("l_first", "r_first")).groupBy("epoch_id", "offset").agg(
        F.min("steady_us").alias("ended_us")
    )  # fmt: skip
    by = ["epoch_id", "offset"]
    counted = keep(given.join(returned, on=by, how="left").join(ended, on=by, how="left"))
    is_more = F.col("gave") - F.coalesce("came", F.lit(0)) > 1
    is_behind = (F.col("gave") > 1) & (F.col("last_us") > F.col("ended_us") + SETTLED_US)
    again = counted.where(is_more | F.coalesce(is_behind, F.lit(False)))
    before = counted.where(F.col("offset") < F.col("previous_reach"))
    return [_message(_single(again), REPETITION), _message(_given_anew(lines, before), REPETITION)]


def _given_anew(lines: Lines, given: DataFrame) -> DataFrame:
    """Return messages that an earlier epoch of the segment with a clean end had settled."""
    final = F.col("outcome").isin(*FINAL) & (F.col("outcome") != GONE)
    clean = lines.epochs.where("is_clean").select("epoch_id")
    ends = lines.settles.where(final).join(F.broadcast(clean), on="epoch_id", how="left_semi")
    ended = ends.select("segment_id", F.col("nth").alias("ended_nth"), "first", "count")
    met = matching.met(_single(given), ended, on=("segment_id",))
    return met.where(F.col("r_ended_nth") < F.col("nth")).drop("l_first", "r_first")


def _gaps(lines: Lines, messages: DataFrame, given: DataFrame) -> DataFrame:
    """Return passed messages: unsettled, a gap, or waiting."""
    ends = _segments_of(lines.epochs).drop(*_PLACE, "queue", "start")
    of = ("segment_id", "offset")
    wanted = ("queue", *_PLACE, "segment_id", "offset", "key", "certified_unix_us")
    passed = messages.select(*wanted).distinct().join(ends, on="segment_id", how="inner")
    gave = lines.gave.where("is_known").select("segment_id", "first", "count")
    met = matching.met(_single(passed.select(*of)), gave, on=("segment_id",))
    was_given = matching.offsets(met.select("segment_id", "first", "count")).distinct()
    told = passed.join(was_given.withColumn("was_given", F.lit(True)), on=[*of], how="left").join(
        _given_behind(given), on=["segment_id", "key"], how="left"
    )
    is_below = F.col("offset") < F.coalesce("settled_below", F.lit(-EVER))
    is_given = F.coalesce("was_given", F.lit(False))
    later = F.filter("behind", lambda one: one["offset"] > F.col("offset"))
    soonest = F.array_min(
        F.transform(later, lambda one: F.struct(one["nth"].alias("nth"), one["us"].alias("us")))
    )
    undying = F.struct(F.col("undying_nth").alias("nth"), F.col("undying_us").alias("us"))
    has_key = F.col("key") != F.lit(_NO_KEY)
    is_overdue = F.coalesce(has_key & _is_new() & (soonest <= undying), F.lit(False))
    what = (
        F.when(is_below & is_given, UNSETTLED)
        .when(is_below | (is_overdue & ~is_given), GAP)
        .when(~is_given & F.col("is_last"), WAITING)
    )
    at = F.when(is_below, F.col("settled_unix_us")).otherwise(F.col("certified_unix_us"))
    judged_ = told.withColumns({
        "what": what, "is_known": F.lit(True), "at_unix_us": at,
        "since_unix_us": F.col("certified_unix_us"),
        "until_unix_us": F.when(~is_below, F.col("undying_unix_us")),
    })  # fmt: skip
    return _message(_single(judged_.where(F.col("what").isNotNull())), None)


def _given_behind(given: DataFrame) -> DataFrame:
    """Return (segment_id, key, behind): the first deliveries of each key's messages, as an array of
    (offset, nth, us)."""
    firsts = given.groupBy("segment_id", "key", "offset").agg(
        F.min(F.struct("nth", "steady_us")).alias("one")
    )
    each = F.struct("offset", F.col("one.nth").alias("nth"), F.col("one.steady_us").alias("us"))
    return firsts.groupBy("segment_id", "key").agg(F.collect_list(each).alias("behind"))


def _inversions(given: DataFrame, owned: DataFrame) -> DataFrame:
    """Return first deliveries of a key after one of a later message, in a segment.

    Two of one span are in order, because a span ends where another one begins. A message that may
    have been given in an epoch before the segment is not known.
    """
    places = (
        "queue", *_PLACE, "is_known", "gateway", "at_unix_us", "epoch_id", "certified_unix_us",
    )  # fmt: skip
    firsts = given.groupBy("segment_id", "key", "offset").agg(
        F.min(F.struct("nth", "steady_us", *places)).alias("one")
    )
    order = Window.partitionBy("segment_id", "key").orderBy("one.nth", "one.steady_us", "offset")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    seen = firsts.withColumn("highest", F.max("offset").over(before))
    found = seen.where(F.col("highest") > F.col("offset"))
    told = [F.col(f"one.{name}").alias(name) for name in places]
    ends = _segments_of(owned).select("segment_id", "judged_from")
    rows = found.select("segment_id", "key", "offset", *told).join(ends, "segment_id", "left")
    judged_ = rows.withColumn("is_known", F.col("is_known") & _is_new())
    return _message(_single(judged_), INVERSION)


def _overtaken(lines: Lines, backs: DataFrame, keep: Keep) -> DataFrame:
    """Return messages given while an earlier message of the key was back and waited, in one epoch.

    They were given later than the return by more than a settled span lasts. They were also given
    before the message was given again, or more than a turn before it came to its end.
    """
    waits = keep(_waits(lines, backs))
    # Only messages given while something waited are examined one by one.
    meanwhile = lines.gave.withColumn("slice", _slice(F.col("steady_us"))).join(
        _slices(lines.gave, waits), on=["epoch_id", "slice"], how="left_semi"
    )
    given = _of_keys_in(meanwhile.drop("slice"), lines.runs, waits, "epoch_id")
    o, w = given.alias("o"), waits.alias("w")
    meet = [F.col(f"w.{name}") == F.col(f"o.{name}") for name in ("epoch_id", "key")]
    behind = F.col("o.offset") > F.col("w.offset")
    since = F.col("o.steady_us") > F.col("w.steady_us") + SETTLED_US
    before = F.col("w.until_us").isNull() | (F.col("o.steady_us") < F.col("w.until_us"))
    found = o.join(w, on=[*meet, behind, since, before], how="left_semi")
    return _message(_single(found), OVERTAKEN)


def _slice(us: Column) -> Column:
    return F.floor(us / SLICE_US)


def _slices(gave: DataFrame, waits: DataFrame) -> DataFrame:
    """Return (epoch_id, slice): the slices of time in which something waited."""
    last = gave.groupBy("epoch_id").agg(F.max("steady_us").alias("last_us"))
    until = F.least(F.coalesce("until_us", "last_us"), "last_us")
    bounded = waits.join(last, on="epoch_id", how="inner").withColumn("until_us", until)
    order = Window.partitionBy("epoch_id").orderBy("steady_us")
    reached = F.max("until_us").over(order.rowsBetween(*_BEFORE))
    begins = F.coalesce(F.col("steady_us") > reached, F.lit(True)).cast("int")
    # Overlapping waits are one, so that the number of slices is bounded by the time.
    whole = (
        bounded.where("steady_us <= until_us")
        .withColumn("begins", begins)
        .withColumn("number", F.sum("begins").over(order))
        .groupBy("epoch_id", "number")
        .agg(F.min("steady_us").alias("since_us"), F.max("until_us").alias("until_us"))
    )
    slices = F.sequence(_slice(F.col("since_us")), _slice(F.col("until_us")))
    return whole.select("epoch_id", F.explode(slices).alias("slice"))


def _waits(lines: Lines, backs: DataFrame) -> DataFrame:
    """Return returned messages (`epoch_id`, `key`, `offset`, `steady_us`), and the end of their
    wait in `until_us`; null if nothing states it."""
    of = ("epoch_id", "offset")
    spans = _single(backs.select(*of).distinct())
    us, run = F.col("steady_us"), ("epoch_id", "first", "count")
    ends = lines.settles.where(F.col("outcome").isin(DYING, *FINAL)).select(
        *run, us.alias("end_us"), (us - TURN_US).alias("until_us"),
        F.lit(None).cast("bigint").alias("of_us"),
    )  # fmt: skip
    # Also deliveries known only by their end, because their own line may be lost.
    again = lines.gave.select(*run, us.alias("of_us")).unionByName(
        lines.settles.where("given_us IS NOT NULL").select(*run, F.col("given_us").alias("of_us"))
    )
    given = again.withColumns({"end_us": F.col("of_us"), "until_us": F.col("of_us")})
    met = matching.met(ends.unionByName(given), spans, on=("epoch_id",))
    b, n = backs.alias("b"), matching.offsets(met.drop("l_first", "r_first")).alias("n")
    same = [F.col(f"b.{name}") == F.col(f"n.{name}") for name in of]
    # The time of a return may be earlier than that of the delivery that it names.
    is_another = ~F.coalesce(F.col("n.of_us") == F.col("b.given_us"), F.lit(False))
    behind = F.col("n.end_us") >= F.col("b.steady_us")
    return (
        b.join(n, on=[*same, behind, is_another], how="left")
        .groupBy("b.epoch_id", "b.key", "b.offset", "b.steady_us")
        .agg(F.min(F.struct("n.end_us", "n.until_us")).alias("first"))
        .select("epoch_id", "key", "offset", "steady_us", F.col("first.until_us").alias("until_us"))
    )


# --- Messages and their keys --------------------------------------------------------------------


def _keyed(runs: DataFrame) -> DataFrame:
    """Return the runs whose keys are known, those of new messages."""
    return runs.where("is_new").select(
        "queue_id", "partition", "first", "count", "keys",
        F.col("at_unix_us").alias("certified_unix_us"),
    )  # fmt: skip


def _each(rows: DataFrame, runs: DataFrame) -> DataFrame:
    """Return a row for each certified offset of these runs.

    It has their columns, `offset`, the `key` of its message and `certified_unix_us`.
    """
    met = matching.met(rows, _keyed(runs))
    place = F.col("offset") - F.col("r_first")
    each = matching.offsets(met).withColumn("key", matching.key_at(place, "r_keys"))
    return each.drop("r_keys", "r_first", "l_first").withColumnRenamed(
        "r_certified_unix_us", "certified_unix_us"
    )


def _of_keys_in(gave: DataFrame, runs: DataFrame, keys: DataFrame, of: str) -> DataFrame:
    """Return deliveries of these keys (`of`, segment_id or epoch_id, and `key`), a row for each
    message and delivery, as `_each` does."""
    some = gave.join(keys.select(of).distinct(), on=of, how="left_semi")
    return _each(some, runs).join(
        keys.select(of, "key").distinct(), on=[of, "key"], how="left_semi"
    )


# --- Judging ------------------------------------------------------------------------------------


def judged(found: DataFrame, owned: DataFrame, lost: DataFrame) -> DataFrame:
    """Return findings as rows of FINDING, each certain, or with the reason why it is not.

    `owned` are rows of epochs, each the time for which a gateway owned a partition. `lost` are rows
    of LOST, each a time in which lines of a gateway were lost or have not come yet.
    """
    numbered = found.withColumn("id", F.monotonically_increasing_id())
    slack = F.when(F.col("doubt") == NOT_YET, 0).otherwise(CLOCKS_US)
    during = (F.col("low") - slack <= F.col("lost_until_us")) & (
        F.col("high") + slack >= F.col("lost_since_us")
    )
    rests = _rests_on(numbered, owned)
    met = rests.join(F.broadcast(lost), on=[F.col("by") == F.col("lossy"), during], how="inner")
    untold = rests.where(~F.col("is_told")).select("id", F.lit(UNOWNED).alias("doubt"), "by")
    doubts = met.select("id", "doubt", "by").unionByName(untold)
    worst = doubts.groupBy("id").agg(F.min(F.struct("doubt", "by")).alias("worst"))
    told = numbered.join(worst, on="id", how="left").withColumns({
        "unsure": F.when(~F.col("is_known"), UNOWNED).otherwise(F.col("worst.doubt")),
        "gateway": F.coalesce("gateway", "worst.by"),
        "key": F.when(F.col("key") != F.lit(_NO_KEY), matching.hex_of(F.col("key"))),
    })  # fmt: skip
    full = told.withColumn("certain", F.col("unsure").isNull())
    return full.select(*[F.col(field.name).cast(field.dataType) for field in FINDING.fields])


def _rests_on(numbered: DataFrame, owned: DataFrame) -> DataFrame:
    """Return (id, by, low, high, is_told): the gateway and the time of the lines that each finding
    rests on.

    `is_told` says whether the begin and end of their epoch are known.
    """
    at = F.col("at_unix_us")
    own = owned.select("epoch_id", F.col("gateway").alias("by"), "began_unix_us", "is_told")
    one = numbered.where(~F.col("what").isin(*_OF_SEGMENT)).join(own, on="epoch_id", how="inner")
    of_epoch = one.select("id", "by", _low().alias("low"), at.alias("high"), "is_told")
    log = numbered.where(F.col("segment_id").isNull()).select(
        "id", F.col("gateway").alias("by"), at.alias("low"), at.alias("high"),
        F.lit(True).alias("is_told"),
    )  # fmt: skip
    return of_epoch.unionByName(_epochs_of(numbered, owned)).unionByName(log)


def _low() -> Column:
    """Return the time from which a finding rests on the lines of an epoch.

    If its first line is lost, lines taken for this epoch may belong to another one; then the
    finding rests on everything before.
    """
    began = F.col("began_unix_us")
    return F.when(began == -EVER, began).otherwise(F.greatest(began, "since_unix_us"))


def _epochs_of(numbered: DataFrame, owned: DataFrame) -> DataFrame:
    """Return, for findings about a segment, the gateway and the time of the lines that each rests
    on: those of several epochs.

    An inversion rests on the epochs up to its own. A loss rests on those in which the message could
    have been settled. They begin with the last one that began below it, and end with the first one
    that states that everything below some later offset is settled.
    """
    epochs_ = owned.select(
        "segment_id", F.col("gateway").alias("by"), F.col("nth").alias("of"), "owned_from",
        "told_below", "told_unix_us", "began_unix_us", "ended_unix_us", "is_told",
    )  # fmt: skip
    nth = owned.select("epoch_id", "nth")
    several = (
        numbered.where(F.col("what").isin(*_OF_SEGMENT))
        .join(nth, on="epoch_id", how="left")
        .join(epochs_, on="segment_id", how="inner")
    )
    each = Window.partitionBy("id")
    is_loss = F.col("epoch_id").isNull()
    begins = F.max(F.when(F.col("owned_from") <= F.col("first"), F.col("of"))).over(each)
    with_first = several.withColumn("first_of", F.when(is_loss, F.coalesce(begins, F.lit(0))))
    tells = (F.col("told_below") > F.col("first")) & (F.col("of") >= F.col("first_of"))
    ends = F.min(F.when(tells, F.col("of"))).over(each)
    with_last = with_first.withColumn("last_of", F.when(is_loss, ends).otherwise(F.col("nth")))
    inside = F.col("of").between(
        F.coalesce("first_of", F.lit(0)), F.coalesce("last_of", F.lit(EVER))
    )
    is_last = F.col("of") == F.col("last_of")
    told = F.when(is_last & is_loss, F.col("told_unix_us")).when(is_last, F.col("at_unix_us"))
    # A gateway that was killed owned it until another one did, by that one's clock.
    high = F.coalesce(told, F.col("ended_unix_us"), F.col("until_unix_us"), F.lit(EVER))
    return with_last.where(inside).select(
        "id", "by", _low().alias("low"), high.alias("high"), "is_told"
    )
