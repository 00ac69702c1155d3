"""The promises, checked from the broker's own log: what was certified, given out and settled.

Each check returns findings: rows of FINDING. How things must be:

- Offsets are dense, so a *hole* in what was certified is what the log does not have; an offset that
  was certified *twice* is a store that was put back behind the broker's back.
- In a group every certified message is given out or settled. One that was passed over, and does not
  wait behind another one of its key, is a *gap* (P1).
- What was given out is given out again only when it came back. Else it is a *repetition* (P5).
- First deliveries of a key are in the order of its offsets. Else it is an *inversion* (P3).
- While a message is back and waits, nothing behind it of its key is given out. Else it was
  *overtaken* (P3).

Which of two lines was first is told by the gateway's clock without its steps where one gateway
wrote both, which is exact; else by two machines' clocks, which is not. Findings that rest on that
are not `certain`, nor is what was given again from the storage: an operator may have sought back.
Nor is what a `lossy` gateway did, of whose lines some are lost: one of them may explain it.

Each check first works out what could be one, which in a log as it should be is nothing, and then
looks closer. What is asked for several times is worked out once, by `Keep`.
"""

from collections.abc import Callable, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, LongType, StringType

from spark import matching
from spark.schema import BACKLOG, FINAL, NO_KEY, RETURNED, struct

HOLE: Final = "hole"
TWICE: Final = "certified_twice"
GAP: Final = "gap"
REPETITION: Final = "repetition"
INVERSION: Final = "inversion"
OVERTAKEN: Final = "overtaken"

FINDING: Final = struct(
    what=StringType(), queue_id=StringType(), group=StringType(), partition=LongType(),
    first=LongType(), count=LongType(), key=StringType(), at_unix_us=LongType(),
    certain=BooleanType(),
)  # fmt: skip
Keep = Callable[[DataFrame], DataFrame]
"""Works these rows out, and gives them back as something that is there."""
PART: Final = ("queue_id", "group", "partition")
_ORDER: Final = ("queue_id", "group", "partition", "key")


def _findings(rows: DataFrame, what: str, certain: Column | None = None) -> DataFrame:
    given = {
        "what": F.lit(what),
        "certain": F.lit(True) if certain is None else certain,
    }
    absent = {
        field.name: F.lit(None)
        for field in FINDING.fields
        if field.name not in rows.columns and field.name not in given
    }
    full = rows.withColumns(given | absent)
    return full.select(*[F.col(field.name).cast(field.dataType) for field in FINDING.fields])


def _nothing(rows: DataFrame) -> DataFrame:
    return rows.sparkSession.createDataFrame([], FINDING)


def published(certified: DataFrame) -> DataFrame:
    """The runs of what was certified, also of what was there already: its log may be lost."""
    fields = ("queue_id", "gateway", "keys", "at_unix_us")
    new = matching.exploded(certified.select(*fields, "runs"))
    old = matching.exploded(
        certified.select(*fields, "duplicate_runs").withColumn("keys", F.lit(None).cast("binary")),
        "duplicate_runs",
    )
    return new.withColumn("is_new", F.lit(True)).unionByName(old.withColumn("is_new", F.lit(False)))


def holes(runs: DataFrame) -> DataFrame:
    """Of what `published` made: offsets that no line has."""
    return _findings(matching.gaps(runs), HOLE)


def certified_twice(runs: DataFrame) -> DataFrame:
    """Offsets that were new twice."""
    return _findings(matching.repeated(runs.where("is_new")), TWICE)


def given(dispatched: DataFrame) -> DataFrame:
    """The runs that groups were given."""
    spans = dispatched.where(F.col("group").isNotNull()).select(
        "queue_id", "group", "gateway", "cause", "at_unix_us",
        (F.col("at_unix_us") - F.col("stepped_us")).alias("steady_us"), "runs",
    )  # fmt: skip
    return matching.exploded(spans)


def settlements(settled: DataFrame) -> DataFrame:
    """The runs that came to an end, or back."""
    spans = settled.select(
        "queue_id", "group", "gateway", "outcome", "at_unix_us",
        (F.col("at_unix_us") - F.col("stepped_us")).alias("steady_us"), "runs",
    )  # fmt: skip
    return matching.exploded(spans)


# --- Gaps ---------------------------------------------------------------------------------------


def gaps(
    runs: DataFrame, gave: DataFrame, settles: DataFrame, keep: Keep, *, lossy: Sequence[str]
) -> DataFrame:
    """Certified, passed over by a group, and not waiting behind another message of their key. Not
    certain where any gateway is `lossy`: what it gave out may be in a line that is lost."""
    keyed = _keyed(runs)
    parts = [rows.select(*PART, "first", "count") for rows in (gave, settles)]
    passed = matching.gaps(parts[0].unionByName(parts[1]), by=PART)
    missed = keep(_keys_of(passed, keyed))
    if missed.isEmpty():
        return _nothing(runs)
    heads = _heads(gave, settles, _messages(keyed, missed))
    on = [F.col(f"m.{name}") == F.col(f"h.{name}") for name in _ORDER]
    behind = F.col("h.head") < F.col("m.offset")
    has_key = F.col("m.key") != NO_KEY
    left = missed.alias("m").join(heads.alias("h"), on=[*on, behind, has_key], how="left_anti")
    return _findings(_single(left), GAP, F.lit(not lossy))


def _heads(gave: DataFrame, settles: DataFrame, messages: DataFrame) -> DataFrame:
    """(queue_id, group, partition, key, head): the first of these messages of each key that was
    given out and has not come to its end; what follows of the key may have to wait for it."""
    ended = settles.where(F.col("outcome").isin(*FINAL))
    names = [*_ORDER, "offset"]
    out = _of(gave, messages).select(*names).distinct()
    done = _of(ended, messages).select(*names).distinct()
    open_ = out.join(done, on=names, how="left_anti")
    return open_.groupBy(*_ORDER).agg(F.min("offset").alias("head"))


# --- Repetitions --------------------------------------------------------------------------------


def repetitions(
    gave: DataFrame, settles: DataFrame, keep: Keep, *, lossy: Sequence[str]
) -> DataFrame:
    """Given out again without having come back."""
    suspects = keep(matching.repeated(gave, by=PART).select(*PART, "first", "count"))
    if suspects.isEmpty():
        return _nothing(gave)
    spans = matching.offsets(suspects).distinct().withColumns(
        {"first": F.col("offset"), "count": F.lit(1).cast("bigint")}
    )  # fmt: skip
    spans = spans.drop("offset")
    outs = _events(matching.met(gave, spans, on=PART), F.lit(True), F.lit(False))
    came = F.col("outcome").isin(*RETURNED)
    backs = _events(matching.met(settles, spans, on=PART), F.lit(False), came)
    events = outs.unionByName(backs)
    order = Window.partitionBy(*PART, "offset").orderBy("steady_us", "is_out")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    last_out = F.last(F.when(F.col("is_out"), F.struct("gateway", "steady_us")), True).over(before)
    last_back = F.last(F.when(F.col("is_back"), F.col("steady_us")), True).over(before)
    seen = events.withColumns({"last_out": last_out, "last_back": last_back})
    faults = seen.where(
        F.col("is_out")
        & F.col("last_out").isNotNull()
        & (F.coalesce("last_back", F.lit(0)) < F.col("last_out.steady_us"))
    )
    same = F.col("last_out.gateway") == F.col("gateway")
    sought = F.coalesce("cause", F.lit("")) == BACKLOG
    return _findings(_single(faults), REPETITION, same & ~sought & _is_whole(lossy))


def _events(met: DataFrame, is_out: Column, is_back: Column) -> DataFrame:
    cause = F.col("cause") if "cause" in met.columns else F.lit(None).cast("string")
    rows = met.withColumns({"is_out": is_out, "is_back": is_back, "cause": cause})
    return matching.offsets(
        rows.select(
            *PART,
            "gateway",
            "cause",
            "at_unix_us",
            "steady_us",
            "is_out",
            "is_back",
            "first",
            "count",
        )
    )


# --- Order of a key -----------------------------------------------------------------------------


def inversions(
    runs: DataFrame, gave: DataFrame, keep: Keep, *, clock_error_us: int, lossy: Sequence[str]
) -> DataFrame:
    """First deliveries of a key that came after one of a later message. Of different gateways they
    are only told apart when they are further apart than `clock_error_us`."""
    keyed = _keyed(runs)
    late = keep(_keys_of(_late(gave), keyed).where(F.col("key") != NO_KEY))
    if late.isEmpty():
        return _nothing(runs)
    firsts = (
        _of(gave, _messages(keyed, late))
        .groupBy(*_ORDER, "offset")
        .agg(F.min(F.struct("steady_us", "gateway", "at_unix_us")).alias("one"))
        .select(*_ORDER, "offset", "one.*")
    )
    order = Window.partitionBy(*_ORDER).orderBy("steady_us", "offset")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    highest = F.max(F.struct("offset", "steady_us", "gateway")).over(before)
    seen = firsts.withColumn("highest", highest).where(F.col("highest.offset") > F.col("offset"))
    same = F.col("highest.gateway") == F.col("gateway")
    apart = F.col("steady_us") - F.col("highest.steady_us") > clock_error_us
    return _findings(_single(seen), INVERSION, (same | apart) & _is_whole(lossy))


def overtaken(
    runs: DataFrame, gave: DataFrame, settles: DataFrame, keep: Keep, *, lossy: Sequence[str]
) -> DataFrame:
    """Given out while an earlier message of the same key was back and waited, by one gateway."""
    keyed = _keyed(runs)
    back = settles.where(F.col("outcome").isin(*RETURNED))
    backs = _keys_of(back.select(*PART, "gateway", "steady_us", "first", "count"), keyed)
    backs = keep(backs.where(F.col("key") != NO_KEY))
    if backs.isEmpty():
        return _nothing(runs)
    messages = _messages(keyed, backs)
    outs = keep(_of(gave, messages))
    ends = _of(settles.where(F.col("outcome").isin(*FINAL)), messages)
    moment = (*_ORDER, "offset", "gateway", "steady_us")
    b = backs.alias("b")
    n = outs.select(*moment).unionByName(ends.select(*moment)).alias("n")
    same = [F.col(f"b.{name}") == F.col(f"n.{name}") for name in (*_ORDER, "offset", "gateway")]
    later = F.col("n.steady_us") >= F.col("b.steady_us")
    waits = (
        b.join(n, on=[*same, later], how="left")
        .groupBy(*[F.col(f"b.{name}").alias(name) for name in moment])
        .agg(F.min("n.steady_us").alias("until_us"))
        .alias("w")
    )
    o = outs.alias("o")
    meet = [F.col(f"w.{name}") == F.col(f"o.{name}") for name in (*_ORDER, "gateway")]
    behind = F.col("o.offset") > F.col("w.offset")
    since = F.col("o.steady_us") > F.col("w.steady_us")
    until = F.col("w.until_us").isNull() | (F.col("o.steady_us") < F.col("w.until_us"))
    found = o.join(waits, on=[*meet, behind, since, until], how="left_semi")
    return _findings(_single(found), OVERTAKEN, _is_whole(lossy))


# --- Messages and their keys --------------------------------------------------------------------


def _keyed(runs: DataFrame) -> DataFrame:
    """The runs whose keys are known: those of what was new."""
    return runs.where("is_new").select("queue_id", "partition", "first", "count", "keys")


def _keys_of(runs: DataFrame, keyed: DataFrame) -> DataFrame:
    """Runs → a row for each offset that was certified: `offset`, and the `key` of its message."""
    met = matching.met(runs, keyed).withColumn("keys", F.col("r_keys"))
    place = F.col("offset") - F.col("r_first")
    kept = [name for name in runs.columns if name not in ("first", "count")]
    each = matching.offsets(met).withColumn("key", matching.key_at(place))
    return each.select(*kept, "offset", "key")


def _messages(keyed: DataFrame, keys: DataFrame) -> DataFrame:
    """(queue_id, partition, offset, key) of all messages of the keys that are in `keys`."""
    place = F.col("offset") - F.col("first")
    last = F.col("first") + F.col("count") - 1
    each = keyed.withColumn("offset", F.explode(F.sequence("first", last)))
    named = each.withColumn("key", matching.key_at(place))
    wanted = keys.select("queue_id", "key").where(F.col("key") != NO_KEY).distinct()
    found = named.join(F.broadcast(wanted), on=["queue_id", "key"], how="left_semi")
    return found.select("queue_id", "partition", "offset", "key")


def _of(runs: DataFrame, messages: DataFrame) -> DataFrame:
    """What a run says, for each of these messages: `offset` and `key` beside its columns."""
    single = messages.withColumns({"first": F.col("offset"), "count": F.lit(1).cast("bigint")})
    met = matching.met(runs, single)
    return met.drop("count", "l_first", "r_first", "first").withColumnsRenamed(
        {"r_offset": "offset", "r_key": "key"}
    )


def _late(gave: DataFrame) -> DataFrame:
    """The runs that were given out after something with a higher offset: only among their keys can
    there be an inversion, and they are few."""
    order = Window.partitionBy(*PART).orderBy("steady_us", "first")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    reached = F.max(F.col("first") + F.col("count") - 1).over(before)
    late = gave.withColumn("reached", reached).where(F.col("first") < F.col("reached"))
    return late.select(*PART, "first", "count")


def _is_whole(lossy: Sequence[str]) -> Column:
    """Whether the gateway is none of those of whose lines some are lost."""
    return ~F.col("gateway").isin(list(lossy)) if lossy else F.lit(True)


def _single(offsets: DataFrame) -> DataFrame:
    """Offsets as runs of one."""
    return offsets.withColumnsRenamed({"offset": "first"}).withColumn("count", F.lit(1))
