"""Build the documentation into a site: build/docs/site/index.html.

    .venv/bin/python scripts/site.py

All pages of the repository, in its folders, so that a link leads to the same page on the site and
in a checkout, and the pictures and files that they link to. Links, anchors and pictures are checked
strictly. A page that docs/mkdocs.yml does not place in the navigation fails the build; decisions
are placed by themselves.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
OUT: Final = ROOT / "build/docs"
FOLDERS: Final = ("clients", "deploy", "docs", "spark")
LEFT_OUT: Final = {"node_modules", "vendor", "build", ".venv", "__pycache__"}
_LINK: Final = re.compile(r"\]\(([^)#\s]+)")
_FENCE: Final = re.compile(r"^```(?:json [^\n]*|ndjson)$", re.MULTILINE)
"""The text after `json` names the test of an example, and is not for a highlighter."""


def pages() -> list[Path]:
    """Every page of the repository, relative to its root, sorted."""
    found = [path.relative_to(ROOT) for path in ROOT.glob("*.md")]
    for folder in FOLDERS:
        found += [path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.md")]
    return sorted(path for path in found if not LEFT_OUT.intersection(path.parts))


def files_linked(page: Path) -> list[Path]:
    """The pictures and other files of the repository that a page links to, relative to its root."""
    targets = _LINK.findall((ROOT / page).read_text())
    found = [(ROOT / page.parent / target).resolve() for target in targets if "://" not in target]
    return [path.relative_to(ROOT) for path in found if path.is_file() and path.suffix != ".md"]


def configuration() -> dict[str, Any]:
    """docs/mkdocs.yml, with every decision in the navigation behind the index of decisions."""
    written: dict[str, Any] = yaml.safe_load((ROOT / "docs/mkdocs.yml").read_text())
    folder = ROOT / "docs/decisions"
    decisions = [path for path in sorted(folder.glob("*.md")) if path.name != "README.md"]
    for part in written["nav"]:
        for entry in part.get("Understand", ()):
            if isinstance(entry, dict) and "Decisions" in entry:
                entry["Decisions"] += [str(path.relative_to(ROOT)) for path in decisions]
    return written | {"docs_dir": str(OUT / "pages"), "site_dir": str(OUT / "site")}


def _copied(path: Path) -> Path:
    """Where the site's copy of a file goes; its folder exists."""
    copy = OUT / "pages" / path
    copy.parent.mkdir(parents=True, exist_ok=True)
    return copy


def main() -> int:
    """Copy the pages, build the site. Returns the exit code of the build."""
    shutil.rmtree(OUT, ignore_errors=True)
    for page in pages():
        _copied(page).write_text(_FENCE.sub("```json", (ROOT / page).read_text()))
        for file in files_linked(page):
            shutil.copyfile(ROOT / file, _copied(file))
    settings = OUT / "mkdocs.yml"
    settings.write_text(yaml.safe_dump(configuration(), sort_keys=False, allow_unicode=True))
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(settings)]
    # Material says at each build when its maintenance ends.
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, check=False, env=environment)
    if done.returncode == 0:
        sys.stdout.write(f"{OUT / 'site/index.html'}\n")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
