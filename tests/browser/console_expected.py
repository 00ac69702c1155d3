"""What the console has to show of the broker's answers, worked out anew: the hooks of each view
that is live, with their exact values."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from tests.browser.console_house import Hook, Shown, Who, who

Expected = dict[Hook, Shown]
Json = Mapping[str, Any]
JITTER_MS: Final = 5
LINES_MAX: Final = 4
RATES: Final = ("published", "given", "settled")
RATES_OF_GROUP: Final = ("given", "settled", "nacked")
WAITS: Final = {
    "": "nothing waits", "nothing": "nothing waits", "ready": "ready", "paused": "paused",
    "draining": "draining", "no_consumer": "no consumer", "absent": "consumer away",
    "moving": "moving", "credit": "credit", "socket": "connection slow or gone",
    "full": "too much in flight",
    "backoff": "retry later", "parked": "parked", "gate": "key held", "behind": "behind another",
    "in_flight": "in flight", "commit": "commit", "dead_letter": "dying", "dying": "dying",
    "waiting": "waiting", "read": "being read", "backlog": "backlog", "unknown": "unknown",
}  # fmt: skip
TRANSPORTS: Final = {
    "websocket": "WebSocket", "long-poll": "long poll", "pull": "pull (HTTP)", None: "lingering",
}  # fmt: skip


def number(value: object) -> Shown:
    """A figure's exact value, as JavaScript writes it."""
    return ("value", _text(value))


def time(value: object) -> Shown:
    """A time's, in milliseconds."""
    return ("unix_ms", _text(value))


def differences(shown: Expected, wanted: Expected) -> dict[Hook, tuple[Shown | None, Shown | None]]:
    """Where they differ. Times may by JITTER_MS: the broker works those of leases and backoffs out
    of its monotonic clock at each look."""
    found = {}
    for hook in shown.keys() | wanted.keys():
        one, other = shown.get(hook), wanted.get(hook)
        if one != other and not _is_near(one, other):
            found[hook] = (one, other)
    return found


def _is_near(one: Shown | None, other: Shown | None) -> bool:
    if one is None or other is None or not one[0] == other[0] == "unix_ms":
        return False
    return "" not in (one[1], other[1]) and abs(int(one[1]) - int(other[1])) <= JITTER_MS


def text(value: str) -> Shown:
    """Return what is said in words."""
    return ("text", value)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list):
        return json.dumps(value, separators=(",", ":"))
    return str(value)


def counted(value: int, one: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{value:,} {one}" + ("" if value == 1 else "s")


# --- All queues, and one ----------------------------------------------------------------------


def overview(queues: Sequence[Json]) -> Expected:
    """Nothing moves: all rates are 0."""
    sums = {
        "queues": len(queues),
        "depth": sum(queue["depth"] for queue in queues),
        "bytes": sum(queue["bytes"] for queue in queues),
        "lag": sum(group["lag"] for queue in queues for group in others(queue)),
        **{f"{name}-rate": 0 for name in RATES},
    }
    expected = {(f"total-{name}", who()): number(value) for name, value in sums.items()}
    expected |= _at_rest("total-rates-plot-now", RATES)
    for line in ("depth", "lag"):
        expected["total-depth-plot-now", who(line=line)] = text(f"{sums[line]:,}")
    for queue in queues:
        mine = who(queue=queue["name"])
        lags = [group["lag"] for group in others(queue)]
        expected |= {
            ("queue-name", mine): text(queue["name"]),
            ("queue-state", mine): text(state_of_queue(queue)),
            ("queue-depth", mine): number(queue["depth"]),
            ("queue-scheduled", mine): number(queue["scheduled"]["messages"]),
            ("queue-lag", mine): number(max(lags) if lags else None),
            ("queue-bytes", mine): number(queue["bytes"]),
            ("queue-oldest", mine): time(queue["oldest_unix_ms"]),
            **{(f"queue-{name}-rate", mine): number(0) for name in RATES},
        }
    return expected


def _at_rest(testid: str, names: Sequence[str]) -> Expected:
    return {(testid, who(line=name)): text("0") for name in names}


def state_of_queue(queue: Json) -> str:
    """The worst first."""
    groups = others(queue)
    parked = sum(group["keys_parked"] for group in groups)
    if queue["paused"]:
        return "paused"
    if parked:
        return f"{parked} {'key' if parked == 1 else 'keys'} parked"
    if any(group["lag"] and not group["consumers"] and not group["in_flight"] for group in groups):
        return "no consumer"
    return "running" if groups else "no group"


def others(queue: Json) -> list[Json]:
    """Return its groups but the broker's own."""
    return [group for group in queue["groups"] if not group["name"].startswith("tocsin.")]


def state_of_group(group: Json) -> str:
    """The same of a group."""
    if group["name"].startswith("tocsin."):
        return "the broker's own"
    if group["keys_parked"]:
        parked = group["keys_parked"]
        return f"{parked} {'key' if parked == 1 else 'keys'} parked"
    if group["consumers"] or group["in_flight"]:
        return "has consumers"
    return "no consumer" if group["lag"] else "idle"


def queue(of: Json) -> Expected:
    """Return one queue, its groups, partitions and settings."""
    mine = who(queue=of["name"])
    expected: Expected = {
        ("queue-state", mine): text(state_of_queue(of)),
        ("queue-depth", mine): number(of["depth"]),
        ("queue-bytes", mine): number(of["bytes"]),
        ("queue-scheduled", mine): number(of["scheduled"]["messages"]),
        ("queue-next-due", mine): time(of["scheduled"]["next_unix_ms"]),
        ("queue-oldest", mine): time(of["oldest_unix_ms"]),
        ("queue-published", mine): number(of["counters"]["published"]),
        ("queue-partitions", who()): text(counted(len(of["partitions"]), "partition")),
        ("queue-holder", mine): number(of["holder"]),
        ("queue-created", mine): time(of["created_unix_ms"]),
        **{(f"queue-{name}-rate", mine): number(0) for name in RATES},
        **{(f"queue-{name}", mine): number(value) for name, value in of["settings"].items()},
    }
    expected |= _at_rest("queue-rates-plot-now", RATES)
    lags = [(f"lag {group['name']}", group["lag"]) for group in of["groups"]]
    for line, value in [("depth", of["depth"]), *lags][:LINES_MAX]:
        expected["queue-depths-plot-now", who(line=line)] = text(f"{value:,}")
    for group in of["groups"]:
        named = who(queue=of["name"], group=group["name"])
        expected |= {
            ("group-name", named): text(group["name"]),
            ("group-state", named): text(state_of_group(group)),
            **_group_counts(group, named),
        }
    for one in of["partitions"]:
        named = who(queue=of["name"], partition=one["partition"])
        names = ("start", "end", "certified", "messages", "bytes", "generation")
        expected |= {(f"partition-{name}", named): number(one[name]) for name in names}
        expected["partition-number", named] = number(one["partition"])
        expected["partition-cluster", named] = text(one.get("cluster", ""))
    return expected


# --- Storage clusters -------------------------------------------------------------------------


def clusters(all_: Sequence[Json]) -> Expected:
    """How full each is, and what it holds."""
    totals = {
        "count": len(all_),
        "hot": sum(one["state"] == "hot" for one in all_),
        "away": sum(one["state"] == "away" or not one["answers"] for one in all_),
        "partitions": sum(one["partitions"] for one in all_),
    }
    expected = {(f"clusters-{name}", who()): number(value) for name, value in totals.items()}
    for one in all_:
        mine = who(cluster=one["name"])
        used, bound = one["used_bytes"], one["bound_bytes"] or None
        expected |= {
            ("cluster-name", mine): text(one["name"]),
            ("cluster-zone", mine): text(one["zone"]),
            ("cluster-state", mine): text(state_of_cluster(one)),
            ("cluster-since", mine): time(one["since_unix_ms"]),
            ("cluster-share", mine): number(round(100 * used / bound) if bound else None),
            ("cluster-used", mine): number(used),
            ("cluster-bound", mine): number(bound),
            ("cluster-queues", mine): number(one["queues"]),
            ("cluster-partitions", mine): number(one["partitions"]),
            ("cluster-catalog", mine): text("here" if one["has_catalog"] else ""),
        }
    return expected


def state_of_cluster(of: Json) -> str:
    """Return what is worst of it."""
    if not of["answers"]:
        return "not answering"
    if of["state"] != "away" and of["since_unix_ms"] is None:
        return "not looked at"
    return str(of["state"])


def _group_counts(group: Json, named: Who) -> Expected:
    return {
        ("group-lag", named): number(group["lag"]),
        ("group-oldest", named): time(group["oldest_unix_ms"]),
        ("group-consumers", named): number(group["consumers"]),
        ("group-in-flight", named): number(group["in_flight"]),
        ("group-aside", named): number(group["aside"]),
        ("group-parked", named): number(group["keys_parked"]),
    }


# --- A group ----------------------------------------------------------------------------------


def group(of: Json, held: Sequence[Json], leases: Sequence[Json], queue_: Json) -> Expected:
    """Return one group, its owners, keys, leases and settings: where it has none, the queue's."""
    data = {"queue": of["queue"], "group": of["name"]}
    mine = who(**data)
    expected: Expected = {
        ("group-state", mine): text(state_of_group(of)),
        **_group_counts(of, mine),
        ("group-redelivered", mine): number(of["counters"]["redelivered"]),
        ("group-dead-lettered", mine): number(of["counters"]["dead_lettered"]),
        **{(f"group-{name}-rate", mine): number(0) for name in RATES_OF_GROUP},
        **_at_rest("group-rates-plot-now", RATES_OF_GROUP),
        ("group-lag-plot-now", who(line="lag")): text(f"{of['lag']:,}"),
    }
    for name, value in of["settings"].items():
        holds = queue_["settings"].get(name) if value is None else value
        expected["group-" + name, mine] = number(holds)
    clients: dict[str, str] = {}
    for one in of["partitions"]:
        owner, named = one["owner"], who(**data, partition=one["partition"])
        clients |= {owner["consumer"]: owner_name(owner)} if owner else {}
        waits = "moving" if one["draining"] else WAITS[one["waits_for"]]
        numbers = {
            "partition": "partition", "lag": "lag", "in-flight": "in_flight",
            "waiting": "keys_waiting", "parked": "keys_parked", "next": "next_offset",
            "epoch": "epoch",
        }  # fmt: skip
        expected |= {
            ("owner-client", named): text(owner_name(owner, one["member"])),
            ("owner-consumer", named): text((owner or {}).get("consumer") or one["member"] or "–"),
            ("owner-transport", named): text(TRANSPORTS[owner["transport"]] if owner else "–"),
            ("owner-waits", named): text(waits),
            **{(f"owner-{name}", named): number(one[field]) for name, field in numbers.items()},
        }
    for one in held:
        expected |= _held(one, data)
    for one in leases:
        expected |= _lease(one, data, clients)
    return expected


def owner_name(owner: Json | None, member: str | None = None) -> str:
    """Return who is given a partition's messages."""
    if owner is None:
        return "nobody here" if member else "nobody"
    return owner.get("client") or ("whoever pulls" if owner["transport"] == "pull" else "unnamed")


def _held(one: Json, data: Json) -> Expected:
    place = who(**data, partition=one["partition"], key_hash=one["key_hash"])
    numbers = {
        "partition": "partition", "attempts": "attempts", "messages": "messages",
        "in-flight": "in_flight", "offset": "offset",
    }  # fmt: skip
    return {
        ("held-key", place): text(key_shown(one)),
        ("held-reason", place): text(WAITS[one["reason"]]),
        ("held-until", place): time(one.get("until_unix_ms")),
        ("held-since", place): time(one.get("since_unix_ms")),
        **{(f"held-{name}", place): number(one.get(field)) for name, field in numbers.items()},
    }


def _lease(one: Json, data: Json, clients: Json) -> Expected:
    place = who(**data, partition=one["partition"], offset=one["offset"])
    keyed = place | {("keyHash", "")}
    return {
        ("lease-key", keyed): text(one["key"]),
        ("lease-client", place): text(clients.get(one["consumer"], one["consumer"])),
        ("lease-given", place): time(one["given_unix_ms"]),
        ("lease-until", place): time(one["lease_until_unix_ms"]),
        **{(f"lease-{n}", place): number(one[n]) for n in ("partition", "offset", "attempt")},
    }


def key_shown(one: Json) -> str:
    """A key, or what stands for it."""
    return str(one.get("key") or f"no key, or unknown ({one['key_hash']})")


def parked(answer: Json, queue_name: str, group_name: str) -> Expected:
    """The parked keys of a group."""
    data = {"queue": queue_name, "group": group_name}
    expected: Expected = {("parked-count", who(**data)): number(answer["keys_parked"])}
    for one in answer["keys"]:
        place = who(**data, partition=one["partition"], key_hash=one["key_hash"])
        names = ("messages", "attempts", "partition", "offset")
        expected |= {
            ("parked-key", place): text(key_shown(one)),
            ("parked-since", place): time(one["since_unix_ms"]),
            ("parked-expires", place): time(one.get("expires_unix_ms")),
            ("parked-reason", place): text(str(one.get("reason") or "")),
            **{(f"parked-{name}", place): number(one[name]) for name in names},
        }
    return expected


# --- Sessions ---------------------------------------------------------------------------------


def sessions(all_: Sequence[Json]) -> Expected:
    """Return who is here."""

    def sums(one: Json) -> dict[str, int]:
        subscriptions = one["subscriptions"]
        return {
            "granted": sum(sub["credit"]["granted"] for sub in subscriptions),
            "open": sum(sub["credit"]["open"] for sub in subscriptions),
            "in-flight": sum(sub.get("in_flight") or 0 for sub in subscriptions),
        }

    def by(transport: str | None) -> int:
        return sum(one["transport"] == transport for one in all_)

    totals = {
        "count": len(all_), "websocket": by("websocket"), "long-poll": by("long-poll"),
        "lingering": by(None), "in-flight": sum(sums(one)["in-flight"] for one in all_),
    }  # fmt: skip
    expected = {(f"sessions-{name}", who()): number(value) for name, value in totals.items()}
    for one in all_:
        mine = who(session=one["session"])
        expected |= {
            ("session-client", mine): text(one["client"] or "unnamed"),
            ("session-id", mine): text(one["session"]),
            ("session-opened", mine): time(one["opened_unix_ms"]),
            ("session-heard", mine): time(one["heard_unix_ms"]),
            ("session-unsent", mine): number(one["unsent_bytes"]),
            **{(f"session-{name}", mine): number(value) for name, value in sums(one).items()},
        }
        if one["transport"] is not None:  # the other one counts down
            expected["session-transport", mine] = text(TRANSPORTS[one["transport"]])
        for sub in one["subscriptions"]:
            place = mine | who(subscription=sub["subscription"])
            name = f"{sub['queue']} / {sub['group']}" if sub["group"] else sub["queue"]
            expected["subscription", place] = text(name)
            expected["subscription-said", place] = text(_subscribed(sub))
    return expected


def _subscribed(sub: Json) -> str:
    credit = f"credit {sub['credit']['open']:,} of {sub['credit']['granted']:,}"
    if sub["group"]:
        owned = counted(len(sub["partitions"]), "partition")
        return f"{owned}, {sub['in_flight']:,} in flight, {credit}"
    keys = counted(sub["keys"], "key") if "keys" in sub else "all keys"
    behind = len(sub["behind"])
    place = f"behind in {counted(behind, 'partition')}" if behind else "at the end"
    return f"reads {keys}, {place}, {credit}"


# --- A key ------------------------------------------------------------------------------------


def explained(answer: Json) -> Expected:
    """Where it goes and what it waits for."""
    paused = " The queue is paused." if answer["paused"] else ""
    where = f"Key {answer['key']} goes to partition {answer['partition']} of {answer['queue']}."
    expected: Expected = {
        ("explain-where", who(partition=answer["partition"])): text(where + paused)
    }
    if "scheduled" in answer:
        expected["explain-scheduled", who()] = text(answer["scheduled"]["text"])
    for one in answer["groups"]:
        named = who(queue=answer["queue"], group=one["group"])
        expected |= {
            (f"explain-{name}", named): shown for name, shown in _explained_in(one).items()
        }
    return expected


def _explained_in(one: Json) -> dict[str, Shown]:
    owner, head, messages = one["owner"], one["head"] or {}, one["messages"]
    unsettled = f"{messages['in_flight']:,} in flight, {messages['waiting']:,} waiting"
    named = "nobody"
    if owner:
        name = owner.get("client") or owner["consumer"]
        named = f"{name} ({TRANSPORTS[owner['transport']]})"
        named = "whoever pulls, over HTTP" if owner["transport"] == "pull" else named
    shown = {
        "group-link": text(one["group"]),
        "waits": text(WAITS[one["waits_for"]]),
        "owner": text(named),
        "consumer": text(owner["consumer"] if owner else "–"),
        "epoch": number(one["epoch"]),
        "unsettled": text(unsettled if any(messages.values()) else "none"),
        "until": time(one["until_unix_ms"]),
        "since": time(one["since_unix_ms"]),
        "offset": number(head.get("offset")),
        "id": text(head.get("id") or "–"),
        "published": time(head.get("published_unix_ms")),
        "expires": time(head.get("expires_unix_ms")),
        "tries": text(_tries(head)),
        "before": number(one["before"]),
        "also": text(", ".join(WAITS[code] for code in one["also"]) or "nothing else"),
    }
    if one["until_unix_ms"] is None:  # the other one counts down
        shown["sentence"] = text(one["text"])
    return shown


def _tries(head: Json) -> str:
    if not head:
        return "–"
    failed = f"failed {counted(head['attempts'], 'time')}" if head["attempts"] else "never failed"
    running = head["in_flight"]
    return f"{failed}, attempt {running['attempt']} is running" if running else failed


# --- Messages ---------------------------------------------------------------------------------

_MEANS: Final = {
    "in_flight": "A consumer is at work on it.",
    "parked": "It failed too often: somebody has to retry, skip or release it.",
    "waiting": "It waits for its retry, or behind an earlier message of its key.",
    "ready": "It is given out next.",
}
_DEATHS: Final = {"exhausted": "exhausted: failed its last attempt"}


def messages(kind: str, answer: Json) -> Expected:
    """Messages (`message`) or dead letters (`dead-letter`), all of them opened."""
    found = answer["messages"]
    word = "message" if kind == "message" else "dead letter"
    end = f" They stand in {answer['queue']}." if kind == "dead-letter" else ""
    expected: Expected = {(f"{kind}-count", who()): text(f"{counted(len(found), word)}.{end}")}
    for one in found:
        place = who(partition=one["partition"], offset=one["offset"])
        facts = {
            "place": text(f"{one['partition']}-{one['offset']}"),
            "published": time(one["published_unix_ms"]),
            "id": text(one["id"]),
            "full-key": text(one["key"]),
            "published-exact": text(exact(one["published_unix_ms"])),
            "content-type": text(one["content_type"]),
            "header": text(one["headers"]["kind"]),
            "form": text(f"Body: json, {one['content_type']}"),
            "body": text(json.dumps(one["body"], indent=2)),
            **_standing(one),
        }
        expected |= {(f"{kind}-{name}", place): shown for name, shown in facts.items()}
        expected[f"{kind}-key", place | who(key_hash="")] = text(one["key"])
    return expected


def _standing(one: Json) -> dict[str, Shown]:
    facts = {}
    if one.get("attempts"):
        facts["attempts"] = text(str(one["attempts"]))
    if one.get("expires_unix_ms"):
        facts["expires"] = text(exact(one["expires_unix_ms"]))
    if "state" in one:
        facts |= {"state": text(WAITS[one["state"]]), "state-means": text(_MEANS[one["state"]])}
    if origin := one.get("origin"):
        place = f"partition {origin['partition']}, offset {origin['offset']}"
        facts |= {
            "origin": text(f"{origin['queue']}, group {origin['group']}, {place}"),
            "reason": text(one["reason"]),
            "death": text(_DEATHS[one["reason"]]),
            "nack": text(one["nack"]),
        }
    return facts


def scheduled(answer: Json) -> Expected:
    """Scheduled messages, all of them opened."""
    found = answer["messages"]
    said = f"{len(found):,} of {counted(answer['count'], 'message')}, by time."
    expected: Expected = {("scheduled-count", who()): text(said)}
    for one in found:
        mine = who(ticket=one["ticket"])
        facts = {
            "at": text(exact(one["due_unix_ms"])[:19]),
            "due": time(one["due_unix_ms"]),
            "short-id": text(one["id"]),
            "bytes": number(one["bytes"]),
            "id": text(one["id"]),
            "ticket": text(one["ticket"]),
            "full-key": text(one["key"]),
            "due-exact": text(exact(one["due_unix_ms"])),
            "published-exact": text(exact(one["published_unix_ms"])),
            "ttl": text("1 h 0 min"),
            "content-type": text(one["content_type"]),
            "header": text(one["headers"]["kind"]),
            "form": text(f"Body: json, {one['content_type']}"),
            "body": text(json.dumps(one["body"], indent=2)),
        }
        expected |= {(f"scheduled-{name}", mine): shown for name, shown in facts.items()}
        expected["scheduled-key", mine | who(key_hash="")] = text(one["key"])
    return expected


def exact(unix_ms: int) -> str:
    """A time in UTC, to the millisecond."""
    at = datetime.fromtimestamp(unix_ms // 1000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}.{unix_ms % 1000:03d} +00:00"
