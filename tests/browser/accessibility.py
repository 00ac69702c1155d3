"""What axe finds on a page as it stands."""

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page


async def complaints(page: Page) -> str:
    """Return what all of axe's rules find, in words for people; empty if nothing."""
    # Half a megabyte of script, which a document keeps: the second time `null` is evaluated.
    axe = Axe("null") if await page.evaluate("'axe' in globalThis") else Axe()
    found = await axe.run(page, options={"resultTypes": ["violations"]})
    return found.generate_report() if found.violations_count else ""
