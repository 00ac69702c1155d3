"""Consumers over plain HTTP that outlive the broker: pull, ack, nack, and log every answer."""

import asyncio
from typing import Final

import msgspec

from loadtests.clients.recorder import GROUP, QUEUE, RunState, identity
from loadtests.clients.rest import REQUEST_TIMEOUT_S, Rest
from loadtests.clients.survivors import NACK_CHANCE, RECONNECT_S

PULL_MESSAGES_MAX: Final = 50
PULL_WAIT_S: Final = 1.0
_PATH: Final = f"/v1/queues/{QUEUE}/groups/{GROUP}"
_ENCODE: Final = msgspec.json.Encoder().encode


class _Pulled(msgspec.Struct, gc=False):
    receipt: str
    key: str
    body: msgspec.Raw


class _PullAnswer(msgspec.Struct, gc=False):
    messages: list[_Pulled]


class _Settled(msgspec.Struct, gc=False):
    settled: int
    stale: list[str] = []


_PULL: Final = msgspec.json.Decoder(_PullAnswer)
_SETTLED: Final = msgspec.json.Decoder(_Settled)
_PULL_BODY: Final = _ENCODE({"messages_max": PULL_MESSAGES_MAX, "wait_s": PULL_WAIT_S})


class Puller:
    """A client that pulls. All pulls at a gateway form one virtual consumer of the group (R24)."""

    def __init__(self, field: RunState, number: int = 0) -> None:
        self._field = field
        habits = field.habits
        timeout_s = habits.silence_s + PULL_WAIT_S if habits.silence_s else REQUEST_TIMEOUT_S
        self._ways = [
            (door, Rest(door.url, habits.token, timeout_s=timeout_s)) for door in field.serving
        ]
        self._at = number % len(self._ways)
        self._socket = next(field.sockets)
        self.is_away = False
        """Whether the client must not pull. The run sets this to True and back to False."""

    async def run(self) -> None:
        """Pull and settle until the run stops. Raises ClientFailed."""
        try:
            while not self._field.stopping:
                if self.is_away:
                    await asyncio.sleep(RECONNECT_S)
                    continue
                try:
                    await self._pull()
                except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
                    self._at = (self._at + 1) % len(self._ways)
                    await asyncio.sleep(RECONNECT_S * (0.5 + self._field.random.random()))
        finally:
            for _, rest in self._ways:
                rest.close()

    async def _call(self, call: str, body: bytes) -> bytes | None:
        """Make the call `pull`, `ack` or `nack`. Return the answer; None if its status is not
        200."""
        door, rest = self._ways[self._at]
        if call != "pull" and self._field.habits.at_other_doors:
            door, rest = self._field.random.choice(self._ways)
        server = door.server
        self._field.log.pull(server, self._socket, b"out", call, body)
        status, answer = await rest.request("POST", f"{_PATH}/{call}", body)
        self._field.log.pull(server, self._socket, b"in", call, answer, status=status)
        if status == 200:
            return answer
        await asyncio.sleep(RECONNECT_S)
        return None

    async def _pull(self) -> None:
        answer = await self._call("pull", _PULL_BODY)
        if answer is None:
            return
        messages = _PULL.decode(answer).messages
        self._field.was_given(len(messages))
        random = self._field.random
        lines: dict[str, list[_Pulled]] = {}
        for one in messages:
            lines.setdefault(one.key, []).append(one)
        done: list[_Pulled] = []
        returned: list[_Pulled] = []
        for line in lines.values():
            for one in line:
                if random.random() < NACK_CHANCE:
                    returned.append(one)  # the messages after it return with it
                    break
                done.append(one)
        random.shuffle(done)
        middle = random.randint(0, len(done))
        for part in (done[:middle], done[middle:]):
            if part:
                await self._ack(part)
        if returned:
            receipts = [one.receipt for one in returned]
            await self._call("nack", _ENCODE({"receipts": receipts, "delay_s": 0.01}))

    async def _ack(self, part: list[_Pulled]) -> None:
        answer = await self._call("ack", _ENCODE({"receipts": [one.receipt for one in part]}))
        if answer is None:
            return
        stale = set(_SETTLED.decode(answer).stale)
        for one in part:
            if one.receipt not in stale:
                self._field.settled("pull", identity(bytes(one.body)))
