"""A consumer's acks, nacks and marks, and those that the broker may not have received. Pure.

An ack without an answer may be lost with the connection, or with a gateway that is killed before it
has written the ack. So acks are kept until the broker confirms, to a query sent after them, that
they are durable. After a lost connection all unconfirmed acks are sent again, which settles nothing
twice (R21).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from tocsin.proto import wire
from tocsin.proto.closed_keys import ClosedKeys
from tocsin.proto.message import HeldPush, Message, State
from tocsin.proto.wire import delivery_list, ranges_of, split_deliveries

UNHEARD_ROWS: Final = 64
"""The number of entries of delivery lists in unconfirmed acks at which the broker is queried
whether these acks are durable."""
UNHEARD_ROWS_MAX: Final = 4096
"""The largest number of entries of delivery lists in acks since the last query that are kept to be
sent again. The oldest ones beyond it are forgotten. If the gateway is killed then, their messages
may come again although they were handled."""
NAMED_MESSAGES_MAX: Final = 100_000
"""The largest number of messages with unconfirmed acks that `held` names. A subscription holds
fewer."""
Ticket = object
_Waiting = tuple[Message, Ticket]
_NackOptions = tuple[float | None, str | None, bool]
"""The delay_s and reason of a nack, and whether it rejects."""


class Confirmations(NamedTuple):
    """The tickets of one answer, by the outcome of their deliveries."""

    settled: list[Ticket]
    stale: list[Ticket]
    """The tickets of deliveries that the broker did not settle or return."""
    perhaps: list[Ticket]
    """The tickets of deliveries that the broker did not settle or return now, and may have settled
    or returned when their ack or nack was sent first, before a lost connection."""


class AckLedger:
    """The acks and nacks of one subscription until the broker has confirmed them, and the marks of
    started messages until they are sent."""

    def __init__(self, subscription: int) -> None:
        self.subscription = subscription
        self._forget()

    def _forget(self) -> None:
        self._started: list[Message] = []
        self._acked: list[HeldPush] = []
        self._again: wire.DeliveryList = []
        self._unconfirmed: wire.DeliveryList = []  # acked since the last query
        self._queried: wire.DeliveryList = []  # acked before it
        self._query_ref: int | None = None
        self._confirm: list[_Waiting] = []
        self._confirming: dict[int, list[_Waiting]] = {}
        self._repeated: set[Message] = set()  # of these, those that were sent before
        self._nacked: dict[_NackOptions, list[Message]] = {}
        self._nacking: dict[int, tuple[_NackOptions, list[Message]]] = {}
        self._tickets: dict[Message, Ticket] = {}  # of nacks to be confirmed

    # --- what the consumer says -----------------------------------------------------------------

    # enforces: R19
    def start(self, message: Message) -> None:
        """Mark a message as started, because its handler begins (R19)."""
        self._started.append(message)

    def ack(self, message: Message) -> None:
        """Queue the ack of a message."""
        held = message.held
        if not held.acked:
            self._acked.append(held)
        held.acked.append(message.offset)

    def confirm(self, message: Message, ticket: Ticket) -> None:
        """Queue the ack of a message; `ticket` waits for the answer."""
        self._confirm.append((message, ticket))

    def nack(self, message: Message, how: _NackOptions, ticket: Ticket | None = None) -> None:
        """Queue the return or the rejection of a message; a `ticket` waits for the answer."""
        self._nacked.setdefault(how, []).append(message)
        if ticket is not None:
            self._tickets[message] = ticket

    # --- what goes out --------------------------------------------------------------------------

    def take(self, refs: Iterator[int], closed: ClosedKeys) -> list[wire.SentFrame]:
        """Return the frames to send now, in this order. Notes the nacks in `closed`."""
        subscription = self.subscription
        started = delivery_list(
            (m.held.place, m.offset) for m in self._started if m.state is State.HANDED
        )  # a message that is settled in the same turn needs no mark
        self._started.clear()
        frames: list[wire.SentFrame] = [
            wire.Extend(subscription=subscription, started=part)
            for part in split_deliveries(started)
        ]
        acked = [[*held.place, *ranges_of(held.acked)] for held in self._acked]
        for held in self._acked:
            held.acked = []
        self._acked.clear()
        if self._again:
            acked, self._again = self._again + acked, []
        acks = [
            wire.Ack(subscription=subscription, deliveries=part) for part in split_deliveries(acked)
        ]
        if len(frames) == 1 and acks:  # the ordinary case: marks travel with the acks
            acks[0].started = started
            frames.clear()
        frames += acks
        frames += self._confirms(refs)
        frames += self._nacks(refs, closed)
        self._unconfirmed += acked
        if len(self._unconfirmed) > UNHEARD_ROWS_MAX:
            del self._unconfirmed[:-UNHEARD_ROWS_MAX]
        if self._query_ref is None and len(self._unconfirmed) >= UNHEARD_ROWS:
            self._query_ref = next(refs)
            self._queried, self._unconfirmed = self._unconfirmed, []
            frames.append(wire.Ack(subscription=subscription, deliveries=[], ref=self._query_ref))
        return frames

    def _confirms(self, refs: Iterator[int]) -> Iterator[wire.Ack]:
        for start in range(0, len(self._confirm), wire.RANGES_PER_FRAME_MAX):
            confirm = self._confirm[start : start + wire.RANGES_PER_FRAME_MAX]
            ref = next(refs)
            self._confirming[ref] = confirm
            places = delivery_list((m.held.place, m.offset) for m, _ in confirm)
            yield wire.Ack(subscription=self.subscription, deliveries=places, ref=ref)
        self._confirm.clear()

    def _nacks(self, refs: Iterator[int], closed: ClosedKeys) -> Iterator[wire.Nack]:
        for how, messages in self._nacked.items():
            for start in range(0, len(messages), wire.RANGES_PER_FRAME_MAX):
                nacked = messages[start : start + wire.RANGES_PER_FRAME_MAX]
                ref = next(refs)
                self._nacking[ref] = how, nacked
                closed.on_nack(ref, nacked)
                yield wire.Nack(
                    subscription=self.subscription,
                    ref=ref,
                    delay_s=how[0],
                    reason=how[1],
                    reject=how[2],
                    deliveries=delivery_list((m.held.place, m.offset) for m in nacked),
                )
        self._nacked.clear()

    # --- answers --------------------------------------------------------------------------------

    def on_durability_answer(self, ref: int, *, is_durable: bool = True) -> None:
        """Handle the answer to the query whether earlier acks are durable; other refs are ignored.

        If they are durable, or their deliveries are no longer ours, the acks are forgotten. Without
        `is_durable` the broker cannot confirm, and the acks are kept.
        """
        if ref == self._query_ref:
            self._query_ref = None
            if not is_durable:
                self._unconfirmed = self._queried + self._unconfirmed
            self._queried = []

    def on_nack_answer(self, ref: int, refused: Sequence[list[int]] = ()) -> Confirmations:
        """Handle the answer to a nack; returns the tickets that waited for it, by outcome.

        `refused` are the deliveries that the broker did not return now.
        """
        _, nacked = self._nacking.pop(ref, (None, ()))
        waiting = [(m, self._tickets.pop(m)) for m in nacked if m in self._tickets]
        return self._outcome(waiting, refused)

    def on_ack_answer(self, ref: int, refused: Sequence[list[int]]) -> Confirmations:
        """Handle the answer to a confirmed ack; returns the tickets that waited for it, by outcome.

        `refused` are the deliveries that the broker did not settle now.
        """
        return self._outcome(self._confirming.pop(ref, ()), refused)

    # enforces: R21
    def _outcome(self, waiting: Iterable[_Waiting], refused: Sequence[list[int]]) -> Confirmations:
        places = {
            (partition, epoch, number, offset)
            for partition, epoch, number, *pairs in refused
            for first, last in zip(pairs[::2], pairs[1::2], strict=False)
            for offset in range(first, last + 1)
        }
        settled: list[Ticket] = []
        stale: list[Ticket] = []
        perhaps: list[Ticket] = []
        for message, ticket in waiting:
            refusals = perhaps if message in self._repeated else stale
            gone = (*message.held.place, message.offset) in places
            (refusals if gone else settled).append(ticket)
            self._repeated.discard(message)
        return Confirmations(settled, stale, perhaps)

    # --- coming back ----------------------------------------------------------------------------

    def unconfirmed(self) -> wire.DeliveryList:
        """Return the deliveries that were acked or nacked here, and whose acks and nacks the broker
        has not confirmed; of acks without a ticket that were sent, only the last
        NAMED_MESSAGES_MAX."""
        messages = [message for message, _ in self._confirm]
        messages += [m for pairs in self._confirming.values() for m, _ in pairs]
        messages += [m for nacked in self._nacked.values() for m in nacked]
        messages += [m for _, nacked in self._nacking.values() for m in nacked]
        queued = ((held.place, offset) for held in self._acked for offset in held.acked)
        places = delivery_list([*queued, *((m.held.place, m.offset) for m in messages)])
        return [*_last([*self._again, *self._queried, *self._unconfirmed]), *places]

    def repeat(self, handed: Iterable[Message]) -> list[Message]:
        """Queue unconfirmed acks and nacks again, and marks of the `handed` messages, whose
        handlers may run (R19).

        Returns the messages of all queued nacks.
        """
        self._again = [*self._again, *self._queried, *self._unconfirmed]
        self._queried, self._unconfirmed, self._query_ref = [], [], None
        repeated = [pair for pairs in self._confirming.values() for pair in pairs]
        self._repeated.update(message for message, _ in repeated)
        self._confirm = repeated + self._confirm
        self._confirming.clear()
        for how, messages in self._nacking.values():
            self._nacked.setdefault(how, []).extend(messages)
            self._repeated.update(message for message in messages if message in self._tickets)
        self._nacking.clear()
        self._started = list(handed)
        return [message for messages in self._nacked.values() for message in messages]

    def on_session_loss(self) -> list[Ticket]:
        """Forget all acks, nacks and marks, because the session is lost and none of them can be
        sent or confirmed any more. Returns the tickets that still wait; nobody knows whether their
        acks and nacks took effect."""
        tickets = [ticket for _, ticket in self._confirm]
        tickets += [ticket for pairs in self._confirming.values() for _, ticket in pairs]
        tickets += self._tickets.values()
        self._forget()
        return tickets


def _last(rows: wire.DeliveryList) -> wire.DeliveryList:
    """Return the last rows of a delivery list, with at most NAMED_MESSAGES_MAX messages."""
    left = NAMED_MESSAGES_MAX
    for index in range(len(rows) - 1, -1, -1):
        left -= sum(rows[index][4::2]) - sum(rows[index][3::2]) + len(rows[index][3::2])
        if left < 0:
            return rows[index + 1 :]
    return rows
