"""Closed keys, whose messages arrive too early. Pure.

A client returns a message, by a nack or because its own deadline has passed, while later messages
of the key may be on their way to it. The broker takes those back when it learns of the return, and
gives all of them again, in order. Until then no message of the key may be let in (R17).

    [m is nacked; m+1, pushed before the broker has read the nack, arrives and is handled; m comes
    again: the key is out of order.]

A closed key opens when the broker has answered the nack, has revoked the message itself, or gives
that very message again. After a lost connection the client states what it holds (`held`). The
answer opens the keys that were closed before that frame was sent, and no others.

    [m is named in `held`, and its time is over before the answer comes: the broker counts it as
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
    """The closed keys, each with the message that has closed it."""

    def __init__(self) -> None:
        self._by_key: dict[str, _ClosedKey] = {}
        self._by_place: dict[tuple[int, int], str] = {}
        self._nacked: dict[int, list[tuple[str, _ClosedKey]]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def close(self, message: Message) -> None:
        """Close the key of a returned message, unless an earlier message has closed it."""
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
        """Note that the nack `ref` names these messages. The broker's answer to that nack opens
        their keys."""
        keys = {message.key for message in messages if message.key in self._by_key}
        self._nacked[ref] = [(key, self._by_key[key]) for key in keys if key is not None]

    def on_nack_answer(self, ref: int) -> None:
        """Open the keys of the nack `ref`, because frames that the broker sends after its answer
        take account of that nack. Keys that were closed anew stay closed."""
        for key, closing in self._nacked.pop(ref, ()):
            if self._by_key.get(key) is closing:
                self._open(key)

    def on_held_sent(self) -> None:
        """Note that `held` is about to be sent, which states what is held and what is not."""
        for closing in self._by_key.values():
            closing.is_sent = True

    def on_held_answer(self) -> None:
        """Open the keys that were closed before `held` was sent. Earlier nacks get no answer any
        more."""
        for key in [key for key, closing in self._by_key.items() if closing.is_sent]:
            self._open(key)
        self._nacked.clear()

    def on_revoke(self, partition: int, first: int, last: int) -> None:
        """Open the keys that a message at one of these offsets has closed."""
        if last - first < len(self._by_place):
            places = [(partition, offset) for offset in range(first, last + 1)]
        else:
            places = [p for p in self._by_place if p[0] == partition and first <= p[1] <= last]
        for place in places:
            key = self._by_place.get(place)
            if key is not None:
                self._open(key)

    def admit(self, key: str, partition: int, offset: int) -> bool:
        """Return whether to accept a message that was pushed. A closed key accepts only the message
        that closed it, and is opened by that message."""
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
