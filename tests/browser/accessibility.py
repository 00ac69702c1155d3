"""What axe finds on a page that is shown in both colour schemes, and at two widths.

The pages' style sheets know the scheme by `light-dark()` alone, which only colours can have, so
all rules but those of colours find in one scheme what they find in the other. They are asked in the
light one where the page is wide, and in the dark one where it is narrow; those of colours always.
"""

from typing import Final, Literal

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

Scheme = Literal["light", "dark"]
SCHEMES: Final[tuple[Scheme, ...]] = ("light", "dark")
WIDE: Final = 1280
_WHOLE: Final = {"resultTypes": ["violations"]}
_COLOURS: Final = _WHOLE | {
    "runOnly": {"type": "tag", "values": ["cat.color"]},
    "rules": {"color-contrast-enhanced": {"enabled": False}},  # of AAA: not among all rules either
}


async def complaints(page: Page, scheme: Scheme) -> str:
    """What is found on the page as it stands in this scheme; empty: nothing."""
    size = page.viewport_size
    assert size is not None
    is_whole = scheme == ("light" if size["width"] == WIDE else "dark")
    # Half a megabyte of script, which a document keeps.
    axe = Axe("null") if await page.evaluate("'axe' in globalThis") else Axe()
    found = await axe.run(page, options=_WHOLE if is_whole else _COLOURS)
    return found.generate_report() if found.violations_count else ""
