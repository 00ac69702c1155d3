"""Discovery of a shard's primary, and a watch over it between acts.

The primary is at one address for good, or where Sentinels say. The watch checks again and again
whether that server holds the store, which replicas follow it, and how much memory it has left. An
idle gateway must know, too, when the store was emptied, and looks must not stay with a primary that
was cut off and replaced.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from redis.exceptions import RedisError

from push.errors import Refused
from storage.redis.answers import unavailable
from storage.redis.connection import Address, Connection, Reach, pack
from storage.redis.replication import (
    MemoryReserve,
    NotOurs,
    count_attached,
    fields,
    memory_of,
    shortfall_of,
    without_replicas,
)

Find = Callable[[], Awaitable[Address]]
"""Look-up of the primary, anew at each call. Raises Refused(storage_unavailable)."""
WORDS: Final = ("MASTER", "GET-MASTER-ADDR-BY-NAME")
"""Words after SENTINEL: the first asks for the configuration epoch, the second for the primary's
address. The reply to MASTER still has the earlier address when the next primary has been promoted
and the epoch raised."""
SENTINEL_S: Final = 1.0
"""Longest time for the answer of one Sentinel, in seconds. All are queried at once."""


def fixed(address: Address) -> Find:
    """Return a look-up of a primary that never moves. No other server replaces it when it fails."""

    async def find() -> Address:
        return address

    return find


def by_sentinels(sentinels: Sequence[Address], name: str, reach: Reach) -> Find:
    """Return a look-up of the primary that the Sentinels know under `name`. `reach`: how they are
    reached.

    All are queried. Of those that answer, the one with the highest configuration epoch is believed,
    because a Sentinel that was cut off still names the earlier primary, and lower epochs.
    Source: https://redis.io/docs/latest/develop/reference/sentinel-clients/
    """

    async def find() -> Address:
        answers = await asyncio.gather(*(_ask_primary(place, name, reach) for place in sentinels))
        known = [answer for answer in answers if not isinstance(answer, str)]
        if not known:
            why = "; ".join(answer for answer in answers if isinstance(answer, str))
            raise unavailable(f"no Sentinel names the primary {name}: {why}")
        return max(known)[1]

    return find


async def known_replicas(
    sentinels: Sequence[Address], name: str, reach: Reach
) -> dict[Address, int | str]:
    """Return how many replicas of `name` each Sentinel knows, or a sentence why it does not say.
    Replicas that it has not seen for long are included, because it may have any of them elected.

    Source: https://redis.io/docs/latest/operate/oss_and_stack/management/sentinel/
    """
    answers = await asyncio.gather(*(_count_replicas(place, name, reach) for place in sentinels))
    return dict(zip(sentinels, answers, strict=True))


async def _count_replicas(place: Address, name: str, reach: Reach) -> int | str:
    try:
        (master,) = await _ask(place, [pack("SENTINEL", "MASTER", name)], reach)
        return int(_facts(master)[b"num-slaves"])
    except (RedisError, OSError, ValueError) as error:
        return f"{place}: {str(error) or 'no reply in time'}"


async def _ask(place: Address, commands: Sequence[bytes], reach: Reach) -> list[Any]:
    async with asyncio.timeout(SENTINEL_S):
        link = await reach.link(place)
        try:
            return await link.ask(commands, SENTINEL_S)
        finally:
            await link.close()


async def _ask_primary(place: Address, name: str, reach: Reach) -> tuple[int, Address] | str:
    """Return (configuration epoch, the primary's address), or a sentence why there is none."""
    try:
        commands = [pack("SENTINEL", word, name) for word in WORDS]
        return _decode_primary(*await _ask(place, commands, reach))
    except (RedisError, OSError, ValueError) as error:
        return f"{place}: {str(error) or 'no reply in time'}"


def _decode_primary(master: Any, named: Any) -> tuple[int, Address]:
    """Decode the replies to WORDS. Raises an error that is among them, and ValueError for another
    form."""
    if isinstance(named, RedisError):
        raise named
    facts = _facts(master)
    try:
        host, port = named
        return int(facts[b"config-epoch"]), Address(host.decode(), int(port))
    except (TypeError, KeyError) as error:
        raise ValueError(f"not understood: {error}") from None


def _facts(master: Any) -> dict[bytes, bytes]:
    """Return a reply to SENTINEL MASTER as a mapping. Raises the errors of `_decode_primary`."""
    if isinstance(master, RedisError):
        raise master
    try:
        return dict(zip(master[::2], master[1::2], strict=True))
    except TypeError as error:
        raise ValueError(f"not understood: {error}") from None


PERIOD_S: Final = 1.0
USED_EVERY_S: Final = 3600.0
MEMORY: Final = pack("INFO", "memory")
FOLLOWED: Final = pack("INFO", "replication")
_LOG: Final = logging.getLogger("storage.redis_watch")


class Watch:
    """Watch over a shard's primary. `connect` finds the primary and checks it; `check` does so on
    an open link. Both raise Refused, and NotOurs if the server holds another store. `broken` is
    called once, with a sentence, after NotOurs at two looks with none between them that went well,
    and the watch ends. A single NotOurs may come from an earlier primary that a Sentinel, cut off
    with it, still named. `used` is the packed FCALL that notes that these functions are in use,
    sent every USED_EVERY_S."""

    def __init__(
        self,
        find: Find,
        connect: Callable[[], Awaitable[Connection]],
        check: Callable[[Connection], Awaitable[None]],
        reserve: MemoryReserve,
        broken: Callable[[str], None],
        *,
        used: bytes,
        period_s: float,
        silence_s: float,
    ) -> None:
        self._find = find
        self._connect = connect
        self._check = check
        self._reserve = reserve
        self._broken = broken
        self._period_s = period_s
        self._silence_s = silence_s
        self._used = used
        self._used_at: float | None = None
        self.answers = True
        """Whether the primary answered at the last look, and held the store."""
        self.waits_for = ""
        """The reason why writes of the durability level `all` wait, at the last look; "": they do
        not."""
        self.seen = ""
        """The primary, its replicas and its memory at the last look, for people."""
        self._link: Connection | None = None
        self._task = asyncio.create_task(self._run(), name="shard watch")

    async def close(self) -> None:
        """Stop looking."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        refused = False
        try:
            while True:
                try:
                    await self._look()
                    self.answers, refused = True, False
                except NotOurs as error:
                    self.answers = False
                    if refused:
                        _LOG.critical("the store must not be used any more: %s", error.detail)
                        self._broken(error.detail)
                        return
                    refused = True
                except Refused:  # the server is away; acts and looks say so themselves
                    self.answers = False
                except Exception:  # whatever a server may say, the watch goes on
                    _LOG.exception("the store could not be watched")
                await asyncio.sleep(self._period_s)
        finally:
            await self._disconnect()

    async def _look(self) -> None:
        try:
            link = self._link
            if link is None or not link.is_open or link.address != await self._find():
                await self._disconnect()
                self._link = link = await self._connect()
            else:
                await self._check(link)
            told, followed = await link.ask([MEMORY, FOLLOWED], self._silence_s)
            now = asyncio.get_running_loop().time()
            if self._used_at is None or now - self._used_at >= USED_EVERY_S:
                await link.ask([self._used], self._silence_s)
                self._used_at = now
        except OSError as error:
            await self._disconnect()
            raise Refused("storage_unavailable", str(error)) from None
        except BaseException:
            await self._disconnect()
            raise
        if not isinstance(told, bytes) or not isinstance(followed, bytes):
            return
        self._follow(link, fields(followed))
        before, memory = self._reserve.is_open, memory_of(fields(told))
        self.seen = (
            f"the primary is {link.address}, "
            f"{count_attached(without_replicas(fields(followed), link.out))} of {link.replicas} "
            f"replicas are attached, {_not_counted(link)}{memory.used} of {memory.bound} bytes of "
            "memory are taken"
        )
        if self._reserve.update(memory) != before:
            _LOG.warning(
                "publishing %s: %d of %d bytes of memory are taken",
                "stops" if before else "goes on",
                memory.used,
                memory.bound,
            )

    def _follow(self, link: Connection, followed: Mapping[str, str]) -> None:
        before = self.waits_for
        self.waits_for = shortfall_of(followed, link.replicas, link.out)
        if self.waits_for and self.waits_for != before:
            _LOG.warning("%s: %s", link.address, self.waits_for)
        elif before and not self.waits_for:
            _LOG.info("%s: all %d replicas are attached again", link.address, link.replicas)

    async def _disconnect(self) -> None:
        if self._link is not None:
            await self._link.close()
            self._link = None


def _not_counted(link: Connection) -> str:
    return f"{', '.join(sorted(link.out))} not counted, " if link.out else ""
