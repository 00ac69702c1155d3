"""A broker whose metadata stalls on SIGUSR1, until SIGUSR2, for the trial `calm`.

`python stalling.py` starts `tocsin serve` with the metadata wrapped from outside; the product
itself has no switch for it.
"""

import asyncio
import signal
import sys
from pathlib import Path
from typing import cast

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gateway import broker
from gateway.catalog.guarded import GuardedMetadata
from gateway.cli.serve import serve
from metadata.port import Metadata
from tests.mad import MadMetadata


def guarded(inner: Metadata) -> GuardedMetadata:
    """Return the shipped guard around a metadata that may stall."""
    mad = MadMetadata(inner)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, mad.stall)
    loop.add_signal_handler(signal.SIGUSR2, mad.well)
    return GuardedMetadata(cast(Metadata, mad))


if __name__ == "__main__":
    vars(broker)["GuardedMetadata"] = guarded
    serve()
