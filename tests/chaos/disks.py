"""Disks of the store's nodes whose power can be cut: what was not synced is gone.

Each node's folder lies on an ext4 of its own, on a loop device over an image file. What was not
synced is in the page cache of that ext4 and not yet in the image: a copy of the image, made while
all nodes stand still, is what a power cut would have left.
"""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtests.faults.power_loss import MOUNT_OPTIONS, new_image
from tests.servers.node import Node

IMAGE_BYTES: Final = 512 << 20
"""Sparse."""


@dataclass
class Disks:
    """The images of some nodes. Made by `disks`."""

    folder: Path
    nodes: Sequence[Node] = ()

    def settle(self) -> None:
        """What was set up until now lay there for long: it is synced from outside."""
        for node in self.nodes:
            _run("sync", "-f", str(node.folder))

    def power_off(self) -> None:
        """All nodes end at once, with what was synced by then."""
        for node in self.nodes:
            node.freeze()
        for node in self.nodes:
            _run("cp", "--sparse=always", str(self._image(node)), str(self._copy(node)))
        for node in self.nodes:
            node.kill()
            _run("umount", str(node.folder))
            self._copy(node).replace(self._image(node))
            _run("mount", "-o", MOUNT_OPTIONS, str(self._image(node)), str(node.folder))

    def _image(self, node: Node) -> Path:
        return self.folder / f"{node.folder.name}.img"

    def _copy(self, node: Node) -> Path:
        return self.folder / f"{node.folder.name}.copy"


@contextmanager
def disks(folder: Path, places: Sequence[Path]) -> Iterator[Disks]:
    """One under each of these folders, which are made. Needs root, loop devices and ext4; see
    `loadtests.faults.power_loss.why_not`. What is in them must have ended before this does."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted: list[Path] = []
    try:
        for place in places:
            place.mkdir(parents=True)
            image = new_image(folder / f"{place.name}.img", IMAGE_BYTES)
            _run("mount", "-o", MOUNT_OPTIONS, str(image), str(place))
            mounted.append(place)
        yield Disks(folder)
    finally:
        for place in mounted:
            _run("umount", str(place))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
