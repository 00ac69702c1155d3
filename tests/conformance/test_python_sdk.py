"""The Python SDK follows the transcripts of clients/conformance, over either transport."""

import pytest

from tests.conformance.sdk_side import SdkReplay
from tests.conformance.transcript import Transcript, load
from tests.conformance.virtual import run

REPLAYS = [
    (transcript, transport)
    for transcript in load()
    if "client" in transcript.sides
    for transport in transcript.transports
]


@pytest.mark.parametrize(
    ("transcript", "transport"), REPLAYS, ids=lambda one: getattr(one, "name", one)
)
def test_the_sdk_says_what_the_transcript_shows(transcript: Transcript, transport: str) -> None:
    async def replay() -> None:
        await SdkReplay(transcript, transport).play()

    run(replay())
