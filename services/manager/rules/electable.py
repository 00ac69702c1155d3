"""Who of a shard's servers could be elected, and how that changes (R28). Pure.

Sentinels have any replica elected that they know, however old its data is. So what is acknowledged
is on each of them; and one that is away is taken out, in this order, or it could be elected without
what was acknowledged meanwhile:

    1. every server that is left locks its user out, durably: it follows nobody any more
    2. each Sentinel forgets it, one after the other: it is not told of it again, because of 1.
    3. R is lowered, and the shard says who is not counted (`out`), in one act on every copy

One that has come back is let in again, in this order, or it could be elected before it has
everything:

    1. its priority is 0, durably: no Sentinel has it elected
    2. it follows a *replica*: the primary neither counts it nor waits for it meanwhile. (Where the
       primary is all that is left, it follows that.)
    3. it has everything, on its disk: R is raised and it is not `out` any more, in one act. From
       now on nothing is acknowledged without it
    4. it follows the primary, and has all that was written before it was counted, and everybody
       else who could be elected has heard that it is counted: priority again

Every look decides anew from what is seen; nothing that matters is in a manager's memory alone. What
a manager has said durably counts only if it has said so itself since that server was started. Who
is `out` and is attached to the primary all the same puts every group of acts in doubt
(`storage.redis.redis_copies`), so that nothing is acknowledged on the strength of it.
"""

from collections.abc import Iterable, Mapping, Sequence

from push.copies import (
    Act,
    Count,
    Elect,
    Follow,
    LetIn,
    LockOut,
    Prepare,
    Reset,
    Server,
)
from services.manager.rules.shard_rule import AWAY_S, ShardRule, Step
from services.manager.rules.shard_views import attached_to, listed, with_more


class Electable(ShardRule):
    """The rule of a shard that Sentinels guard."""

    def __init__(
        self, *, away_s: float = AWAY_S, silent_s: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(away_s=away_s, silent_s=silent_s)
        self._done: set[tuple[str, str, str]] = set()
        """(server, its start, the user locked out there; "": it is prepared), said by this one."""

    def _steps(self) -> Sequence[Step]:
        return self._raise, self._take_out, self._bar, self._let_in, self._admit

    def did(self, act: Act) -> None:
        """As ShardRule.did."""
        at = act.at if isinstance(act, LockOut | LetIn | Prepare | Elect) else ""
        server = self._view.servers.get(at)
        if server is None:
            return
        match act:
            case LockOut(user=user):
                self._done.add((at, server.run_id, user))
            case LetIn(user=user):
                self._done.discard((at, server.run_id, user))
            case Prepare():
                self._done.add((at, server.run_id, ""))
            case Elect():
                self._done.discard((at, server.run_id, ""))
                self.absences.stays(at)
            case _:
                pass

    # --- Who is there ----------------------------------------------------------------------------

    def leaving(self) -> set[str]:
        """Those that were away for too long and are still counted."""
        return self.members() & self.absences.away()

    def staying(self) -> set[str]:
        """The primary, and whom R counts when those that are leaving have left."""
        return (self.members() - self.leaving()) | {self._view.primary}

    def _kept(self) -> list[str]:
        """Replicas that are counted, follow the primary, and answer."""
        view = self._view
        online = {one.place for one in view.servers[view.primary].followers if one.is_online}
        return sorted(online & self.members() & set(view.servers))

    def _could_be(self) -> set[str]:
        """Who of those that are counted may be elected, as far as is known."""
        barred = {one.place for one in self._view.servers.values() if not one.is_electable}
        return self.members() - barred

    # --- R is never below what could be elected --------------------------------------------------

    def _raise(self, primary: Server) -> list[Act]:
        view = self._view
        known = {place for sentinel in view.sentinels.values() for place in sentinel.replicas}
        could = (known | attached_to(view)) - view.out - {view.primary}
        if len(could) > view.replicas:
            self.says.append(f"{len(could)} replicas could be elected, and R is {view.replicas}")
            return [self._count(len(could), view.out)]
        if len(self.members()) < view.replicas:
            self.says.append(
                f"R is {view.replicas}, and only {len(self.members())} replicas were ever seen: "
                "when there are no others, say `tocsin admin set-replicas`"
            )
        return []

    def _count(self, replicas: int, out: Iterable[str]) -> Count:
        view = self._view
        return Count(view.replicas, view.out, replicas, frozenset(out))

    # --- Taking out ------------------------------------------------------------------------------

    def _take_out(self, primary: Server) -> list[Act]:
        view, leaving = self._view, self.leaving()
        if not leaving:
            return []
        why = self._why_not(leaving)
        if why:  # those that are back meanwhile may as well come in
            self.says.append(f"{listed(leaving)} cannot be taken out: {why}")
            return self._let_in_at(self.staying(), leaving & set(view.servers))
        locks = self._locks(self.staying(), leaving)
        if locks:
            return locks
        knowing = self._knowing(leaving)
        if knowing:
            return self._reset(knowing)
        counted = len(self.members())
        lower = view.replicas - len(leaving)
        if view.replicas < counted:  # an operator has lowered it already
            lower = min(view.replicas, counted - len(leaving))
        return [self._count(lower, view.out | leaving)]

    def _why_not(self, some: set[str]) -> str:
        """Why these cannot be taken out now; "": they can."""
        view = self._view
        for place in sorted(some):
            user = view.users.get(place, "")
            if not user:
                return f"nobody knows as which user {place} follows (masteruser)"
            if sum(user == other for other in view.users.values()) > 1:
                return f"{place} is the user {user}, and so is another server"
        unheard = sorted(self.staying() - set(view.servers))
        if unheard:
            return "; ".join(f"{one}: {view.silent.get(one, 'no reply')}" for one in unheard)
        return self._why_no_reset()

    def _why_no_reset(self) -> str:
        """Why Sentinels cannot be told to forget anybody; "": they can."""
        view = self._view
        for place in sorted(view.guards):
            sentinel = view.sentinels.get(place)
            if sentinel is None:
                return f"the Sentinel {place}: {view.silent.get(place, 'no reply')}"
            if sentinel.primary != view.primary or not sentinel.is_calm:
                return f"the Sentinel {place} is not content with the primary {view.primary}"
            others = sentinel.others - view.guards
            if others:
                return f"the Sentinel {place} knows {listed(others)}, which the URL does not name"
        return ""

    def _locks(self, at: Iterable[str], out: Iterable[str], *, but: str = "") -> list[Act]:
        """What is still to be said so that these follow none of those, `but` one of them."""
        view = self._view
        servers = [view.servers[place] for place in sorted(at) if place in view.servers]
        return [
            LockOut(server.place, user)
            for server in servers
            for user in sorted(view.users[place] for place in out if place in view.users)
            if user and server.place != but
            and (
                user not in server.locked
                or (server.place, server.run_id, user) not in self._done
                or any(view.users.get(one.place) == user for one in server.followers)
            )
        ]  # fmt: skip

    def _knowing(self, some: set[str]) -> list[str]:
        """The Sentinels that know any of these."""
        return sorted(
            place for place, sentinel in self._view.sentinels.items() if sentinel.replicas & some
        )

    def _reset(self, knowing: list[str]) -> list[Act]:
        """One of them forgets, when every other one knows all replicas that are there: if the
        primary is lost in this moment, they replace it."""
        view, kept = self._view, set(self._kept())
        for place, sentinel in sorted(view.sentinels.items()):
            if place != knowing[0] and not kept <= sentinel.replicas:
                self.says.append(f"the Sentinel {place} learns anew who is there")
                return []
        return [Reset(knowing[0], frozenset(kept))]

    # --- Who is out stays out --------------------------------------------------------------------

    def _bar(self, primary: Server) -> list[Act]:
        """Whoever is out is locked out and forgotten, also where somebody or something has let it
        in; but where it gets what it has missed."""
        view = self._view
        acts: list[Act] = []
        for place in sorted(view.out):
            acts += self._locks(self.staying() - {place}, [place], but=self._host(place))
        if acts:
            return acts
        barred = {place for place in view.out if self._host(place) != view.primary}
        knowing = self._knowing(barred)
        why = self._why_no_reset() if knowing else ""
        if why:
            self.says.append(f"{listed(barred)} cannot be forgotten: {why}")
        elif knowing:
            return self._reset(knowing)
        return []

    # --- Letting in ------------------------------------------------------------------------------

    def _host(self, place: str) -> str:
        """Where one that is out gets what it has missed: a replica, or the primary where R is 0.
        "": nowhere now."""
        view = self._view
        server = view.servers.get(place)
        if server is None or (place, server.run_id, "") not in self._done:
            return ""
        if server.is_electable or self._why_not_let_in(place):
            return ""
        if view.replicas == 0:
            return view.primary
        kept = self._kept()
        return server.follows if server.follows in kept else next(iter(kept), "")

    def _why_not_let_in(self, place: str) -> str:
        view = self._view
        user = view.users.get(place, "")
        if not user or sum(user == other for other in view.users.values()) > 1:
            return f"it is no user of its own to those that it follows (masteruser: {user or '-'})"
        later_s = self.absences.later_s(place)
        if later_s > 0:
            return f"it was let in and never had everything: tried again in {later_s:.0f} s"
        asked = [sentinel.primary for sentinel in view.sentinels.values()]
        if any(named != view.primary for named in asked) or 2 * len(asked) < len(view.guards):
            return "the Sentinels do not agree who is primary"
        return ""

    def _let_in(self, primary: Server) -> list[Act]:
        """The next step of one that is out and has come back."""
        view = self._view
        for place in sorted(view.out & set(view.servers)):
            why = self._why_not_let_in(place)
            if why:
                self.says.append(f"{place} is out: {why}")
                continue
            server = view.servers[place]
            if server.is_electable or (place, server.run_id, "") not in self._done:
                return [Prepare(place)]
            acts = self._locks([place], view.out - {place})
            acts += self._let_in_at([place], self.staying())
            host = self._host(place)
            if not host:
                self.says.append(f"{place} is out: no replica is there that it could follow")
                continue
            acts += self._let_in_at([host], [place])
            if acts:
                return acts
            if server.follows != host:
                return [Follow(place, host)]
            why = self._why_not_whole(server)
            if why:
                self.says.append(f"{place} is out, and gets from {host} what it has missed: {why}")
                continue
            return [self._count(with_more(view, self.members(), 1), view.out - {place})]
        return []

    def _let_in_at(self, at: Iterable[str], some: Iterable[str]) -> list[Act]:
        """What is still to be said so that these may follow those."""
        view = self._view
        return [
            LetIn(place, user)
            for place in sorted(at)
            if place in view.servers
            for user in sorted(view.users[one] for one in some if one in view.users)
            if user in view.servers[place].locked
        ]

    # --- Electable again -------------------------------------------------------------------------

    def _admit(self, primary: Server) -> list[Act]:
        """Those that are counted may follow everybody; one that is not electable yet follows the
        primary, and is electable when it has all that was written before it was counted."""
        view = self._view
        away = self.absences.silent()
        there = {place for place in self.staying() if place not in away}
        acts: list[Act] = self._let_in_at(self.staying(), there)
        online = {one.place: one for one in primary.followers if one.is_online}
        for place in sorted(self.members() & set(view.servers)):
            server = view.servers[place]
            if server.is_electable:
                continue
            if server.follows != view.primary:
                acts.append(Follow(place, view.primary))
                continue
            why = "" if place in online else "it is not attached"
            why = why or self._why_not_whole(server)
            if not why and place not in self._counted:
                why = "it was counted just now"
            unaware = self._unaware(primary, self._could_be() - {place})
            if not why and unaware:
                why = f"{listed(unaware)} may not have heard that it is"
            if why:
                self.says.append(f"{place} is counted, and not electable yet: {why}")
            else:
                acts.append(Elect(place))
        if not primary.is_electable:
            acts.append(Elect(view.primary))
        return acts
