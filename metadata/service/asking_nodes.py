"""Asking the metadata service for something that any of its nodes can answer: one after another,
until one does."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from metadata.service.http_client import Asker, NoAnswer, NotSent
from metadata.service.node_choice import NodeChoice
from push.errors import CODES, Refused, TocsinError, Unknown

LOOK_TRY_S: Final = 0.5
"""A node that has not answered a look by then is taken for frozen, and another one asked."""
NEWS_TRY_S: Final = 1.0
"""The same of what the node asks its database for: what has changed, the members of a group."""
CHANGE_TRY_S: Final = 2.0
"""The same of a change, which waits for every copy of the database."""
READ_TRY_S: Final = 3.0
"""The same of many rows."""
_LOG: Final = logging.getLogger("tocsin.metadata")
_OWN: Final = frozenset({"storage_unavailable", "metadata_unavailable", "draining", "unknown",
                         "internal", "not_found", "unauthorized", "method_not_allowed",
                         "overloaded"})  # fmt: skip
"""Codes that say something of the node that was asked, and nothing of what was asked."""
_UNSURE: Final = frozenset({"unknown", "internal"})
"""Of these, those with which something may have been changed."""
FormT = TypeVar("FormT")


class _Problem(msgspec.Struct):
    """What counts of a problem document."""

    code: str = "internal"
    detail: str = ""


class Nobody(Refused):
    """No node could say. `is_sent`: one of them may have got the request."""

    def __init__(self, detail: str, *, is_sent: bool) -> None:
        super().__init__("metadata_unavailable", detail, 1.0)
        self.is_sent = is_sent


class AskingNodes:
    """See the module."""

    def __init__(self, asker: Asker, choice: NodeChoice) -> None:
        self.choice = choice
        """Whom to ask first."""
        self._asker = asker
        self._is_well = True

    async def ask(
        self,
        method: str,
        target: str,
        body: object,
        form: type[FormT],
        *,
        try_s: float = LOOK_TRY_S,
        urls: Callable[[], list[str]] | None = None,
    ) -> FormT:
        """The first answer of a node. `urls`: whom to ask instead of all.

        Raises:
            Nobody: none could answer.
            TocsinError: what a node has refused, for what it was asked.
        """
        now = asyncio.get_running_loop().time()
        reasons: list[str] = []
        is_sent = False
        for url in (urls or (lambda: self.choice.to_ask(now=now)))():
            try:
                answer = await self.ask_one(url, method, target, body, form, try_s=try_s)
            except Nobody as error:
                reasons.append(error.detail)
                is_sent = is_sent or error.is_sent
                continue
            self._told(is_well=True)
            return answer
        why = "; ".join(dict.fromkeys(reasons))
        self._told(is_well=False, why=why)
        raise Nobody(f"no node of the metadata service answers: {why}", is_sent=is_sent)

    async def ask_one(
        self, url: str, method: str, target: str, body: object, form: type[FormT], *, try_s: float
    ) -> FormT:
        """The same of one node, whose going is noted. Raises Nobody, TocsinError."""
        loop = asyncio.get_running_loop()
        sent = None if body is None else msgspec.json.encode(body)
        try:
            answer = await self._asker.ask(url, method, target, sent, timeout_s=try_s)
        except (NotSent, NoAnswer) as error:
            self.choice.failed(url, now=loop.time())
            raise Nobody(str(error), is_sent=isinstance(error, NoAnswer)) from None
        try:
            if answer.status == 200:
                self.choice.answered(url)
                return msgspec.json.decode(answer.body, type=form)
            problem = msgspec.json.decode(answer.body, type=_Problem)
        except msgspec.DecodeError as error:
            self.choice.failed(url, now=loop.time())
            raise Nobody(f"{url} answers {answer.status}: {error}", is_sent=True) from None
        if problem.code in _OWN or problem.code not in CODES:
            if problem.code != "not_found":
                self.choice.failed(url, now=loop.time())
            raise Nobody(f"{url}: {problem.detail}", is_sent=problem.code in _UNSURE)
        self.choice.answered(url)
        raise _error(problem)

    def _told(self, *, is_well: bool, why: str = "") -> None:
        if is_well != self._is_well:
            self._is_well = is_well
            if is_well:
                _LOG.info("the metadata service answers again")
            else:
                _LOG.warning("the metadata service does not answer, what is known goes on: %s", why)

    async def close(self) -> None:
        """Connections are closed."""
        await self._asker.close()


def _error(problem: _Problem) -> TocsinError:
    return Refused(problem.code, problem.detail)


def unknown(error: Nobody) -> TocsinError:
    """What becomes of a change that nobody has answered."""
    if not error.is_sent:
        return error
    return Unknown(f"whether it was changed is not known: {error.detail}")
