"""The gateway's own TLS: the certificate, and its replacement while connections stay open.

A listening socket has one context for its whole life. New connections are moved to the newest one
in the middle of their handshake, where the certificate is chosen. Open connections keep theirs, so
nobody is cut off. Files are watched by their sizes and times. New files that are wrong are logged
and not used: the former pair stays in use.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from cryptography import x509

from runtime.listener import StartError

logger = logging.getLogger("tocsin.tls")

LOOK_S: Final = 5.0
"""Seconds between two checks whether a file has changed."""
CIPHERS_1_2: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Ciphers of TLS 1.2 with forward secrecy and authenticated encryption; all of TLS 1.3 have
both."""

Stamp = tuple[tuple[int, int, int], ...]


class CertificateFiles(NamedTuple):
    """Files with the certificate and its chain, its key, and the clients' authorities."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def stamp(self) -> Stamp:
        """Return a value that changes when a file is written or replaced; a missing file is all
        zeros."""
        return tuple(_stamp(path) for path in self if path is not None)


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def load_context(files: CertificateFiles, *, wall: float) -> ssl.SSLContext:
    """Return a server's context for TLS 1.2 or newer, or for 1.3 if clients may present
    certificates. TLS 1.2 would send these in the clear and would not check them again when a
    session is resumed. Blocks for a few milliseconds. `wall`: unix seconds.

    Raises:
        StartError: a file cannot be read, is not what it should be, or the certificate is not valid
            at this time. The text is a sentence that names the setting.
    """
    _check_valid(files.cert, wall)
    _read(files.key, "TOCSIN_TLS_KEY")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS_1_2)
    context.set_alpn_protocols(["http/1.1"])
    # Resumption saves little where connections last, and would show the old certificate for hours.
    context.num_tickets = 0
    try:
        context.load_cert_chain(files.cert, files.key, password=_no_passphrase)
    except _Encrypted:
        raise StartError(
            f"TOCSIN_TLS_KEY is {files.key}, which needs a passphrase. Store the key without one, "
            "in a file that only the broker can read."
        ) from None
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        _refuse_pair(files, error)
    if files.client_ca is not None:
        _read(files.client_ca, "TOCSIN_TLS_CLIENT_CA")
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(files.client_ca)
        except OSError:
            raise StartError(
                f"TOCSIN_TLS_CLIENT_CA is {files.client_ca}, which holds no certificate in PEM "
                "form."
            ) from None
    return context


class _Encrypted(Exception):
    """Raised when OpenSSL asks for a passphrase, which it would read from the terminal."""


def _no_passphrase() -> str:
    raise _Encrypted


def _refuse_pair(files: CertificateFiles, error: Exception) -> NoReturn:
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        raise StartError(
            f"TOCSIN_TLS_KEY is {files.key}, which is not the key of the certificate in "
            f"{files.cert} (TOCSIN_TLS_CERT)."
        ) from None
    reason = str(getattr(error, "reason", None) or "no private key in PEM form")
    raise StartError(
        f"TOCSIN_TLS_KEY is {files.key}, which cannot be used with the certificate in {files.cert} "
        f"(TOCSIN_TLS_CERT): {reason.replace('_', ' ').lower()}."
    ) from None


def _check_valid(cert: Path, wall: float) -> None:
    try:
        leaf = x509.load_pem_x509_certificates(_read(cert, "TOCSIN_TLS_CERT"))[0]
    except ValueError:
        raise StartError(
            f"TOCSIN_TLS_CERT is {cert}, which holds no certificate in PEM form."
        ) from None
    now = datetime.fromtimestamp(wall, UTC)
    if now > leaf.not_valid_after_utc:
        raise StartError(
            f"TOCSIN_TLS_CERT is {cert}, whose certificate ended on {leaf.not_valid_after_utc}. "
            "Replace it by a new one, with its key."
        )
    if now < leaf.not_valid_before_utc:
        raise StartError(
            f"TOCSIN_TLS_CERT is {cert}, whose certificate begins on {leaf.not_valid_before_utc}. "
            "Check the clock of this machine, or use another certificate."
        )


def _read(path: Path, setting: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StartError(f"{setting} is {path}, which cannot be read: {error.strerror}.") from None


def pinning(cert: Path) -> ssl.SSLContext:
    """Return a client's context that accepts this certificate, or one below it, under any name, and
    no other. Raises OSError when it cannot be read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cert)
    return context


class Tls:
    """The context of a listener, which follows its files while `watch` runs.

    Raises:
        StartError: a file cannot be read, is not what it should be, or the certificate is not valid
            at this time.
    """

    def __init__(self, files: CertificateFiles, *, wall: Callable[[], float] = time.time) -> None:
        self._files = files
        self._wall = wall
        self._stamp = files.stamp()
        self._newest = load_context(files, wall=wall())
        self.context = self._newest
        """The context for `create_server`."""
        self.context.sni_callback = self._choose

    @classmethod
    def of(cls, cert: Path | None, key: Path | None, client_ca: Path | None) -> "Tls | None":
        """Load these files; None without a certificate or without a key, because then there is no
        TLS. Raises StartError."""
        if cert is None or key is None:
            return None
        return cls(CertificateFiles(cert, key, client_ca))

    def _choose(self, connection: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        """Choose the newest context; OpenSSL calls this after a client's first message."""
        if self._newest is not first:
            connection.context = self._newest

    async def watch(self) -> None:
        """Look for new files, without end."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Load the files again if they have changed since the last look. Wrong files are logged
        once, and not used."""
        stamp = await asyncio.to_thread(self._files.stamp)
        if stamp != self._stamp:
            self._stamp = stamp
            await self.reload()

    async def reload(self) -> None:
        """Load the files for new connections. If they are bad, that is logged, and the former
        certificate stays in use."""
        try:
            context = await asyncio.to_thread(load_context, self._files, wall=self._wall())
        except StartError as error:
            logger.error("%s The former certificate stays in use.", error)
            return
        self._newest = context
        logger.info("the certificate in %s is now in use", self._files.cert)
