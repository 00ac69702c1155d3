"""Draw the dashboards from a Prometheus, where there is no Grafana: a page of each, and pictures.

    .venv/bin/python -m scripts.monitoring.draw http://127.0.0.1:9090 [--minutes 15] [--pictures]

Pages are written to build/dashboards; pictures need Chromium.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from loadtests.chromium import browsing
from scripts.monitoring.asking import Prometheus, all_chosen, whole
from scripts.monitoring.dashboards import DASHBOARDS, Dashboard
from scripts.monitoring.drawing import page

ROOT: Final = Path(__file__).resolve().parent.parent.parent
STEPS: Final = 120
RATE_STEPS: Final = 4
"""Over so many steps, and ten seconds at least, rates are taken."""
WIDTH: Final = 1440


def drawn(dashboard: Dashboard, prometheus: Prometheus, began: float, ended: float) -> str:
    """The page of a dashboard over this time (unix seconds). Raises Unanswered, OSError."""
    step_s = max(1.0, (ended - began) / STEPS)
    rate_s = max(10.0, RATE_STEPS * step_s)
    chosen = all_chosen(dashboard, prometheus)
    answers = {
        expr: prometheus.series(whole(expr, rate_s, chosen), began, ended, step_s)
        for row in dashboard.rows.values()
        for panel in row
        for expr, _ in panel.lines
    }
    return page(dashboard, answers, began, ended)


async def pictures(paths: Sequence[Path]) -> None:
    """Of these pages, beside them."""
    async with browsing() as browser:
        tab = await browser.new_page(viewport={"width": WIDTH, "height": 800})
        for path in paths:
            await tab.goto(path.resolve().as_uri())
            await tab.screenshot(path=path.with_suffix(".png"), full_page=True)


def main() -> None:
    """Draw them all."""
    parser = argparse.ArgumentParser(prog="scripts.monitoring.draw", description=__doc__)
    parser.add_argument("prometheus", help="its address")
    parser.add_argument("--minutes", type=float, default=15.0, help="how far back [15]")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/dashboards")
    parser.add_argument("--pictures", action="store_true", help="take pictures of the pages, too")
    said = parser.parse_args()
    said.folder.mkdir(parents=True, exist_ok=True)
    ended = time.time()
    paths = []
    for dashboard in DASHBOARDS:
        path = said.folder / f"{dashboard.uid}.html"
        began = ended - said.minutes * 60
        path.write_text(drawn(dashboard, Prometheus(said.prometheus.rstrip("/")), began, ended))
        paths.append(path)
    if said.pictures:
        asyncio.run(pictures(paths))
    sys.stdout.writelines(f"{path}\n" for path in paths)


if __name__ == "__main__":
    main()
