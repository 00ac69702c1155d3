"""Write deploy/grafana and deploy/prometheus from the tables; `--check` only says what differs.

.venv/bin/python -m scripts.monitoring
"""

import sys
from pathlib import Path

from scripts.monitoring.dashboards import DASHBOARDS, encoded
from scripts.monitoring.writing import BEGIN, PAGE, alerting, recording, runbook, tests

ROOT = Path(__file__).resolve().parent.parent.parent


def files() -> dict[str, str]:
    """Return, by path, the text of every written file."""
    page = (ROOT / PAGE).read_text().partition(BEGIN)[0] + runbook()
    return {
        "deploy/prometheus/recording.yml": recording(),
        "deploy/prometheus/alerts.yml": alerting(),
        "deploy/prometheus/tests.yml": tests(),
        PAGE: page,
        **{f"deploy/grafana/{one.uid}.json": encoded(one) for one in DASHBOARDS},
    }


def main() -> int:
    """Write the files, or print which are outdated."""
    old = [
        path for path, text in files().items()
        if not (ROOT / path).exists() or (ROOT / path).read_text() != text
    ]  # fmt: skip
    if "--check" in sys.argv:
        sys.stdout.writelines(f"{path} is not what the tables say\n" for path in old)
        return 1 if old else 0
    for path, text in files().items():
        (ROOT / path).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
