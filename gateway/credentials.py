"""The credentials of a broker in its process: what is configured, and what ends what (P11)."""

from gateway.admitted import Admitted
from gateway.auth import Auth
from gateway.config import Config
from gateway.hit_rate import FunctionHitRate, Shown
from gateway.jwks_source import JwksSource
from gateway.jwt_keys import Keys
from gateway.jwts import Jwts, Terms
from metadata.client import Metadata
from metadata.tokens import TokenRecord, rights_of


class Credentials:
    """Made before there is a port, inside the event loop; `start` before somebody is let in."""

    def __init__(self, config: Config, metadata: Metadata) -> None:
        self.jwts: Jwts | None = None
        self._source: JwksSource | None = None
        if config.jwt_keys is not None and config.jwt_audience is not None:
            self._source = JwksSource(
                config.jwt_keys,
                config.jwt_algorithms,
                self._put_keys,
                refresh_s=config.jwt_refresh_s,
            )
            terms = Terms(
                config.jwt_audience,
                config.jwt_issuer,
                config.jwt_rights,
                config.jwt_rights_claim,
                config.jwt_tenant_claim,
            )
            self.jwts = Jwts(terms, self._source.want)
        self.auth = Auth(
            config.token,
            config.origins,
            is_required=config.needs_credentials,
            tokens=metadata.tokens,
            jwts=self.jwts,
            secret=metadata.secret("access"),
        )
        metadata.tokens.on_revoked(self._revoked)

    def _revoked(self, record: TokenRecord) -> None:
        self.auth.note_revoked(record)
        self._admitted.revoke(record.credential)

    @property
    def _admitted(self) -> Admitted:
        return self.auth.admitted

    @property
    def hit_rates(self) -> dict[str, Shown]:
        """Of what is remembered of identities, by its name."""
        of_jwts = self.jwts.hit_rates if self.jwts is not None else {}
        return {"rights_of_tokens": FunctionHitRate(rights_of), **of_jwts}

    def _put_keys(self, keys: Keys) -> None:
        if self.jwts is not None:
            for credential in self.jwts.put_keys(keys):
                self._admitted.revoke(credential)

    async def start(self) -> None:
        """Read the keys, and see to it that they stay fresh.

        Raises:
            KeysError: the file with the keys has none, or cannot be read.
        """
        if self._source is not None:
            await self._source.start()

    async def stop(self) -> None:
        """Nothing is read any more."""
        if self._source is not None:
            await self._source.stop()
