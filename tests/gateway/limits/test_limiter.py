"""Debtors of principals, addresses and queues: who is charged, for how long it is remembered."""

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.accounts import published_bytes
from gateway.limits.limiter import Limiter
from gateway.limits.spec import ADDRESS_DEFAULT, NONE, OF_ADDRESS, Limits, parse_limits, per_second
from metadata.catalog import Principal, Queue, QueueSettings
from push.errors import Refused
from push.message import Message
from push.rates.bucket import Rate
from runtime.addresses import name_of

WHO = Principal("who")
OTHER = Principal("other")


def queue(settings: QueueSettings | None = None, queue_id: str = "q") -> Queue:
    return Queue(
        queue_id=queue_id, name="orders", tenant="default", holder="who", created_unix_ms=0,
        settings=settings or QueueSettings(), ring_epoch=1, members=(0,), hash_key=bytes(16),
    )  # fmt: skip


def messages(count: int, body: bytes = b"1") -> list[Message]:
    return [Message(body=msgspec.Raw(body)) for _ in range(count)]


# --- What is written ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("", NONE),
        ("  ", NONE),
        ("messages=5000/s", Limits(messages=Rate(5000, 1, 5000))),
        ("messages=5/s", Limits(messages=Rate(5, 1, 5))),
        ("messages=5/min", Limits(messages=Rate(5, 60, 1))),
        ("messages=5/s+1", Limits(messages=Rate(5, 1, 1))),
        ("messages=5/min+2k", Limits(messages=Rate(5, 60, 2000))),
        ("bytes=10M/s", Limits(bytes=Rate(10_000_000, 1, 10_000_000))),
        ("bytes=1/h", Limits(bytes=Rate(1, 3600, 2_097_152))),
        ("requests=90/min", Limits(requests=Rate(90, 60, 2))),
        ("connections=1/s+1", Limits(connections=Rate(1, 1, 1))),
        (
            " sessions = 5 , in_flight=1000, connections=1G/h+7 ",
            Limits(sessions=5, in_flight=1000, connections=Rate(10**9, 3600, 7)),
        ),
    ],
)
def test_limits_are_read(text: str, limits: Limits) -> None:
    assert parse_limits(text) == limits


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("messages", "messages"),
        ("messages=", "for example 1000/s"),
        ("messages=10", "for example 1000/s"),
        ("messages=0/s", "for example 1000/s"),
        ("messages=-1/s", "for example 1000/s"),
        ("messages=1.5/s", "for example 1000/s"),
        ("messages=1/day", "for example 1000/s"),
        ("messages=1K/s", "for example 1000/s"),
        ("messages=1/s+0", "it must be at least 1,"),
        ("bytes=1/s+2097151", "it must be at least 2097152, because one message"),
        ("connections=1/s+0", "it must be at least 1,"),
        ("messages=1/s,messages=2/s", "twice"),
        ("messages=1/s,", "one of"),
        ("speed=1/s", "one of connections, requests"),
        ("failures=1/s", "one of"),
        ("sessions=0", "at least 1"),
        ("sessions=1/s", "at least 1"),
        ("in_flight=999", "at least 1000"),
        ("messages=9999999G/s", "for example 1000/s"),
    ],
)
def test_what_is_no_limit_is_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_limits(text)


def test_a_burst_follows_the_rate_unless_it_is_given() -> None:
    """One message passes whatever the rate is, and one that is as large as may be."""
    assert parse_limits("messages=1/s+1000,bytes=1/s+2097152") != NONE
    assert per_second("messages", 0.001) == Rate(1, 1000, 1)
    assert per_second("messages", 10) == Rate(10_000, 1000, 10)
    assert per_second("messages", 2500.5) == Rate(2_500_500, 1000, 2501)
    assert per_second("bytes", 1e12) == Rate(10**15, 1000, 10**12)
    assert per_second("bytes", None) is None


def test_what_is_shipped_can_be_read() -> None:
    assert parse_limits(ADDRESS_DEFAULT, OF_ADDRESS).connections == Rate(100, 1, 2000)


# --- Under which name -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.0.0.1", None),
        ("127.8.8.8", None),
        ("::1", None),
        ("::ffff:127.0.0.1", None),
        ("", None),
        ("a socket", None),
    ],
)
def test_an_address_is_counted_as_a_site_and_this_machine_is_not(
    host: str, name: str | None
) -> None:
    assert name_of(host) == name


# --- Who is charged -------------------------------------------------------------------------------


def test_each_principal_has_its_own_and_its_sessions_share_it() -> None:
    limiter = Limiter(parse_limits("messages=1000/s"))
    one = limiter.allowance(WHO, None)
    again = limiter.allowance(WHO, None)
    one.publish(queue(), messages(600), now=0.0)
    with pytest.raises(Refused) as refused:
        again.publish(queue(), messages(600), now=0.0)
    assert refused.value.code.name == "rate_limited"
    assert refused.value.retry_after_s == pytest.approx(0.2, abs=1e-8)
    assert "this principal may have messages=1000/s+1000" in refused.value.detail
    limiter.allowance(OTHER, None).publish(queue(), messages(600), now=0.0)
    limiter.allowance(Principal("who", "tenant"), None).publish(queue(), messages(600), now=0.0)
    again.publish(queue(), messages(600), now=refused.value.retry_after_s or 0.0)
    assert limiter.refused == {"principal.messages": 1}


@pytest.mark.parametrize("text", ["ascii", "ä", "日本語", "🙂", "\ud800"])
def test_a_text_counts_with_its_bytes_and_not_with_its_characters(text: str) -> None:
    """[Keys of a language that needs three bytes a character went in at a third of their size.] A
    text that no message may have is charged, too, because it is charged before it is refused."""
    size = len(text.encode(errors="surrogatepass"))
    body = msgspec.Raw(b"1")
    assert published_bytes([Message(key=text, body=body)]) == 1 + size
    assert published_bytes([Message(body=body, headers={text: "", "a": text})]) == 2 + 2 * size


def test_bytes_of_bodies_keys_and_headers_count() -> None:
    assert published_bytes(messages(3, b"[1,2]")) == 15
    one = Message(key="key", body=msgspec.Raw(b"1"), headers={"ab": "cde"})
    assert published_bytes([one, Message(body_base64="AAEC")]) == 3 + 1 + 5 + 4
    limiter = Limiter(parse_limits("bytes=1M/s"))  # 2097152 at once
    allowance = limiter.allowance(WHO, None)
    allowance.publish(queue(), messages(2, b"1" * 1_000_000), now=0.0)
    with pytest.raises(Refused) as refused:
        allowance.publish(queue(), messages(1, b"1" * 1_000_000), now=0.0)
    assert refused.value.retry_after_s == pytest.approx(0.902848)


def test_a_publish_is_charged_to_all_or_to_none() -> None:
    limiter = Limiter(parse_limits("messages=1000/s"), parse_limits("messages=2000/s"))
    first = limiter.allowance(WHO, "192.0.2.7")
    first.publish(queue(), messages(1000), now=0.0)
    for _ in range(5):
        with pytest.raises(Refused):
            first.publish(queue(), messages(1000), now=0.0)
    other = limiter.allowance(OTHER, "192.0.2.7")
    other.publish(queue(), messages(1000), now=0.0)  # the address was charged once
    with pytest.raises(Refused, match="this address"):
        limiter.allowance(Principal("third"), "192.0.2.7").publish(queue(), messages(1000), now=0.0)


def test_a_queue_has_its_settings_or_the_default() -> None:
    limiter = Limiter(queue=parse_limits("messages=1000/s"))
    allowance = limiter.allowance(WHO, None)
    plain, free = queue(), queue(QueueSettings(publish_messages_per_s=5000), "free")
    allowance.publish(plain, messages(1000), now=0.0)
    with pytest.raises(Refused, match="the queue 'orders' takes messages=1000/s"):
        allowance.publish(plain, messages(1), now=0.0)
    for _ in range(5):
        allowance.publish(free, messages(1000), now=0.0)
    with pytest.raises(Refused):
        allowance.publish(free, messages(1), now=0.0)


def test_a_queue_whose_settings_change_keeps_what_it_has_used() -> None:
    limiter = Limiter()
    allowance = limiter.allowance(WHO, None)
    allowance.publish(queue(QueueSettings(publish_messages_per_s=1000)), messages(900), now=0.0)
    slower = queue(QueueSettings(publish_messages_per_s=100))
    with pytest.raises(Refused) as refused:
        allowance.publish(slower, messages(10), now=0.0)
    assert refused.value.retry_after_s == pytest.approx(0.1)
    assert allowance.messages_max(slower, now=0.0) == 100
    allowance.publish(queue(), messages(1000), now=0.0)  # no limit any more
    assert allowance.messages_max(queue(), now=0.0) is None
    limiter.forget_queue("q")
    allowance.publish(slower, messages(100), now=0.0)  # made anew under its id: never in fact


def test_a_credential_may_have_less_than_its_principal() -> None:
    limiter = Limiter(parse_limits("messages=5000/s"))
    own = parse_limits("messages=1000/s")
    narrow = limiter.allowance(WHO, None, own=own, credential="api-7")
    wide = limiter.allowance(WHO, None)
    narrow.publish(queue(), messages(1000), now=0.0)
    with pytest.raises(Refused, match="this credential"):
        narrow.publish(queue(), messages(1), now=0.0)
    for _ in range(4):
        wide.publish(queue(), messages(1000), now=0.0)
    with pytest.raises(Refused, match="this principal"):
        wide.publish(queue(), messages(1), now=0.0)


def test_a_session_under_way_has_the_limits_that_its_credential_has_by_now() -> None:
    limiter, orders = Limiter(), queue()
    ours = limiter.allowance(WHO, None, own=parse_limits("messages=1G/h"), credential="token-1")
    ours.open(now=0.0)
    ours.publish(orders, messages(1), now=0.0)
    less = parse_limits("messages=1G/h,in_flight=1000")
    limiter.allowance(WHO, None, own=less, credential="token-1").open(now=1.0)
    answered = ours.publish(orders, messages(900), now=1.0)
    with pytest.raises(Refused) as refused:
        ours.publish(orders, messages(101), now=1e6)
    assert refused.value.code.name == "too_many_in_flight"
    answered()
    ours.publish(orders, messages(101), now=1e6)


def test_sessions_are_bounded_and_their_end_makes_room() -> None:
    limiter = Limiter(parse_limits("sessions=2"))
    held = [limiter.allowance(WHO, None) for _ in range(3)]
    held[0].open(now=0.0)
    held[1].open(now=0.0)
    with pytest.raises(
        Refused, match="too_many: this principal may have at most 2 open sessions"
    ) as refused:
        held[2].open(now=0.0)
    assert refused.value.retry_after_s == 1.0
    limiter.allowance(OTHER, None).open(now=0.0)
    held[0].close()
    held[0].close()  # again: nothing
    held[2].open(now=0.0)
    with pytest.raises(Refused):
        held[0].open(now=0.0)
    held[0].open(now=0.0, goes_on=True)  # one that comes back is not asked
    assert limiter.refused == {"principal.sessions": 2}


def test_what_awaits_its_answer_is_bounded() -> None:
    limiter = Limiter(parse_limits("in_flight=1500"))
    allowance = limiter.allowance(WHO, None)
    answered = allowance.publish(queue(), messages(1000), now=0.0)
    with pytest.raises(Refused, match="too_many_in_flight"):
        allowance.publish(queue(), messages(501), now=0.0)
    allowance.publish(queue(), messages(500), now=0.0)
    answered()
    allowance.publish(queue(), messages(1000), now=0.0)
    limiter.accounts.check()


def test_connections_count_where_they_come_from_and_then_to_whom_they_belong() -> None:
    limiter = Limiter(parse_limits("connections=1/s+1"), parse_limits("connections=1/s+2"))
    limiter.connect("192.0.2.7", now=0.0)
    limiter.connect("192.0.2.7", now=0.0)
    with pytest.raises(Refused, match="this address"):
        limiter.connect("192.0.2.7", now=0.0)
    limiter.connect(None, now=0.0)  # this machine
    limiter.connect("192.0.2.8", now=0.0)
    limiter.allowance(WHO, "192.0.2.7").open(now=0.0)
    with pytest.raises(Refused, match="this principal"):
        limiter.allowance(WHO, "192.0.2.8").open(now=0.0)


def test_wrong_credentials_close_the_door_for_a_while_and_to_their_address_only() -> None:
    limiter = Limiter(address=parse_limits("failures=1/s+3", OF_ADDRESS))

    def guess(address: str | None, code: str | None, now: float) -> str:
        try:
            with limiter.checking_credential(address, now=now):
                if code is not None:
                    raise Refused(code)
        except Refused as error:
            return error.code.name
        return "in"

    assert guess("192.0.2.7", "origin_refused", 0.0) == "origin_refused"  # was no guess
    for _ in range(3):
        assert guess("192.0.2.7", None, 0.0) == "in"
        assert guess("192.0.2.7", "unauthorized", 0.0) == "unauthorized"
    assert guess("192.0.2.7", "unauthorized", 0.0) == "rate_limited"
    assert guess("192.0.2.7", None, 0.0) == "rate_limited"  # it is not looked at
    assert guess("192.0.2.8", None, 0.0) == "in"
    assert [guess(None, "unauthorized", 0.0) for _ in range(9)] == ["unauthorized"] * 9
    with pytest.raises(Refused) as refused, limiter.checking_credential("192.0.2.7", now=0.25):
        raise AssertionError("it is not looked at")
    assert refused.value.retry_after_s == 0.75
    assert guess("192.0.2.7", None, 1.0) == "in"


def test_without_limits_nothing_is_kept() -> None:
    limiter = Limiter()
    for number in range(100):
        allowance = limiter.allowance(Principal(f"p{number}"), f"192.0.2.{number}")
        allowance.take("requests", now=0.0)
        allowance.open(now=0.0)
        allowance.publish(queue(), messages(1), now=0.0)
    assert len(limiter.accounts) == 0


# --- For how long it is remembered (P9) -----------------------------------------------------------


def test_what_is_empty_again_is_forgotten() -> None:
    limiter = Limiter(address=parse_limits("connections=1/s+5"))
    for number in range(1000):
        limiter.connect(f"192.0.{number % 250}.{number // 250}", now=float(number * 2))
        limiter.accounts.check()
    assert len(limiter.accounts) <= 5


def test_invented_names_do_not_make_a_debt_forgotten() -> None:
    limiter = Limiter(address=parse_limits("connections=1/s+100"), accounts_max=50)
    for _ in range(100):
        limiter.connect("192.0.2.7", now=0.0)
    for number in range(5000):
        limiter.connect(f"198.51.{number % 250}.{number // 250}", now=0.0)
        limiter.accounts.check()
    assert len(limiter.accounts) == 50
    with pytest.raises(Refused):
        limiter.connect("192.0.2.7", now=0.0)


def test_whom_a_session_is_charged_to_is_not_forgotten() -> None:
    """[Forgotten and made anew for the next session, the same principal would have it twice.]"""
    limiter = Limiter(parse_limits("messages=1000/s"), accounts_max=4)
    held = limiter.allowance(WHO, None)
    held.open(now=0.0)
    for number in range(50):
        limiter.allowance(Principal(f"p{number}"), None)
        limiter.accounts.check()
    held.publish(queue(), messages(1000), now=2000.0)
    with pytest.raises(Refused):
        limiter.allowance(WHO, None).publish(queue(), messages(1), now=2000.0)
    held.close()
    limiter.accounts.check()


def test_a_request_that_trickles_in_has_no_burst_of_its_own() -> None:
    """[Each would be charged to a debtor that was forgotten while it waited.]"""
    limiter = Limiter(parse_limits("messages=1000/s"))
    waiting = [limiter.allowance(WHO, None) for _ in range(2)]
    for one in waiting:
        one.take("requests", now=0.0)
        for number in range(5):
            limiter.allowance(Principal(f"p{number}"), None).take("requests", now=1.0)
    waiting[0].publish(queue(), messages(1000), now=2.0)
    with pytest.raises(Refused):
        waiting[1].publish(queue(), messages(1), now=2.0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["connect", "open", "close", "publish", "answer"]),
            st.integers(0, 8),
            st.floats(0, 2),
        ),
        max_size=80,
    )
)
def test_memory_is_bounded_whatever_comes(acts: list[tuple[str, int, float]]) -> None:
    """P9."""
    limits = parse_limits("connections=2/s+3,messages=1000/s,sessions=2")
    limiter = Limiter(limits, limits, accounts_max=3)
    now, sessions, owed, waits = 0.0, [], [], []
    for verb, number, pause_s in acts:
        now += pause_s
        try:
            if verb == "connect":
                limiter.connect(f"192.0.2.{number}", now=now)
            elif verb == "open":
                one = limiter.allowance(Principal(f"p{number}"), f"192.0.2.{number}")
                one.open(now=now)
                sessions.append(one)
            elif verb == "close" and sessions:
                sessions.pop(number % len(sessions)).close()
            elif verb == "publish" and sessions:
                session = sessions[number % len(sessions)]
                owed.append(session.publish(queue(), messages(300), now=now))
            elif verb == "answer" and owed:
                owed.pop(number % len(owed))()
        except Refused as error:
            waits.append(error.retry_after_s or 0.0)
        limiter.accounts.check()
        assert len(limiter.accounts) <= 3 + 2 * len(sessions) + 2 * len(owed)
    assert all(wait_s > 0 for wait_s in waits)


def test_what_a_publish_costs() -> None:
    """Printed, not judged (pytest -s): per frame, whatever it holds, unless bytes are limited."""
    settings = QueueSettings(publish_messages_per_s=1e9)
    all_five = parse_limits("connections=1/s,requests=1/s,messages=1G/s")
    one, hundred, count = messages(1), messages(100), 2000
    for title, limiter, orders, batch in (
        ("no limits", Limiter(), queue(), hundred),
        ("principal", Limiter(all_five), queue(), hundred),
        ("principal, address, queue", Limiter(all_five, all_five), queue(settings), hundred),
        ("bytes, 1 message", Limiter(parse_limits("bytes=1G/s")), queue(), one),
        ("bytes, 100 messages", Limiter(parse_limits("bytes=1G/s")), queue(), hundred),
    ):
        allowance = limiter.allowance(WHO, "192.0.2.7")
        allowance.open(now=0.0)
        began = time.perf_counter()
        for number in range(count):
            allowance.publish(orders, batch, now=1.0 + number / 1000)()
        took_ns = (time.perf_counter() - began) / count * 1e9
        print(f"{title}: {took_ns:.0f} ns a frame")  # noqa: T201
        assert not limiter.refused
