"""The master key: it wraps data keys and nothing else, and is never where the data is.

`MasterKey` is the interface for a key management service: whoever has one names a factory of such
objects with TOCSIN_MASTER_KEY_PROVIDER=package.module:factory. Called without arguments, it answers
the key to use. Else the key is 32 bytes in the environment or in a file.
"""

import hashlib
import importlib
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.encryption.encryption import NONCE_BYTES, TAG_BYTES
from gateway.encryption.key_file import (
    MASTER_KEY_BYTES,
    generate,
    is_open_to_others,
    read_keys,
    replace_keys,
)
from push.errors import Refused

logger = logging.getLogger("tocsin.encryption")
_ID_BYTES: Final = 8


class MasterKey(Protocol):
    """A key that wraps keys: what a key management service is asked. Calls may block for seconds,
    come from several threads, and raise whatever they like when the service does not answer."""

    @property
    def key_id(self) -> str:
        """Names the key, also in logs. Another key, another name."""

    def wrap(self, plain: bytes, aad: bytes) -> bytes:
        """Encrypt 32 bytes; `aad` is bound to them and is given to `unwrap` again."""

    def unwrap(self, wrapped: bytes, aad: bytes) -> bytes:
        """What `wrap` was given, also by an earlier version of this key.

        Raises:
            ValueError: wrapped under another key, with other `aad`, or changed since.
        """


class LocalMasterKey:
    """A master key of 32 bytes in this process: AES-256-GCM with random nonces."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        # Of a random key, a digest tells nothing.
        self.key_id = hashlib.sha256(b"tocsin master key\0" + key).hexdigest()[: 2 * _ID_BYTES]

    def wrap(self, plain: bytes, aad: bytes) -> bytes:
        """As MasterKey.wrap."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, plain, aad)

    def unwrap(self, wrapped: bytes, aad: bytes) -> bytes:
        """As MasterKey.unwrap."""
        if len(wrapped) < NONCE_BYTES + TAG_BYTES:
            raise ValueError("too short to be wrapped")
        try:
            return self._cipher.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], aad)
        except InvalidTag:
            raise ValueError("wrapped under another key, or changed since") from None


Kind = Literal["environment", "file", "generated", "provider"]


@dataclass(slots=True)
class Source:
    """Where the master key comes from. What the catalog has wrapped under one of `former` is
    wrapped under `current` at the next start."""

    kind: Kind
    current: MasterKey
    former: list[MasterKey] = field(default_factory=list)
    path: Path | None = None
    """Of the file that it was read from."""
    provider: str = ""
    is_new: bool = False
    """The file was made just now."""

    def find(self, key_id: str) -> MasterKey | None:
        """The key of this id. A service is asked whatever the id: it knows its former ones."""
        other = self.current if self.kind == "provider" else None
        return next((key for key in (self.current, *self.former) if key.key_id == key_id), other)

    def __str__(self) -> str:
        """For a sentence."""
        where = {
            "environment": "TOCSIN_MASTER_KEY",
            "provider": f"the provider {self.provider}",
        }.get(self.kind, str(self.path))
        return f"{where} ({self.current.key_id})"


class MasterKeySettings(NamedTuple):
    """Where the key is: one of these, or nothing said."""

    keys: tuple[bytes, ...] = ()
    """The first is in use, the others are former ones."""
    file: Path | None = None
    provider: str | None = None
    """package.module:factory"""

    @property
    def is_named(self) -> bool:
        """Whether the settings say where the master key is."""
        return bool(self.keys or self.file or self.provider)


def find_source(wanted: MasterKeySettings, default: Path, *, may_generate: bool) -> Source:
    """The master key as the settings say; nothing said: the file `default`, which is made where
    it is missing and `may_generate`. Blocks.

    Raises:
        Refused: storage_unavailable: it cannot be had; a sentence that says what to do.
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
    """The key that `package.module:factory` answers. Raises Refused(storage_unavailable)."""
    module, _, factory = name.partition(":")
    try:
        key: MasterKey = getattr(importlib.import_module(module), factory)()
        wrapped = key.wrap(bytes(MASTER_KEY_BYTES), b"a try")
        works = key.unwrap(wrapped, b"a try") == bytes(MASTER_KEY_BYTES) and bool(key.key_id)
    except Exception as error:  # it is somebody else's code
        raise _provider_failed(name, f"{type(error).__name__}: {error}") from error
    if not works:
        raise _provider_failed(name, "what it wraps it does not unwrap")
    return key


def _provider_failed(name: str, why: str) -> Refused:
    return Refused(
        "storage_unavailable",
        f"the master key cannot be had from TOCSIN_MASTER_KEY_PROVIDER={name} ({why})",
    )


def put_first(path: Path, raw: bytes, current_id: str) -> None:
    """Put the new key before those of the file, the one in use (`current_id`) among them, durably.
    Raises Refused: that one is not there, or the file cannot be written."""
    keys = read_keys(path)
    if current_id not in [LocalMasterKey(key).key_id for key in keys]:
        raise Refused(
            "invalid_request",
            f"{path} does not have the master key that is in use ({current_id}): put it back first",
        )
    replace_keys(path, [raw, *(key for key in keys if key != raw)])


def tell(source: Source) -> None:
    """What an operator has to know about the key."""
    if source.kind == "generated":
        made = "A master key was made in" if source.is_new else "The master key is in"
        logger.warning(
            "%s %s: without this file the data cannot be read. Keep a copy of it, not with the "
            "data; named by TOCSIN_MASTER_KEY_FILE, it is not mentioned any more",
            made, source.path,
        )  # fmt: skip
    if source.path is not None and is_open_to_others(source.path):
        logger.warning("others may read the master key %s: chmod 600 it", source.path)
