"""Losses of the log, and their times, by its files and its own lines. Pure.

A gateway's files are numbered from 1, and each states in its last line its number of lines. So a
number without a whole file is a loss, of the time between the files around it. Files after a
gateway's last one may still come, with two exceptions. `is_last` states that the process has ended
its log. `recovered` states that another start has finished the file; that start writes a line about
the messages that had not been written.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from spark.files import CONTRADICTS, number_of, parse_name

MISSING: Final = "missing_file"
DAMAGED: Final = "damaged_file"
NOT_YET: Final = "not_yet"
KILLED: Final = "killed"
CLOSED: Final = "closed"
"""The reason of a loss of all lines before a time: their days were closed, and the lines have been
removed."""
EVER: Final = 2**62
"""A time that nothing bounds."""


class Loss(NamedTuple):
    """Lost lines of a gateway, which were about events between two times of its clock. Counts are
    of messages; None means unknown."""

    gateway: str
    reason: str
    """MISSING, DAMAGED, NOT_YET or CLOSED; or the log's own reason: full, failed, killed."""
    since_unix_us: int = -EVER
    until_unix_us: int = EVER
    certified: int | None = None
    dispatched: int | None = None
    settled: int | None = None
    file: str | None = None
    number: int | None = None

    def shown(self) -> dict[str, Any]:
        """Return the fields for the audit's result. Unbounded times are None."""
        fields = self._asdict()
        for name in ("since_unix_us", "until_unix_us"):
            if abs(fields[name]) == EVER:
                fields[name] = None
        return fields


class _File(NamedTuple):
    name: str
    number: int
    is_whole: bool
    since: int | None
    until: int | None
    is_over: bool
    contradicts: bool
    """Whether it is a whole file whose number another file has, with other lines."""


def losses(
    manifests: Sequence[dict[str, Any]],
    unlogged: Iterable[dict[str, Any]],
    *,
    closed_unix_us: int | None = None,
) -> list[Loss]:
    """Return all losses, by gateway.

    `unlogged` are rows with `gateway`, `reason`, the two times, and counts of messages. Lines from
    before `closed_unix_us` have been removed; None means that none have.
    """
    by_gateway = _by_gateway(manifests)
    found = []
    for row in unlogged:
        since, until = row["since_unix_us"], row["until_unix_us"]
        if row["reason"] == KILLED:  # the time is that of a file, whose end is lost
            last = _last(by_gateway.get(row["gateway"], []))
            since, until = since if last is None else min(since, last), EVER
        counts = (row["certified"], row["dispatched"], row["settled"])
        found.append(Loss(row["gateway"], row["reason"] or "unlogged", since, until, *counts))
    for gateway, files in sorted(by_gateway.items()):
        found += _of_files(gateway, files)
        if closed_unix_us is not None:
            found.append(Loss(gateway, CLOSED, until_unix_us=closed_unix_us))
    return found


def quarantined(manifests: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return, by reason, the number of lines that could not be taken in. Lines of a damaged file
    count no more once a whole copy exists."""
    sums: dict[str, int] = {}
    for manifest in manifests:
        for reason, lines in manifest["quarantined"].items():
            sums[reason] = sums.get(reason, 0) + lines
    entries = [entry for manifest in manifests for entry in manifest["files"]]
    whole = {number_of(entry) for entry in entries if not entry["fault"]} - {None}
    for entry in entries:
        if entry["fault"] not in ("", CONTRADICTS) and number_of(entry) in whole:
            sums[DAMAGED] = sums.get(DAMAGED, 0) - entry["lines"]
    return {reason: lines for reason, lines in sums.items() if lines > 0}


def missing(found: Iterable[Loss]) -> dict[str, list[int]]:
    """Return, by gateway, the numbers of its missing files."""
    numbers: dict[str, list[int]] = {}
    for loss in found:
        if loss.reason == MISSING and loss.number is not None:
            numbers.setdefault(loss.gateway, []).append(loss.number)
    return numbers


def _by_gateway(manifests: Sequence[dict[str, Any]]) -> dict[str, list[_File]]:
    files: dict[str, list[_File]] = {}
    for file in itertools.chain.from_iterable(one["files"] for one in manifests):
        name = parse_name(file["name"])
        gateway = file.get("gateway") or (name.gateway if name else None)
        number = file.get("number") or (name.number if name else None)
        if gateway is None or number is None:
            continue
        files.setdefault(gateway, []).append(
            _File(
                file["name"],
                number,
                not file["fault"],
                file.get("since_unix_us"),
                file.get("until_unix_us"),
                bool(file.get("recovered") or file.get("is_last")),
                file["fault"] == CONTRADICTS,
            )
        )
    return files


def _of_files(gateway: str, files: list[_File]) -> list[Loss]:
    whole = {file.number: file for file in files if file.is_whole}
    broken = {file.number: file for file in files if file.number not in whole or file.contradicts}
    last = max(file.number for file in files)
    found = []
    for number in range(1, last + 1):
        if number in whole and number not in broken:
            continue
        since, until = _around(whole, number, last)
        if number in broken:
            name = broken[number].name
            found.append(Loss(gateway, DAMAGED, since, until, file=name, number=number))
        else:
            found.append(Loss(gateway, MISSING, since, until, number=number))
    end = whole.get(last)
    if end is not None and not end.is_over:
        at = _last(files)
        if at is not None:
            found.append(Loss(gateway, NOT_YET, at + 1))
    return found


def _last(files: list[_File]) -> int | None:
    """Return the latest time of a line in whole files; None if none states it."""
    untils = [file.until for file in files if file.is_whole and file.until is not None]
    return max(untils, default=None)


def _around(whole: dict[int, _File], number: int, last: int) -> tuple[int, int]:
    """Return the time between the files before and after this one, as far as these state it."""
    before = (whole[n].until for n in range(number - 1, 0, -1) if n in whole)
    after = (whole[n].since for n in range(number + 1, last + 1) if n in whole)
    since = next((at for at in before if at is not None), -EVER)
    until = next((at for at in after if at is not None), EVER)
    return since, until
