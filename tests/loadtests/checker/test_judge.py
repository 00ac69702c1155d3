"""Each kind of violation is seen in a hand-written history, and a clean one is clean."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from loadtests.checker.history import Line, Unreadable, merge, read_lines
from loadtests.checker.judge import judge
from loadtests.checker.verdict import KINDS, Verdict

GROUP = "q/g"


class Log:
    """Writes what clients would have logged. Time is the number of the line."""

    def __init__(self) -> None:
        self.text = b""
        self.server = 1
        self._at = 0
        self._refs = 0

    def line(self, socket: int, way: str, frame: object, **more: Any) -> None:
        self._at += 1
        fields = {"at": self._at, "server": self.server, "socket": socket, "via": "ws", "way": way}
        self.text += json.dumps({**fields, **more, "frame": frame}).encode() + b"\n"

    def producer(self, socket: int = 1, name: str = "p") -> None:
        self.line(socket, "out", {"type": "hello", "producer": name})

    def publish(self, first: int, *bodies: str, key: str = "k", socket: int = 1) -> int:
        self._refs += 1
        messages = [{"key": key, "body": body} for body in bodies]
        self.line(
            socket,
            "out",
            {"type": "publish", "ref": self._refs, "queue": "q", "sequence": first, "resolved": 0,
             "messages": messages},
        )  # fmt: skip
        return self._refs

    def receipt(self, ref: int, *places: tuple[int, int] | str, socket: int = 1) -> None:
        receipts = [
            {"code": place, "detail": "", "retry": True} if isinstance(place, str) else place
            for place in places
        ]
        self.line(socket, "in", {"type": "ok", "ref": ref, "receipts": receipts})

    def stored(self, first: int, *bodies: str, key: str = "k", offset: int | None = None) -> None:
        """Published and acknowledged, in partition 0 from `offset` (the sequence) on."""
        ref = self.publish(first, *bodies, key=key)
        start = first if offset is None else offset
        self.receipt(ref, *((0, start + i) for i in range(len(bodies))))

    def consumer(self, socket: int) -> None:
        self.line(socket, "out", {"type": "hello"})
        self.line(socket, "in", {"type": "welcome", "session": f"session-{socket}"})
        self.line(
            socket, "out",
            {"type": "subscribe", "ref": 0, "subscription": 1, "queue": "q", "group": "g"},
        )  # fmt: skip
        self.line(socket, "in", {"type": "ok", "ref": 0, "lease_s": 30})

    def push(
        self, socket: int, offset: int, *bodies: str, epoch: int = 1, push: int = 1,
        partition: int = 0, key: str = "k",
    ) -> None:  # fmt: skip
        self.line(
            socket, "in",
            {"type": "push", "subscription": 1, "partition": partition, "epoch": epoch,
             "push": push, "offset": offset,
             "messages": [{"key": key, "body": body} for body in bodies]},
        )  # fmt: skip

    def ack(
        self, socket: int, *delivery: int, kind: str = "ack", confirm: bool = True,
        stale: bool = False,
    ) -> None:  # fmt: skip
        """`delivery` is [partition, epoch, push, first, last, …]."""
        self._refs += 1
        frame = {"type": kind, "subscription": 1, "deliveries": [delivery], "ref": self._refs}
        self.line(socket, "out", frame)
        if confirm:
            answer: dict[str, object] = {"type": "ok", "ref": self._refs, "settled": 1}
            self.line(socket, "in", answer | ({"stale": [delivery]} if stale else {}))

    def pulled(self, socket: int, *messages: tuple[int, str], key: str = "k") -> None:
        given = [
            {"receipt": f"r{self._at}-{offset}", "key": key, "body": body, "partition": 0,
             "offset": offset, "attempt": 1}
            for offset, body in messages
        ]  # fmt: skip
        place = {"via": "pull", "call": "pull", "queue": "q", "group": "g"}
        self.line(socket, "in", {"messages": given}, **place)

    def pull_ack(self, socket: int, receipt: str, *, call: str = "ack") -> None:
        place = {"via": "pull", "call": call, "queue": "q", "group": "g"}
        self.line(socket, "out", {"receipts": [receipt]}, **place)
        self.line(socket, "in", {"settled": 1, "stale": []}, **place)

    def verdict(self, *, drained: bool = True) -> Verdict:
        lines: Iterable[Line] = read_lines(self.text.splitlines(keepends=True))
        return judge(lines, [GROUP], drained=drained)


@pytest.fixture
def log() -> Log:
    log = Log()
    log.producer()
    log.consumer(2)
    return log


def flagged(log: Log) -> dict[str, int]:
    """The violations of a history that is cut off before its deliveries settle."""
    violations = dict(log.verdict().violations)
    violations.pop("not_returned", None)
    return violations


def test_clean_history_is_clean(log: Log) -> None:
    log.stored(0, "a", "b", "c")
    log.push(2, 0, "a", "b", "c")
    log.ack(2, 0, 1, 1, 0, 2)
    verdict = log.verdict()
    assert verdict.ok, verdict
    assert verdict.counts["acknowledged"] == verdict.counts["acks confirmed"] == 3


def test_history_that_was_not_drained_is_no_proof(log: Log) -> None:
    log.stored(0, "a")
    assert not log.verdict(drained=False).ok
    assert not log.verdict(drained=False).violations


def test_acknowledged_and_never_given_is_lost(log: Log) -> None:
    log.stored(0, "a", "b")
    log.push(2, 0, "a")
    assert flagged(log) == {"lost": 1}


def test_message_without_a_receipt_may_be_missing_or_given(log: Log) -> None:
    log.publish(0, "a", "b")  # the connection broke: unknown
    log.push(2, 0, "a")
    verdict = log.verdict()
    assert verdict.ok, verdict
    assert verdict.counts["recovered"] == 1


def test_never_sent_is_invented(log: Log) -> None:
    log.push(2, 0, "z")
    assert flagged(log) == {"invented": 1}


def test_other_bytes_at_a_known_place_are_altered(log: Log) -> None:
    log.stored(0, "a")
    log.push(2, 0, "a")
    log.push(2, 0, "A", push=2)
    assert flagged(log) == {"altered": 1}


def test_other_key_is_altered(log: Log) -> None:
    log.stored(0, "a", key="k")
    log.push(2, 0, "a", key="other")
    assert "altered" in flagged(log)


def test_refused_and_given_is_seen(log: Log) -> None:
    log.receipt(log.publish(0, "a"), "queue_full")
    log.push(2, 0, "a")
    assert flagged(log) == {"refused_given": 1}


def test_refused_sent_again_and_stored_is_fine(log: Log) -> None:
    log.receipt(log.publish(0, "a"), "out_of_sequence")
    log.stored(0, "a")
    log.push(2, 0, "a")
    assert flagged(log) == {}


@pytest.mark.parametrize("code", ["unknown", "internal"])
def test_unknown_may_be_given(log: Log, code: str) -> None:
    log.receipt(log.publish(0, "a"), code)
    log.push(2, 0, "a")
    assert flagged(log) == {}


def test_one_message_at_two_places_is_seen(log: Log) -> None:
    log.stored(0, "a")
    log.push(2, 0, "a")
    log.push(2, 7, "a", push=2)
    assert flagged(log) == {"stored_twice": 1}


def test_second_receipt_with_another_place_is_seen(log: Log) -> None:
    log.stored(0, "a")
    log.receipt(log.publish(0, "a"), (0, 5))
    log.push(2, 0, "a")
    assert flagged(log) == {"stored_twice": 1}


def test_two_messages_at_one_place_are_seen(log: Log) -> None:
    log.stored(0, "a", offset=0)
    log.stored(1, "b", offset=0)
    log.push(2, 0, "a")
    assert flagged(log) == {"shared_place": 1}


def test_key_in_two_partitions_is_seen(log: Log) -> None:
    log.receipt(log.publish(0, "a", "b"), (0, 0), (1, 0))
    log.push(2, 0, "a")
    log.push(2, 0, "b", partition=1)
    assert "key_moved" in flagged(log)


def test_stored_against_the_sending_order_is_seen(log: Log) -> None:
    log.receipt(log.publish(0, "a", "b"), (0, 1), (0, 0))
    log.push(2, 0, "b", "a")
    assert flagged(log) == {"sending_order": 1}


def test_first_deliveries_against_offset_order_are_seen(log: Log) -> None:
    log.stored(0, "a", "b")
    log.push(2, 1, "b")
    log.push(2, 0, "a", push=2)
    assert flagged(log) == {"first_order": 1}


def test_keys_do_not_order_each_other(log: Log) -> None:
    log.stored(0, "a", key="k")
    log.stored(1, "b", key="l")
    log.push(2, 1, "b", key="l")
    log.push(2, 0, "a", push=2, key="k")
    assert flagged(log) == {}


def test_later_message_after_a_confirmed_nack_is_overtaking(log: Log) -> None:
    log.stored(0, "a", "b")
    log.push(2, 0, "a")
    log.ack(2, 0, 1, 1, 0, 0, kind="nack")
    log.push(2, 1, "b", push=2)
    assert flagged(log) == {"overtaken": 1}


def test_later_message_on_its_way_while_the_nack_was_is_fine(log: Log) -> None:
    log.stored(0, "a", "b")
    log.push(2, 0, "a")
    log.ack(2, 0, 1, 1, 0, 0, kind="nack", confirm=False)
    log.push(2, 1, "b", push=2)
    assert flagged(log) == {}


def test_later_message_after_revoked_is_overtaking(log: Log) -> None:
    log.stored(0, "a", "b")
    log.push(2, 0, "a")
    log.line(2, "in", {"type": "revoked", "subscription": 1, "deliveries": [[0, 1, 1, 0, 0]]})
    log.push(2, 1, "b", push=2)
    assert flagged(log) == {"overtaken": 1}


def test_ack_that_crosses_its_revocation_may_count_all_the_same(log: Log) -> None:
    log.stored(0, "a", "b")
    log.push(2, 0, "a")
    log.ack(2, 0, 1, 1, 0, 0, confirm=False)
    log.line(2, "in", {"type": "revoked", "subscription": 1, "deliveries": [[0, 1, 1, 0, 0]]})
    log.push(2, 1, "b", push=2)
    assert flagged(log) == {}
    log.push(2, 0, "a", push=3)  # it did not count: b should have waited
    assert flagged(log) == {"overtaken": 1}


def test_later_message_on_another_socket_while_an_earlier_is_open_is_overtaking(log: Log) -> None:
    log.consumer(3)
    log.stored(0, "a", "b")
    log.push(2, 0, "a")
    log.push(3, 1, "b", epoch=2)
    assert flagged(log) == {"overtaken": 1}


def test_later_message_after_a_restart_before_the_open_one_is_overtaking(log: Log) -> None:
    log.stored(0, "a", "b")
    log.push(2, 0, "a", "b")
    log.server = 2
    log.consumer(3)
    log.push(3, 1, "b", epoch=2)
    log.push(3, 0, "a", epoch=2, push=2)
    assert flagged(log) == {"overtaken": 1}


def test_redelivery_in_order_after_a_restart_is_fine(log: Log) -> None:
    log.stored(0, "a", "b")
    log.push(2, 0, "a", "b")
    log.server = 2
    log.consumer(3)
    log.push(3, 0, "a", "b", epoch=2)
    log.ack(3, 0, 2, 1, 0, 1)
    verdict = log.verdict()
    assert verdict.ok, verdict
    assert verdict.counts["redelivered"] == 2


def test_ack_lost_with_the_brokers_memory_is_no_violation(log: Log) -> None:
    """Settled in memory when b was given; the kill came before the cursor was written."""
    log.stored(0, "a", "b")
    log.push(2, 0, "a")
    log.ack(2, 0, 1, 1, 0, 0, confirm=False)
    log.consumer(3)
    log.push(3, 1, "b", epoch=2)
    log.server = 2
    log.consumer(4)
    log.push(4, 0, "a", "b", epoch=3)
    log.ack(4, 0, 3, 1, 0, 1)
    verdict = log.verdict()
    assert verdict.ok, verdict
    assert verdict.counts["redelivered, ack unconfirmed"] == 1


def test_ack_that_one_start_had_not_and_yet_went_on_is_overtaking(log: Log) -> None:
    log.stored(0, "a", "b")
    log.push(2, 0, "a")
    log.ack(2, 0, 1, 1, 0, 0, confirm=False)
    log.server = 2
    log.consumer(3)
    log.push(3, 1, "b", epoch=2)
    log.push(3, 0, "a", epoch=2, push=2)
    assert "overtaken" in flagged(log)


def test_given_after_its_confirmed_ack_is_seen(log: Log) -> None:
    log.stored(0, "a")
    log.push(2, 0, "a")
    log.ack(2, 0, 1, 1, 0, 0)
    log.push(2, 0, "a", epoch=2)
    assert flagged(log) == {"given_after_ack": 1}


def test_stale_ack_confirms_nothing(log: Log) -> None:
    log.stored(0, "a")
    log.push(2, 0, "a")
    log.ack(2, 0, 1, 1, 0, 0, stale=True)
    log.push(2, 0, "a", push=2)
    assert flagged(log) == {}


def test_an_ack_that_another_start_may_have_settled_may_be_stale(log: Log) -> None:
    """R21: it was durable, the broker died before it could say so, and the epoch is over."""
    log.stored(0, "a", "b")
    log.push(2, 0, "a")
    log.ack(2, 0, 1, 1, 0, 0, confirm=False)
    log.server = 2
    log.ack(2, 0, 1, 1, 0, 0, stale=True)
    log.push(2, 1, "b", epoch=2)
    log.ack(2, 0, 2, 1, 1, 1)
    assert log.verdict().violations == {}


def test_an_ack_that_one_start_first_took_and_then_called_stale_is_not_settled(log: Log) -> None:
    log.stored(0, "a")
    log.push(2, 0, "a")
    log.ack(2, 0, 1, 1, 0, 0, confirm=False)
    log.ack(2, 0, 1, 1, 0, 0, stale=True)
    assert log.verdict().violations == {"not_returned": 1}


def test_unsettled_delivery_that_never_returns_is_seen(log: Log) -> None:
    log.stored(0, "a", "b", key="k")
    log.stored(2, "c", key="l")
    log.push(2, 0, "a", "b")
    log.push(2, 2, "c", push=2, key="l")
    log.ack(2, 0, 1, 1, 0, 0)
    log.ack(2, 0, 1, 1, 1, 1, stale=True)
    log.ack(2, 0, 1, 2, 2, 2, confirm=False)
    assert log.verdict().violations == {"not_returned": 1}


def test_delivery_number_that_does_not_grow_is_seen(log: Log) -> None:
    log.stored(0, "a")
    log.push(2, 0, "a", epoch=3, push=8)
    log.push(2, 0, "a", epoch=3, push=7)
    assert flagged(log) == {"number_reused": 1}


def test_two_sessions_under_one_epoch_are_seen(log: Log) -> None:
    log.consumer(3)
    log.stored(0, "a")
    log.stored(1, "b", key="l")
    log.push(2, 0, "a", epoch=4)
    log.push(3, 1, "b", epoch=4, push=2, key="l")
    assert flagged(log) == {"epoch_shared": 1}


def test_pull_closes_a_key_to_other_pulls_until_it_settles(log: Log) -> None:
    log.stored(0, "a", "b")
    log.pulled(9, (0, "a"))
    log.pulled(10, (1, "b"))
    assert flagged(log) == {"overtaken": 1}


def test_pull_may_carry_several_of_a_key(log: Log) -> None:
    log.stored(0, "a", "b")
    log.pulled(9, (0, "a"), (1, "b"))
    assert flagged(log) == {}


def test_pull_after_its_confirmed_ack_is_seen(log: Log) -> None:
    log.stored(0, "a")
    log.pulled(9, (0, "a"))
    receipt = json.loads(log.text.splitlines()[-1])["frame"]["messages"][0]["receipt"]
    log.pull_ack(9, receipt)
    log.pulled(9, (0, "a"))
    assert flagged(log) == {"given_after_ack": 1}


def test_every_kind_has_a_history_here() -> None:
    with open(__file__) as file:
        text = file.read()
    assert [kind for kind in KINDS if text.count(f'"{kind}"') == 0] == []


def test_answer_with_fewer_results_than_messages_is_refused(log: Log) -> None:
    log.receipt(log.publish(0, "a", "b"), (0, 0))
    with pytest.raises(Unreadable, match="R5"):
        log.verdict()


def test_frame_that_is_no_json_is_refused(log: Log) -> None:
    log.text += b'{"at":9999,"server":1,"socket":1,"via":"ws","way":"in","frame":oops}\n'
    with pytest.raises(Unreadable):
        log.verdict()


def test_torn_last_line_is_left_out(log: Log) -> None:
    log.stored(0, "a")
    log.push(2, 0, "a")
    log.ack(2, 0, 1, 1, 0, 0)
    log.text += b'{"at":9999,"serv'
    assert log.verdict().ok


def test_logs_merge_by_time() -> None:
    def line(at: int) -> Line:
        (made,) = read_lines(
            [b'{"at":%d,"server":1,"socket":1,"via":"ws","way":"in","frame":{}}\n' % at]
        )
        return made

    merged = merge([[line(1), line(4)], [line(2), line(3)]])
    assert [one.at for one in merged] == [1, 2, 3, 4]


def test_arrays_of_frames_are_read_in_order(log: Log) -> None:
    ref = log.publish(0, "a")
    log.line(1, "in", [{"type": "pong"}, {"type": "ok", "ref": ref, "receipts": [[0, 0, True]]}])
    log.push(2, 0, "a")
    log.ack(2, 0, 1, 1, 0, 0)
    assert log.verdict().ok
    assert log.verdict().counts["acknowledged"] == 1
