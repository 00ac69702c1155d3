"""`tocsin admin backup`, `verify` and `restore`."""

import sys
import time
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from tocsin.cli.common import plural

from gateway.accounting.audit import LOCAL, AuditEntry, AuditTrail
from gateway.accounting.writer import AUDIT_BYTES_MAX
from gateway.admin import client as admin_client
from gateway.cli.options import (
    admin_errors,
    broker_of,
    data_dir_of,
    data_dir_option,
    json_option,
    key_settings_of,
    master_key_file_option,
    to_json,
)
from gateway.encryption.keyring import opener
from gateway.stores import restore as restoring
from gateway.stores.backup import BackupError
from push.errors import Refused

LIVE_EVERY_S: Final = 0.2
PLAIN_EVERY_S: Final = 5.0


class _Progress:
    """Progress of a command on stderr: on a terminal a line that is rewritten, otherwise a plain
    line every PLAIN_EVERY_S."""

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty()
        self._every_s = LIVE_EVERY_S if self._is_live else PLAIN_EVERY_S
        self._due = time.monotonic() + self._every_s
        self._width = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + self._every_s
        line = f"{what}: {done:,} of {total:,} ({done / max(total, 1):.0%})"
        if self._is_live:
            click.echo("\r" + line.ljust(self._width), err=True, nl=False)
            self._width = len(line)
        else:
            click.echo(line, err=True)

    def close(self) -> None:
        """Wipe the line of progress from a terminal."""
        if self._width:
            click.echo("\r" + " " * self._width + "\r", err=True, nl=False)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@data_dir_option
@json_option
def backup(folder: Path, data_dir: str | None, as_json: bool) -> None:
    """Make a backup of the running broker in FOLDER.

    FOLDER must be empty or not exist. The backup contains everything that was acknowledged before
    it began, and perhaps later messages. Publishing and delivering go on. FOLDER is complete when
    it has a manifest.json, which is written last. It holds the broker's secrets, so keep it as
    safe as the data folder.

    \b
    Examples:
      tocsin admin backup /backup/tocsin-$(date +%F)
      tocsin admin verify /backup/tocsin-$(date +%F)
    """
    progress = _Progress()
    try:
        with admin_errors():
            manifest = admin_client.backup(broker_of(data_dir), folder, progress)
    finally:
        progress.close()
    if as_json:
        click.echo(to_json(manifest))
        return
    size = sum(file["bytes"] for file in manifest["files"].values())
    took_s = (manifest["ended_unix_ms"] - manifest["began_unix_ms"]) / 1000
    click.echo(f"Backed up {plural(size, 'byte')} in {took_s:.1f} s to {manifest['folder']}.")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
@master_key_file_option
@json_option
def verify(folder: Path, master_key_file: str | None, as_json: bool) -> None:
    """Check a backup, or the data folder of a stopped broker, in FOLDER.

    Checks the manifest's checksums, the structure of both files, the checksum of every row, and
    that the two files belong together. The master key is looked up like in `tocsin serve`. If it
    is found, each message is opened as well. Changes nothing. The exit code is 1 if something is
    damaged.

    \b
    Examples:
      tocsin admin verify /backup/tocsin-2026-11-21
      tocsin admin verify ~/.local/share/tocsin --json
    """
    progress = _Progress()
    try:
        verified = restoring.verify(folder, progress, opener(key_settings_of(master_key_file)))
    except (BackupError, Refused) as error:
        raise click.ClickException(str(error)) from None
    finally:
        progress.close()
    if as_json:
        click.echo(to_json({"ok": not verified.findings, **_fields(verified)}))
    else:
        for finding in verified.findings:
            click.echo(f"Damaged: {finding}.")
        counts = ", ".join(f"{count:,} {table}" for table, count in verified.rows.items() if count)
        if verified.quarantined:
            counts += f"; {verified.quarantined:,} records in quarantine, known to the broker"
        if verified.sealed:
            how = "opened" if verified.opened else "not opened, for lack of the master key"
            counts += f"; payloads of {verified.sealed:,} records sealed, {how}"
            counts += "" if verified.opened else f" {verified.master_key_id}"
        result = plural(len(verified.findings), "finding") if verified.findings else "sound"
        click.echo(f"{folder}: {result}. Rows: {counts or 'none'}.")
    if verified.findings:
        sys.exit(1)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
@data_dir_option
@json_option
def restore(folder: Path, data_dir: str | None, as_json: bool) -> None:
    """Make a data folder from the backup in FOLDER.

    The data folder is --data-dir, which must be empty or not exist. The restored history is older
    and marked as such. Receipts and deliveries of the lost history are stale. Positions of readers
    are new, and so are ids of messages that were published without one. A reader that resumes gets
    `unknown`. Messages that were acknowledged after the backup are lost; producers may send them
    again. Tokens are those of the backup too. One that was revoked since then is good again until
    you revoke it anew.

    \b
    Examples:
      tocsin admin restore /backup/tocsin-2026-11-21 --data-dir /srv/tocsin
      tocsin serve --data-dir /srv/tocsin
    """
    progress = _Progress()
    try:
        restored = restoring.restore(folder, data_dir_of(data_dir), progress)
        note_restore(Path(restored.data_dir), folder, restored.incarnation)
    except BackupError as error:
        raise click.ClickException(str(error)) from None
    finally:
        progress.close()
    if as_json:
        click.echo(to_json(_fields(restored)))
        return
    damaged = (
        f" {plural(restored.damaged, 'damaged row')} came with it." if restored.damaged else ""
    )
    click.echo(
        f"Restored {plural(restored.queues, 'queue')} to {restored.data_dir}, incarnation "
        f"{restored.incarnation}.{damaged} Start it: tocsin serve --data-dir {restored.data_dir}"
    )
    if restored.master_key_id:
        click.echo(f"Its messages need the master key {restored.master_key_id}.")
    if restored.tokens:
        click.echo(
            f"It has the {plural(restored.tokens, 'token')} of the backup. Revoke anew those that "
            "were revoked since then; `tocsin admin token list` shows all."
        )


def note_restore(data_dir: Path, backup: Path, incarnation: str) -> None:
    """Note the restore in the first line of the new data folder's audit trail. If it cannot be
    written, only a warning is shown, because the folder is restored."""
    wall = time.time()
    entry = AuditEntry(
        unix_ms=int(wall * 1000),
        action="broker.restore",
        outcome="ok",
        subject=str(backup),
        details={"incarnation": incarnation},
        **LOCAL.fields(),
    )
    try:
        trail = AuditTrail.open(data_dir, AUDIT_BYTES_MAX)
        trail.append([entry], wall=wall)
        trail.sync()
        trail.close()
    except OSError as error:
        click.echo(f"Warning: the audit trail cannot be written: {error}.", err=True)


def _fields(value: msgspec.Struct) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(value)
    return fields
