"""Credit: two absolute counters that cannot drift apart (R25)."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from push.errors import Refused
from push.limits import CREDIT_MAX
from push.subscription import CreditWindow


def test_credit_is_what_was_granted_less_what_was_sent() -> None:
    credit = CreditWindow(100)
    credit.spend(30)
    assert (credit.granted, credit.sent, credit.available) == (100, 30, 70)
    credit.grant(110)
    assert credit.available == 80


def test_a_repeated_or_late_grant_changes_nothing() -> None:
    credit = CreditWindow(100)
    for total in (100, 50, 0, -1):
        credit.grant(total)
    assert credit.available == 100


def test_a_grant_is_bounded_by_what_would_be_open() -> None:
    credit = CreditWindow(CREDIT_MAX)
    with pytest.raises(Refused, match="limit_reached"):
        credit.grant(CREDIT_MAX + 1)
    assert credit.available == CREDIT_MAX
    credit.spend(1)
    credit.grant(CREDIT_MAX + 1)
    with pytest.raises(Refused, match="limit_reached"):
        credit.grant(CREDIT_MAX + 2)


def test_the_first_grant_has_the_same_bound() -> None:
    with pytest.raises(Refused, match="limit_reached"):
        CreditWindow(CREDIT_MAX + 1)


def test_both_counters_go_on_in_a_resumed_session() -> None:
    credit = CreditWindow(1_000_100, 1_000_040)
    assert credit.available == 60


def test_a_resume_that_claims_more_sent_than_granted_is_refused() -> None:
    for granted, sent in ((5, 6), (-1, -1)):
        with pytest.raises(Refused, match="invalid_request"):
            CreditWindow(granted, sent)


@pytest.mark.parametrize("count", [-1, 11])
def test_nothing_is_sent_beyond_the_credit(count: int) -> None:
    credit = CreditWindow(10)
    with pytest.raises(ValueError, match="spends"):
        credit.spend(count)
    assert credit.available == 10


class CreditMachine(RuleBasedStateMachine):
    """Against a list of single messages: whatever is lost, repeated or reordered on the way, the
    subscription never stalls and never overruns. [Deliveries expire: one side counts them, the
    other does not.]"""

    def __init__(self) -> None:
        super().__init__()
        self.credit = CreditWindow()
        self.totals = [0]
        self.done = 0  # what the client has got and settled, discarded or seen revoked

    @rule(window=st.integers(0, CREDIT_MAX))
    def client_grants(self, window: int) -> None:
        self.totals.append(self.done + window)
        self.credit.grant(self.totals[-1])

    @rule(data=st.data())
    def an_old_grant_arrives_late(self, data: st.DataObject) -> None:
        self.credit.grant(data.draw(st.sampled_from(self.totals)))

    @rule(data=st.data())
    def broker_sends(self, data: st.DataObject) -> None:
        self.credit.spend(data.draw(st.integers(0, self.credit.available)))

    @rule(data=st.data())
    def client_is_done_with_some(self, data: st.DataObject) -> None:
        self.done = data.draw(st.integers(self.done, self.credit.sent))

    @invariant()
    def counters_agree(self) -> None:
        self.credit.check()
        assert self.credit.granted == max(self.totals)
        assert self.credit.available == max(self.totals) - self.credit.sent


CreditMachine.TestCase.settings = settings(max_examples=1000, stateful_step_count=20)
test_credit_machine = CreditMachine.TestCase
