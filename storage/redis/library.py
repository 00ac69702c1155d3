"""The library of Redis Functions, which joins one fragment of Lua per act, and is named by its
content."""

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files

from push import limits
from push.due import CANCELLED, TICKET
from push.letters import ASKER_CHARS
from push.producer_order import REFUSED_MAX
from push.rates.shared import LEASE_S, LOOK_S, PARTS, RECALLED_MAX, SEATS, SLICES, STEP_S
from push.record import MESSAGE_MEMORY_BYTES, RECORD_MEMORY_BYTES
from push.storage_port import OWNER_BYTES
from storage.rules.append import FORGOTTEN_BUCKETS, IDLE_BUCKETS

BEGIN = "begin.lua"
VERSION = "VERSION"
PREFIX = "tocsin_"
NUMBERS = {
    "ASKER_CHARS": ASKER_CHARS,
    "CANCELLED": CANCELLED,
    "FORGOTTEN_BUCKETS": FORGOTTEN_BUCKETS,
    "IDLE_BUCKETS": IDLE_BUCKETS,
    "IN_FLIGHT_MAX": limits.IN_FLIGHT_PER_PRODUCER_MAX,
    "LIMITS_BUCKETS_MAX": limits.SHARED_BUCKETS_MAX,
    "LIMITS_LEASE_US": int(LEASE_S * 1e6),
    "LIMITS_LOOK_US": int(LOOK_S * 1e6),
    "LIMITS_PARTS": PARTS,
    "LIMITS_RECALLED_MAX": RECALLED_MAX,
    "LIMITS_SEATS": SEATS,
    "LIMITS_SLICES": SLICES,
    "LIMITS_STEP_US": int(STEP_S * 1e6),
    "MESSAGE_MEMORY_BYTES": MESSAGE_MEMORY_BYTES,
    "OFFSET_MAX": limits.OFFSET_MAX,
    "OWNER_BYTES": OWNER_BYTES,
    "RECORD_MEMORY_BYTES": RECORD_MEMORY_BYTES,
    "REFUSED_MAX": REFUSED_MAX,
    "TICKET": TICKET,
}
"""Constants of the rules in Python that the functions in Lua share, as locals of every fragment."""


@dataclass(frozen=True, slots=True)
class Library:
    """The argument of FUNCTION LOAD. `name` holds a digest of the text, and so does each function's
    name, so that two versions of the broker can share a store."""

    name: str
    code: str

    def function(self, act: str) -> str:
        """Return the name that FCALL is given for this act."""
        return f"{self.name}_{act}"


@cache
def library() -> Library:
    """Return the library of the fragments in `lua/`, `begin.lua` first, the others by their names.

    Source: https://redis.io/docs/latest/develop/programmability/functions-intro/
    """
    folder = files("storage.redis").joinpath("lua")
    fragments = {
        entry.name: entry.read_text() for entry in folder.iterdir() if entry.name.endswith(".lua")
    }
    others = (fragments[name] for name in sorted(fragments) if name != BEGIN)
    return joined(fragments[BEGIN], *others)


def joined(begin: str, *others: str) -> Library:
    """Return the library of these fragments. VERSION in them becomes a digest of all of them.
    Locals of a fragment are its own, those of `begin` are shared: Lua allows 200 of them in one
    chunk."""
    numbers = [f"local {name} = {value}" for name, value in NUMBERS.items()]
    body = "\n".join([*numbers, begin, *(f"do\n{fragment}\nend" for fragment in others)])
    version = sha256(body.encode()).hexdigest()[:12]
    name = f"{PREFIX}{version}"
    return Library(name, f"#!lua name={name}\n{body.replace(VERSION, version)}")
