"""Messages as lines of text or of JSON."""

from typing import Any

import msgspec

from tocsin.proto.message import Content, Published

_ENCODE = msgspec.json.Encoder().encode


def text_line(message: Content) -> bytes:
    """Return the body as a line: a text or bytes as they are, anything else as its JSON."""
    body = message.body_bytes
    if not message.is_binary and body[:1] == b'"':
        body = message.body.encode()
    return body + b"\n"


def json_line(message: Content, extra: dict[str, Any] | None = None) -> bytes:
    """Return a message as one object, with the body as it was published."""
    fields = {"key": message.key, **body_fields(message)}
    fields |= {
        "id": message.id,
        "partition": message.partition,
        "offset": message.offset,
        "published_unix_ms": message.published_unix_ms,
    }
    attempt = getattr(message, "attempt", None)
    if attempt is not None:
        fields["attempt"] = attempt
    if message.deliver_at_unix_ms is not None:
        fields["deliver_at_unix_ms"] = message.deliver_at_unix_ms
    if message.content_type is not None:
        fields["content_type"] = message.content_type
    if message.headers:
        fields["headers"] = message.headers
    return _ENCODE({**fields, **(extra or {})}) + b"\n"


def body_fields(message: Published) -> dict[str, Any]:
    """Return the field that holds a body as it was published, JSON or bytes."""
    if message.is_binary:
        return {"body_base64": message.body_bytes}
    return {"body": msgspec.Raw(message.body_bytes)}
