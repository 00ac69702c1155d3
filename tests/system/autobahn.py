"""`python -m tests.system.autobahn PYTHON2`: the Autobahn test suite against our protocol class.

PYTHON2 starts a Python 2.7 that has `autobahntestsuite`; `make autobahn` installs one and runs
this. It prints a table, and ends with 1 if a case failed that is not in TOLERATED.
"""

import asyncio
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

import uvloop

from gateway.net.handshake import PATH, SUBPROTOCOL
from tests.system.echo_sockets import echoing

CASES: Final = ("1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "10.*")
"""The cases to run. Left out are 9 (speed, and up to 16 MiB, which we refuse) and 12, 13
(compression, which we do not have)."""
CASES_MIN: Final = 240
"""The least number of cases. There are 247; a suite that ran fewer has not run."""
SECTIONS: Final = {
    1: "framing", 2: "pings and pongs", 3: "reserved bits", 4: "opcodes", 5: "fragmentation",
    6: "UTF-8", 7: "closing", 10: "fragments of 64 KiB",
}  # fmt: skip
TOLERATED: Final[dict[str, str]] = {}
"""Case → the reason why we differ."""
TIMEOUT_S: Final = 600.0
_RUN: Final = "from autobahntestsuite.wstest import run; run()"
_VERDICTS: Final = ("OK", "NON-STRICT", "INFORMATIONAL", "FAILED")


async def run(python: str, folder: Path) -> dict[str, Any]:
    """Run the fuzzing client; return case → result."""
    async with echoing() as port:
        server = {
            "agent": "tocsin",
            "url": f"ws://127.0.0.1:{port}{PATH}",
            "protocols": [SUBPROTOCOL],
            "options": {"version": 18},
        }
        spec = {
            "outdir": str(folder / "reports"), "servers": [server], "cases": list(CASES),
            "exclude-cases": [], "exclude-agent-cases": {},
        }  # fmt: skip
        (folder / "spec.json").write_text(json.dumps(spec))
        process = await asyncio.create_subprocess_exec(
            python, "-c", _RUN, "-m", "fuzzingclient", "-s", str(folder / "spec.json"),
            cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(TIMEOUT_S):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
    index = folder / "reports" / "index.json"
    if process.returncode or not index.exists():
        raise SystemExit(f"the suite ended with {process.returncode}:\n{output.decode()[-3000:]}")
    results: dict[str, Any] = json.loads(index.read_text())["tocsin"]
    return results


def verdict(result: dict[str, Any]) -> str:
    """Return the worse verdict of the case's behavior and of its close."""
    both = [result["behavior"], result["behaviorClose"]]
    for name in ("OK", "INFORMATIONAL", "NON-STRICT"):
        if all(one in ("OK", name) for one in both):
            return name
    return "FAILED"  # UNCLEAN, WRONG CODE and the like, too


def table(results: dict[str, Any]) -> str:
    """Return a Markdown table with a line for each section, and the cases that are not OK."""
    counts: dict[int, Counter[str]] = {section: Counter() for section in SECTIONS}
    for case, result in results.items():
        counts[int(case.partition(".")[0])][verdict(result)] += 1
    lines = ["| cases | | " + " | ".join(_VERDICTS) + " |", "|---|---|" + "---:|" * len(_VERDICTS)]
    for section, what in SECTIONS.items():
        found = " | ".join(str(counts[section][name]) for name in _VERDICTS)
        lines.append(f"| {section}.* | {what} | {found} |")
    whole: Counter[str] = sum(counts.values(), Counter())
    lines.append(
        f"| all {len(results)} | | " + " | ".join(str(whole[name]) for name in _VERDICTS) + " |"
    )
    for name in _VERDICTS[1:]:
        cases = [case for case, result in results.items() if verdict(result) == name]
        if cases:
            ordered = sorted(cases, key=lambda case: [int(part) for part in case.split(".")])
            lines.append(f"\n{name}: {', '.join(ordered)}")
    return "\n".join(lines)


def main(python: str) -> int:
    """Run, print and judge; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="tocsin-autobahn-") as name:
        results = uvloop.run(run(python, Path(name)))
    print(table(results))  # noqa: T201
    failed = {case for case, result in results.items() if verdict(result) == "FAILED"}
    for case in sorted(failed & TOLERATED.keys()):
        print(f"{case} is meant: {TOLERATED[case]}")  # noqa: T201
    return 1 if failed - TOLERATED.keys() or len(results) < CASES_MIN else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
