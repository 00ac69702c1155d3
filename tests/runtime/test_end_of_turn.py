"""What happens when the present callback of the loop has ended."""

import asyncio
from functools import partial

import pytest

from runtime.loop.end_of_turn import EndOfTurn


async def test_what_is_asked_for_in_a_block_is_done_at_its_end_and_writing_comes_last() -> None:
    end, done = EndOfTurn(), list[str]()
    with end:
        end.call_last(partial(done.append, "flush"))
        end.call(partial(done.append, "pump"))
        with end:
            end.call(partial(done.append, "another pump"))
        assert not done
    assert done == ["pump", "another pump", "flush"]


async def test_outside_of_a_block_it_has_the_next_turn() -> None:
    end, done = EndOfTurn(), list[str]()
    end.call_last(partial(done.append, "flush"))
    end.call(partial(done.append, "pump"))
    assert not done
    await asyncio.sleep(0)
    assert done == ["pump", "flush"]


async def test_a_backlog_has_one_turn_after_the_other() -> None:
    """P8: who asks again is not done again before others are heard; what it has to write is."""
    end, done = EndOfTurn(), list[str]()

    def pump() -> None:
        done.append("pump")
        end.call_last(partial(done.append, "flush"))
        if done.count("pump") < 3:
            end.call(pump)

    with end:
        end.call(pump)
    assert done == ["pump", "flush"]
    await asyncio.sleep(0)
    assert done == 2 * ["pump", "flush"]
    await asyncio.sleep(0)
    assert done == 3 * ["pump", "flush"]
    await asyncio.sleep(0)
    assert done == 3 * ["pump", "flush"]


async def test_a_backlog_has_no_more_of_a_turn_where_several_commits_are_answered_in_it() -> None:
    end, done = EndOfTurn(), list[str]()

    def pump() -> None:
        done.append("pump")
        end.call(pump)

    with end:
        end.call(pump)
    for number in range(3):
        with end:
            end.call_last(partial(done.append, f"receipt {number}"))
    assert done == ["pump", "receipt 0", "receipt 1", "receipt 2"]
    end.call(partial(done.append, "another"))
    await asyncio.sleep(0)
    assert done[4:] == ["pump", "another"]


@pytest.mark.parametrize("failure", [ValueError("no"), asyncio.CancelledError("no")])
async def test_one_that_fails_fails_alone_and_is_reported(failure: BaseException) -> None:
    end, done, told = EndOfTurn(), list[str](), list[str]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(repr(context["exception"])))

    def fail() -> None:
        raise failure

    def block() -> None:
        with end:
            end.call(fail)
            end.call(partial(done.append, "pump"))
            end.call_last(partial(done.append, "flush"))
            raise KeyError

    with pytest.raises(KeyError):
        block()
    assert (done, told) == (["pump", "flush"], [repr(failure)])
    with end:
        end.call(partial(done.append, "again"))
    assert done[-1] == "again"
