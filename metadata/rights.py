"""Rights on patterns of queues and, to publish and to read, on patterns of keys. Pure.

A right is written `verbs:queues` or `verbs:queues:keys`, as in

    publish:orders              publish to the queue `orders`
    consume,read:orders.*       take from groups of, and read, every queue whose name begins so
    read:feed:user-7            read `feed`, its key `user-7` alone

In a pattern `*` stands for any run of characters, also none; `\\*` and `\\\\` stand for themselves.
`consume`, `manage` and `observe` are rights on whole queues, so they take no keys. `observe` shows
figures and nothing else. It is meant for scrapers of metrics.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, Literal

import msgspec

from push.errors import Refused

Verb = Literal["publish", "consume", "read", "manage", "observe"]
VERBS: Final[tuple[Verb, ...]] = ("publish", "consume", "read", "manage", "observe")
KEYED: Final = frozenset({"publish", "read"})
"""The verbs whose right may be on some keys only."""
GRANTS_MAX: Final = 100
PATTERN_CHARS_MAX: Final = 1024
_MEMO_MAX: Final = 10_000
PLACEHOLDER: Final = re.compile(r"\{([A-Za-z0-9_.-]{1,64})\}")


class RightsError(ValueError):
    """Error: a right is not written correctly. The text is a sentence that names it."""


class Right(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Some verbs on the queues of a pattern, and on some keys only if `keys` is not None."""

    verbs: tuple[Verb, ...]
    queues: str
    keys: str | None = None

    def __str__(self) -> str:
        """The right in its written form."""
        text = f"{','.join(self.verbs)}:{self.queues}"
        return text if self.keys is None else f"{text}:{self.keys}"


class KeyScope:
    """The keys that a right covers; with `patterns` None all keys, and messages without a key."""

    __slots__ = ("_expression", "patterns")

    def __init__(self, patterns: tuple[str, ...] | None) -> None:
        self.patterns = patterns
        self._expression = (
            None if patterns is None else re.compile("|".join(map(_regex, patterns)), re.DOTALL)
        )

    @property
    def is_all(self) -> bool:
        """Whether it covers every key, and messages without a key."""
        return self._expression is None

    def allow(self, key: str | None) -> bool:
        """Whether it covers this key. None stands for a message without a key, which a right on
        some keys never covers."""
        if self._expression is None:
            return True
        return key is not None and self._expression.fullmatch(key) is not None


ALL_KEYS: Final = KeyScope(None)


def not_allowed(queue: str, key: str | None) -> Refused:
    """Return the refusal of a message that the right to publish does not cover."""
    which = "messages without a key" if key is None else f"the key {key!r}"
    return Refused(
        "forbidden", f"the right to publish to {queue!r} covers some keys, but not {which}"
    )


class Rights:
    """Everything that one credential allows. Immutable except for its memory of answers."""

    __slots__ = ("_memo", "grants")

    def __init__(self, grants: Iterable[Right]) -> None:
        self.grants = tuple(grants)
        self._memo: dict[tuple[Verb, str], KeyScope | None] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rights) and other.grants == self.grants

    def __hash__(self) -> int:
        return hash(self.grants)

    def __repr__(self) -> str:
        return f"Rights({', '.join(map(str, self.grants))})"

    def keys(self, verb: Verb, queue: str) -> KeyScope | None:
        """Return the keys of the queue on which the verb is allowed; None if on none."""
        try:
            return self._memo[verb, queue]
        except KeyError:
            pass
        found = [g for g in self.grants if verb in g.verbs and _matches(g.queues, queue)]
        keys: KeyScope | None = None
        if any(grant.keys is None for grant in found):
            keys = ALL_KEYS
        elif found:
            keys = KeyScope(tuple(grant.keys for grant in found if grant.keys is not None))
        if len(self._memo) >= _MEMO_MAX:  # names are the client's: they must not pile up (P9)
            self._memo.clear()
        self._memo[verb, queue] = keys
        return keys

    # enforces: P11
    def check(self, verb: Verb, queue: str) -> KeyScope:
        """Return the keys of the queue on which the verb is allowed.

        Raises:
            Refused: forbidden if on none. The error does not say whether the queue exists.
        """
        keys = self.keys(verb, queue)
        if keys is None:
            raise Refused("forbidden", f"this needs the right to {verb}, on the queue {queue!r}")
        return keys

    def check_keys(self, verb: Verb, queue: str, keys: Iterable[str] | None) -> None:
        """Check a request about these keys. None stands for every key, and for messages without
        one. Raises Refused(forbidden)."""
        allowed = self.check(verb, queue)
        if allowed.is_all:
            return
        where = f"the right to {verb} on the queue {queue!r} is one on some keys only"
        if keys is None:
            raise Refused("forbidden", f"{where}: name these keys in the request")
        for key in keys:
            if not allowed.allow(key):
                raise Refused("forbidden", f"{where}, and {key!r} is none of them")

    def check_one_of(self, verbs: Iterable[Verb], queue: str) -> None:
        """Raise Refused(forbidden) unless one of these verbs is allowed on the queue, on some keys
        at least."""
        verbs = tuple(verbs)
        if all(self.keys(verb, queue) is None for verb in verbs):
            needed = f"the right to {' or '.join(verbs)}"
            raise Refused("forbidden", f"this needs {needed}, on the queue {queue!r}")

    def is_everywhere(self, verb: Verb) -> bool:
        """Whether one right allows the verb on every queue that exists or may exist, on some keys
        at least."""
        return any(verb in grant.verbs and not grant.queues.strip("*") for grant in self.grants)

    def sees(self, queue: str) -> bool:
        """Whether any right covers the queue, so that its existence is no secret."""
        return any(self.keys(verb, queue) is not None for verb in VERBS)


ALL_RIGHTS: Final = Rights([Right(VERBS, "*")])
NO_RIGHTS: Final = Rights([])


def parse_right(text: str) -> Right:
    """Parse a right. Raises RightsError."""
    if not _is_utf8(text):
        raise RightsError(f"{text!r} is no right: it is not valid UTF-8")
    parts = text.split(":", 2)
    verbs = tuple(part.strip() for part in parts[0].split(","))
    if len(parts) < 2 or not set(verbs) <= set(VERBS):
        raise RightsError(
            f"{text!r} is no right: it is verbs:queues or verbs:queues:keys, with verbs of "
            f"{', '.join(VERBS)}, as in publish,read:orders.*"
        )
    queues, keys = parts[1].strip(), parts[2] if len(parts) == 3 else None
    for pattern in (queues, keys):
        if pattern is not None and not 1 <= len(pattern) <= PATTERN_CHARS_MAX:
            raise RightsError(f"{text!r}: a pattern has 1 to {PATTERN_CHARS_MAX} characters")
    whole = set(verbs) - KEYED
    if keys is not None and whole:
        raise RightsError(f"{text!r}: {', '.join(sorted(whole))} is a right on whole queues")
    ordered = tuple(verb for verb in VERBS if verb in verbs)
    return Right(ordered, queues, keys)


def parse_rights(texts: Iterable[str]) -> Rights:
    """Parse several rights. Raises RightsError if one is wrong, or there are more than
    GRANTS_MAX."""
    grants = tuple(map(parse_right, texts))
    if len(grants) > GRANTS_MAX:
        raise RightsError(f"at most {GRANTS_MAX} rights, not {len(grants)}")
    return Rights(grants)


def fill_in(template: str, claims: Mapping[str, object]) -> str:
    """Fill the claims into the right of a template: `{name}` becomes that claim, literally. A claim
    never acts as a pattern, so that a user called `*` does not read everything.

    Raises:
        RightsError: a claim is missing or empty, is neither text nor whole number, is not valid
            UTF-8, or is used in a queue's name and has characters that no such name has.
    """

    def claim(match: "re.Match[str]") -> str:
        value = claims.get(match[1])
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise RightsError(f"the right {template!r} needs the claim {match[1]!r}")
        # In a queue's pattern a colon would begin the keys, and a blank at its edge would be cut
        # off, though a user called "red " is not "red". In the keys both are ordinary characters.
        text = str(value)
        if not _is_utf8(text):
            raise RightsError(f"the claim {match[1]!r} is not valid UTF-8")
        if template[: match.start()].count(":") < 2 and not _IN_QUEUES.fullmatch(text):
            raise RightsError(f"the claim {match[1]!r} cannot stand for a queue")
        return literal(text)

    return PLACEHOLDER.sub(claim, template)


def literal(text: str) -> str:
    """Return the pattern that only this text matches."""
    return text.replace("\\", "\\\\").replace("*", "\\*")


def _regex(pattern: str) -> str:
    """Compile a pattern to an expression that matches in linear time for any number of `*`. The
    text between two of them is searched once, from the left, in an atomic group."""
    runs: list[str] = [""]
    for part in _PART.findall(pattern):
        if part.startswith("*"):
            runs.append("")
        else:
            runs[-1] += re.escape(part[1:] if part in _ESCAPED else part)
    first, *rest = runs
    if not rest:
        return first
    return first + "".join(f"(?>.*?{run})" for run in rest[:-1] if run) + ".*" + rest[-1]


_IN_QUEUES: Final = re.compile(r"[A-Za-z0-9._*\\-]+")
"""Characters that a claim may have in the pattern of queues: those of names, and `*` and `\\`."""
_PART: Final = re.compile(r"\\[*\\]|\*+|[^*\\]+|\\")
_ESCAPED: Final = ("\\*", "\\\\")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON lets half a surrogate pair through
        return False
    return True


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> "re.Pattern[str]":
    return re.compile(_regex(pattern), re.DOTALL)


def _matches(pattern: str, text: str) -> bool:
    return _compiled(pattern).fullmatch(text) is not None
