"""The SDK on bad days, in short: sessions that move between transports, a network that cuts and
swallows, a broker that is killed, handlers that outlast their leases.

The whole trials are `make trials`; comparisons of times are left to them. Each check is also tested
with a run that must break it.
"""

import pytest

from loadtests.trials.sdk import kills, proxy, slow, switch, trial
from loadtests.trials.trial import Finding


def hold(finding: Finding) -> None:
    """Check that every promise that compares no times was kept; the report has the whole
    finding."""
    print(finding)  # noqa: T201 - pytest shows it where the test fails, or with -rP
    assert not finding.broken(timed=False)


def broken(finding: Finding) -> str:
    """Return the broken promises in one text."""
    print(finding)  # noqa: T201
    return "\n".join(finding.broken(timed=False))


async def test_a_session_switched_in_mid_stream_gives_nothing_twice_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R22, R25, P1, P3: refused, then stripped; back each time, at 1,500 messages a second."""
    monkeypatch.setattr("tocsin.proto.connect_policy.RETURN_S", 0.3)
    monkeypatch.setattr(switch, "SWITCH_TIMEOUT_S", 20.0)
    hold(await switch.switch(switch.Plan(switches=4, between_s=0.4), print))


async def test_on_a_bad_network_nothing_is_given_twice_or_lost() -> None:
    """P1, P3, P10, R22: the faults of one seed, for a few seconds."""
    hold(await proxy.proxied(proxy.Plan(seconds=8.0, outage_s=1.0), print))


async def test_consumers_that_never_ack_turn_the_bad_network_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "STALL_TIMEOUT_S", 1.0)
    plan = proxy.Plan(seconds=1.0, rate=200, acks=False)
    assert "NOT DRAINED" in broken(await proxy.proxied(plan, print))


async def test_every_effect_happens_once_when_the_broker_is_killed() -> None:
    """P1, P4: twenty clients; repeated messages are recognised."""
    hold(await kills.kills(kills.Plan(kills=3), print))


async def test_handlers_that_do_not_look_turn_the_kills_red() -> None:
    found = broken(await kills.kills(kills.Plan(kills=1, once=False), print))
    assert "every effect happened once" in found
    assert "lost" not in found


async def test_handlers_that_outlast_their_leases_run_once_and_stall_nobody() -> None:
    """R17, R19, R20: three leases long; hung; a hundred of one key."""
    hold(await slow.slow(slow.Plan(lease_s=2.0), print))


async def test_leases_that_nobody_prolongs_turn_the_slow_handlers_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "STALL_TIMEOUT_S", 1.0)
    plan = slow.Plan(lease_s=1.0, kinds=("slow",), auto_extend=False)
    found = broken(await slow.slow(plan, print))
    assert "each message of the key ran once" in found
