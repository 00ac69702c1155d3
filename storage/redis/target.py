"""URLs of the Redis or Valkey that a broker uses, and how these are reached.

    redis://user:password@host:6379                     one primary that never moves
    redis+sentinel://user:password@a:26379,b:26379/name the primary that Sentinels name
    redis+cluster://user:password@a:6379,b:6379         a Cluster, found by any of these nodes

With `rediss` in place of `redis`, over TLS: `?ca_file=…&cert_file=…&key_file=…`. Each is a storage
cluster; several are separated by blanks and have names and zones: `?cluster=…&zone=…`. The first
one has the catalog, too.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Final, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from storage.redis.cluster import SLOTS, ClusterPrimary, parts_of
from storage.redis.connection import Address, Reach
from storage.redis.discovery import Find, by_sentinels, fixed
from storage.redis.shard import Settings

Kind = Literal["single", "sentinel", "cluster"]
SCHEMES: Final[dict[str, Kind]] = {
    "redis": "single",
    "redis+sentinel": "sentinel",
    "redis+cluster": "cluster",
}
PORTS: Final[dict[Kind, int]] = {"single": 6379, "sentinel": 26379, "cluster": 6379}
NAME_DEFAULT: Final = "tocsin"
CLUSTER_DEFAULT: Final = "main"
"""Name of a storage cluster whose URL has none."""
CLUSTERS_MAX: Final = 64
SILENCE_S: Final = 2.0
"""Longest time for a reply of a server that a URL names, in seconds (`Settings.silence_s`)."""
_FILES: Final = ("ca_file", "cert_file", "key_file")
_LABELS: Final = ("cluster", "zone")
_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST: Final = re.compile(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,255}")


@dataclass(frozen=True, slots=True)
class Target:
    """A storage cluster's URL. Made by `parse`."""

    kind: Kind
    places: tuple[Address, ...]
    """Places where the primary, Sentinels or some of a Cluster's nodes listen."""
    reach: Reach = field(repr=False)
    name: str = NAME_DEFAULT
    """Name of the primary for Sentinels."""
    cluster: str = CLUSTER_DEFAULT
    """Name of the storage cluster, here and in the catalog, for good."""
    zone: str = ""
    """Zone of the cluster. Everything in one zone may be lost together."""

    @property
    def shown(self) -> str:
        """The URL without the password."""
        scheme = next(scheme for scheme, kind in SCHEMES.items() if kind == self.kind)
        if self.reach.ca_file is not None:
            scheme = scheme.replace("redis", "rediss", 1)
        user = f"{self.reach.username}@" if self.reach.username else ""
        path = f"/{self.name}" if self.kind == "sentinel" else ""
        return f"{scheme}://{user}{','.join(map(_written, self.places))}{path}"

    async def parts(self) -> list[ClusterPrimary]:
        """Return the primaries. There is one, except in a Cluster.

        Raises:
            Refused: storage_unavailable: no node of the Cluster answers.
        """
        find = fixed(self.places[0])
        if self.kind == "cluster":
            return await parts_of(self.places, self._settings(find))
        if self.kind == "sentinel":
            find = by_sentinels(self.places, self.name, self.reach)
        return [ClusterPrimary(((0, SLOTS - 1),), self._settings(find))]

    def _settings(self, find: Find) -> Settings:
        return Settings(find, self.reach, silence_s=SILENCE_S)


def parse(text: str) -> Target:
    """Parse a URL. Raises ValueError for a text that is none, without quoting it, because it may
    hold a password."""
    parts = urlsplit(text)
    scheme, is_tls = parts.scheme, parts.scheme.startswith("rediss")
    kind = SCHEMES[scheme.replace("rediss", "redis", 1)] if _is_known(scheme) else None
    if kind is None or parts.fragment:
        raise ValueError
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    places = tuple(_place(word, PORTS[kind]) for word in hosts.split(","))
    if kind == "single" and len(places) != 1:
        raise ValueError
    reach = Reach(username=unquote(user) or None, password=unquote(password) or None)
    name = parts.path.strip("/")
    if name and (kind != "sentinel" or not re.fullmatch(r"[A-Za-z0-9._-]{1,128}", name)):
        raise ValueError
    query = parse_qsl(parts.query, True, strict_parsing=True) if parts.query else []
    files = dict(query)
    labels = {label: files.pop(label) for label in _LABELS if label in files}
    if len(query) != len(files) + len(labels) or not all(files.values()):
        raise ValueError
    if not all(map(_LABEL.fullmatch, labels.values())):
        raise ValueError
    if not set(files) <= set(_FILES) or (bool(files) and not is_tls):
        raise ValueError
    if is_tls:
        if "ca_file" not in files or ("cert_file" in files) != ("key_file" in files):
            raise ValueError
        reach = replace(
            reach,
            ca_file=files["ca_file"],
            cert_file=files.get("cert_file"),
            key_file=files.get("key_file"),
        )
    return Target(kind, places, reach, name or NAME_DEFAULT, **labels)


def parse_all(text: str) -> tuple[Target, ...]:
    """Parse every storage cluster that a setting names, the one with the catalog first. Raises
    ValueError, without quoting the text, if one is none, two have one name, or there are none or
    too many."""
    targets = tuple(map(parse, text.split()))
    if not targets or len(targets) > CLUSTERS_MAX:
        raise ValueError
    if len({target.cluster for target in targets}) < len(targets):
        raise ValueError
    return targets


def _is_known(scheme: str) -> bool:
    return scheme.replace("rediss", "redis", 1) in SCHEMES


def _place(word: str, port_default: int) -> Address:
    host, colon, port = word.rpartition(":")
    if not colon or word.endswith("]"):
        host, port = word, str(port_default)
    if not _HOST.fullmatch(host) or not re.fullmatch(r"[0-9]{1,5}", port):
        raise ValueError
    if not 0 < int(port) < 65_536:
        raise ValueError
    return Address(host.strip("[]"), int(port))


def _written(place: Address) -> str:
    return f"[{place.host}]:{place.port}" if ":" in place.host else str(place)
