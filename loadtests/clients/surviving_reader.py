"""A reader of all messages that outlives the broker, and returns with its position."""

from typing import Final

import msgspec

from loadtests.clients.recorder import QUEUE, ClientFailed, RunState
from loadtests.clients.survivors import Survivor

CREDIT: Final = 2_000
_ENCODE: Final = msgspec.json.Encoder().encode


class _Verdict(msgspec.Struct, gc=False):
    partition: int
    generation: int = 1
    start: int = msgspec.field(name="from", default=0)


class _Received(msgspec.Struct, gc=False):
    """A frame, as far as readers need its fields."""

    type: str
    code: str = ""
    detail: str = ""
    retry: bool = False
    queue_id: str = ""
    partition: int = -1
    next: int = -1
    messages: list[msgspec.Raw] = []
    positions: list[_Verdict] | dict[str, list[int]] = []


_FRAME: Final = msgspec.json.Decoder(_Received)
_FRAMES: Final = msgspec.json.Decoder(list[_Received])


class SurvivingReader(Survivor):
    """A reader of the whole queue that survives brokers. `Recorder.read` logs what it receives."""

    def __init__(self, field: RunState, number: int) -> None:
        doors = field.doors
        super().__init__(field, f"reader-{number}", doors[-1 - number % len(doors) :] + doors)
        self._queue_id = ""
        self._position: dict[int, tuple[int, int]] = {}
        """Partition → (generation of its log, next offset)."""
        self._granted = CREDIT
        self._since = 0
        self.given = 0

    def _log(self, way: bytes, frame: bytes) -> None:
        if way == b"in":
            self.field.log.read(self._server, self.socket, self.name, frame)

    def _connected(self) -> None:
        self._granted, self._since = CREDIT, 0
        self.send(_ENCODE({"type": "hello", "client": self.name}))
        asked: dict[str, object] = {"start": "earliest"}
        if self._queue_id:
            partitions = {str(number): list(at) for number, at in self._position.items()}
            asked = {
                "position": {
                    "queue_id": self._queue_id, "ring_epoch": 1, "partitions": partitions,
                }
            }  # fmt: skip
        self.ask(type="subscribe", subscription=1, queue=QUEUE, credit=CREDIT, **asked)

    def _message(self, data: bytes) -> None:
        self.heard(data)
        try:
            frames = _FRAMES.decode(data) if data[:1] == b"[" else [_FRAME.decode(data)]
            for frame in frames:
                self._take(frame)
        except (ClientFailed, msgspec.DecodeError) as error:
            self.fail(error)

    def _take(self, frame: _Received) -> None:
        if frame.type == "error" and not frame.retry:
            raise ClientFailed(f"{frame.code}: {frame.detail}")
        if frame.type == "error":
            assert self.wire is not None
            self.wire.abort()
        elif frame.type == "ok" and frame.queue_id:
            self._queue_id = frame.queue_id
            assert isinstance(frame.positions, list)
            for one in frame.positions:
                self._position[one.partition] = (one.generation, one.start)
        elif frame.type == "push" and frame.messages:
            generation, _ = self._position[frame.partition]
            self._position[frame.partition] = (generation, frame.next)
            self.given += len(frame.messages)
            self._since += len(frame.messages)
            if self._since >= CREDIT // 2:
                self._granted += self._since
                self._since = 0
                self.send(_ENCODE({"type": "credit", "subscription": 1, "granted": self._granted}))

    def _turn(self) -> None:
        pass

    def _lost(self) -> None:
        pass
