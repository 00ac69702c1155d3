"""How a publish is cut into runs, one for each partition that its messages go to: each message
checked, routed and encoded."""

import time
from collections.abc import Sequence
from hashlib import blake2b

from gateway.publish.routing import Answer, Context, Route, Run
from gateway.publish.sending_orders import SendingOrders
from metadata.catalog import Queue
from push.errors import Refused, TocsinError
from push.message import Message, check_message, encode_message, encode_plain


def cut(
    answer: Answer, route: Route, orders: SendingOrders, context: Context | None, sequence: int
) -> dict[int, Run]:
    """The runs of a publish by number of partition. What is refused has its outcome, and is in
    none of them."""
    settings, encoded = answer.queue.settings, None
    if not answer.checked and answer.names is None:
        encoded = encode_plain(answer.messages, settings.message_bytes_max)
    if (
        encoded is None
        or not answer.allowed.is_all
        or settings.message_ttl_s is not None
        or (context is not None and orders.held)
    ):
        return _Cut(answer, route, orders, context, sequence).runs(encoded)
    return _Cut(answer, route, orders, context, sequence).plain(encoded)


class _Cut:
    """One publish, and how far it is cut."""

    def __init__(
        self,
        answer: Answer,
        route: Route,
        orders: SendingOrders,
        context: Context | None,
        sequence: int,
    ) -> None:
        self._answer, self._route, self._orders = answer, route, orders
        self._context, self._sequence = context, sequence
        self._spread: int | None = None
        self._keyed = 0

    def plain(self, encoded: Sequence[bytes]) -> dict[int, Run]:
        """Of messages that no rule can refuse any more."""
        answer, route, runs = self._answer, self._route, dict[int, Run]()
        keys, keyless = route.keys, 0
        for index, message in enumerate(answer.messages):
            key = message.key
            if key is None:
                keyless += 1
                number, hashed = self._place(index, None, None)
            else:
                number, hashed = keys.get(key) or route.place(key)
            run = runs.get(number)
            if run is None:
                run = runs[number] = Run(answer, self._context, self._sequence)
            run.encoded.append(encoded[index])
            run.hashes.append(hashed)
            run.indexes.append(index)
        route.looked_up(len(encoded) - keyless)
        return runs

    def runs(self, encoded: Sequence[bytes] | None) -> dict[int, Run]:
        """Of messages each of which is looked at. `encoded`: by `encode_plain`, where it took
        them."""
        answer, context = self._answer, self._context
        settings, names = answer.queue.settings, answer.names
        now_ms, runs = time.time() * 1000, dict[int, Run]()
        is_checked = answer.checked or encoded is not None
        for index, message in enumerate(answer.letters or answer.messages):
            name = message.id if names is None else names[index]
            try:
                if not answer.allowed.is_all and not answer.allowed.allow(message.key):
                    raise not_allowed(answer.queue, message.key)
                if not is_checked:
                    check_message(answer.messages[index], settings.message_bytes_max)
                number, hashed = self._place(index, message.key, name)
            except TocsinError as error:
                self._refuse(index, message.key, error)
                continue
            run = runs.get(number)
            if run is None:
                run = runs[number] = Run(answer, context, self._sequence)
            ttl_s = settings.message_ttl_s
            if ttl_s is not None or name is not None or message.ttl_s is not None:
                digest = None
                if name is not None:
                    moved = names is not None
                    digest = id_digest(answer.queue, message.key, name, moved=moved)
                expires = expires_unix_ms(message, ttl_s, now_ms)
                if run.marks is None:
                    run.marks = []
                run.marks.append((len(run.indexes), digest, expires))
            text = encode_message(message) if encoded is None else encoded[index]
            run.encoded.append(text)
            run.hashes.append(hashed)
            run.indexes.append(index)
        self._route.looked_up(self._keyed)
        return runs

    def _place(self, index: int, key: str | None, name: str | None) -> tuple[int, int]:
        """(partition, hash of the key). Raises Refused: what is before it has to come first."""
        route, context, hashed = self._route, self._context, 0
        if key is not None:
            self._keyed += 1
            number, hashed = route.keys.get(key) or route.place(key)
        elif name is not None:
            number = route.id_place(name)
        elif context is not None:
            number = route.sequence_place(context[0], self._sequence + index)
        else:
            if self._spread is None:
                self._spread = route.spread_place()
            number = self._spread
        if context is not None and self._orders.held:
            place = route.partitions[number]
            self._orders.check(context[0], place, self._sequence + index, context[1])
        return number, hashed

    def _refuse(self, index: int, key: str | None, error: TocsinError) -> None:
        self._answer.fail(index, error)
        if self._context is not None:
            at = self._sequence + index
            self._orders.refused(self._context[0], self._route, key, at, error)


def not_allowed(queue: Queue, key: str | None) -> Refused:
    """What becomes of a message that the right to publish does not cover."""
    which = "messages without a key" if key is None else f"the key {key!r}"
    return Refused(
        "forbidden", f"the right to publish to {queue.name!r} is one on some keys, not on {which}"
    )


def id_digest(queue: Queue, key: str | None, name: str, *, moved: bool = False) -> bytes:
    """What deduplication remembers of a client's id: 256 bits over queue, key and id (R8).
    `moved`: the name is not a client's, and equals none that a client may give."""
    encoded = (key or "").encode()
    scope = b"%d:%b" % (len(encoded), encoded) if key is not None else b"-"
    return blake2b(
        scope + b"\0" + name.encode(),
        digest_size=32, key=queue.hash_key, person=b"moved" if moved else b"",
    ).digest()  # fmt: skip


def expires_unix_ms(message: Message, queue_ttl_s: float | None, now_ms: float) -> int:
    """When it expires: the earlier of its own and the queue's TTL; 0: never."""
    ttls = [ttl for ttl in (message.ttl_s, queue_ttl_s) if ttl is not None]
    return int(now_ms + min(ttls) * 1000) if ttls else 0
