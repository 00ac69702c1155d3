"""WebSocket frames and HTTP requests that are wrong. Pure.

`smuggled` makes HTTP requests that two parsers could take for different requests. Each contains
another request, which would create a queue whose name begins with `SMUGGLED_NAME`.
"""

import struct
from random import Random
from typing import Final

from loadtests.clients.wire import frame
from loadtests.trials.fuzz.messages import mutated_bytes

_KEY: Final = "dGhlIHNhbXBsZSBub25jZQ=="
SMUGGLED_NAME: Final = "smuggled"
HELLO: Final = frame(b'{"type":"hello"}')
PING: Final = frame(b'{"type":"ping","ref":77}')
CLOSE_CODES: Final = (
    0, 1, 999, *range(1000, 1017), 1100, 2000, 2999, 3000, 4000, 4500, 4999, 5000, 65535,
)  # fmt: skip


def handshake(host: str, *lines: str, key: str = _KEY) -> bytes:
    """Return the request of a WebSocket handshake with the subprotocol `tocsin.v1`."""
    return request(
        "GET /v1/ws", host, "Upgrade: websocket", "Connection: Upgrade",
        "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Protocol: tocsin.v1", *lines,
    )  # fmt: skip


def request(what: str, host: str, *lines: str, body: bytes = b"") -> bytes:
    """Return a request with its header lines."""
    text = "\r\n".join([f"{what} HTTP/1.1", f"Host: {host}", *lines, "", ""])
    return text.encode("latin-1") + body


def raw_frame(
    first: int, payload: bytes, *, announced: int | None = None, mask: bytes | None = b"\0\0\0\0",
    wide: int = 0,
) -> bytes:  # fmt: skip
    """Return a WebSocket frame with the first byte `first`, right or wrong. `announced`: the length
    that it claims. `wide`: 2 or 8 bytes for the length, even if it needs fewer. `mask`: None for an
    unmasked frame."""
    length = len(payload) if announced is None else announced
    masked = 0x80 if mask is not None else 0
    if wide == 8 or length >= 65_536:
        head = struct.pack("!BBQ", first, masked | 127, length)
    elif wide == 2 or length >= 126:
        head = struct.pack("!BBH", first, masked | 126, length)
    else:
        head = bytes((first, masked | length))
    if mask is None:
        return head + payload
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


def wrong_frames(random: Random, message: bytes) -> bytes:
    """Return one frame, or a few, most of which break RFC 6455."""
    text = message[:300]
    made: bytes
    match random.randrange(12):
        case 0:  # reserved bits (5.2); compressed frames set RSV1
            made = raw_frame(0x81 | random.choice((0x10, 0x20, 0x40, 0x70)), text)
        case 1:
            made = raw_frame(random.randrange(256), text[: random.choice((0, 1, 125, 126, 300))])
        case 2:  # control frames are short and whole (5.5)
            opcode = random.choice((0x88, 0x89, 0x8A, 0x08, 0x09, 0x0A))
            made = raw_frame(opcode, random.randbytes(random.choice((0, 1, 2, 125, 126, 1000))))
        case 3:
            made = raw_frame(0x81, text, mask=None)
        case 4:
            made = raw_frame(0x81, text, mask=random.randbytes(4))
        case 5:  # longer than the bytes that follow
            sizes = (len(text) + 1, 65_535, 65_536, 2**21, 2**21 + 1, 2**24, 2**31, 2**53, 2**63,
                     2**64 - 1)  # fmt: skip
            made = raw_frame(
                random.choice((0x81, 0x01, 0x82)), text, announced=random.choice(sizes)
            )
        case 6:
            made = raw_frame(0x81, text, wide=random.choice((2, 8)))
        case 7:
            code = random.choice(CLOSE_CODES).to_bytes(2)
            made = raw_frame(0x88, code + random.choice((b"", b"bye", b"\xff", b"\xc3\x28", text)))
        case 8:  # fragments, in and out of order (5.4), with control frames between them
            kinds = (0x01, 0x00, 0x80, 0x02, 0x81, 0x89, 0x8A)
            made = b"".join(
                raw_frame(random.choice(kinds), text[: random.choice((0, 1, 7, 125))])
                for _ in range(random.randrange(2, 12))
            )
        case 9:  # empty fragments
            made = raw_frame(0x01, b"") + raw_frame(0x00, b"") * random.choice((1, 100, 1000))
            made += raw_frame(0x80, text)
        case 10:
            made = raw_frame(0x02, text) if random.random() < 0.5 else raw_frame(0x81, b"\xff\xfe")
        case _:
            made = mutated_bytes(frame(text) * random.randrange(1, 3), random)
    return made


def _smuggled(number: int, host: str, *lines: str, before: bytes = b"", end: str = "\r\n") -> bytes:
    """Return a POST with these lines; after `before` follows what could be another request."""
    inner = request(f"PUT /v1/queues/{SMUGGLED_NAME}-{number}", host, "Content-Length: 2")
    head = ["POST /v1/queues/orders/messages HTTP/1.1", f"Host: {host}", *lines, "", ""]
    return end.join(head).encode("latin-1") + before + inner + b"{}"


def smuggled(host: str) -> list[bytes]:
    """Return requests that two parsers could read differently (RFC 9112, 6.3 and 11.2). None may be
    taken for two: the broker refuses, or takes all of it for one body."""
    chunked = "Transfer-Encoding: chunked"
    end = b"0\r\n\r\n"
    vectors: list[tuple[tuple[str, ...], bytes]] = [
        (("Content-Length: 0", "Content-Length: 120"), b""),
        (("Content-Length: 120", "Content-Length: 0"), b""),
        (("Content-Length: 0, 120",), b""),
        (("Content-Length: 0", chunked), end),
        ((chunked, "Content-Length: 0"), end),
        (("Content-Length: 5", chunked), end),
        ((chunked, "Content-Length: 5"), end),
        ((chunked, chunked, "Content-Length: 5"), end),
        (("Transfer-Encoding: chunked, identity",), end),
        (("Transfer-Encoding: identity, chunked", "Content-Length: 5"), end),
        (("Transfer-Encoding: xchunked", "Content-Length: 5"), end),
        (("Transfer-Encoding : chunked", "Content-Length: 5"), end),
        (("Transfer-Encoding:\tchunked", "Content-Length: 5"), end),
        (("Transfer-Encoding: \x0bchunked", "Content-Length: 5"), end),
        (("Transfer-Encoding: chunked\x00", "Content-Length: 5"), end),
        (("Transfer-Encoding:", " chunked", "Content-Length: 5"), end),
        (("X: y", " Content-Length: 5"), b"12345"),
        (("X: y\rContent-Length: 5",), b"12345"),
        (("Content-Length: +5",), b"12345"),
        (("Content-Length: -5",), b""),
        (("Content-Length: 0x5",), b"12345"),
        (("Content-Length: 5 5",), b"12345"),
        (("Content-Length : 5",), b"12345"),
        (("Content-Length: 18446744073709551621",), b"12345"),
        ((chunked,), b"5;\n12345\r\n0\r\n\r\n"),
        ((chunked,), b"5\n12345\r\n0\r\n\r\n"),
        ((chunked,), b"FFFFFFFFFFFFFFFFF\r\n"),
        ((chunked,), b"10000000000000005\r\n12345\r\n0\r\n\r\n"),
        ((chunked,), b"-5\r\n12345\r\n0\r\n\r\n"),
        ((chunked,), b"0x5\r\n12345\r\n0\r\n\r\n"),
        ((chunked,), b"5 \r\n12345XX0\r\n\r\n"),
        ((chunked,), b"5\r\n12345XX0\r\n\r\n"),
        (("Upgrade: h2c", "Connection: Upgrade", "Content-Length: 0", chunked), end),
    ]
    made = [
        _smuggled(number, host, *lines, before=before)
        for number, (lines, before) in enumerate(vectors)
    ]
    bare = len(made)
    made.append(_smuggled(bare, host, "Content-Length: 0", chunked, before=b"0\n\n", end="\n"))
    return made


def requests(host: str) -> list[bytes]:
    """Return good requests and bad ones, to be mutated further."""
    json_body = b'{"messages":[{"key":"k","body":1}]}'
    chunks = b"".join((b"%x\r\n" % len(json_body), json_body, b"\r\n0\r\n\r\n"))
    length = f"Content-Length: {len(json_body)}"
    publish = "POST /v1/queues/orders/messages"
    gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\x56\x02\x00" + bytes(20)
    return [
        request("GET /v1/queues", host),
        request("GET /v1/queues/orders", host, "Connection: close"),
        request("PUT /v1/queues/orders", host, "Content-Length: 2", body=b"{}"),
        request(publish, host, length, body=json_body),
        request(publish, host, "Transfer-Encoding: chunked", body=chunks),
        request(publish, host, length, "Expect: 100-continue", body=json_body),
        request(publish, host, "Content-Encoding: gzip", f"Content-Length: {len(gzip)}", body=gzip),
        request("GET /openapi.json?x=%00%ff%zz&limit=1e9", host),
        request("GET /v1/queues/%2e%2e%2f%00", host),
        request("OPTIONS *", host),
        request("CONNECT localhost:22", host),
        request("TRACE /v1/queues", host),
        request("PRI *", host).replace(b"HTTP/1.1", b"HTTP/2.0") + b"SM\r\n\r\n",
        request("GET http://evil.example/v1/queues", host),
        request("get /healthz", host),
        request("GET\t/healthz", host),
        request("GET /" + "x" * 20_000, host),
        request("GET /healthz", host, *["A: b"] * 3000),
        request("GET /healthz", host, "X" * 17_000 + ": y"),
        request("GET /healthz", host, "Range: bytes=" + "0-," * 3000),
        request("GET /healthz", host) * 70,
        handshake(host) + HELLO + PING,
        handshake(host, "Sec-WebSocket-Extensions: permessage-deflate") + HELLO + PING,
        handshake(host, key="short"),
        handshake(host, "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"\r\n" * 300,
    ]
