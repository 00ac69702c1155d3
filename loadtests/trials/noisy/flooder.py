"""`python -m loadtests.trials.noisy.flooder URL QUEUE SECONDS RATE`: a process that floods a queue.

It publishes frames of a hundred messages on a fixed schedule of RATE messages a second, whatever
the answers, and counts the outcomes. With RATE 0 it publishes as fast as the queue takes messages,
with a bounded window of unanswered ones: that rate is the queue's capacity. Bytes that the broker
does not read stay in the sockets; beyond a bound, frames are held back and counted. The first line
of its standard output says that it begins. The second one is a JSON object of the results.
"""

import asyncio
import json
import re
import sys
import time
from collections import Counter
from random import Random
from typing import Final

import uvloop

from loadtests.clients.load import Client, LoadFailed, Shape, stamp

CONNECTIONS: Final = 4
MESSAGES_PER_FRAME: Final = 100
WINDOW: Final = 4_000
"""The most unanswered messages of a connection when the capacity is measured."""
UNSENT_BYTES_MAX: Final = 4 * 1_048_576
"""The most unsent bytes of one socket; further frames are held back."""
ANSWERS_S: Final = 60.0
_TICK_S: Final = 0.002
_CODE: Final = re.compile(rb'"code":"([a-z_]+)"')
_RETRY: Final = re.compile(rb'"retry":(true|false)')


class Flooder(Client):
    """A connection that floods a queue. It publishes without sequences, so each frame is
    independent."""

    def __init__(self, name: str, queue: str, random: Random) -> None:
        super().__init__(name)
        shape = Shape()
        self._queue = queue.encode()
        self._blocks = [shape.block(MESSAGES_PER_FRAME, random) for _ in range(16)]
        self.unanswered = 0
        self.offered = 0
        self.held_back = 0
        """Number of messages that were not even sent, because the broker did not read."""
        self.accepted = 0
        self.refused: Counter[str] = Counter()
        self.is_final = False
        """Whether a refusal said that a retry is of no use."""

    def publish(self) -> None:
        """Send one more frame, or count it as held back if too many bytes are unsent."""
        self.offered += MESSAGES_PER_FRAME
        transport = self.wire.transport
        if transport is not None and transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self.held_back += MESSAGES_PER_FRAME
            return
        ref = self._next_ref()
        messages = stamp(time.monotonic_ns()).join(self._blocks[ref % len(self._blocks)])
        self.wire.send(
            b'{"type":"publish","ref":%d,"queue":"%b","messages":[%b]}'
            % (ref, self._queue, messages)
        )
        self.unanswered += MESSAGES_PER_FRAME

    def _reply(self, data: bytes) -> None:
        if self._welcome.done() and data.startswith((b'{"type":"ok"', b'{"type":"error"')):
            self._judge(data)
        else:
            super()._reply(data)

    def _judge(self, data: bytes) -> None:
        codes = _CODE.findall(data)
        if len(codes) == 1 and data.startswith(b'{"type":"error"'):
            codes *= MESSAGES_PER_FRAME
        self.unanswered -= MESSAGES_PER_FRAME
        self.accepted += MESSAGES_PER_FRAME - len(codes)
        for code, count in Counter(codes).items():
            self.refused[code.decode()] += count
        self.is_final = self.is_final or b"false" in _RETRY.findall(data)


async def flood(url: str, queue: str, seconds: float, rate: int) -> dict[str, object]:
    """Flood the queue for `seconds` at `rate` messages a second; 0: as fast as the queue takes
    them. Return the counts. Raises LoadFailed if a client failed or an answer is missing."""
    random = Random(7)
    clients = [Flooder(f"flooder-{n}", queue, random) for n in range(CONNECTIONS)]
    for client in clients:
        await client.open(url, None)
    sys.stdout.write("flooding\n")
    sys.stdout.flush()
    began = time.monotonic()
    offered = 0
    while (now := time.monotonic()) < began + seconds:
        if rate:
            while offered < (now - began) * rate:
                clients[offered // MESSAGES_PER_FRAME % CONNECTIONS].publish()
                offered += MESSAGES_PER_FRAME
        else:
            for client in clients:
                while client.unanswered < WINDOW:
                    client.publish()
        failed(clients)
        await asyncio.sleep(_TICK_S)
    accepted = sum(client.accepted for client in clients)
    elapsed = time.monotonic() - began
    deadline = time.monotonic() + ANSWERS_S
    while any(client.unanswered for client in clients):
        failed(clients)
        if time.monotonic() > deadline:
            raise LoadFailed(f"{sum(c.unanswered for c in clients)} messages have no answer")
        await asyncio.sleep(0.01)
    refused: Counter[str] = Counter()
    for client in clients:
        refused += client.refused
        client.close()
    return {
        "accepted_per_s": round(accepted / elapsed),
        "offered": sum(client.offered for client in clients),
        "held_back": sum(client.held_back for client in clients),
        "accepted": sum(client.accepted for client in clients),
        "refused": dict(refused),
        "is_final": any(client.is_final for client in clients),
    }


def failed(clients: list[Flooder]) -> None:
    """Raise the failure of the first client that has failed; return if none has."""
    for client in clients:
        if client.failure is not None:
            raise client.failure


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(
            flood(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(float(sys.argv[4])))
        )
    sys.stdout.write(json.dumps(found) + "\n")
