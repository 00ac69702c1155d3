"""The authorities that a client trusts over https, and the certificate that it presents.

Without an `ssl.SSLContext` from the program, a client trusts the authorities of this system, or
those in the file TOCSIN_CA_FILE. If TOCSIN_CERT_FILE is set, the client presents that certificate.
TOCSIN_KEY_FILE names the key's file, unless the key is in the same file. The files are PEM, and are
read once.
"""

import os
import ssl
from functools import cache
from ssl import SSLContext
from typing import Final

_HINTS: Final = {
    "CERTIFICATE_VERIFY_FAILED": "; for a private authority, name its file in TOCSIN_CA_FILE",
    "WRONG_VERSION_NUMBER": "; perhaps it speaks http:// there, not https://",
}


def tls_context(url: str, given: SSLContext | None) -> SSLContext | None:
    """Return the context for connections to this URL; None if it is http.

    `given` takes precedence over the environment. Reading the system's authorities is slow, so it
    is done once.

    Raises:
        ValueError: `given` for an http URL, or an invalid file of the environment.
    """
    if not url.startswith("https:"):
        if given is not None:
            raise ValueError(f"ssl needs an https:// URL, not {url!r}")
        return None
    if given is not None:
        return given
    return _by_files(*(os.environ.get(f"TOCSIN_{name}_FILE") for name in ("CA", "CERT", "KEY")))


@cache
def _by_files(ca: str | None, cert: str | None, key: str | None) -> SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except OSError as error:
        raise ValueError(f"TOCSIN_CA_FILE is {ca!r}: {_why(error, 'no certificate')}") from None
    if key and not cert:
        raise ValueError("TOCSIN_KEY_FILE is set and TOCSIN_CERT_FILE is not")
    if cert:
        try:
            context.load_cert_chain(cert, key or None)
        except OSError as error:
            names = f"TOCSIN_CERT_FILE is {cert!r} and TOCSIN_KEY_FILE is {key!r}"
            raise ValueError(f"{names}: {_why(error, 'no pair')}") from None
    return context


def _why(error: OSError, what: str) -> str:
    if isinstance(error, ssl.SSLError):
        return f"{what} in PEM form ({error.reason or error})"
    return error.strerror or str(error)


def tls_complaint(error: BaseException | None) -> str | None:
    """Return TLS's complaint in an error or its causes, for people; None if TLS did not
    complain."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    if error is None:
        return None
    reason = error.reason or "TLS failed"
    what = getattr(error, "verify_message", "") or reason.replace("_", " ").lower()
    return f"{what}{_HINTS.get(reason, '')}"
