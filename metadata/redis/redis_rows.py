"""Where the catalog's rows stand in Redis. Pure.

All keys have one hash tag, so that one function changes them together:

    {tocsin}:catalog       hash: incarnation, version, stamp of the last change, secret, touches
    {tocsin}:changes       stream: which rows each of the last changes has written
    {tocsin}:queues …      a hash for each kind of row: id → value
"""

from collections.abc import Iterable
from typing import Any, Final

from metadata.databases import Raw
from metadata.rows import KINDS

TAG: Final = "{tocsin}"
STATE: Final = f"{TAG}:catalog"
CHANGES: Final = f"{TAG}:changes"
CHANGED: Final = f"{TAG}:changed"
"""The channel that says the version after each change."""
MEMBERS_CHANGED: Final = f"{TAG}:members-changed"
"""The channel that says group id and generation after each change of a membership."""
BEATS: Final = f"{TAG}:beats"
"""The hash of gateways' heartbeats."""
SAID: Final = f"{TAG}:said"
"""The hash of what gateways say of themselves with them."""
NODE_BEATS: Final = f"{TAG}:node-beats"
"""Of the metadata service's nodes: the same as BEATS."""
NODES_SAID: Final = f"{TAG}:nodes-said"
"""The same as SAID: nothing, their names say all."""
KEYS: Final = (STATE, CHANGES, *(f"{TAG}:{kind}" for kind in KINDS))
"""What the functions of the catalog are given as keys, in their order."""
NUMBERS: Final = {kind: KEYS.index(f"{TAG}:{kind}") + 1 for kind in KINDS}
"""Kind → number of its hash among the keys, from 1 as Lua counts."""
_KIND_OF: Final = {number: kind for kind, number in NUMBERS.items()}


def key_of(kind: str) -> str:
    """The hash that holds rows of this kind."""
    return f"{TAG}:{kind}"


def raw_rows(answer: Iterable[Any]) -> Raw:
    """The rows in an answer of catalog_since."""
    raw: Raw = {kind: {} for kind in KINDS}
    for number, row_id, value in answer:
        raw[_KIND_OF[int(number)]][row_id.decode()] = value or None
    return raw
