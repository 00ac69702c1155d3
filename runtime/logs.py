"""How the process logs: lines for people, or one JSON object a line for machines, to stderr.

What is logged holds names and numbers, never bodies, tokens or receipts.
"""

import logging
import sys
from typing import Final, TextIO

import msgspec

from runtime.tracing import current

ABOUT: Final = ("session", "queue", "group", "gateway")
"""What a line may be about: given as `extra` where it is logged."""


class JsonLines(logging.Formatter):
    """One JSON object a line: time (unix seconds), level, logger, message, and where there is one
    the traceback, the W3C trace of the request that it happened in, and the session, queue, group
    and gateway that a line is about."""

    def format(self, record: logging.LogRecord) -> str:
        """As logging.Formatter."""
        fields: dict[str, object] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        trace = current()
        if trace is not None:
            fields["trace_id"] = trace.trace_id
        for name in ABOUT:
            if name in record.__dict__:
                fields[name] = record.__dict__[name]
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields).decode()


def configure(level: str, *, as_json: bool, stream: TextIO | None = None) -> None:
    """Set the whole process's logging up. Calling it again replaces what was there."""
    handler = logging.StreamHandler(stream or sys.stderr)
    if as_json:
        handler.setFormatter(JsonLines())
    else:
        text = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
        handler.setFormatter(logging.Formatter(text, "%Y-%m-%d %H:%M:%S"))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(level.upper())
    # uvicorn warns of every malformed request: whoever sends them could fill the disk.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.getLogger("websockets").setLevel(logging.ERROR)
