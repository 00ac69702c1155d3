"""The plan of a run: its users, their number, its queues and its rate. Pure."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

ROLES: Final = {
    "websocket": "publishes over a WebSocket, numbered, and sends again what was not answered",
    "rest": "publishes over HTTP under ids, and sends again what was not answered",
    "worker": "a group's consumer: acks confirmed, in random order, returns one of 200",
    "reader": "reads one key from the start, as a browser tab would, and goes on by its position",
    "poller": "a group's consumer by long poll",
    "slow": "a group's consumer that takes its time over each message",
    "storm": "a group's consumer that loses its socket when all others of its kind do, and is back",
    "day": "goes through a day: comes in the morning, publishes, works, reads, is idle at night",
}
SHARES: Final = {"websocket": 30, "rest": 10, "worker": 25, "reader": 15, "poller": 5, "slow": 5,
                 "storm": 5, "day": 5}  # fmt: skip
"""Number of each role among a hundred users, unless given otherwise."""
PUBLISHING: Final = ("websocket", "rest")
CONSUMING: Final = ("worker", "poller", "slow", "storm", "day")
"""Each role has queues and a group of its own, because a slow consumer would make the others'
messages wait."""

CONSUMERS_MAX: Final = 64
"""The most consumers of one group; with more of them there is a further queue."""
KEYS_EACH: Final = 4
"""Number of keys of one publisher."""
KEYS_MAX: Final = 1000
MESSAGES_MAX: Final = 4
"""The most messages of one publish."""
_SLOW_S: Final = 0.2


class Plan(msgspec.Struct, frozen=True):
    """A run, as its launcher writes it down and all its processes read it."""

    run: str
    """Part of the queues' names, because a broker may have many runs."""
    urls: list[str]
    counts: dict[str, int]
    """Number of users of each role."""
    processes: int
    rate: float
    """Messages a second, of all publishers together."""
    seconds: float
    ramp_s: float
    body_bytes: int
    seed: int
    began_ns: int
    """The time from which series count, in nanoseconds of the clock that all processes of the run
    share."""
    storm_every_s: float = 30.0
    day_s: float = 60.0
    """Duration of the compressed day of the role `day`, in seconds."""

    @property
    def users(self) -> int:
        """Number of all users."""
        return sum(self.counts.values())

    @property
    def publishers(self) -> int:
        """Number of users that only publish."""
        return sum(self.counts.get(role, 0) for role in PUBLISHING)

    @property
    def keys(self) -> int:
        """Number of keys in each queue."""
        return min(KEYS_MAX, KEYS_EACH * max(1, self.publishers))

    @property
    def interval_s(self) -> float:
        """Seconds between two publishes of one publisher. With this interval all publishers
        together send `rate` messages a second on average."""
        return (1 + MESSAGES_MAX) / 2 * max(1, self.publishers) / self.rate

    def queue(self, role: str, number: int) -> str:
        """Return the name of one of a role's queues, counted from 0."""
        return f"load.{self.run}.{role}-{number}"

    def queues(self, role: str) -> list[str]:
        """Return the queues whose group consists of this role's users. A reader reads any of all
        queues."""
        consumers = self.counts.get(role, 0) if role in CONSUMING else 0
        many = math.ceil(consumers / CONSUMERS_MAX)
        return [self.queue(role, number) for number in range(many)]

    @property
    def all_queues(self) -> list[str]:
        """The queues of all roles. Without consumers there is one, for readers alone."""
        found = [name for role in CONSUMING for name in self.queues(role)]
        return found or [self.queue("worker", 0)]

    def partitions(self, role: str) -> int:
        """Return the number of partitions of a queue of this role: a power of two, at least 4 and
        at least one for each consumer of its group."""
        consumers = min(self.counts.get(role, 0), CONSUMERS_MAX)
        return max(4, 1 << math.ceil(math.log2(max(1, consumers))))

    @property
    def slow_s(self) -> float:
        """The seconds that a slow consumer takes over a message. All slow consumers together are at
        least twice as fast as their messages come, or they would never finish."""
        slow = self.counts.get("slow", 0)
        coming = self.rate * len(self.queues("slow")) / len(self.all_queues)
        return min(_SLOW_S, slow / (2 * coming)) if slow else 0.0


def role_of(queue: str) -> str:
    """Return the role whose users consume a queue."""
    return queue.rpartition(".")[2].rpartition("-")[0]


def counts(users: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Return the number of users of each role. It follows the shares, rounded so that the sum is
    exact, and is at least one for each role with a share.

    Raises:
        ValueError: an unknown role, no publisher, or fewer users than roles.
    """
    wanted = {role: share for role, share in shares.items() if share > 0}
    if unknown := wanted.keys() - ROLES.keys():
        raise ValueError(f"no role {', '.join(sorted(unknown))}; there are {', '.join(ROLES)}")
    if not any(role in wanted for role in PUBLISHING):
        raise ValueError("no user publishes. Give websocket or rest a share.")
    if users < len(wanted):
        raise ValueError(f"{len(wanted)} roles need at least {len(wanted)} users, not {users}")
    left = users - len(wanted)
    whole = sum(wanted.values())
    exact = {role: left * share / whole for role, share in wanted.items()}
    found = {role: 1 + math.floor(share) for role, share in exact.items()}
    by_rest = sorted(wanted, key=lambda role: (math.floor(exact[role]) - exact[role], role))
    for role in by_rest[: users - sum(found.values())]:
        found[role] += 1
    return found


def shares(texts: Sequence[str]) -> dict[str, float]:
    """Parse shares. `worker=50` replaces one of the usual ones; `none` drops all shares before it.

    Raises:
        ValueError: a text that is neither.
    """
    found: dict[str, float] = dict(SHARES)
    for text in texts:
        role, equals, share = text.partition("=")
        if text == "none":
            found = {}
        elif not equals or not share.replace(".", "", 1).isdigit():
            raise ValueError(f"{text!r} is no share. Write one like worker=50, or none.")
        else:
            found[role] = float(share)
    return found


def manned(plan: Plan, counts: Mapping[str, int]) -> Plan:
    """Return the plan with other numbers of users; each publisher publishes as fast as before."""
    each = plan.rate / max(1, plan.publishers)
    found = msgspec.structs.replace(plan, counts=dict(counts))
    return msgspec.structs.replace(found, rate=each * max(1, found.publishers))


def addresses(text: str) -> list[str]:
    """Return the brokers of `http://a:8080,http://b:8080`; the default scheme is http.

    Raises:
        ValueError: a text that is no address.
    """
    found = []
    for one in text.split(","):
        url = one.strip()
        place = urlsplit(url if "://" in url else f"http://{url}")
        try:
            good = place.scheme in {"http", "https"} and place.hostname and place.port != 0
        except ValueError:  # a port that is no number
            good = False
        if not good or place.path not in {"", "/"}:
            raise ValueError(
                f"{one!r} is no broker's address. Write one like http://127.0.0.1:8080."
            )
        found.append(f"{place.scheme}://{place.netloc}")
    return found


def placed(plan: Plan, urls: list[str]) -> Plan:
    """Return the plan with these brokers."""
    return msgspec.structs.replace(plan, urls=urls)


def write(plan: Plan, path: Path) -> None:
    """Write a plan for the processes of the run."""
    path.write_bytes(msgspec.json.encode(plan))


def read(path: Path) -> Plan:
    """Read a plan that `write` wrote. Raises OSError, msgspec.DecodeError."""
    return msgspec.json.decode(path.read_bytes(), type=Plan)
