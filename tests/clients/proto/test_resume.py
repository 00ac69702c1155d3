"""What a consumer keeps between two carriers, says of it, and says again (R21, R22, R25)."""

import itertools

from tocsin.proto import wire
from tocsin.proto.ack_ledger import NAMED_MESSAGES_MAX, UNHEARD_ROWS, UNHEARD_ROWS_MAX
from tocsin.proto.message import Message, State

from tests.clients.proto.test_delivery_ledger import Nobody, drain, ledger, push, sent


class Working(Nobody):
    """Something is at work on every message that is handed out."""

    def __init__(self) -> None:
        self.gone_ones: list[Message] = []

    def gone(self, message: Message) -> bool:
        self.gone_ones.append(message)
        return True


def test_between_two_carriers_nothing_is_handed_out_and_nothing_is_lost() -> None:
    held = ledger()
    held.receive(push("ab"), now=0.0)
    held.pause()
    assert held.next(now=1.0) is None
    assert held.ready == 0
    assert sent(held) == []
    held.on_resume([])
    assert [message.key for message in drain(held, now=2.0)] == ["a", "b"]


def test_what_is_held_is_said_with_what_was_perhaps_not_heard() -> None:
    held = ledger()
    held.receive(push("abcdef"), now=0.0)
    a, b, c, d, *_ = drain(held)
    held.ack(a, now=0.0)
    held.ack(b, now=0.0, ticket="b")
    held.nack(c, now=0.0)
    sent(held)
    held.ack(d, now=0.0)
    held.pause()
    rows = sorted(tuple(row) for row in held.report_held())
    assert rows == [(0, 1, 1, 0, 0), (0, 1, 1, 1, 3), (0, 1, 1, 4, 5)]


def test_what_was_perhaps_not_heard_is_said_again() -> None:
    """The frames were written into a connection that was dead already."""
    held = ledger()
    held.receive(push("abcd"), now=0.0)
    a, b, c, d = drain(held)
    held.ack(a, now=0.0)
    held.ack(b, now=0.0, ticket="b")
    held.nack(c, now=0.0, delay_s=5.0, reason="no")
    first = sent(held)
    held.pause()
    held.on_resume([])
    again = sent(held)
    place = [0, 1, 1]
    assert [f.deliveries for f in first if isinstance(f, wire.Ack)] == [
        f.deliveries for f in again if isinstance(f, wire.Ack)
    ]
    ack, confirm, nack, credit = again
    assert isinstance(ack, wire.Ack)
    assert (ack.deliveries, ack.started) == ([[*place, 0, 0]], [[*place, 3, 3]])  # R19: d's mark
    assert isinstance(confirm, wire.Ack)
    assert isinstance(nack, wire.Nack)
    assert (nack.deliveries, nack.delay_s, nack.reason) == ([[*place, 2, 2]], 5.0, "no")
    assert isinstance(credit, wire.Credit)
    assert credit.granted == 103
    assert confirm.ref is not None
    assert held.acks.on_ack_answer(confirm.ref, []) == (["b"], [], [])
    assert d.state is State.HANDED


def test_acks_that_are_durable_are_forgotten() -> None:
    """P9: what is remembered is bounded by the acks of a round trip and a write. Until then a
    gateway that is killed may know nothing of them: they are asked for, not for having arrived."""
    held = ledger(credit=10 * UNHEARD_ROWS)
    refs = itertools.count(1)
    questions = []
    for number in range(UNHEARD_ROWS):
        held.receive(push("a", offset=number, number=number + 1), now=0.0)
        (message,) = drain(held)
        held.ack(message, now=0.0)
        frames = held.take(refs, now=0.0)
        questions += [f for f in frames if isinstance(f, wire.Ack) and f.ref is not None]
    (question,) = questions
    assert question.deliveries == []
    assert len(held.report_held()) == UNHEARD_ROWS
    assert question.ref is not None
    held.acks.on_durability_answer(question.ref)
    assert held.report_held() == []


def test_acks_of_which_nobody_can_say_that_they_are_durable_are_bounded() -> None:
    """P9: the broker cannot write for long, and gives on. The newest are kept, so many as it takes
    when they are named."""
    held, refs = ledger(credit=1000), itertools.count(1)
    rows, named = UNHEARD_ROWS_MAX + 3 * UNHEARD_ROWS, 120
    for number in range(rows):
        text = "ab" if number < rows - named else "ab" * 500
        held.receive(push(text, offset=1000 * number, number=number + 1), now=0.0)
        while messages := drain(held):
            for message in messages:
                held.ack(message, now=0.0)
        held.take(refs, now=0.0)
    found = held.report_held()
    assert len(found) == NAMED_MESSAGES_MAX / 1000
    assert found[-1][2] == rows
    assert len(held.acks._unconfirmed) == UNHEARD_ROWS_MAX


def test_acks_that_the_broker_knows_nothing_of_are_asked_for_again() -> None:
    held, refs = ledger(credit=10 * UNHEARD_ROWS), itertools.count(1)
    asked = []
    for number in range(UNHEARD_ROWS + 1):
        held.receive(push("a", offset=number, number=number + 1), now=0.0)
        (message,) = drain(held)
        held.ack(message, now=0.0)
        frames = held.take(refs, now=0.0)
        for question in [f for f in frames if isinstance(f, wire.Ack) and f.ref is not None]:
            assert question.ref is not None
            held.acks.on_durability_answer(question.ref, is_durable=False)
            asked.append(question.ref)
    assert len(asked) == 2
    assert len(held.report_held()) == UNHEARD_ROWS + 1


def test_what_the_broker_took_back_meanwhile_is_not_handed_out() -> None:
    held = ledger()
    held.receive(push("ab"), now=0.0)
    held.pause()
    held.on_resume([[0, 1, 1, 0, 0]])
    assert [message.key for message in drain(held)] == ["b"]


def test_a_key_that_closed_when_a_lease_ended_is_open_after_coming_back() -> None:
    """Its `revoked` was lost with the connection: without this nothing of it ever came in."""
    held = ledger(lease_s=10.0)
    held.receive(push("a"), now=0.0)
    held.expire(now=9.5)
    held.pause()
    assert held.report_held() == []
    held.on_resume([])
    held.receive(push("a", offset=7, number=2), now=10.0)
    assert [message.offset for message in drain(held, now=10.0)] == [7]


def test_a_key_that_closes_while_the_broker_takes_note_of_what_is_held_stays_closed() -> None:
    """R17: it takes the message for held, and gives what comes behind it; the message itself comes
    again when its lease has ended there."""
    held = ledger(lease_s=10.0)
    held.receive(push("a"), now=0.0)
    held.pause()
    assert held.report_held() == [[0, 1, 1, 0, 0]]
    held.expire(now=9.5)
    held.on_resume([])
    held.receive(push("a", offset=7, number=2), now=10.0)
    assert drain(held, now=10.0) == []
    held.revoke([[0, 1, 1, 0, 0], [0, 1, 2, 7, 7]])
    held.receive(push("a", offset=0, number=3, attempt=2), now=11.0)
    held.receive(push("a", offset=7, number=4, attempt=2), now=11.0)
    assert [message.offset for message in drain(held, now=11.0)] == [0]


def test_a_key_that_stayed_closed_opens_when_the_client_comes_back_once_more() -> None:
    """Then the broker hears that its message is not held."""
    held = ledger(lease_s=10.0)
    held.receive(push("a"), now=0.0)
    held.pause()
    held.report_held()
    held.expire(now=9.5)
    held.on_resume([])
    held.pause()
    assert held.report_held() == []
    held.on_resume([])
    held.receive(push("a", offset=7, number=2), now=10.0)
    assert [message.offset for message in drain(held, now=10.0)] == [7]


def test_of_an_ack_that_was_asked_before_a_refusal_says_nothing() -> None:
    """R21: when it was asked first it may have counted, and its epoch be over since: who takes that
    for stale undoes what will not be done again. What was asked once is stale."""
    held = ledger()
    held.receive(push("abc"), now=0.0)
    a, b, c = drain(held)
    held.ack(a, now=0.0, ticket="a")
    held.ack(b, now=0.0, ticket="b")
    sent(held)
    held.pause()
    held.report_held()
    held.on_resume([])
    held.ack(c, now=0.0, ticket="c")
    (ack,) = [frame for frame in sent(held) if isinstance(frame, wire.Ack)]
    assert ack.ref is not None
    refused = [[0, 1, 1, 1, 2]]
    assert held.acks.on_ack_answer(ack.ref, refused) == (["a"], ["c"], ["b"])


def test_of_a_nack_that_was_asked_before_a_refusal_says_nothing() -> None:
    held = ledger()
    held.receive(push("abc"), now=0.0)
    a, b, c = drain(held)
    held.nack(a, now=0.0, ticket="a")
    held.nack(b, now=0.0, ticket="b")
    sent(held)
    held.pause()
    held.report_held()
    held.on_resume([])
    held.nack(c, now=0.0, ticket="c")
    (nack,) = [frame for frame in sent(held) if isinstance(frame, wire.Nack)]
    assert nack.ref is not None
    assert held.on_nack_answer(nack.ref, [[0, 1, 1, 1, 2]]) == (["a"], ["c"], ["b"])


def test_a_key_whose_nack_may_be_lost_stays_closed_until_an_answer() -> None:
    held = ledger()
    held.receive(push("a"), now=0.0)
    (first,) = drain(held)
    held.nack(first, now=0.0)
    sent(held)
    held.pause()
    held.on_resume([])
    held.receive(push("a", offset=1, number=2), now=0.0)  # pushed before the nack was read
    assert drain(held) == []
    (nack,) = [frame for frame in sent(held) if isinstance(frame, wire.Nack)]
    assert nack.ref is not None
    held.on_nack_answer(nack.ref)
    held.receive(push("aa", offset=0, number=3, attempt=2), now=0.0)
    assert [message.offset for message in drain(held)] == [0]


def test_after_the_brokers_restart_credit_counts_what_is_still_held() -> None:
    """R25: the broker begins at nought; what an earlier life of it gave takes room here."""
    held = ledger(credit=10)
    held.receive(push("abcd"), now=0.0)
    first, *_ = drain(held)
    held.ack(first, now=0.0)
    held.pause()
    held.restart_count()
    assert (held.granted, held.received_at_broker) == (7, 0)
    held.on_resume([])
    held.receive(push("efg", offset=10, number=1, epoch=2), now=0.0)
    assert held.received_at_broker == 3
    for message in drain(held):
        held.ack(message, now=0.0)
    assert held.granted == 7 + 3
    held.check()


def test_a_message_that_comes_again_waits_for_the_handler_that_is_still_at_work_on_it() -> None:
    """R17: else one process runs it twice at once."""
    working = Working()
    held = ledger(lease_s=10.0, settler=working)
    held.receive(push("ab"), now=0.0)
    a, _ = drain(held)
    held.expire(now=9.5)
    assert a in working.gone_ones
    held.revoke([[0, 1, 1, 0, 1]])
    held.receive(push("ab", number=2, attempt=2), now=10.0)
    held.receive(push("c", offset=5, number=3), now=10.0)
    assert [message.key for message in drain(held, now=10.0)] == ["c"]
    held.on_handler_end(a)
    assert [(m.key, m.attempt) for m in drain(held, now=10.0)] == [("a", 2)]


def test_leases_of_what_is_held_are_prolonged_in_time_and_what_is_refused_ends() -> None:
    held = ledger(lease_s=10.0, auto_extend=True)
    held.receive(push("abc"), now=0.0)
    a, b, c = drain(held)
    held.ack(a, now=0.0)
    sent(held)
    due = held.next_deadline()
    assert due == 4.5
    held.expire(now=due)
    (extend,) = held.take(itertools.count(50), now=due)
    assert isinstance(extend, wire.Extend)
    assert extend.deliveries == [[0, 1, 1, 1, 2]]
    held.leases.on_answer(50, [[0, 1, 1, 2, 2]])  # c has been held for as long as it may
    held.expire(now=9.5)
    assert (b.state, c.state) == (State.HANDED, State.GONE)
    held.expire(now=13.0)
    assert b.state is State.HANDED
    held.check()


def test_a_prolongation_that_was_lost_is_asked_for_again() -> None:
    held = ledger(lease_s=10.0, auto_extend=True)
    held.receive(push("a"), now=0.0)
    drain(held)
    sent(held)
    held.expire(now=4.5)
    assert len(held.take(itertools.count(1), now=4.5)) == 1
    held.pause()
    held.on_resume([])
    held.expire(now=5.0)
    frames = held.take(itertools.count(2), now=5.0)
    assert [f.deliveries for f in frames if isinstance(f, wire.Extend) and f.ref] == [
        [[0, 1, 1, 0, 0]]
    ]


def test_a_prolongation_that_failed_prolongs_nothing_and_is_asked_for_again() -> None:
    """An error instead of an answer: to go on as if time had been granted would run what another
    consumer has by then."""
    held = ledger(lease_s=10.0, auto_extend=True)
    held.receive(push("a"), now=0.0)
    (a,) = drain(held)
    sent(held)
    held.expire(now=4.5)
    assert held.take(itertools.count(50), now=4.5)
    held.leases.on_failure(50)
    again_at = held.next_deadline()
    assert again_at is not None
    assert 4.5 < again_at < 9.0
    held.expire(now=again_at)
    (extend,) = held.take(itertools.count(51), now=again_at)
    assert isinstance(extend, wire.Extend)
    assert extend.deliveries == [[0, 1, 1, 0, 0]]
    held.leases.on_failure(51)
    held.expire(now=9.0)
    assert a.state is State.GONE
