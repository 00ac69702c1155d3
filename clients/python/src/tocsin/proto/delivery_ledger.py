"""The deliveries that one consumer holds. Pure.

    receive -> QUEUED -> READY -- next --> HANDED -- ack, nack --> settled
                 |         |                 |
                 └─────────┴───── GONE <─────┘   revoked, lease over, session lost

* A message is handed out only after the message of its key before it has been settled (R17). The
  first message of a key is READY, the others are QUEUED in the key's line.
* When a message is returned or lost, the later held messages of its key are lost with it. Those on
  their way are not let in (R17; see `closed_keys`). While its handler still runs, the message stays
  at the head of the key's line, and messages that arrive again wait until `on_handler_end`.
* A lease that is over by this client's own clock (see `leases`) is treated as revoked (R17). So
  nothing is handed out that another consumer may have by now.
* If a message is in hand for longer than a lease, at most AHEAD later messages of its key are
  extended. The others return when their leases end, uncounted, and make room (P8).
* Without a carrier nothing is handed out (`pause`). On a new carrier the client states what it
  holds (`report_held`), and continues with the deliveries that are still its own (`on_resume`,
  R22).
* Credit is granted in total: the first window, and one for each message that was released (R25).
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final

from tocsin.errors import StaleDelivery
from tocsin.proto import wire
from tocsin.proto.ack_ledger import AckLedger, Confirmations, Ticket
from tocsin.proto.closed_keys import ClosedKeys
from tocsin.proto.leases import Leases
from tocsin.proto.message import HeldPush, Message, Settler, State
from tocsin.proto.wire import ranges_of

CREDIT_SHARE: Final = 4
"""The divisor of the window: credit is granted again when a quarter of the window has been
released."""
AHEAD: Final = 8
"""The number of messages of a key whose leases are extended behind a message of that key that is in
hand for longer than a lease."""
_READY_GONE_MIN: Final = 64
_LAST: Final = 1 << 62
"""An offset above every other."""
_offset = attrgetter("offset")

_QUEUED, _READY, _HANDED, _ACKED, _GONE = (
    State.QUEUED,
    State.READY,
    State.HANDED,
    State.ACKED,
    State.GONE,
)
_WHY: Final = {
    State.QUEUED: "has not been handed out",
    State.READY: "has not been handed out",
    State.ACKED: "has been acked",
    State.NACKED: "has been nacked",
    State.GONE: "has expired, or was revoked: it is no longer this consumer's",
}


class DeliveryLedger:
    """The deliveries that one consumer holds. `now` is in seconds of a monotonic clock.

    `credit` bounds the held deliveries. `lease_s` is the group's. `settler` carries out calls on
    the messages. `auto_extend` means that leases are extended in time.
    """

    def __init__(
        self,
        settler: Settler,
        *,
        subscription: int,
        credit: int,
        lease_s: float,
        auto_extend: bool = False,
    ) -> None:
        self.subscription = subscription
        self._settler = settler
        self._lines: dict[str, deque[Message] | None] = {}  # per held key, all but its first
        self._unfinished: dict[str, Message] = {}  # per key, a lost message whose handler runs
        self._pushes: dict[tuple[int, int, int], HeldPush] = {}
        self.leases = Leases(self._pushes, lease_s=lease_s, auto_extend=auto_extend)
        self.acks = AckLedger(subscription)
        self.begin(credit=credit, lease_s=lease_s)

    def begin(self, *, credit: int, lease_s: float) -> None:
        """Begin with nothing held, because the subscription has been opened again.

        `on_session_loss` was called before, if anything was held.
        """
        self.credit = credit
        self.lease_s = lease_s
        self.leases.begin(lease_s)
        self._ready: deque[Message] = deque()
        self._ready_gone = 0  # of these, no longer READY
        self._newest: dict[int, tuple[int, int]] = {}  # partition -> (epoch, push)
        # partition -> the number of messages to come that may have been given before
        self._doubtful: dict[int, int] = {}
        self._closed = ClosedKeys()
        self.is_paused = False
        self.received = 0
        self.released = 0
        self.uncounted = 0
        """The part of `received` that the broker does not count: the messages that were held when
        the session's gateway ended and another one took over the subscription."""
        self._released_granted = 0

    # --- what comes in --------------------------------------------------------------------------

    # enforces: R16
    def receive(self, push: wire.Push, *, now: float) -> None:
        """Hold the messages of a push.

        A push that is not newer than the newest of its partition is discarded (R16). A newer push
        supersedes held deliveries of the same messages. Messages of closed keys are discarded
        (R17).
        """
        self.received += len(push.messages)
        number = (push.epoch, push.push)
        newest = self._newest.get(push.partition)
        if newest is not None:
            if number <= newest:
                self.released += len(push.messages)
                return
            if push.attempt > 1 or push.epoch > newest[0]:
                self._supersede(push)
        self._newest[push.partition] = number
        held = HeldPush(push, self._settler, *self.leases.times(now=now))
        if not held.left:
            return
        if newest is None or push.epoch > newest[0]:
            self._doubtful[push.partition] = self.credit
        doubtful = self._doubtful.get(push.partition, 0)
        if doubtful:
            held.doubtful = True
            self._doubtful[push.partition] = max(0, doubtful - held.left)
        self._pushes[held.place] = held
        self.leases.on_push(held)
        lines, ready, deliveries = self._lines, self._ready, held.deliveries
        closed = self._closed if self._closed else None
        for offset, content in zip(push.places(), push.messages, strict=False):
            message = Message(held, offset, content)
            deliveries.append(message)
            key = content.key
            if key is None:
                ready.append(message)
            elif closed is not None and not closed.admit(key, push.partition, offset):
                self._drop(message, _GONE)
            elif key not in lines:
                lines[key] = None
                ready.append(message)
            else:
                message.state = _QUEUED
                line = lines[key]
                if line is None:
                    lines[key] = deque((message,))
                else:
                    line.append(message)

    def _supersede(self, push: wire.Push) -> None:
        again = ranges_of(list(push.places())) if push.messages else []
        for held in list(self._pushes.values()):
            if held.place[0] == push.partition:
                for first, last in zip(again[::2], again[1::2], strict=True):
                    self._lose(held, first, last)

    def revoke(self, deliveries: wire.DeliveryList) -> None:
        """Give up deliveries that the broker has taken back, and the later held messages of their
        keys. Opens the keys that one of these deliveries has closed. Deliveries that this consumer
        does not hold are otherwise ignored."""
        for partition, epoch, number, *pairs in deliveries:
            held = self._pushes.get((partition, epoch, number))
            for first, last in zip(pairs[::2], pairs[1::2], strict=False):
                if held is not None:
                    self._lose(held, first, last)
                if self._closed:
                    self._closed.on_revoke(partition, first, last)

    def expire(self, *, now: float) -> None:
        """Discard held messages whose leases are over by this client's clock, and the later held
        messages of their keys. Their keys are closed (R17)."""
        for message in self.leases.expire(now=now):
            if message.state <= _HANDED:  # otherwise it went with an earlier one of its key
                self._close(message, _GONE)
                self._closed.close(message)

    def next_deadline(self) -> float | None:
        """Return when to call `expire`, if nothing else happens before; None if nothing is held."""
        return self.leases.next_deadline()

    # --- resuming -------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop handing out messages, because nothing carries the session."""
        self.is_paused = True

    def report_held(self) -> wire.DeliveryList:
        """Return the deliveries for `held` to name: held, or settled or returned without
        confirmation."""
        self._closed.on_held_sent()
        held = [
            [*held.place, *ranges_of(offsets)]
            for held in self._pushes.values()
            if (offsets := [message.offset for message in held.held_messages()])
        ]
        return held + self.acks.unconfirmed()

    def restart_count(self) -> None:
        """Begin the counts of credit anew, as the broker does after its own restart. Messages that
        are held from before do not count against the new credit."""
        self.uncounted = self.received = self.received - self.released
        self.released = self._released_granted = 0

    # enforces: R25
    @property
    def granted(self) -> int:
        """The credit granted in total, as the broker counts (R25)."""
        return max(0, self.credit + self.released - self.uncounted)

    @property
    def received_at_broker(self) -> int:
        """The number of messages received on this subscription, as the broker counts: those since
        its last restart."""
        return self.received - self.uncounted

    def on_resume(self, revoked: wire.DeliveryList) -> None:
        """Continue after the answer to `held`. The deliveries in `revoked` are no longer this
        consumer's.

        Frames that the broker sends from now on take account of the held deliveries. So keys open,
        except those whose nack the broker may not have received, and those closed since `held` was
        sent.
        """
        self.revoke(revoked)
        self._closed.on_held_answer()
        handed = [
            m for held in self._pushes.values() for m in held.held_messages() if m.state is _HANDED
        ]
        for message in self.acks.repeat(handed):
            self._closed.close(message)
        self.leases.restart()
        self._released_granted = -self.credit  # the grant, too, is sent again
        self.is_paused = False

    def on_session_loss(self) -> list[Ticket]:
        """Give up every delivery, because the session is lost. Returns the tickets that still wait
        for a confirmation."""
        for held in list(self._pushes.values()):
            self._lose(held, 0, _LAST)
        self._ready.clear()
        self._ready_gone = 0
        self._closed = ClosedKeys()
        self.leases.restart()
        self._released_granted = self.released  # nobody is left to grant it
        return self.acks.on_session_loss()

    # --- handing out and settling ---------------------------------------------------------------

    @property
    def ready(self) -> int:
        """The number of messages that could be handed out now."""
        return 0 if self.is_paused else len(self._ready) - self._ready_gone

    # enforces: P3
    def next(self, *, now: float) -> Message | None:
        """Hand out a message whose key is free; None if there is none now."""
        if self.is_paused:
            return None
        ready = self._ready
        while ready:
            message = ready[0]
            if message.state is _READY and message.deadline <= now:
                self.expire(now=now)
                ready = self._ready
                continue
            ready.popleft()
            if message.state is _READY:
                message.state = _HANDED
                self.acks.start(message)
                return message
            self._ready_gone -= 1
        return None

    def put_back(self, message: Message) -> None:
        """Make a message that was handed out READY again, as the first one, because its taker was
        cancelled. A message that has been lost meanwhile stays lost."""
        if message.state is _HANDED:
            message.state = _READY
            self._ready.appendleft(message)

    def ack(self, message: Message, *, now: float, ticket: object = None) -> None:
        """Settle a message that was handed out.

        With a ticket the ack is confirmed: `AckLedger.on_ack_answer` returns the ticket when
        the broker has answered. Without a ticket, acking an acked message does nothing.

        Raises:
            StaleDelivery: the message is no longer this consumer's.
        """
        if message.state is _ACKED and ticket is None:
            return
        self.check_held(message, now=now)
        message.state = _ACKED
        held = message.held
        if ticket is None:
            self.acks.ack(message)
        else:
            self.acks.confirm(message, ticket)
        self.released += 1
        held.left -= 1
        if not held.left:
            self._pushes.pop(held.place, None)
        if message.key is not None:
            self._promote(message.key)

    def _promote(self, key: str) -> None:
        """Make the next message of a key READY, because the message before it has been settled or
        its handler has ended."""
        line = self._lines[key]
        if line is None:
            del self._lines[key]
            return
        following = line.popleft()
        following.state = _READY
        self._ready.append(following)
        if not line:
            self._lines[key] = None

    def on_handler_end(self, message: Message) -> None:
        """Release the key of a message that was lost before its handler ended."""
        key = message.key
        if key is not None and self._unfinished.get(key) is message:
            del self._unfinished[key]
            self._promote(key)

    def nack(
        self,
        message: Message,
        *,
        now: float,
        delay_s: float | None = None,
        reason: str | None = None,
        reject: bool = False,
        ticket: Ticket | None = None,
    ) -> None:
        """Nack a message that was handed out, and discard the later held messages of its key, which
        the broker gives again.

        With a ticket the nack is confirmed: `on_nack_answer` returns the ticket when the broker has
        answered.

        Raises:
            StaleDelivery: the message is no longer this consumer's.
        """
        self.check_held(message, now=now)
        self._close(message, State.NACKED)
        self._closed.close(message)
        self.acks.nack(message, (delay_s, reason, reject), ticket)

    def check_held(self, message: Message, *, now: float) -> None:
        """Raise StaleDelivery unless the message was handed out and is still this consumer's."""
        if message.state is _HANDED and message.deadline <= now:
            self.expire(now=now)
        if message.state is not _HANDED:
            raise StaleDelivery(f"message {message.id} {_WHY[message.state]}")

    def on_extension(self, message: Message, *, until: float) -> None:
        """Set the deadline of a message whose lease the broker has extended."""
        if message.state <= _HANDED:
            self.leases.on_extension(message, until=until)

    # --- answers --------------------------------------------------------------------------------

    def on_nack_answer(self, ref: int, refused: Sequence[list[int]] = ()) -> Confirmations:
        """Handle the answer to a nack. Messages of the nacked keys that the broker sends from now
        on are accepted.

        Returns the tickets that waited for this nack, by outcome. `refused` are the deliveries that
        the broker did not return now.
        """
        self._closed.on_nack_answer(ref)
        return self.acks.on_nack_answer(ref, refused)

    # --- leaving --------------------------------------------------------------------------------

    def _lose(self, held: HeldPush, first: int, last: int) -> None:
        begin = bisect_left(held.deliveries, first, key=_offset)
        for message in held.deliveries[begin : bisect_right(held.deliveries, last, key=_offset)]:
            if message.state <= _HANDED:
                self._close(message, _GONE)

    # enforces: R17
    def _close(self, message: Message, state: State) -> None:
        """Take out a held message, and with it the messages after it in its key's line (R17)."""
        was = message.state
        self._drop(message, state)
        if message.key is not None:
            line = self._lines[message.key]
            if was is _QUEUED:
                assert line is not None
                while (later := line.pop()) is not message:
                    self._drop(later, _GONE)
                if not line:
                    self._lines[message.key] = None
            else:
                if was is _HANDED and self._settler.gone(message):
                    self._unfinished[message.key] = message
                    self._lines[message.key] = None
                else:
                    del self._lines[message.key]
                for later in line or ():
                    self._drop(later, _GONE)
        elif was is _HANDED:
            self._settler.gone(message)
        if was is _READY:
            self._ready_gone += 1
            if self._ready_gone > max(_READY_GONE_MIN, len(self._ready) // 2):  # P9
                self._ready = deque(m for m in self._ready if m.state is _READY)
                self._ready_gone = 0

    def _drop(self, message: Message, state: State) -> None:
        message.state = state
        held = message.held
        self.released += 1
        held.left -= 1
        if not held.left:
            self._pushes.pop(held.place, None)

    # --- what goes out --------------------------------------------------------------------------

    # enforces: P8
    def _far(self) -> set[Message]:
        lines = [self._lines.get(m.key) for m in self.leases.long_in_hand() if m.key is not None]
        return {message for line in lines if line for message in islice(line, AHEAD, None)}

    def _credit_due(self) -> bool:
        return (self.released - self._released_granted) * CREDIT_SHARE >= max(self.credit, 1)

    def take(self, refs: Iterator[int], *, now: float) -> list[wire.SentFrame]:
        """Return the frames to send now, in this order; none while the ledger is paused."""
        if self.is_paused:
            return []
        frames = self.acks.take(refs, self._closed)
        frames += self.leases.request_extensions(refs, self.subscription, self._far, now=now)
        if self.released > self._released_granted and (frames or self._credit_due()):
            self._released_granted = self.released
            frames.append(wire.Credit(subscription=self.subscription, granted=self.granted))
        return frames

    def check(self) -> None:
        """Assert the invariants, under their ids."""
        held = [m for push in self._pushes.values() for m in push.deliveries if m.state <= _HANDED]
        assert len(held) == self.received - self.released, "R25: held = received - released"
        assert all(push.left for push in self._pushes.values())
        assert len(self._ready) - self._ready_gone == sum(m.state is _READY for m in held)
        keyed = [m for m in held if m.key is not None]
        for key, line in self._lines.items():
            first = [m for m in keyed if m.key == key and m.state is not _QUEUED]
            is_unfinished = key in self._unfinished
            assert len(first) + is_unfinished == 1, "P3: one message of a key at a time"
            assert [m for m in keyed if m.key == key and m.state is _QUEUED] == list(line or ())
        assert {m.key for m in keyed} | self._unfinished.keys() == set(self._lines)
