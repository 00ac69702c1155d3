"""The gateway follows the transcripts of clients/conformance, over either transport."""

import pytest

from tests.conformance.gateway_side import GatewayReplay
from tests.conformance.transcript import Transcript, load
from tests.conformance.virtual import run

REPLAYS = [
    (transcript, transport)
    for transcript in load()
    if "broker" in transcript.sides
    for transport in transcript.transports
]


@pytest.mark.parametrize(
    ("transcript", "transport"), REPLAYS, ids=lambda one: getattr(one, "name", one)
)
def test_the_gateway_says_what_the_transcript_shows(transcript: Transcript, transport: str) -> None:
    async def replay() -> None:
        await GatewayReplay(transcript, transport).play()

    run(replay())
