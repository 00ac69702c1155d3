"""The nodes of the metadata service, as one of them sees them. Pure.

A node says in the catalog's database that it is there, as gateways do (`metadata.heartbeats`),
under a name that tells where it is and what layout it has; each process has a name of its own.
"""

from collections.abc import Iterable, Mapping

from metadata.heartbeats import FORGOTTEN_S, Heartbeats
from metadata.service.service_forms import LAYOUTS, Layout, NodeInfo


def name_of(boot: str, layout: Layout, url: str) -> str:
    """The name of a process: `boot` is its own, without blanks."""
    return f"{boot} {layout} {url}"


def info_of(name: str) -> NodeInfo | None:
    """None: not the name of a node, or one of another version."""
    boot, _, rest = name.partition(" ")
    layout, _, url = rest.partition(" ")
    for known in LAYOUTS:
        if layout == known and boot and url:
            return NodeInfo(url, known)
    return None


class NodeNames:
    """Who is there. Times are seconds of this process's clock."""

    def __init__(self, name: str) -> None:
        """`name`: this node's own, which is there."""
        self.name = name
        self._beats = Heartbeats()

    def saw(self, beats: Mapping[str, int], *, now: float, asked_at: float) -> None:
        """All numbers, as the database told them."""
        self._beats.saw(beats, now=now, asked_at=asked_at)

    def to_forget(self) -> dict[str, int]:
        """Those that have stood still for very long."""
        return self._beats.gone(FORGOTTEN_S)

    def number(self) -> int:
        """This node's last number that was heard; 0: none was."""
        return self._beats.number_of(self.name)

    def nodes(self) -> tuple[NodeInfo, ...]:
        """By url, of each the latest that is there; with this one."""
        return _infos([*self._beats.there(), self.name])


def _infos(names: Iterable[str]) -> tuple[NodeInfo, ...]:
    found = {info.url: info for info in map(info_of, names) if info is not None}
    return tuple(found[url] for url in sorted(found))
