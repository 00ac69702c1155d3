"""Plots as PNG, photographed in Chromium: what draws an SVG for readers draws it here."""

from collections.abc import Sequence
from pathlib import Path

from loadtests.chromium import browsing


async def photograph(folder: Path, names: Sequence[str]) -> None:
    """`<name>.png` beside each `<name>.svg`. Raises ChromiumMissing."""
    async with browsing() as browser:
        for name in names:
            page = await browser.new_page(device_scale_factor=2)
            await page.set_content(
                f'<body style="margin:0">{(folder / f"{name}.svg").read_text()}</body>'
            )
            await page.locator("svg").screenshot(path=folder / f"{name}.png")
            await page.close()
