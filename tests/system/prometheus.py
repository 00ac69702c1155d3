"""A real Prometheus over real processes: the configuration and the rules are those that are
shipped, with other addresses and seconds in place of minutes."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from scripts.monitoring.asking import Prometheus
from tests.layout.tree import ROOT
from tests.servers.ports import ClaimedPort
from tests.servers.programs import Program, needed

SHIPPED: Final = ROOT / "deploy/prometheus"
EVERY_S: Final = 1


class Running(Prometheus):
    """One of our own. Made by `scraping`."""

    def __init__(self, program: Program, folder: Path, url: str) -> None:
        """In `folder` are its files."""
        super().__init__(url)
        self._program = program
        self.folder = folder

    def is_up(self, jobs: Sequence[str]) -> bool:
        """Whether the targets of these jobs, and no others, answered the last time. Raises
        AssertionError: it has ended."""
        assert self._program.is_running, self._program.log_end()
        try:
            targets = self.ask("targets", state="active")["activeTargets"]
        except OSError:  # it has only begun
            return False
        found = sorted((one["labels"]["job"], one["health"]) for one in targets)
        return found == [(job, "up") for job in sorted(jobs)]


def configuration(targets: Mapping[str, Sequence[str]]) -> str:
    """That which is shipped, for these targets by job. A job that is not there is as the gateways'
    is."""
    text = (SHIPPED / "prometheus.yml").read_text().replace("scheme: https", "scheme: http")
    text = text.replace("_interval: 15s", f"_interval: {EVERY_S}s")
    head, *jobs = text.split("  - job_name: ")
    by_name = {job.split()[0]: job for job in jobs}
    made = [head]
    for name, addresses in targets.items():
        job = by_name.get(name) or by_name["tocsin"].replace("tocsin", name, 1)
        named, found = re.subn("targets: .*", f"targets: {json.dumps(addresses)}", job)
        assert found == 1, job
        made.append(named)
    assert by_name.keys() <= targets.keys()
    return "  - job_name: ".join(made)


@contextmanager
def scraping(
    folder: Path, targets: Mapping[str, Sequence[str]], rules: Callable[[str], str]
) -> Iterator[Running]:
    """One that scrapes these (host:port, by job of the shipped configuration), which need not be
    there yet; nor need the files in its folder that have their tokens. It takes seconds until it
    begins. `rules`: what becomes of the text of each file with rules."""
    folder.mkdir()
    for name in ("recording.yml", "alerts.yml"):
        (folder / name).write_text(rules((SHIPPED / name).read_text()))
    (folder / "prometheus.yml").write_text(configuration(targets))
    with ExitStack() as stack:
        address = f"127.0.0.1:{stack.enter_context(ClaimedPort()).number}"
        program = Program(
            [
                needed("prometheus"), f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}",
                "--log.level=warn",
            ],
            folder / "log",
        )  # fmt: skip
        stack.callback(program.kill)
        program.spawn()
        yield Running(program, folder, f"http://{address}")
