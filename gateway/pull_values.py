"""Messages as a pull over HTTP returns them, and the result of an ack, nack or extend."""

import msgspec


class PulledMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message as a pull returns it. `body` holds the bytes that were published (P2)."""

    receipt: str
    id: str
    partition: int
    offset: int
    attempt: int
    """1 for the first delivery."""
    published_unix_ms: int
    lease_until_unix_ms: int
    """By the gateway's clock: until then an ack, nack or extend of this receipt counts."""
    key: str | None = None
    body: msgspec.Raw | None = None
    body_base64: str | None = None
    content_type: str | None = None
    headers: dict[str, str] | None = None


class PullSettled(msgspec.Struct, frozen=True, kw_only=True):
    """What an ack, nack or extend by receipts did."""

    settled: int
    stale: list[str]
    """Receipts of deliveries that have ended: settled by somebody else, expired, given anew."""
    invalid: list[str]
    """Receipts that this broker did not give, for this group."""
