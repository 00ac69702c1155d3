"""Rights: how they are written, what they allow, and that no claim becomes a pattern (P11)."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.rights import (
    ALL_RIGHTS,
    GRANTS_MAX,
    NO_RIGHTS,
    PATTERN_CHARS_MAX,
    VERBS,
    RightsError,
    fill_in,
    literal,
    parse_right,
    parse_rights,
)
from push.errors import Refused

TEXT = st.text("ab*\\:{}.-\n", max_size=8)


def naive(pattern: str, text: str) -> bool:
    """Whether the text fits, by trying everything."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(naive(pattern[1:], text[cut:]) for cut in range(len(text) + 1))
    if pattern[:2] in ("\\*", "\\\\"):
        return text[:1] == pattern[1] and naive(pattern[2:], text[1:])
    return text[:1] == pattern[0] and naive(pattern[1:], text[1:])


@given(TEXT.filter(bool), TEXT)
def test_a_pattern_fits_what_the_naive_matcher_says(pattern: str, text: str) -> None:
    keys = parse_rights([f"read:q:{pattern}"]).keys("read", "q")
    assert keys is not None
    assert keys.allow(text) is naive(pattern, text)


@given(TEXT.filter(bool), TEXT)
def test_a_claim_is_literal(claim: str, key: str) -> None:
    keys = parse_rights([fill_in("read:feed:{sub}", {"sub": claim})]).keys("read", "feed")
    assert keys is not None
    assert keys.allow(key) is (key == claim)


@given(TEXT)
def test_a_literal_pattern_fits_its_text_alone(text: str) -> None:
    assert naive(literal(text), text)


def test_a_claim_cannot_add_keys_or_queues() -> None:
    with pytest.raises(RightsError, match="cannot stand for a queue"):
        fill_in("read:{sub}", {"sub": "feed:user-7"})
    # Each of them is "orders" when it is cut.
    for edge in ("orders ", " orders", "\torders", "orders\n"):
        with pytest.raises(RightsError, match="cannot stand for a queue"):
            fill_in("read:{sub}", {"sub": edge})
        keys = parse_rights([fill_in("read:feed:{sub}", {"sub": edge})]).keys("read", "feed")
        assert keys is not None
        assert keys.allow(edge)
        assert not keys.allow("orders")
    right = fill_in("read:{sub}", {"sub": "*"})
    assert parse_rights([right]).keys("read", "feed") is None
    for claims in ({}, {"sub": ""}, {"sub": None}, {"sub": True}, {"sub": ["a"]}):
        with pytest.raises(RightsError, match="'sub'"):
            fill_in("read:feed:{sub}", claims)


@pytest.mark.parametrize(
    "text",
    ["", "publish", "publish,:q", "steal:q", ":q", "publish:", "read:q:", "consume:q:k",
     "read,manage:q:k", "publish:" + "q" * (PATTERN_CHARS_MAX + 1)],
)  # fmt: skip
def test_what_is_no_right_says_so(text: str) -> None:
    with pytest.raises(RightsError):
        parse_right(text)


def test_a_right_is_written_as_it_was_read() -> None:
    for text in ("publish:orders", "publish,consume,read,manage:*", "read:feed:user:7"):
        assert str(parse_right(text)) == text
    assert str(parse_right("manage, publish: orders.*")) == "publish,manage:orders.*"
    assert parse_right("publish:" + "q" * PATTERN_CHARS_MAX).queues == "q" * PATTERN_CHARS_MAX
    parse_rights(["read:q"] * GRANTS_MAX)
    with pytest.raises(RightsError, match=str(GRANTS_MAX)):
        parse_rights(["read:q"] * (GRANTS_MAX + 1))


def test_rights_add_up_and_nothing_else_is_allowed() -> None:
    rights = parse_rights(["publish:orders", "read:orders:user-7", "read:orders:user-8", "read:b"])
    assert rights.check("publish", "orders").is_all
    keys = rights.check("read", "orders")
    assert [keys.allow(k) for k in ("user-7", "user-8", "user-9", None)] == [
        True,
        True,
        False,
        False,
    ]
    rights.check_keys("read", "b", None)
    rights.check_keys("read", "orders", ["user-7", "user-8"])
    for verb, queue in (("consume", "orders"), ("publish", "orders2"), ("read", "B")):
        with pytest.raises(Refused, match="forbidden"):
            rights.check(verb, queue)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="some keys only: name these keys"):
        rights.check_keys("read", "orders", None)
    with pytest.raises(Refused, match="'user-9' is none of them"):
        rights.check_keys("read", "orders", ["user-7", "user-9"])
    with pytest.raises(Refused, match="right to read"):
        rights.check_keys("read", "feed", ["user-7"])
    rights.check_one_of(("consume", "publish"), "orders")
    with pytest.raises(Refused, match="the right to consume or manage, on the queue 'orders'"):
        rights.check_one_of(("consume", "manage"), "orders")
    assert rights.sees("b")
    assert not rights.sees("c")
    assert all(ALL_RIGHTS.check(verb, "anything").is_all for verb in VERBS)
    assert not any(NO_RIGHTS.keys(verb, "anything") for verb in VERBS)


def test_a_right_is_text() -> None:
    """JSON lets half a surrogate pair through; no cookie and no line of the trail can hold it."""
    for text in ("read:\ud800", "read:feed:\ud800"):
        with pytest.raises(RightsError, match="not valid UTF-8"):
            parse_rights([text])
    with pytest.raises(RightsError, match="not valid UTF-8"):
        fill_in("read:feed:{sub}", {"sub": "\udfff"})


def test_only_a_pattern_of_stars_is_everywhere() -> None:
    assert parse_rights(["consume:q", "read,manage:*"]).is_everywhere("manage")
    assert parse_rights(["manage:**"]).is_everywhere("manage")
    for text in ("manage:o*", "publish:*", fill_in("manage:{sub}", {"sub": "*"})):
        assert not parse_rights([text]).is_everywhere("manage")


def test_a_pattern_of_many_stars_is_quick() -> None:
    keys = parse_rights(["read:q:" + "*a" * 500]).keys("read", "q")
    assert keys is not None
    begun = time.process_time()
    assert not keys.allow("a" * 499 + "b")
    assert time.process_time() - begun < 5  # by backtracking it would end after the universe has


def test_what_is_remembered_is_bounded() -> None:
    rights = parse_rights(["read:*"])
    for number in range(10_050):
        rights.keys("read", str(number))
    assert len(rights._memo) <= 10_000
