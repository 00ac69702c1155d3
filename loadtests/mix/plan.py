"""What a run consists of: who is in it, how many, on which queues, how fast. Pure."""

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
"""Of a hundred users, unless told otherwise."""
PUBLISHING: Final = ("websocket", "rest")
CONSUMING: Final = ("worker", "poller", "slow", "storm", "day")
"""Each kind has queues and a group of its own: a slow one would make the others' messages wait."""

CONSUMERS_MAX: Final = 64
"""Of a group; more of them get a further queue."""
KEYS_EACH: Final = 4
"""Under which a publisher publishes."""
KEYS_MAX: Final = 1000
MESSAGES_MAX: Final = 4
"""Of one publish."""
_SLOW_S: Final = 0.2


class Plan(msgspec.Struct, frozen=True):
    """A run, as its launcher has written it down and all its processes read it."""

    run: str
    """Part of the queues' names: a broker may see many runs."""
    urls: list[str]
    counts: dict[str, int]
    """Users of each role."""
    processes: int
    rate: float
    """Messages a second, of all publishers together."""
    seconds: float
    ramp_s: float
    body_bytes: int
    seed: int
    began_ns: int
    """Monotonic: what series count from."""
    storm_every_s: float = 30.0
    day_s: float = 60.0
    """How long the compressed day lasts."""

    @property
    def users(self) -> int:
        """All of them."""
        return sum(self.counts.values())

    @property
    def publishers(self) -> int:
        """Those that do nothing else."""
        return sum(self.counts.get(role, 0) for role in PUBLISHING)

    @property
    def keys(self) -> int:
        """So many there are in each queue."""
        return min(KEYS_MAX, KEYS_EACH * max(1, self.publishers))

    @property
    def interval_s(self) -> float:
        """Between two publishes of one publisher."""
        return (1 + MESSAGES_MAX) / 2 * max(1, self.publishers) / self.rate

    def queue(self, role: str, number: int) -> str:
        """The name of one of a role's queues, counted from 0."""
        return f"load.{self.run}.{role}-{number}"

    def queues(self, role: str) -> list[str]:
        """Those whose group the users of this role are; a reader reads any of all."""
        consumers = self.counts.get(role, 0) if role in CONSUMING else 0
        many = math.ceil(consumers / CONSUMERS_MAX)
        return [self.queue(role, number) for number in range(many)]

    @property
    def all_queues(self) -> list[str]:
        """With the role whose group each has. Without consumers there is one, for readers alone."""
        found = [name for role in CONSUMING for name in self.queues(role)]
        return found or [self.queue("worker", 0)]

    def partitions(self, role: str) -> int:
        """Of a queue of this role: so many that each consumer has one."""
        consumers = min(self.counts.get(role, 0), CONSUMERS_MAX)
        return max(4, 1 << math.ceil(math.log2(max(1, consumers))))

    @property
    def slow_s(self) -> float:
        """What a slow consumer takes over a message: all of them together are twice as fast as what
        comes, or they would never be done."""
        slow = self.counts.get("slow", 0)
        coming = self.rate * len(self.queues("slow")) / len(self.all_queues)
        return min(_SLOW_S, slow / (2 * coming)) if slow else 0.0


def role_of(queue: str) -> str:
    """Whose queue it is."""
    return queue.rpartition(".")[2].rpartition("-")[0]


def counts(users: int, shares: Mapping[str, float]) -> dict[str, int]:
    """So many of each role: by its share, rounded so that the sum is right, and at least one of
    each that has a share.

    Raises:
        ValueError: a role that there is not, nobody who publishes, or fewer users than roles.
    """
    wanted = {role: share for role, share in shares.items() if share > 0}
    if unknown := wanted.keys() - ROLES.keys():
        raise ValueError(f"no role {', '.join(sorted(unknown))}; there are {', '.join(ROLES)}")
    if not any(role in wanted for role in PUBLISHING):
        raise ValueError("somebody must publish: give websocket or rest a share")
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
    """`worker=50` over the usual ones, `none` before for nothing but what is said.

    Raises:
        ValueError: a text that is neither.
    """
    found: dict[str, float] = dict(SHARES)
    for text in texts:
        role, equals, share = text.partition("=")
        if text == "none":
            found = {}
        elif not equals or not share.replace(".", "", 1).isdigit():
            raise ValueError(f"{text!r} is no share: write worker=50, or none")
        else:
            found[role] = float(share)
    return found


def manned(plan: Plan, counts: Mapping[str, int]) -> Plan:
    """The same run with other numbers of users; each publisher publishes as fast as before."""
    each = plan.rate / max(1, plan.publishers)
    found = msgspec.structs.replace(plan, counts=dict(counts))
    return msgspec.structs.replace(found, rate=each * max(1, found.publishers))


def addresses(text: str) -> list[str]:
    """The brokers of `http://a:8080,http://b:8080`; http where nothing is said.

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
            raise ValueError(f"{one!r} is no broker's address: write http://127.0.0.1:8080")
        found.append(f"{place.scheme}://{place.netloc}")
    return found


def placed(plan: Plan, urls: list[str]) -> Plan:
    """The same run, at these brokers."""
    return msgspec.structs.replace(plan, urls=urls)


def write(plan: Plan, path: Path) -> None:
    """Put it where the processes look."""
    path.write_bytes(msgspec.json.encode(plan))


def read(path: Path) -> Plan:
    """What `write` has written. Raises OSError, msgspec.DecodeError."""
    return msgspec.json.decode(path.read_bytes(), type=Plan)
