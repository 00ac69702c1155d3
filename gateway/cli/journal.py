"""`tocsin admin usage` and `tocsin admin audit`, which read the files, with or without a broker."""

import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec
from tocsin.cli.common import plural
from tocsin.cli.times import local_time, parse_time, unix_ms

from gateway.accounting import audit as audit_trail
from gateway.accounting.journal import files_of, lines_of
from gateway.accounting.usage import SCHEMA, UsageLine
from gateway.accounting.writer import FOLDER, NAME
from gateway.cli.options import data_dir_option, folder_of, json_option, to_json

BAR_WIDTH: Final = 20
DecodedT = TypeVar("DecodedT")


class _Version(msgspec.Struct):
    """The version of a line, whatever else is in it."""

    schema: int


_LINE: Final = msgspec.json.Decoder(UsageLine)
_VERSION: Final = msgspec.json.Decoder(_Version)
_SUMMED: Final = (
    "requests",
    "messages_in",
    "bytes_in",
    "duplicates",
    "messages_out",
    "bytes_out",
    "redeliveries",
    "refusals",
    "websocket_s",
    "long_poll_s",
)
_By = Callable[[UsageLine], tuple[str | None, ...]]
_BY: Final[dict[str, tuple[tuple[str, ...], _By]]] = {
    "principal": (("tenant", "principal", "queue"), lambda x: (x.tenant, x.principal, x.queue)),
    "queue": (("tenant", "queue"), lambda x: (x.tenant, x.queue)),
    "tenant": (("tenant",), lambda x: (x.tenant,)),
    "minute": (("minute",), lambda x: (_minute(x.minute_unix_ms),)),
}

since_option: Final = click.option(
    "--since",
    default=None,
    metavar="TIME",
    help="Show only later lines. TIME is an age like 30m, 12h or 7d, or a time like 2026-11-21 or "
    "2026-11-21T14:00. It is local unless it ends in an offset or Z.",
)


def since_unix_ms(text: str | None, *, wall: float) -> int:
    """Parse `--since` to unix milliseconds; None becomes 0. Raises click.BadParameter."""
    if text is None:
        return 0
    return unix_ms(parse_time(text, now=datetime.fromtimestamp(wall, UTC)))


def _minute(unix_ms: int) -> str:
    """Return the minute that begins at this time as a text in UTC. In local time, two minutes of a
    clock that is put back would become one."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- Usage -------------------------------------------------------------------------------------


def read_usage(
    data_dir: Path, since: int, *, on_later: Callable[[], object] = lambda: None
) -> Iterable[UsageLine]:
    """Yield the lines of the usage files in a data folder whose minute begins at `since` (unix
    milliseconds) or later. Lines that cannot be decoded, such as torn ones, are skipped. So are
    those of a later version, for each of which `on_later` is called."""
    for path in files_of(data_dir / FOLDER, NAME):
        for line in lines_of(path):
            found = _decoded(_LINE, line)
            version = found or _decoded(_VERSION, line)
            if version is not None and version.schema > SCHEMA:
                on_later()
            elif found is not None and found.minute_unix_ms >= since:
                yield found


def _decoded(decoder: msgspec.json.Decoder[DecodedT], line: bytes) -> DecodedT | None:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def sum_by(lines: Iterable[UsageLine], by: str) -> list[dict[str, Any]]:
    """Add the lines up by a key of `_BY`, and return the sums in the order of that key."""
    names, key_of = _BY[by]
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in lines:
        key = (*key_of(line), line.overflow and by != "minute")
        row = rows.get(key)
        if row is None:
            row = rows[key] = {
                **dict(zip(names, key, strict=False)),
                "overflow": key[-1],
                **dict.fromkeys(_SUMMED, 0),
                "refusals_by_code": {},
            }
        for name in _SUMMED:
            row[name] += getattr(line, name)
        codes = row["refusals_by_code"]
        for code, count in line.refusals_by_code.items():
            codes[code] = codes.get(code, 0) + count
    for row in rows.values():
        row["websocket_s"] = round(row["websocket_s"], 3)
        row["long_poll_s"] = round(row["long_poll_s"], 3)
    ordered = sorted(rows, key=lambda key: tuple(str(part or "") for part in key))
    return [rows[key] for key in ordered]


@click.command()
@since_option
@click.option(
    "--by",
    type=click.Choice(list(_BY)),
    default="principal",
    show_default=True,
    help="Add up by principal and queue, by queue, by tenant, or by minute.",
)
@data_dir_option
@json_option
def usage(since: str | None, by: str, data_dir: str | None, as_json: bool) -> None:
    """Show usage: requests, messages, bytes, refusals and time connected.

    It is read from the files in the data folder, whether or not the broker runs. Each minute is
    written when it is over. The bar shows the share of all bytes.

    \b
    Examples:
      tocsin admin usage --since 24h
      tocsin admin usage --by queue --json | jq -r '.queue'
    """
    started = since_unix_ms(since, wall=time.time())
    later = 0

    def skip() -> None:
        nonlocal later
        later += 1

    rows = sum_by(read_usage(folder_of(data_dir), started, on_later=skip), by)
    if later:
        lines = plural(later, "line")
        click.echo(f"tocsin: not counted: {lines} of a later version of the broker.", err=True)
    if as_json:
        for row in rows:
            click.echo(to_json(row))
        return
    if not rows:
        click.echo("There is no usage in this time, or its minute is not over yet.")
        return
    for line in table(rows, _BY[by][0]):
        click.echo(line)


def table(rows: list[dict[str, Any]], names: tuple[str, ...]) -> list[str]:
    """Return the rows for people, with aligned columns and a bar for the bytes."""
    heads = (*names, "requests", "in", "bytes in", "out", "bytes out", "refused", "connected")
    whole = sum(row["bytes_in"] + row["bytes_out"] for row in rows) or 1
    texts = [heads]
    bars = [""]
    for row in rows:
        texts.append(
            (
                *(_name_of(row, name) for name in names),
                f"{row['requests']:,}",
                f"{row['messages_in']:,}",
                _size(row["bytes_in"]),
                f"{row['messages_out']:,}",
                _size(row["bytes_out"]),
                f"{row['refusals']:,}",
                _duration(row["websocket_s"] + row["long_poll_s"]),
            )
        )
        share = (row["bytes_in"] + row["bytes_out"]) / whole
        bars.append("█" * round(share * BAR_WIDTH))
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        "  ".join(
            text.ljust(width) if place < len(names) else text.rjust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        + (f"  {bar}" if bar else "")
        for line, bar in zip(texts, bars, strict=True)
    ]


def _name_of(row: dict[str, Any], name: str) -> str:
    return "(others)" if row["overflow"] else str(row[name] if row[name] is not None else "-")


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


# --- Audit -------------------------------------------------------------------------------------


@click.group(invoke_without_command=True)
@since_option
@data_dir_option
@json_option
@click.pass_context
def audit(context: click.Context, since: str | None, data_dir: str | None, as_json: bool) -> None:
    """Show the audit trail: administrative acts, and clients that were let in or refused.

    \b
    Examples:
      tocsin admin audit --since 7d
      tocsin admin audit --json | jq 'select(.action == "queue.delete")'
      tocsin admin audit verify
    """
    if context.invoked_subcommand is not None:
        return
    started = since_unix_ms(since, wall=time.time())
    for fields in _read(lambda: audit_trail.read(folder_of(data_dir), started)):
        click.echo(to_json(fields) if as_json else shown_act(fields))


def shown_act(fields: dict[str, Any]) -> str:
    """Return a line of the audit trail as text for people."""
    who = fields.get("principal") or "somebody"
    if fields.get("tenant", "default") != "default":
        who += f" of {fields['tenant']}"
    if fields.get("address"):
        who += f" ({fields['address']})"
    what = "/".join(str(fields[name]) for name in ("queue", "group", "subject") if fields.get(name))
    times = f" × {fields['count']}" if fields.get("count") else ""
    details = f" {to_json(fields['details'])}" if fields.get("details") else ""
    act = f"{fields['action']} {what}".rstrip()
    return f"{local_time(fields['unix_ms'])}  {who}: {act}: {fields['outcome']}{times}{details}"


@audit.command()
@data_dir_option
@json_option
def verify(data_dir: str | None, as_json: bool) -> None:
    """Check the chain of hashes of the trail.

    The exit code is 1 if it is broken. The chain cannot show that lines are missing at the end, or
    that the whole trail was written anew. To detect that, keep the last number and hash elsewhere,
    and compare them.
    """
    found = _read(lambda: audit_trail.verify(folder_of(data_dir)))
    if as_json:
        click.echo(to_json({"ok": not found.findings, **msgspec.to_builtins(found)}))
    else:
        for finding in found.findings:
            click.echo(f"Broken: {finding}.")
        torn = f", {found.torn} cut off by a crash" if found.torn else ""
        result = plural(len(found.findings), "finding") if found.findings else "whole"
        if found.lines:
            lines = plural(found.lines, "line")
            click.echo(
                f"The trail is {result}: {lines}{torn}, numbers {found.first} to {found.last}, "
                f"hash {found.hash}"
            )
        else:
            click.echo("There is no trail.")
    if found.findings:
        sys.exit(1)


def _read(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except OSError as error:
        raise click.ClickException(f"The trail cannot be read: {error}.") from None
