"""The hooks that clients/browser/README.md lists for tests of the console, and which of them are no
figures."""

import re
from pathlib import Path
from typing import Final

from tests.layout.tree import table_rows, text

_README: Final = Path("clients/browser/README.md")
_CODE: Final = re.compile(r"`([^`]+)`")
LISTS: Final = ("message", "dead-letter")

CONTROLS: Final = frozenset(
    [
        "nav-queues", "nav-sessions", "nav-clusters", "nav-explain", "nav-demo", "theme",
        "retry-now", "crumb", "nowhere", "notice", "queues-unavailable", "error", "error-what",
        "error-advice", "error-age", "error-home", "words", "dead-letters-link", "group-settings",
        "group-own", "message-since", "dead-letter-since", "broker-state",
        "link-state", "last-answer", "tab-queue", "tab-messages", "tab-scheduled",
        "tab-dead-letters",
        "tab-group", "tab-parked", "queue-pause", "queue-resume", "queue-purge",
        "queue-paused-note", "queue-settings", "explain-link", "messages-link", "held-explain",
        "lease-explain", "held-more", "lease-more", "parked-retry-all", "parked-release-all",
        "parked-skip-all", "parked-actions", "parked-peek", "parked-retry", "parked-release",
        "parked-skip", "message-list", "message-more", "message-refresh", "message-look",
        "message-find-group", "message-find-key", "message-find-partition",
        "message-find-offset", "message-find-reason", "message-whole", "dead-letter-list",
        "dead-letter-more", "dead-letter-refresh", "dead-letter-look", "dead-letter-find-group",
        "dead-letter-find-key", "dead-letter-find-partition", "dead-letter-find-offset",
        "dead-letter-find-reason", "dead-letter-whole", "redrive", "session-subscriptions",
        "explain-queue", "explain-key", "explain-group", "explain-ask", "explain-nothing",
        "explain-parked", "scheduled-list", "scheduled-since", "scheduled-more",
        "scheduled-refresh",
        "scheduled-look", "scheduled-find-key", "scheduled-stopped", "scheduled-believe",
        "scheduled", "scheduled-whole", "scheduled-move", "scheduled-cancel",
    ]
)  # fmt: skip
"""What is pressed, typed into or said when something happens: other tests use them."""
ABSENT: Final = frozenset(
    [
        "message-death", "message-nack", "message-origin", "message-reason",
        "dead-letter-state", "dead-letter-state-means", "dead-letter-expires",
    ]
)  # fmt: skip
"""What only the other of the two lists has."""


def figures() -> set[str]:
    """Every hook of the README that shows something of the broker."""
    return listed() - CONTROLS - ABSENT


def listed() -> set[str]:
    """All test ids of the console's views, tables and plots; those of dialogs and the general ones
    of tables are in none."""
    found: set[str] = set()
    for where, cell in table_rows(_section()):
        if where in ("where", "any table `T`", "any dialog `D`"):
            continue
        if where == "any plot `P`":
            # Its last code is a value's name, then come the plots.
            plots = _CODE.findall(cell.split(": ", 1)[1])
            found |= {f"{plot}-plot-now" for plot in plots}
        elif where.startswith("messages"):
            found |= _of_lists(cell)
        else:
            for part in cell.split(";"):
                found |= _of_part(part)
    return found


def _section() -> str:
    _, _, rest = text(_README).partition("### For tests")
    assert rest, "the README lists no hooks"
    return rest


def _of_part(part: str) -> set[str]:
    """`queue-` `state`, `depth`, and one for each setting, as `queue-lease_s`: …"""
    found: set[str] = set()
    prefix, is_table = "", False
    if named := re.match(r"\s*table `([^`]+)`: ", part):
        prefix, part, is_table = f"{named[1]}-", part[named.end() :], True
    for code in _CODE.findall(part):
        if code.endswith("-"):
            prefix = code
        elif not is_table and (code.startswith(prefix) or _is_whole(code)):
            found.add(code)
        else:
            found.add(prefix + code)
    return found


def _is_whole(code: str) -> bool:
    return code.startswith(("explain-", "messages-", "queue-", "parked-", "subscription"))


def _of_lists(cell: str) -> set[str]:
    codes = _CODE.findall(cell)
    return {
        name
        for code in codes
        for name in ([f"{list_}{code}" for list_ in LISTS] if code.startswith("-") else [code])
    }
