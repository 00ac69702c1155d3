"""Frames of the protocol, and texts that are nearly frames, made from them. Pure but for `corpus`,
which reads files.

The good frames are those that clients send in the transcripts of clients/conformance and the
examples of docs/protocol.md. All chance comes from the Random that the caller passes, so that a
seed identifies a run.
"""

import json
import re
from collections.abc import Iterator
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Final

ROOT: Final = Path(__file__).parents[3]
REF_MAX: Final = (1 << 53) - 1
_EXAMPLE: Final = re.compile(r"^```json client\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_TELLABLE_BYTES_MAX: Final = 20_000
_TELLABLE_DEPTH_MAX: Final = 200

VALUES: Final = (
    "0", "-0", "-1", "1", "2", "1.5", "1e3", "-0.0", "2147483647", "2147483648", "4294967296",
    "9007199254740991", "9007199254740992", "9223372036854775807", "9223372036854775808",
    "18446744073709551616", "-9223372036854775809", "1e308", "1e400", "-1e400", "9" * 400,
    "NaN", "Infinity", "01", "0x1", "+1", ".5", "true", "false", "null", "nul", "undefined", '""',
    '"0"', '"x"', '"\\u0000"', '"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\x00"',
    '"\\x"', '"unterminated', '"é"', '"\u2028"', '"orders"', '"billing"', '"../x"', '"a/b"',
    '"publish"', '"hello"', '"welcome"', '"push"', "[]", "{}", "[[]]", "[null]", "[{}]",
    '{"a":1,"a":2}', '{"":""}', '{"__proto__":{}}', "[1,]", "{,}", "[", "]", "}", "",
    "[[0,1,1,0,0]]", "[[0,1,1,0,9007199254740991]]", "[[0,1,1,5,1]]", "[[0,1,1,0]]",
    '{"unix_ms":1}', '"earliest"', '"latest"', '{"0":[1,0]}', '{"queue_id":"x","partitions":{}}',
)  # fmt: skip
LARGE: Final = (
    "[" * 300 + "]" * 300,
    "[" * 5000 + "]" * 5000,
    '{"a":' * 300 + "1" + "}" * 300,
    "[" * 50_000,
    '"' + "x" * 70_000 + '"',
    '"' + "\\u0000" * 2_000 + '"',
    "[" + ",".join(["[0,1,1,0,0]"] * 4097) + "]",
    "[" + ",".join(['{"body":1}'] * 1001) + "]",
    '"' + "\u00e9" * 20_000 + '"',
)
"""Values that are drawn rarely, because each costs as much as hundreds of others."""
_BITS: Final = (0, 1, 2, 3, 4, 5, 6) * 2 + (7,)
_BYTES: Final = (128,) * 9 + (256,)
"""Bounds of random bytes, one of which is drawn. Bits and bytes are rarely above 127, because bytes
that are no UTF-8 end the session, and a new one must be opened."""
_TOKENS: Final = (b'"', b"{", b"[", b"\\", b",", b":", b"\x00", b"]", b"\n", b"}")
FIELDS: Final = (
    "type", "ref", "queue", "group", "subscription", "credit", "granted", "deliveries", "started",
    "messages", "sequence", "resolved", "start", "position", "keys", "held", "lease_s", "delay_s",
    "reason", "token", "producer", "session", "linger_s", "received", "more", "color", "",
)  # fmt: skip


def _placed(value: Any) -> Any:
    """Return a frame of a transcript with a number or a name in each open place."""
    if isinstance(value, dict):
        return {name: _placed(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_placed(inner) for inner in value]
    if isinstance(value, str) and value.startswith("#"):
        return 1
    if isinstance(value, str) and value.startswith("$"):
        return value[1:]
    return value


def corpus() -> list[Any]:
    """Return the good frames, each once. Raises RuntimeError if this is no checkout."""
    found: dict[str, Any] = {}
    for path in sorted((ROOT / "clients" / "conformance").glob("*.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()[1:]):
            if line.get("who") == "client":
                for frame in [*line.get("frames", ()), line.get("frame")]:
                    if frame:
                        found[json.dumps(_placed(frame))] = None
    for text in _EXAMPLE.findall((ROOT / "docs/protocol.md").read_text()) if found else ():
        found[json.dumps(json.loads(text))] = None
    if not found:
        raise RuntimeError(f"there are no transcripts under {ROOT}: run this from a checkout")
    return [json.loads(text) for text in found]


class Mutator:
    """A maker of messages, each from one or a few good frames. `place`: a delivery to this session,
    [partition, epoch, push, first, last], which some acks then name; None before the first."""

    def __init__(self, frames: list[Any], random: Random) -> None:
        self._frames = frames
        self._random = random
        self._ref = 0
        self.place: list[int] | None = None

    def message(self) -> bytes:
        """Return the next message. Of twenty, two are a good frame, ten a frame with a wrong value
        or field, seven a frame with changed bytes. One has several frames: only good ones in half
        of the cases, good and wrong ones in the others."""
        random = self._random
        which = random.randrange(20)
        if which < 2:
            return json.dumps(self._frame()).encode()
        if which < 12:
            return self._wrong_json()
        if which < 19:
            return mutated_bytes(json.dumps(self._frame()).encode(), random)
        if random.random() < 0.5:
            return self._volley()
        count = 257 if random.random() < 0.01 else random.randrange(2, 6)
        texts = [
            json.dumps(self._frame()).encode() if random.random() < 0.7 else self._wrong_json()
            for _ in range(count)
        ]
        return b"[" + b",".join(texts) + b"]"

    def _volley(self) -> bytes:
        """Return a message of good frames about two subscriptions, in any order; the broker judges
        a message as a whole."""
        random, frames = self._random, []
        for _ in range(random.randrange(2, 8)):
            self._ref += 1
            held = [self.place or [0, 1, 1, 0, 0]]
            frame: dict[str, object] = random.choice((
                {"type": "subscribe", "ref": self._ref, "queue": "orders", "credit": 2,
                 **({"group": "g0"} if random.random() < 0.5 else {"start": "latest"})},
                {"type": "unsubscribe", "ref": self._ref},
                {"type": "credit", "granted": random.randrange(60)},
                {"type": "ack", "ref": self._ref, "deliveries": held},
                {"type": "nack", "ref": self._ref, "deliveries": held, "delay_s": 0.01},
                {"type": "extend", "ref": self._ref, "deliveries": held},
            ))  # fmt: skip
            frames.append({**frame, "subscription": random.choice((1, 1, 2))})
        return json.dumps(frames).encode()

    def _frame(self) -> Any:
        random = self._random
        frame = dict(random.choice(self._frames))
        if frame.get("type") == "hello" and random.random() < 0.8:
            frame = {"type": "ping", "ref": 1}  # a second hello ends the session
        self._ref += 1
        if "ref" in frame:
            frame["ref"] = self._ref
        if "deliveries" in frame and self.place is not None and random.random() < 0.7:
            frame["deliveries"] = [self.place]
        return frame

    def _wrong_json(self) -> bytes:
        """Return a frame with one value changed, or one field removed, added or doubled. It may
        still be valid."""
        random, frame = self._random, json.loads(json.dumps(self._frame()))
        token = random.choice(LARGE) if random.random() < 0.001 else random.choice(VALUES)
        holders = list(_holders(frame))
        holder, at = random.choice(holders)
        how = random.randrange(10)
        if how < 6:
            holder[at] = "@@"
        elif how < 7 and isinstance(holder, dict):
            del holder[at]
        elif how < 8:
            frame[random.choice(FIELDS)] = "@@"
        else:  # a field twice, in either order
            text = json.dumps(frame)
            doubled = f'"{random.choice([*frame, *FIELDS])}":{token}'
            if random.random() < 0.5:
                return ("{" + doubled + "," + text[1:]).encode("utf-8", "surrogatepass")
            return (text[:-1] + "," + doubled + "}").encode("utf-8", "surrogatepass")
        return json.dumps(frame).replace('"@@"', token).encode("utf-8", "surrogatepass")


def _holders(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key or index) of every value inside a JSON value, at any depth."""
    places = value.items() if isinstance(value, dict) else enumerate(value)
    for at, inner in list(places):
        yield value, at
        if isinstance(inner, dict | list):
            yield from _holders(inner)


def mutated_bytes(data: bytes, random: Random) -> bytes:
    """Flip, insert, delete, double or cut off bytes, one to three times."""
    made = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if not made:
            break
        at = random.randrange(len(made))
        end = min(len(made), at + random.choice((1, 1, 2, 4, 16)))
        match random.randrange(7):
            case 0:
                made[at] ^= 1 << random.choice(_BITS)
            case 1:
                made[at] = random.randrange(random.choice(_BYTES))
            case 2:
                some = random.randbytes(random.choice((1, 1, 2, 8)))
                made[at:at] = some if random.random() < 0.1 else some.hex().encode()
            case 3:
                del made[at:end]
            case 4:
                made[at:at] = made[at:end]
            case 5:
                del made[at:]
            case _:
                made[at:at] = random.choice(_TOKENS)
    return bytes(made)


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _finite(text: str) -> float:
    value = float(text)
    if value in (inf, -inf):  # JSON, but a number that not every parser accepts
        raise ValueError(text)
    return value


def refs_of(message: bytes) -> list[int]:
    """Return the refs that need an answer, whatever else is wrong with the message. Empty if it is
    no JSON, or too large, deep or odd for all parsers to agree about it."""
    if (
        len(message) > _TELLABLE_BYTES_MAX
        or message.count(b"[") + message.count(b"{") > _TELLABLE_DEPTH_MAX
        or _SURROGATE.search(message)
    ):
        return []
    try:
        value = json.loads(message.decode(), parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        return []
    several = value if isinstance(value, list) else [value]
    if not all(isinstance(one, dict) for one in several):
        return []
    refs = [one.get("ref") for one in several]
    return [ref for ref in refs if type(ref) is int and 0 < ref <= REF_MAX]
