"""Ledgers on their way from the processes that keep them to the one that judges: a file each."""

import os
from pathlib import Path
from typing import Final

import msgspec

from loadtests.histogram import Histogram
from loadtests.mix.ledger import KINDS, Ledger, Sent, Subscriber, Taken
from loadtests.mix.series import Series
from loadtests.mix.spans import Spans

SCHEMA: Final = 1
Pairs = list[tuple[int, int]]


class _Sent(msgspec.Struct, array_like=True):
    offered: int
    certified: Pairs
    refused: Pairs


class _Taken(msgspec.Struct, array_like=True):
    given: Pairs
    settled: Pairs


class _Subscriber(msgspec.Struct):
    queue: str
    keys: list[str] | None
    is_whole: bool
    lines: dict[str, _Taken]


class _Histogram(msgspec.Struct):
    buckets: Pairs
    total: int
    maximum: int


class _Book(msgspec.Struct):
    schema: int
    sent: dict[str, dict[str, _Sent]]
    subscribers: dict[str, _Subscriber]
    counts: dict[str, int]
    violations: dict[str, int]
    examples: dict[str, list[str]]
    latencies: dict[str, _Histogram]
    series: dict[str, dict[int, _Histogram]]


_ENCODE: Final = msgspec.json.Encoder().encode
_DECODE: Final = msgspec.json.Decoder(_Book).decode


def _flat(histogram: Histogram) -> _Histogram:
    return _Histogram(histogram.buckets(), histogram.total, histogram.maximum)


def _full(flat: _Histogram) -> Histogram:
    return Histogram.of(flat.buckets, flat.total, flat.maximum)


def write(ledger: Ledger, path: Path) -> None:
    """Put a ledger into a file, whole or not at all."""
    book = _Book(
        SCHEMA,
        {
            queue: {
                line: _Sent(row.offered, row.certified.pairs(), row.refused.pairs())
                for line, row in lines.items()
            }
            for queue, lines in ledger.sent.items()
        },
        {
            name: _Subscriber(
                one.queue, one.keys, one.is_whole,
                {
                    line: _Taken(row.given.pairs(), row.settled.pairs())
                    for line, row in one.lines.items()
                },
            )
            for name, one in ledger.subscribers.items()
        },
        dict(ledger.counts),
        dict(ledger.violations),
        ledger.examples,
        {name: _flat(histogram) for name, histogram in ledger.latencies.items()},
        {
            name: {slot: _flat(histogram) for slot, histogram in series.slots.items()}
            for name, series in ledger.series.items()
        },
    )  # fmt: skip
    part = path.with_name(path.name + ".part")
    part.write_bytes(_ENCODE(book))
    os.replace(part, path)


def read(path: Path) -> Ledger:
    """The ledger of a file.

    Raises:
        ValueError: it is damaged, or of another schema; OSError.
    """
    try:
        book = _DECODE(path.read_bytes())
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: no ledger: {error}") from None
    if book.schema != SCHEMA or not book.violations.keys() <= KINDS.keys():
        raise ValueError(f"{path}: a ledger of schema {book.schema}, and this reads {SCHEMA}")
    ledger = Ledger(0)
    for queue, lines in book.sent.items():
        ledger.sent[queue] = {
            line: Sent(row.offered, Spans(row.certified), Spans(row.refused))
            for line, row in lines.items()
        }
    for name, one in book.subscribers.items():
        subscriber = Subscriber(one.queue, one.keys, one.is_whole)
        for line, taken in one.lines.items():
            subscriber.lines[line] = Taken(Spans(taken.given), Spans(taken.settled))
        ledger.subscribers[name] = subscriber
    ledger.counts.update(book.counts)
    ledger.violations.update(book.violations)
    ledger.examples = book.examples
    ledger.latencies = {name: _full(flat) for name, flat in book.latencies.items()}
    for name, slots in book.series.items():
        ledger.series[name] = Series()
        ledger.series[name].slots = {slot: _full(flat) for slot, flat in slots.items()}
    return ledger
