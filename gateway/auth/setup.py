"""Composition of authentication from the configuration: tokens and keys, and the ends of sessions
when these are revoked (P11)."""

from collections.abc import Sequence
from typing import NamedTuple

from gateway.auth.auth import Authenticator
from gateway.auth.jwt import JwksSource, JwtKeys, JwtTerms, JwtVerifier
from gateway.counters import FunctionHitRate, HitRateSource
from metadata.port import Metadata
from metadata.tokens import TokenRecord, rights_of


class JwtIssuer(NamedTuple):
    """An issuer whose JWTs are good here, and the claims that they must have."""

    keys: str
    """Place at which the issuer's keys are read: a path or an https address."""
    algorithms: tuple[str, ...]
    refresh_s: float
    """Seconds after which the keys at an https address are read again."""
    terms: JwtTerms


class Credentials:
    """The authentication of a gateway. It is made inside the event loop before the port is opened.
    Call `start` before a client is let in."""

    def __init__(
        self,
        metadata: Metadata,
        *,
        token: str | None,
        origins: Sequence[str],
        is_required: bool,
        issuer: JwtIssuer | None,
    ) -> None:
        """Make the `Authenticator` from `token`, `origins` and `is_required`. Without an `issuer`
        no JWT is good."""
        self.jwts: JwtVerifier | None = None
        self._source: JwksSource | None = None
        if issuer is not None:
            self._source = JwksSource(
                issuer.keys, issuer.algorithms, self._put_keys, refresh_s=issuer.refresh_s
            )
            self.jwts = JwtVerifier(issuer.terms, self._source.want)
        self.auth = Authenticator(
            token,
            origins,
            is_required=is_required,
            tokens=metadata.tokens,
            jwts=self.jwts,
            secret=metadata.secret("access"),
        )
        metadata.tokens.on_revoked(self._on_token_revoked)

    def _on_token_revoked(self, record: TokenRecord) -> None:
        self.auth.on_token_revoked(record)
        self.auth.on_credential_ended(record.credential)

    @property
    def hit_rates(self) -> dict[str, HitRateSource]:
        """Hit rates of JWTs and rights that are remembered, by name."""
        of_jwts = self.jwts.hit_rates if self.jwts is not None else {}
        return {"rights_of_tokens": FunctionHitRate(rights_of), **of_jwts}

    def _put_keys(self, keys: JwtKeys) -> None:
        if self.jwts is not None:
            for credential in self.jwts.put_keys(keys):
                self.auth.on_credential_ended(credential)

    async def start(self) -> None:
        """Read the issuer's keys, and keep them fresh. Without an issuer nothing happens.

        Raises:
            KeysError: the file has no key that counts, or cannot be read.
        """
        if self._source is not None:
            await self._source.start()

    async def stop(self) -> None:
        """Stop reading the keys."""
        if self._source is not None:
            await self._source.stop()
