"""A certificate authority for tests, with elliptic curves, which are made in a millisecond."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)
_MAY_SIGN = x509.KeyUsage(
    digital_signature=True, content_commitment=False, key_encipherment=False,
    data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
    encipher_only=False, decipher_only=False,
)  # fmt: skip


class Pair(NamedTuple):
    """A certificate with its key, as PEM files."""

    cert: Path
    key: Path

    def replace(self, other: "Pair") -> None:
        """Replace both files by another pair's, as a tool that renews certificates does."""
        for mine, its in zip(self, other, strict=True):
            fresh = mine.with_suffix(".new")
            fresh.write_bytes(its.read_bytes())
            fresh.replace(mine)


class Authority:
    """An authority that issues certificates into a folder. `ca` is the certificate to trust."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key, -DAY, 30 * DAY)
        builder = builder.add_extension(x509.BasicConstraints(True, None), critical=True)
        builder = builder.add_extension(_MAY_SIGN, critical=True)  # Python 3.13 insists on it
        builder = builder.add_extension(self._key_id(), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def settings(self, pair: Pair) -> dict[str, str]:
        """Return the settings of a broker with this certificate that accepts this authority's
        client certificates."""
        return {
            "TOCSIN_TLS_CERT": str(pair.cert),
            "TOCSIN_TLS_KEY": str(pair.key),
            "TOCSIN_TLS_CLIENT_CA": str(self.ca),
        }

    def issue(
        self,
        name: str,
        *alternatives: x509.GeneralName,
        begins: timedelta = -DAY,
        ends: timedelta = 7 * DAY,
    ) -> Pair:
        """Issue a certificate for the common name `name`; without alternatives for localhost."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, self._name, key, begins, ends).add_extension(
            x509.SubjectAlternativeName(alternatives or [x509.DNSName("localhost")]), critical=False
        )
        authority = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._key_id())
        builder = builder.add_extension(authority, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pair = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        pair.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        write_key(pair.key, key, serialization.NoEncryption())
        return pair

    def _key_id(self) -> x509.SubjectKeyIdentifier:
        return x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())


def write_key(
    path: Path,
    key: ec.EllipticCurvePrivateKey,
    encryption: serialization.KeySerializationEncryption,
) -> None:
    """Write a private key as a PEM file."""
    form = serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begins: timedelta,
    ends: timedelta,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now + begins,
        not_valid_after=now + ends,
    )
