"""Write requirements.lock, requirements-spark.lock and requirements-dev.lock from the two
pyproject.toml files.

    .venv/bin/python scripts/lock.py [--upgrade]

Only `pyproject.toml` and `clients/python/pyproject.toml` name the wanted packages. The locks name
the installed ones, with the hash of every file that the Python Package Index has for a version. One
lock serves every platform and every Python from OLDEST on. A package that only some of them need is
listed with its condition. [A lock that was resolved by one 3.11.7 lacked packages that 3.11.2 of
Debian 12 also needs.] The locks name no index and no folder, so this machine's settings stay out of
them.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = "tocsin"
INDEX = "https://pypi.org/simple"
OLDEST = "3.11.0"
"""The oldest Python that is supported."""
HEADER = """\
# Written by `make lock`; change pyproject.toml, not this file.
# {what}
"""


def wanted() -> tuple[list[str], list[str], list[str]]:
    """Return the packages for running, those that `tocsin report` adds, and those that developing
    adds."""
    server = tomllib.loads((ROOT / "pyproject.toml").read_text())
    client = tomllib.loads((ROOT / "clients/python/pyproject.toml").read_text())
    build: list[str] = server["build-system"]["requires"]
    running = [
        line
        for line in server["project"]["dependencies"] + client["project"]["dependencies"]
        if not line.startswith(f"{OURS}==")
    ]
    analytics = sorted(server["project"]["optional-dependencies"]["spark"])
    developing = [
        *server["dependency-groups"]["dev"],
        *server["project"]["optional-dependencies"]["otel"],  # tested as it is shipped
    ]
    return sorted({*running, *build}), analytics, sorted(developing)


def compile_lock(lines: list[str], out: Path, what: str, upgrade: bool, *more: str) -> None:
    """Resolve `lines` into `out`, keeping its present versions unless `upgrade`."""
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith(("PIP_", "UV_"))
    }
    if "PIP_CERT" in os.environ:
        environment["SSL_CERT_FILE"] = os.environ["PIP_CERT"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "wanted.in"
        source.write_text("\n".join(lines) + "\n")
        subprocess.run(
            [
                sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal",
                "--python-version", OLDEST, "--generate-hashes", "--no-header", "--no-annotate",
                "--no-config", "--default-index", INDEX,
                *(["--upgrade"] if upgrade else []), *more,
                "--output-file", str(out), str(source),
            ],
            check=True,
            env=environment,
            cwd=ROOT,
        )  # fmt: skip
    body = [
        line for line in out.read_text().splitlines() if line and not line.startswith(("#", "--"))
    ]
    out.write_text(HEADER.format(what=what) + "\n".join(body) + "\n")


def main() -> None:
    """Write the locks. The others are bound to the versions of the first."""
    upgrade = "--upgrade" in sys.argv[1:]
    running, analytics, developing = wanted()
    runtime = ROOT / "requirements.lock"
    compile_lock(running, runtime, "The packages that `make run` installs.", upgrade)
    compile_lock(
        analytics,
        ROOT / "requirements-spark.lock",
        "Further packages that `tocsin report` needs; `make report` installs them.",
        upgrade,
        "--constraint",
        str(runtime),
    )
    compile_lock(
        developing,
        ROOT / "requirements-dev.lock",
        "Further packages that `make test` and `make check` install.",
        upgrade,
        "--constraint",
        str(runtime),
    )


if __name__ == "__main__":
    main()
