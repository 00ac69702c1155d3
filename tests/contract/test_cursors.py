"""The contract of `push.storage_port.Storage`: groups, cursors, side lines, trimming. Over every
storage."""

import asyncio
from dataclasses import replace

import pytest

from push import limits
from push.errors import Fenced, Refused
from push.places import CursorPlace, Parked, ParkedLine, Partition
from push.ranges import Dead
from push.storage_port import Cursor, Retry, Side, Storage
from tests.contract.stores import (
    G0,
    P0,
    TOKEN,
    Clock,
    append,
    change,
    with_group,
)

KEY = 0xFFFF_FFFF_FFFF_FFF1  # more than SQLite's integers hold


async def cursor(store: Storage) -> Cursor:
    """Return the cursor from which the next owner would start."""
    return (await store.own(G0, token=b"looks", assignment=1)).cursor


# --- Groups -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "floor"), [("earliest", 0), ("latest", 4), (3, 3), (99, 4), (0, 0)]
)
async def test_a_group_starts_where_it_says(store: Storage, start: object, floor: int) -> None:
    """R11."""
    await store.create_queue("q-1", 1)
    await store.append([append(messages=4)])
    await store.create_group("g-1", "q-1", [start])  # type: ignore[list-item]
    (state,) = await store.cursors("q-1", "g-1")
    assert (state.epoch, state.floor, state.settled_above, state.aside, state.parked) == (
        0, floor, 0, 0, 0,
    )  # fmt: skip


async def test_making_a_group_again_leaves_it_as_it_is(store: Storage) -> None:
    await with_group(store, messages=4)
    await store.write_cursors([change(settled=[(0, 1)])])
    await store.create_group("g-1", "q-1", ["latest", "latest"])
    assert [state.floor for state in await store.cursors("q-1", "g-1")] == [2, 0]


async def test_a_group_of_an_unknown_queue_or_with_missing_starts_is_refused(
    store: Storage,
) -> None:
    with pytest.raises(Refused, match="queue_not_found"):
        await store.create_group("g-1", "q-9", ["earliest"])
    await store.create_queue("q-1", 2)
    with pytest.raises(Refused, match="invalid_request"):
        await store.create_group("g-1", "q-1", ["earliest"])


@pytest.mark.layouts
async def test_a_dropped_group_is_not_made_by_who_comes_late(store: Storage) -> None:
    """R12: no gateway would know of its cursors, and messages that they have not settled would stay
    for good. The storage may never have had the group, or not even its queue yet."""
    await with_group(store, messages=4)
    await store.create_group("g-2", "q-1", ["earliest", "earliest"])
    await store.write_cursors([change(settled=[(0, 3)])])
    for group_id in ("g-2", "g-3"):
        await store.drop_group(group_id, "q-1")
        with pytest.raises(Refused, match="group_not_found"):
            await store.create_group(group_id, "q-1", ["earliest", "earliest"])
        assert await store.cursors("q-1", group_id) == []
    assert await store.trim(P0, retention_s=0, keep_all=False) > 0
    await store.drop_group("g-4", "q-2")
    await store.create_queue("q-2", 1)
    with pytest.raises(Refused, match="group_not_found"):
        await store.create_group("g-4", "q-2", ["earliest"])


async def test_a_dropped_group_is_gone_for_its_owner_too(store: Storage) -> None:
    await with_group(store, messages=4)
    await store.write_cursors([change(aside=[Side(KEY, (1,))])])
    await store.drop_group("g-1", "q-1")
    await store.drop_group("g-1", "q-1")
    assert await store.cursors("q-1", "g-1") == []
    assert await store.read_side(G0, KEY, -1, 10) == ()
    (written,) = await store.write_cursors([change(settled=[(0, 0)])])
    assert written.fenced
    with pytest.raises(Refused, match="group_not_found"):
        await store.own(G0, token=TOKEN, assignment=2)


@pytest.mark.layouts
async def test_seeking_fences_and_forgets_what_was_settled(store: Storage) -> None:
    await with_group(store, messages=6)
    parked = replace(change(), parked=(Parked(KEY, "because", 1),))
    await store.write_cursors(
        [change(settled=[(0, 1), (4, 4)], retries=[Retry(2, 1)], aside=[Side(KEY, (5,))]), parked]
    )
    await store.seek("g-1", "q-1", [1, "latest"])
    (written,) = await store.write_cursors([change(settled=[(1, 5)])])
    assert written.fenced
    assert (await store.cursors("q-1", "g-1"))[0].epoch == 2
    owned = await store.own(G0, token=b"new", assignment=1)
    assert (owned.epoch, owned.cursor) == (3, Cursor(floor=1))
    assert await store.read_side(G0, KEY, -1, 10) == ()
    with pytest.raises(Refused, match="group_not_found"):
        await store.seek("g-9", "q-1", [0, 0])


# --- Owning (R14, R15) --------------------------------------------------------------------------


@pytest.mark.layouts
async def test_every_owner_gets_a_higher_epoch(store: Storage) -> None:
    """P7, R15."""
    await with_group(store)
    assert (await store.own(G0, token=b"b", assignment=1)).epoch == 2
    assert (await store.own(G0, token=b"c", assignment=1, epoch_seen=40)).epoch == 41


async def test_an_owner_by_an_older_assignment_is_fenced(store: Storage) -> None:
    """R14. [Two gateways with two views leapfrog epochs for ever.]"""
    await with_group(store)
    await store.own(G0, token=b"b", assignment=7)
    with pytest.raises(Fenced):
        await store.own(G0, token=b"c", assignment=6)
    assert (await store.own(G0, token=b"d", assignment=7)).epoch == 3


SESSION = b"a session's name"


async def test_who_owned_a_place_last_is_told_under_which_epoch(store: Storage) -> None:
    """R22: by the part of the token that names the owner; the rest is random each time."""
    await with_group(store)
    assert (await store.own(G0, token=SESSION + b"1", assignment=1)).previous is None
    again = await store.own(G0, token=SESSION + b"2", assignment=1)
    assert (again.epoch, again.previous) == (3, 2)
    assert (await store.own(G0, token=SESSION + b"2", assignment=1, epoch_seen=9)).previous == 3


async def test_owning_that_is_asked_again_with_its_token_is_the_same_start(store: Storage) -> None:
    """R15, R22: the answer was lost, so nothing was given under it. The owner still holds its
    deliveries of the epoch before."""
    await with_group(store, messages=4)
    await store.own(G0, token=SESSION + b"1", assignment=1)
    owned = await store.own(G0, token=SESSION + b"2", assignment=1)
    again = await store.own(G0, token=SESSION + b"2", assignment=7, epoch_seen=owned.epoch)
    assert again == owned
    assert (again.epoch, again.previous) == (3, 2)
    with pytest.raises(Fenced):
        await store.own(G0, token=b"another session " + b"1", assignment=6)
    write = replace(change(epoch=3, settled=[(0, 0)]), token=SESSION + b"2")
    assert [one.fenced for one in await store.write_cursors([write])] == [False]
    assert (await store.own(G0, token=SESSION + b"3", assignment=7)).previous == 3


async def test_who_was_followed_by_somebody_else_was_not_the_last(store: Storage) -> None:
    """R22, P7: its deliveries may have been given to the other owner."""
    await with_group(store)
    await store.own(G0, token=SESSION + b"1", assignment=1)
    await store.own(G0, token=b"another session " + b"1", assignment=1)
    assert (await store.own(G0, token=SESSION + b"2", assignment=1)).previous is None


async def test_a_seek_ends_what_its_owner_held(store: Storage) -> None:
    """R22: after a seek, no owner was the last."""
    await with_group(store, messages=4)
    await store.own(G0, token=SESSION + b"1", assignment=1)
    await store.seek("g-1", "q-1", [0, 0])
    assert (await store.own(G0, token=SESSION + b"2", assignment=1)).previous is None


async def test_the_same_owner_of_before_settles_nothing_under_the_newer_epoch(
    store: Storage,
) -> None:
    """R15: its token has a random part."""
    await with_group(store, messages=4)
    await store.own(G0, token=SESSION + b"1", assignment=1)
    owned = await store.own(G0, token=SESSION + b"2", assignment=1)
    late = replace(change(epoch=owned.epoch, settled=[(0, 0)]), token=SESSION + b"1")
    (written,) = await store.write_cursors([late])
    assert written.fenced


async def test_the_predecessor_of_an_owner_settles_nothing(store: Storage) -> None:
    """P7, R15: neither by its epoch, nor by its token under the same epoch."""
    await with_group(store, messages=4)
    await store.own(G0, token=b"new", assignment=1)
    stale = [
        change(epoch=1, settled=[(0, 0)]),
        change(epoch=2, settled=[(0, 0)]),
        change(epoch=3, token=b"new", settled=[(0, 0)]),
        change(epoch=2, token=b"new", settled=[(1, 1)]),
    ]
    answers = await store.write_cursors(stale)
    assert [answer.fenced for answer in answers] == [True, True, True, False]
    assert (await cursor(store)).passed == ((1, 1),)


async def test_nobody_owns_a_cursor_that_was_never_owned(store: Storage) -> None:
    await store.create_queue("q-1", 1)
    await store.create_group("g-1", "q-1", ["earliest"])
    await store.append([append(messages=1)])
    (written,) = await store.write_cursors([change(epoch=0, token=b"", settled=[(0, 0)])])
    assert written.fenced


# --- Settling (R10, R29) ------------------------------------------------------------------------


@pytest.mark.layouts
async def test_settles_are_absolute_and_may_come_again(store: Storage) -> None:
    """R29. [Unconfirmed deltas vanish: the floor sticks.]"""
    await with_group(store, messages=10)
    for _ in range(2):
        await store.write_cursors([change(settled=[(0, 2), (5, 6), (8, 8)])])
        assert await cursor_state(store) == (3, 3)
    await store.write_cursors([change(settled=[(1, 5)])])
    assert await cursor_state(store) == (7, 1)
    await store.write_cursors([change(settled=[(7, 7), (9, 9)])])
    assert await cursor_state(store) == (10, 0)


async def cursor_state(store: Storage) -> tuple[int, int]:
    state = (await store.cursors("q-1", "g-1"))[0]
    return state.floor, state.settled_above


@pytest.mark.parametrize(
    "beyond",
    [
        change(settled=[(0, 4)]),
        change(retries=[Retry(4, 1)]),
        change(aside=[Side(KEY, (0, 4))]),
        change(ended=[(0, 4)]),
        change(ended=[(3, 2)]),
        change(settled=[(3, 2)]),
        change(settled=[(-1, 2)]),
        change(retries=[Retry(1, 1, 1 << 63)]),
        change(retries=[Retry(-1, 1)]),
        change(aside=[Side(KEY, (1, -1))]),
        change(aside=[Side(KEY, (-1,)), Side(5, (1,))]),
        change(parked=[Parked(KEY, "exhausted", 1 << 63)]),
        change(parked=[Parked(KEY, "exhausted", -1)]),
    ],
)
async def test_what_is_not_certified_or_no_offset_cannot_be_settled(
    store: Storage, beyond: object
) -> None:
    """R10: the whole call is refused."""
    await with_group(store, messages=4)
    with pytest.raises(Refused, match="invalid_request"):
        await store.write_cursors([change(settled=[(0, 0)]), beyond])  # type: ignore[list-item]
    assert await cursor_state(store) == (0, 0)


async def test_writes_in_flight_take_effect_in_order(store: Storage) -> None:
    await with_group(store, messages=100)
    calls = [store.write_cursors([change(settled=[(n, n)])]) for n in range(0, 100, 2)]
    await asyncio.gather(*calls)
    assert await cursor_state(store) == (1, 49)


# --- Retries (R16) ------------------------------------------------------------------------------


async def test_a_retry_is_kept_until_its_message_is_settled(store: Storage) -> None:
    await with_group(store, messages=4)
    await store.write_cursors([change(retries=[Retry(2, 1, 50), Retry(0, 3)])])
    await store.write_cursors([change(retries=[Retry(2, 2, 90)])])
    assert (await cursor(store)).retries == (Retry(0, 3), Retry(2, 2, 90))
    await store.write_cursors([change(epoch=2, token=b"looks", settled=[(0, 1)])])
    assert (await cursor(store)).retries == (Retry(2, 2, 90),)


async def test_a_retry_of_a_settled_message_is_refused(store: Storage) -> None:
    """R16: it must not be given again (P5). Settling in the same write counts."""
    await with_group(store, messages=6)
    await store.write_cursors([change(settled=[(0, 1), (4, 4)])])
    (written,) = await store.write_cursors(
        [change(settled=[(2, 2)], retries=[Retry(n, 1) for n in (1, 2, 3, 4, 5)])]
    )
    assert (written.refused, written.fenced) == ((1, 2, 4), False)
    assert [retry.offset for retry in (await cursor(store)).retries] == [3, 5]


async def test_the_reason_of_a_nack_stays_with_what_was_tried(store: Storage) -> None:
    """The reason of the last nack that gave one is kept; a write without a reason leaves it. It is
    shown with the message's state, and with the key if that is parked."""
    await with_group(store, messages=4)
    reasons = [b"card declined", b"a:b:\x00\xff", b"third"]
    whys = [Retry(n, 1, 50, reason) for n, reason in enumerate(reasons)]
    await store.write_cursors([change(retries=[*whys, Retry(3, 1)])])
    today = Retry(2, 2, 90, b"of today", rejected=True)
    await store.write_cursors([change(retries=[Retry(0, 2, 90), today])])
    assert (await cursor(store)).retries == (
        Retry(0, 2, 90, b"card declined"), Retry(1, 1, 50, reasons[1]), today, Retry(3, 1),
    )  # fmt: skip
    found = await store.standings(G0, 0, 3)
    assert [one.nack for one in found] == [b"card declined", reasons[1], b"of today", None]
    mark = replace(change(epoch=2, token=b"looks", aside=[Side(KEY, (1,)), Side(5, (3,))]),
                   parked=(Parked(KEY, "exhausted", 5), Parked(5, "exhausted", 5)))  # fmt: skip
    await store.write_cursors([mark])
    assert [line.nack for line in await store.parked(G0)] == [None, reasons[1]]


# --- Ended deliveries (R21) ---------------------------------------------------------------------


@pytest.mark.layouts
async def test_what_no_ack_settled_is_known_to_the_next_owner(store: Storage) -> None:
    """R21: otherwise it could not tell a late ack of a dead letter from a repeated one. A seek
    clears it."""
    await with_group(store, messages=8)
    await store.write_cursors([change(settled=[(0, 3)], ended=[(1, 1)])])
    await store.write_cursors([change(settled=[(6, 6)], ended=[(2, 2), (6, 6)])])
    again = change(settled=[(6, 6)], ended=[(2, 2), (6, 6)])
    await store.write_cursors([again, change(settled=[(4, 4)])])
    assert (await cursor(store)).ended == ((1, 2), (6, 6))
    assert (await cursor(store)).ended == ((1, 2), (6, 6)), "and to the one after"
    found = await store.cursor(G0)
    assert found is not None
    assert found.ended == ((1, 2), (6, 6))
    shown = await store.standings(G0, 0, 7)
    assert [n for n, one in enumerate(shown) if one.ended] == [1, 2, 6]
    (written,) = await store.write_cursors([change(ended=[(0, 0)])])
    assert written.fenced
    await store.seek("g-1", "q-1", ["earliest", "earliest"])
    assert (await cursor(store)).ended == ()


async def test_what_has_ended_is_kept_within_a_bound(
    store: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: the lowest ranges become one."""
    monkeypatch.setattr(limits, "ENDED_RANGES_MAX", 2)
    await with_group(store, messages=12)
    for n in range(0, 10, 2):
        await store.write_cursors([change(settled=[(n, n)], ended=[(n, n)])])
    assert (await cursor(store)).ended == ((0, 6), (8, 8))


# --- Side lines (R18) ---------------------------------------------------------------------------


@pytest.mark.layouts
# --- Dead letters -------------------------------------------------------------------------------


@pytest.mark.layouts
async def test_what_is_dead_is_known_to_the_next_owner_until_it_is_settled(store: Storage) -> None:
    """P3, P5: a decision under one epoch holds under the next, whose owner does not give the
    message."""
    await with_group(store, messages=10)
    dead = (Dead(2, 5, "overflow"), Dead(7, 7, "expired"))
    await store.write_cursors([change(dead=dead)])
    assert (await cursor(store)).dead == dead
    assert (await cursor(store)).floor == 0, "it is not settled"
    (state, _) = await store.cursors("q-1", "g-1")
    assert state.dead == 5
    states = [one.state for one in await store.standings(G0, 1, 3)]
    assert states == ["ready", "dying", "dying"]
    looked = await store.cursor(G0)
    assert looked is not None
    assert looked.dead == dead
    owned = await store.own(G0, token=TOKEN, assignment=1)
    write = change(settled=[(0, 3), (7, 7)], epoch=owned.epoch)
    await store.write_cursors([write])
    assert (await cursor(store)).dead == (Dead(4, 5, "overflow"),)


async def test_what_is_settled_has_no_dead_letter(store: Storage) -> None:
    """P5: the decision is refused and reported, as for a retry. A message that is dead already
    keeps one reason."""
    await with_group(store, messages=10)
    await store.write_cursors([change(settled=[(2, 3)])])
    (written,) = await store.write_cursors([change(dead=(Dead(1, 4, "expired"),))])
    assert written.refused == (2, 3)
    (written,) = await store.write_cursors([change(dead=(Dead(0, 4, "overflow"),))])
    assert written.refused == (2, 3)
    dead = (Dead(0, 0, "overflow"), Dead(1, 1, "expired"), Dead(4, 4, "expired"))
    assert (await cursor(store)).dead == dead


async def test_who_is_fenced_decides_about_no_dead_letter(store: Storage) -> None:
    """P5, P7, R15: of overflow and a consumer that joins, only one decides."""
    await with_group(store, messages=4)
    await store.own(G0, token=b"another owner", assignment=1)
    (written,) = await store.write_cursors([change(dead=(Dead(0, 3, "overflow"),))])
    assert written.fenced
    assert (await cursor(store)).dead == ()


async def test_what_is_dead_is_counted_whether_or_not_it_was_in_a_side_line(
    store: Storage,
) -> None:
    """What was is passed, perhaps by the floor. [It counted as settled, because what is passed and
    in no side line was.]"""
    await with_group(store, messages=8)
    write = change(settled=[(1, 1), (4, 4)], aside=[Side(KEY, (0, 3)), Side(5, (5,))])
    await store.write_cursors([write])
    dead = (Dead(0, 0, "skipped"), Dead(2, 3, "overflow"), Dead(5, 6, "overflow"))
    await store.write_cursors([change(dead=dead)])
    state, _ = await store.cursors("q-1", "g-1")
    assert (state.floor, state.settled_above, state.aside) == (2, 3, 0)
    assert (state.dead, state.dead_passed, state.dead_first) == (5, 3, 0)
    await store.write_cursors([change(settled=[(0, 3)])])
    state, _ = await store.cursors("q-1", "g-1")
    assert (state.floor, state.dead, state.dead_passed, state.dead_first) == (6, 2, 1, 5)
    await store.write_cursors([change(settled=[(5, 6)])])
    state, _ = await store.cursors("q-1", "g-1")
    assert (state.floor, state.dead, state.dead_passed, state.dead_first) == (7, 0, 0, None)


async def test_what_is_dead_leaves_its_side_line_and_pins_its_record(store: Storage) -> None:
    """R12, P1: the record is read for its letter, by any owner. The parked key has another head."""
    await with_group(store, messages=3)
    aside = [Side(KEY, (0, 1))]
    parked = [Parked(KEY, "exhausted", 9)]
    await store.write_cursors([change(settled=[(2, 2)], aside=aside, parked=parked)])
    await store.write_cursors([change(dead=(Dead(0, 0, "skipped"),))])
    assert await store.read_side(G0, KEY, -1, 10) == (1,)
    (line,) = await store.parked(G0)
    assert (line.messages, line.head) == (1, 1)
    await store.write_cursors([change(settled=[(1, 1)])])
    await trim(store)
    assert await retained(store) == [0]
    await store.write_cursors([change(settled=[(0, 0)])])
    await trim(store)
    assert await retained(store) == []


async def test_a_seek_forgets_what_is_dead(store: Storage) -> None:
    """After a seek, all messages are given again, or passed."""
    await with_group(store, messages=4)
    await store.write_cursors([change(dead=(Dead(0, 3, "overflow"),))])
    await store.seek("g-1", "q-1", ["earliest", "earliest"])
    assert (await cursor(store)).dead == ()


async def test_what_is_not_certified_does_not_die(store: Storage) -> None:
    """R10."""
    await with_group(store, messages=4)
    with pytest.raises(Refused, match="certified"):
        await store.write_cursors([change(dead=(Dead(3, 4, "overflow"),))])


# --- Side lines ---------------------------------------------------------------------------------


async def test_a_side_line_is_passed_and_kept_in_order(store: Storage) -> None:
    """R18."""
    await with_group(store, messages=10)
    await store.write_cursors([change(settled=[(0, 0)], aside=[Side(KEY, (1, 4)), Side(5, (2,))])])
    await store.write_cursors([change(aside=[Side(KEY, (3, 8))])])
    assert await store.read_side(G0, KEY, -1, 10) == (1, 3, 4, 8)
    assert await store.read_side(G0, KEY, 1, 2) == (3, 4)
    found = await cursor(store)
    assert (found.floor, found.passed) == (5, ((8, 8),))
    assert dict(found.lines) == {KEY: 4, 5: 1}
    assert (await store.cursors("q-1", "g-1"))[0].aside == 5


async def test_settling_takes_out_of_the_side_line(store: Storage) -> None:
    await with_group(store, messages=10)
    await store.write_cursors([change(aside=[Side(KEY, (1, 2, 3)), Side(5, (4,))])])
    await store.write_cursors([change(settled=[(0, 2)]), change(settled=[(2, 2), (1, 4)])])
    assert await store.read_side(G0, KEY, -1, 10) == ()
    found = await cursor(store)
    assert (found.floor, found.lines) == (5, ())


async def test_an_offset_is_in_one_side_line_only(store: Storage) -> None:
    """R18: an offset named twice in one write is in the first line, and lines have the stated
    lengths."""
    await with_group(store, messages=10)
    await store.write_cursors([change(aside=[Side(KEY, (1, 2, 2)), Side(5, (2, 3))])])
    assert dict((await cursor(store)).lines) == {KEY: 2, 5: 1}
    assert await store.read_side(G0, KEY, -1, 10) == (1, 2)
    assert await store.read_side(G0, 5, -1, 10) == (3,)


async def test_setting_aside_again_or_what_is_settled_changes_nothing(store: Storage) -> None:
    """R29: writes are absolute."""
    await with_group(store, messages=10)
    write = change(settled=[(2, 2)], aside=[Side(KEY, (1, 2, 3))])
    await store.write_cursors([write])
    await store.write_cursors([write, change(aside=[Side(99, (1,))])])
    assert await store.read_side(G0, KEY, -1, 10) == (1, 3)
    assert dict((await cursor(store)).lines) == {KEY: 2}


async def test_what_stands_in_a_side_line_can_be_retried(store: Storage) -> None:
    """A message in a side line is passed and not settled."""
    await with_group(store, messages=4)
    (written,) = await store.write_cursors(
        [change(aside=[Side(KEY, (1, 2))], retries=[Retry(1, 2)])]
    )
    assert written.refused == ()
    (written,) = await store.write_cursors([change(retries=[Retry(1, 3), Retry(2, 1)])])
    assert written.refused == ()
    (written,) = await store.write_cursors([change(settled=[(1, 1)], retries=[Retry(1, 4)])])
    assert written.refused == (1,)
    assert (await cursor(store)).retries == (Retry(2, 1),)


async def test_keys_are_parked_and_unparked(store: Storage) -> None:
    await with_group(store, messages=4)
    one, two = Parked(KEY, "handler said no", 5), Parked(3, "attempts", 6)
    write = change(aside=[Side(KEY, (1,))])
    await store.write_cursors([replace(write, parked=(one, two))])
    empty = ParkedLine(3, "attempts", 6, 0, None, 0)
    assert await store.parked(G0) == [empty, ParkedLine(KEY, "handler said no", 5, 1, 1, 0)]
    assert (await store.cursors("q-1", "g-1"))[0].parked == 2
    await store.write_cursors([replace(change(), unparked=(KEY, 99))])
    assert (await cursor(store)).parked == (two,)
    assert await store.read_side(G0, KEY, -1, 10) == (1,)
    assert await store.parked(CursorPlace("g-9", P0)) == []


async def test_a_parked_key_is_listed_with_what_waits(store: Storage) -> None:
    """R18: the number of waiting messages, the first of them, and its attempts."""
    await with_group(store, messages=6)
    sides = [Side(KEY, (1, 3)), Side(KEY + 1, (2,)), Side(7, (4,))]
    write = change(aside=sides, retries=[Retry(0, 9), Retry(1, 5), Retry(2, 6), Retry(3, 1)])
    marks = tuple(Parked(key, "exhausted", 8) for key in (KEY, KEY + 1))
    await store.write_cursors([replace(write, parked=marks)])
    first = ParkedLine(KEY, "exhausted", 8, 2, 1, 5)
    second = ParkedLine(KEY + 1, "exhausted", 8, 1, 2, 6)
    assert await store.parked(G0) == [first, second]
    await store.write_cursors([change(settled=[(1, 2)])])
    assert await store.parked(G0) == [
        replace(first, messages=1, head=3, attempts=1),
        replace(second, messages=0, head=None, attempts=0),
    ]


# --- Trimming (R12) -----------------------------------------------------------------------------


async def trim(store: Storage, retention_s: float = 0, keep_all: bool = True) -> int:
    """Trim until nothing is left to do; return the bytes freed. Checks that the number of deleted
    messages was reported before, and that nothing more is reported afterwards."""
    told = await trimmable(store, retention_s, keep_all)
    before = (await store.partitions("q-1"))[0].messages
    freed = 0
    while more := await store.trim(P0, retention_s=retention_s, keep_all=keep_all):
        freed += more
    assert before - (await store.partitions("q-1"))[0].messages == told
    assert await trimmable(store, retention_s, keep_all) == 0
    return freed


async def trimmable(store: Storage, retention_s: float = 0, keep_all: bool = True) -> int:
    """Return the number of messages that `trim` would delete, over all slices."""
    told, after = 0, 0
    while True:
        count, following = await store.trimmable(
            P0, retention_s=retention_s, keep_all=keep_all, after=after
        )
        told += count
        if following is None:
            return told
        assert following > after
        after = following


async def retained(store: Storage) -> list[int]:
    return [record.first for record in (await store.read(P0, 0, 10**6)).records]


@pytest.mark.layouts
async def test_a_record_goes_when_every_group_has_settled_all_of_it(store: Storage) -> None:
    """R12."""
    await with_group(store)
    await store.create_group("g-2", "q-1", ["earliest", "earliest"])
    for _ in range(4):
        await store.append([append(messages=2)])
    await store.write_cursors([change(settled=[(0, 4)])])
    assert await trim(store) == 0
    other = CursorPlace("g-2", P0)
    await store.own(other, token=TOKEN, assignment=1)
    await store.write_cursors([change(place=other, settled=[(0, 7)])])
    assert await trim(store) > 0
    assert await retained(store) == [4, 6]
    state = (await store.partitions("q-1"))[0]
    assert (state.start, state.end, state.messages, state.bytes) == (4, 8, 4, 80)
    await store.drop_group("g-1", "q-1")
    assert await trim(store) > 0
    assert await retained(store) == []


async def test_a_stuck_head_pins_its_own_record_only(store: Storage) -> None:
    """R12: trimming deletes a record, not a prefix."""
    await with_group(store)
    for _ in range(5):
        await store.append([append(messages=2)])
    await store.write_cursors([change(settled=[(1, 4), (6, 9)])])
    assert await trim(store) > 0
    assert await retained(store) == [0, 4]
    assert (await store.partitions("q-1"))[0].start == 0
    await store.write_cursors([change(settled=[(5, 5)])])
    await trim(store)
    assert await retained(store) == [0]
    await store.write_cursors([change(settled=[(0, 0)])])
    await trim(store)
    assert await retained(store) == []
    assert (await store.partitions("q-1"))[0].start == 10


async def test_what_stands_in_a_side_line_pins_its_record(store: Storage) -> None:
    """R12, R18: passed is not settled."""
    await with_group(store)
    for _ in range(4):
        await store.append([append(messages=2)])
    await store.write_cursors([change(settled=[(0, 2), (4, 7)], aside=[Side(KEY, (3, 5))])])
    await store.write_cursors([change(settled=[(5, 5)])])
    await trim(store)
    assert await retained(store) == [2]
    await store.write_cursors([change(settled=[(3, 3)])])
    await trim(store)
    assert await retained(store) == []


async def test_records_pinned_by_one_group_go_when_the_last_one_settles(store: Storage) -> None:
    """A group that begins after records were trimmed for others is waited for too."""
    await with_group(store)
    await store.append([append(messages=10)])
    await store.write_cursors([change(settled=[(0, 4), (6, 9)], aside=[Side(KEY, (5,))])])
    assert await trim(store) == 0
    await store.create_group("g-2", "q-1", ["earliest", "earliest"])
    other = CursorPlace("g-2", P0)
    await store.own(other, token=TOKEN, assignment=1)
    await store.write_cursors([change(settled=[(5, 5)])])
    assert await trim(store) == 0
    await store.write_cursors([change(place=other, settled=[(5, 5)])])
    assert await trim(store) == 0
    await store.write_cursors([change(place=other, settled=[(6, 9)])])
    assert await trim(store) == 0
    await store.write_cursors([change(place=other, settled=[(0, 4)])])
    assert await trim(store) > 0


async def test_retention_keeps_what_is_settled(store: Storage, clock: Clock) -> None:
    await with_group(store)
    for _ in range(3):
        await store.append([append(messages=1, published_unix_s=clock.unix_s)])
        clock.unix_s += 100
    await store.write_cursors([change(settled=[(0, 2)])])
    assert await trim(store, retention_s=250) > 0
    assert await retained(store) == [1, 2]
    clock.unix_s += 50
    await trim(store, retention_s=250)
    assert await retained(store) == [2]


async def test_a_gateway_whose_clock_runs_ahead_keeps_nothing_longer(
    store: Storage, clock: Clock
) -> None:
    """R3: retention is judged by the storage's own clock."""
    await with_group(store)
    await store.append([append(messages=1, published_unix_s=clock.unix_s + 10**9)])
    await store.write_cursors([change(settled=[(0, 0)])])
    assert await trim(store, retention_s=100) == 0
    clock.unix_s += 100
    assert await trim(store, retention_s=100) > 0


async def test_without_groups_retention_alone_decides(store: Storage, clock: Clock) -> None:
    await store.create_queue("q-1", 1)
    await store.append([append(messages=2)])
    clock.unix_s += 100
    assert await trim(store, keep_all=True) == 0
    assert await trim(store, retention_s=101, keep_all=False) == 0
    assert await trim(store, retention_s=100, keep_all=False) > 0
    assert (await store.partitions("q-1"))[0].start == 2


async def test_offsets_go_on_after_everything_was_trimmed(store: Storage) -> None:
    """R2. [Everything truncated, restart: offset 0 again, below every cursor.]"""
    await with_group(store, messages=3)
    await store.write_cursors([change(settled=[(0, 2)])])
    await trim(store)
    (appended,) = await store.append([append(messages=1)])
    assert appended.first == 3


async def test_trimming_an_unknown_partition_does_nothing(store: Storage) -> None:
    assert await store.trim(Partition("q-9", 0), retention_s=0, keep_all=False) == 0


@pytest.mark.layouts
async def test_a_change_of_retention_says_before_how_much_it_deletes(
    store: Storage, clock: Clock
) -> None:
    """R12: over more records than one slice examines, by age, and without a group."""
    await store.create_queue("q-1", 2)
    for _ in range(6):
        await store.append([append(messages=2, published_unix_s=clock.unix_s) for _ in range(200)])
        clock.unix_s += 10
    assert await trimmable(store, 0, keep_all=True) == 0
    assert await trimmable(store, 0, keep_all=False) == 2400
    assert await trimmable(store, 35, keep_all=False) == 1200
    await store.create_group("g-1", "q-1", ["earliest", "earliest"])
    await store.own(G0, token=TOKEN, assignment=1)
    assert await trimmable(store, 0, keep_all=False) == 0
    await store.write_cursors([change(settled=[(0, 100), (2001, 2399)])])
    assert await trimmable(store) == 100 + 398
    assert await trimmable(store, 35) == 100
    assert await store.trimmable(Partition("nowhere", 0), retention_s=0, keep_all=False) == (
        0,
        None,
    )
    await trim(store)
