"""Keys that are closed: what still comes of them was sent too early. Pure.

The client returns a message, by a nack or because its own deadline has come, at a moment when later
messages of the key may be under way to it. The broker will take those back as soon as it knows,
and give everything again in order; until then nothing of the key may be let in (R17).

    [m is nacked; m+1, pushed before the broker has read the nack, arrives and is handled; m comes
    again: the key is out of order.]

A closed key opens when the broker has answered the nack, or has revoked the message itself, or
gives that very message again. One that was closed before the client said, coming back, what it
holds opens with the answer to that; one that was closed since does not.

    [m is said to be held, and its time is over before the answer comes: the broker takes it for
    held, and gives m+1, which is handled; m comes again when the broker's lease has ended.]
"""

from tocsin.proto.message import Message


class _ClosedKey:
    __slots__ = ("is_sent", "offset", "partition")

    def __init__(self, partition: int, offset: int) -> None:
        self.partition = partition
        self.offset = offset
        self.is_sent = False


class ClosedKeys:
    """Which keys are closed, and by which of their messages."""

    def __init__(self) -> None:
        self._by_key: dict[str, _ClosedKey] = {}
        self._by_place: dict[tuple[int, int], str] = {}
        self._nacked: dict[int, list[tuple[str, _ClosedKey]]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def close(self, message: Message) -> None:
        """This message of its key is returned; an earlier one that is stands for it too."""
        key = message.key
        if key is None:
            return
        partition = message.partition
        closing = self._by_key.get(key)
        if closing is not None:
            if closing.partition == partition and closing.offset <= message.offset:
                return
            del self._by_place[closing.partition, closing.offset]
        self._by_key[key] = _ClosedKey(partition, message.offset)
        self._by_place[partition, message.offset] = key

    def on_nack(self, ref: int, messages: list[Message]) -> None:
        """The broker has been told of these in one nack; its answer opens their keys."""
        keys = {message.key for message in messages if message.key in self._by_key}
        self._nacked[ref] = [(key, self._by_key[key]) for key in keys if key is not None]

    def on_nack_answer(self, ref: int) -> None:
        """It has answered: what it sends from now on it sends knowing of the nack."""
        for key, closing in self._nacked.pop(ref, ()):
            if self._by_key.get(key) is closing:
                self._open(key)

    def on_held_sent(self) -> None:
        """The broker is about to be told what is held, and with that what is not."""
        for closing in self._by_key.values():
            closing.is_sent = True

    def on_held_answer(self) -> None:
        """It has answered, and has heard no nack that is still to be answered."""
        for key in [key for key, closing in self._by_key.items() if closing.is_sent]:
            self._open(key)
        self._nacked.clear()

    def on_revoke(self, partition: int, first: int, last: int) -> None:
        """It has taken these back."""
        if last - first < len(self._by_place):
            places = [(partition, offset) for offset in range(first, last + 1)]
        else:
            places = [p for p in self._by_place if p[0] == partition and first <= p[1] <= last]
        for place in places:
            key = self._by_place.get(place)
            if key is not None:
                self._open(key)

    def admit(self, key: str, partition: int, offset: int) -> bool:
        """Whether this message may come in. The one that closed the key opens it."""
        closing = self._by_key.get(key)
        if closing is None:
            return True
        if (closing.partition, closing.offset) != (partition, offset):
            return False
        self._open(key)
        return True

    def _open(self, key: str) -> None:
        closing = self._by_key.pop(key)
        del self._by_place[closing.partition, closing.offset]
