"""Master keys in a file: one a line, as hex or base64; the first is the one that is used, those
behind it are former ones. Lines that begin with # are remarks.

A file is only ever replaced as a whole and durably, so whoever reads it finds all that was in it
or all that is in it now.
"""

import base64
import contextlib
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from push.errors import Refused
from storage.sqlite.sqlite_open import sync_folder

MASTER_KEY_BYTES: Final = 32
FILE_BYTES_MAX: Final = 65_536
_REMARK: Final = (
    "# The master key of Tocsin. Without it the data cannot be read: keep a copy elsewhere.\n"
    "# The first key is in use. Those behind it are former ones, which open older backups."
)


def default_master_key_file(environ: Mapping[str, str]) -> Path:
    """`$XDG_CONFIG_HOME/tocsin/master.key`, else `~/.config/tocsin/master.key`: not where the data
    is, so that who gets hold of a disk or a backup of the data has not got the key."""
    base = environ.get("XDG_CONFIG_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".config"
    return root / "tocsin" / "master.key"


def parse_keys(text: str) -> tuple[bytes, ...]:
    """Keys of 32 bytes separated by commas, each as hex or base64; the first is in use. Raises
    ValueError."""
    return tuple(_parse_key(part.strip()) for part in text.split(","))


def _parse_key(text: str) -> bytes:
    if re.fullmatch(r"[0-9A-Fa-f]{64}", text):
        return bytes.fromhex(text)
    if not re.fullmatch(r"[A-Za-z0-9+/_-]{43}=?", text):
        raise ValueError
    return base64.b64decode(text.rstrip("=") + "=", altchars=b"-_" if {*"-_"} & {*text} else None)


def read_keys(path: Path) -> list[bytes]:
    """The keys of a file, the one in use first.

    Raises:
        Refused: storage_unavailable: there is none, or it cannot be read; no key is in the text.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise _unusable(
            path,
            "is not there. Put it back, or name where it is: TOCSIN_MASTER_KEY_FILE or "
            "TOCSIN_MASTER_KEY",
        ) from None
    except OSError as error:
        raise _unusable(path, f"cannot be read: {error.strerror}") from None
    if len(raw) > FILE_BYTES_MAX:
        raise _unusable(path, "is too large to be one")
    lines = [line.strip() for line in raw.decode("utf-8-sig", errors="replace").splitlines()]
    texts = [line for line in lines if line and not line.startswith("#")]
    try:
        keys = [key for text in texts for key in parse_keys(text)]
    except ValueError:
        raise _unusable(path, "is damaged: each line is 32 bytes as hex or base64") from None
    if not keys:
        raise _unusable(path, "has no key in it")
    return keys


def parse_new_key(text: str) -> bytes:
    """The one key of a text. Raises Refused(invalid_request); no key is in its text."""
    try:
        (key,) = parse_keys(text.strip())
    except ValueError:
        raise Refused(
            "invalid_request", "the new master key is not 32 bytes as hex or base64"
        ) from None
    return key


def is_open_to_others(path: Path) -> bool:
    """Whether others than its owner may read it."""
    return bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


def generate(path: Path) -> bool:
    """Make the file with a fresh key, for its owner alone, durably; one that is there is never
    touched. Whether it was made. Raises Refused(storage_unavailable)."""
    if path.exists():
        return False
    try:
        _make_folder(path.parent)
        with _written(path, [secrets.token_bytes(MASTER_KEY_BYTES)]) as fresh:
            os.link(fresh, path)  # unlike a rename, it fails where somebody was faster
        sync_folder(path.parent)
    except FileExistsError:
        return False
    except OSError as error:
        raise _unusable(
            path,
            f"cannot be made ({error.strerror}): name a file of your own with "
            "TOCSIN_MASTER_KEY_FILE, or give the key in TOCSIN_MASTER_KEY",
        ) from None
    return True


def replace_keys(path: Path, keys: Sequence[bytes]) -> None:
    """Put these keys in place of what the file has. Raises Refused(invalid_request): it is as it
    was, or (the folder cannot be fsynced) nobody knows for how long it is as asked."""
    path = path.resolve()  # a link stays a link
    try:
        with _written(path, keys) as fresh:
            fresh.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise Refused(
            "invalid_request", f"{path} cannot be written: {error.strerror}; the key is as it was"
        ) from None


@contextlib.contextmanager
def _written(path: Path, keys: Sequence[bytes]) -> Iterator[Path]:
    """A durable file beside `path`, with these keys; gone in the end unless it was renamed."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    text = "\n".join([_REMARK, *(key.hex() for key in keys), ""])
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield fresh
    finally:
        fresh.unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    """Make it, for its owner alone, and durably."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        sync_folder(folder.parent)


def _unusable(path: Path, why: str) -> Refused:
    return Refused("storage_unavailable", f"the master key {path} {why}")
