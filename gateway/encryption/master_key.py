"""The master key, which wraps only data keys, and is stored apart from the data.

`MasterKey` is the interface for a key management service. TOCSIN_MASTER_KEY_PROVIDER names a
factory of such objects, package.module:factory, which is called without arguments and returns the
key to use. Otherwise the key is 32 bytes in the environment or in a file (`find_source`).

A file has one key per line, as hex or base64. The first one is in use, the others are former ones.
Lines that begin with # are comments. A file is only ever replaced as a whole and durably, so that a
reader finds either its old contents or its new ones.
"""

import base64
import contextlib
import hashlib
import importlib
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.encryption.sealer import NONCE_BYTES, TAG_BYTES
from push.errors import Refused
from storage.sqlite.open import sync_folder

logger = logging.getLogger("tocsin.encryption")

MASTER_KEY_BYTES: Final = 32
FILE_BYTES_MAX: Final = 65_536
_ID_BYTES: Final = 8
_REMARK: Final = (
    "# The master key of Tocsin. Without it the data cannot be read: keep a copy elsewhere.\n"
    "# The first key is in use. Those behind it are former ones, which open older backups."
)


# --- Keys ----------------------------------------------------------------------------------------


class MasterKey(Protocol):
    """A key that wraps keys, perhaps of a key management service. Calls may block for seconds, come
    from several threads, and raise any error when the service does not answer."""

    @property
    def key_id(self) -> str:
        """Name of the key, which is also logged. Another key has another name."""

    def wrap(self, plain: bytes, aad: bytes) -> bytes:
        """Encrypt 32 bytes. `aad` is bound to them, and `unwrap` needs it again."""

    def unwrap(self, wrapped: bytes, aad: bytes) -> bytes:
        """Return the plain bytes of `wrapped`, even if an earlier version of this key wrapped them.

        Raises:
            ValueError: it was wrapped under another key or with other `aad`, or changed since.
        """


class LocalMasterKey:
    """A master key of 32 bytes in this process: AES-256-GCM with random nonces."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        # The digest of a random key reveals nothing about it.
        self.key_id = hashlib.sha256(b"tocsin master key\0" + key).hexdigest()[: 2 * _ID_BYTES]

    def wrap(self, plain: bytes, aad: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, plain, aad)

    def unwrap(self, wrapped: bytes, aad: bytes) -> bytes:
        if len(wrapped) < NONCE_BYTES + TAG_BYTES:
            raise ValueError("too short to be wrapped")
        try:
            return self._cipher.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], aad)
        except InvalidTag:
            raise ValueError("wrapped under another key, or changed since") from None


# --- Files ---------------------------------------------------------------------------------------


def default_master_key_file(environ: Mapping[str, str]) -> Path:
    """Return `$XDG_CONFIG_HOME/tocsin/master.key`, else `~/.config/tocsin/master.key`. The file is
    apart from the data, so that a disk or a backup of the data does not contain the key."""
    base = environ.get("XDG_CONFIG_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".config"
    return root / "tocsin" / "master.key"


def parse_keys(text: str) -> tuple[bytes, ...]:
    """Parse keys of 32 bytes, separated by commas, each as hex or base64. The first one is in use.
    Raises ValueError."""
    return tuple(_parse_key(part.strip()) for part in text.split(","))


def _parse_key(text: str) -> bytes:
    if re.fullmatch(r"[0-9A-Fa-f]{64}", text):
        return bytes.fromhex(text)
    if not re.fullmatch(r"[A-Za-z0-9+/_-]{43}=?", text):
        raise ValueError
    return base64.b64decode(text.rstrip("=") + "=", altchars=b"-_" if {*"-_"} & {*text} else None)


def read_keys(path: Path) -> list[bytes]:
    """Read the keys of a file, the one in use first.

    Raises:
        Refused: storage_unavailable, if the file is missing, unreadable or too large, has no key,
            or has a line that is not a valid key. The text contains no key.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise _unusable(
            path,
            "does not exist. Put the file back, or give the key with TOCSIN_MASTER_KEY_FILE or "
            "TOCSIN_MASTER_KEY",
        ) from None
    except OSError as error:
        raise _unusable(path, f"cannot be read: {error.strerror}") from None
    if len(raw) > FILE_BYTES_MAX:
        raise _unusable(path, f"is too large: a key file has at most {FILE_BYTES_MAX} bytes")
    lines = [line.strip() for line in raw.decode("utf-8-sig", errors="replace").splitlines()]
    texts = [line for line in lines if line and not line.startswith("#")]
    try:
        keys = [key for text in texts for key in parse_keys(text)]
    except ValueError:
        raise _unusable(path, "is damaged: each line must be 32 bytes as hex or base64") from None
    if not keys:
        raise _unusable(path, "has no key in it: put one line of 32 bytes as hex or base64 into it")
    return keys


def parse_new_key(text: str) -> bytes:
    """Parse a text with one key. Raises Refused(invalid_request), whose text contains no key."""
    try:
        (key,) = parse_keys(text.strip())
    except ValueError:
        raise Refused(
            "invalid_request", "the new master key must be one key of 32 bytes, as hex or base64"
        ) from None
    return key


def is_open_to_others(path: Path) -> bool:
    """Whether other users than its owner may read a file."""
    return bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


def generate(path: Path) -> bool:
    """Make the file with a fresh key, for its owner alone, durably. An existing file is never
    touched. Returns whether it was made. Raises Refused(storage_unavailable)."""
    if path.exists():
        return False
    try:
        _make_folder(path.parent)
        with _fresh_file(path, [secrets.token_bytes(MASTER_KEY_BYTES)]) as fresh:
            os.link(fresh, path)  # unlike a rename, it fails if another process was faster
        sync_folder(path.parent)
    except FileExistsError:
        return False
    except OSError as error:
        raise _unusable(
            path,
            f"cannot be made ({error.strerror}). Name a file of your own with "
            "TOCSIN_MASTER_KEY_FILE, or give the key in TOCSIN_MASTER_KEY",
        ) from None
    return True


def replace_keys(path: Path, keys: Sequence[bytes]) -> None:
    """Replace the keys of the file by these. Raises Refused(invalid_request) if it could not be
    written and is unchanged, or if the folder cannot be fsynced, so that a crash may bring the old
    file back."""
    path = path.resolve()  # a link stays a link
    try:
        with _fresh_file(path, keys) as fresh:
            fresh.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise Refused(
            "invalid_request",
            f"{path} cannot be written ({error.strerror}), so the master key was not changed",
        ) from None


def put_first(path: Path, raw: bytes, current_id: str) -> None:
    """Put the new key before the keys of the file, durably. Raises Refused if the key in use
    (`current_id`) is not in the file, or if the file cannot be written."""
    keys = read_keys(path)
    if current_id not in [LocalMasterKey(key).key_id for key in keys]:
        raise Refused(
            "invalid_request",
            f"{path} does not contain the master key in use ({current_id}): put it back first",
        )
    replace_keys(path, [raw, *(key for key in keys if key != raw)])


@contextlib.contextmanager
def _fresh_file(path: Path, keys: Sequence[bytes]) -> Iterator[Path]:
    """Make a durable file in the folder of `path`, with these keys. It is removed in the end,
    unless it was renamed."""
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
    """Make a folder, for its owner alone, and durably."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        sync_folder(folder.parent)


def _unusable(path: Path, why: str) -> Refused:
    return Refused("storage_unavailable", f"the master key {path} {why}")


# --- Sources -------------------------------------------------------------------------------------

Kind = Literal["environment", "file", "generated", "provider"]


@dataclass(slots=True)
class Source:
    """Master keys of a gateway, and the place that they come from. Data keys that are wrapped under
    one of `former` are wrapped under `current` at the next start, unless several gateways share the
    catalog."""

    kind: Kind
    current: MasterKey
    former: list[MasterKey] = field(default_factory=list)
    path: Path | None = None
    """Path of the file that the keys were read from; None: they are from the environment or a
    provider."""
    provider: str = ""
    is_new: bool = False
    """Whether the file has just been made."""

    def find(self, key_id: str) -> MasterKey | None:
        """Return the master key of this id; None: it is not known. If the keys are a provider's,
        the current key is returned for any unknown id, because the service knows its former
        keys."""
        other = self.current if self.kind == "provider" else None
        return next((key for key in (self.current, *self.former) if key.key_id == key_id), other)

    def __str__(self) -> str:
        """Return the place and the id of the key, for a sentence."""
        where = {
            "environment": "TOCSIN_MASTER_KEY",
            "provider": f"the provider {self.provider}",
        }.get(self.kind, str(self.path))
        return f"{where} ({self.current.key_id})"


class MasterKeySettings(NamedTuple):
    """Settings of the place of the master key, of which at most one is given."""

    keys: tuple[bytes, ...] = ()
    """The key in use, then the former ones."""
    file: Path | None = None
    provider: str | None = None
    """Factory of the key, written as package.module:factory."""

    @property
    def is_named(self) -> bool:
        """Whether the settings say where the master key is."""
        return bool(self.keys or self.file or self.provider)


def find_source(wanted: MasterKeySettings, default: Path, *, may_generate: bool) -> Source:
    """Find the master key that the settings name. If they name none, it is in the file `default`,
    which is made if it is missing and `may_generate`. Blocks.

    Raises:
        Refused: storage_unavailable, with what to do, if the key cannot be had.
    """
    if wanted.provider is not None:
        name = wanted.provider
        return Source("provider", load_provider(name), provider=name)
    if wanted.keys:
        current, *former = map(LocalMasterKey, wanted.keys)
        return Source("environment", current, list(former))
    path = wanted.file
    if path is not None:
        current, *former = map(LocalMasterKey, read_keys(path))
        return Source("file", current, list(former), path)
    is_new = may_generate and generate(default)
    current, *former = map(LocalMasterKey, read_keys(default))
    return Source("generated", current, list(former), default, is_new=is_new)


def load_provider(name: str) -> MasterKey:
    """Return the key that `package.module:factory` makes. Raises Refused(storage_unavailable)."""
    module, _, factory = name.partition(":")
    try:
        key: MasterKey = getattr(importlib.import_module(module), factory)()
        wrapped = key.wrap(bytes(MASTER_KEY_BYTES), b"a try")
        works = key.unwrap(wrapped, b"a try") == bytes(MASTER_KEY_BYTES) and bool(key.key_id)
    except Exception as error:  # foreign code may raise anything
        raise _provider_failed(name, f"{type(error).__name__}: {error}") from error
    if not works:
        raise _provider_failed(name, "it does not unwrap what it has wrapped, or has no key_id")
    return key


def _provider_failed(name: str, why: str) -> Refused:
    return Refused(
        "storage_unavailable",
        f"the master key cannot be had from TOCSIN_MASTER_KEY_PROVIDER={name} ({why})",
    )


def warn(source: Source) -> None:
    """Log warnings for the operator about the key."""
    if source.kind == "generated":
        made = "A master key was made in" if source.is_new else "The master key is in"
        logger.warning(
            "%s %s. Without this file the data cannot be read. Keep a copy of it apart from the "
            "data. To end this warning, name the file in TOCSIN_MASTER_KEY_FILE",
            made,
            source.path,
        )
    if source.path is not None and is_open_to_others(source.path):
        logger.warning(
            "other users can read the master key in %s: run chmod 600 on it", source.path
        )
