"""The replicas of a Cluster's shard that could be elected, and how that set changes (R28). Pure.

In a Cluster no replica is elected that the other nodes do not know, because they ignore its request
for votes. So what Sentinels forget elsewhere (`services.manager.rules.election`), the nodes forget
here. All of them do so at once, because a node that still knows it tells the others after a minute.
A replica that is away is taken out in this order:

    1. every node of the Cluster that is left forgets it
    2. R is lowered, and the shard says that it is `out`, in one act on every copy

When it is back, it goes on following its primary by itself, and is then

    1. counted at once: R is raised, and publishing at `all` waits until it has everything
    2. known again, so that it may be elected. It must first have all that was written before it was
       counted, those of its shard that could be elected must know that it is counted, and it must
       have forgotten the nodes that others have forgotten

The rule does not use how long a replica was cut off (cluster-replica-validity-factor). A replica
that was frozen, machine and all, does not know how long that was, and would be elected.
"""

from collections.abc import Sequence

from push.replicas import Forget, Meet, RecordReplicas, ReplicaAct, ShardServer
from services.manager.rules.election import ShardRule, Step, attached_to, with_more


# enforces: R28
class ClusterElectable(ShardRule):
    """The rule of a shard of a Cluster."""

    def _steps(self) -> Sequence[Step]:
        return self._count_in, self._take_out, self._bar, self._meet

    def did(self, act: ReplicaAct) -> None:
        """Note of `Meet` that the replica has everything; no other act has to be remembered."""
        if isinstance(act, Meet):
            self.absences.stays(act.place)

    def leaving(self) -> set[str]:
        """Return the replicas to exclude: those that the shard's R still counts, and that were away
        for too long. A replica that is attached to the primary, in whatever state, is not one of
        them, because the next look would count it again."""
        return (self.members() & self.absences.away()) - attached_to(self._view)

    def _count_in(self, primary: ShardServer) -> list[ReplicaAct]:
        """Raise R and shorten `out`, so that every replica that is attached to the primary is
        counted."""
        view = self._view
        attached = attached_to(view)
        back = attached & view.out
        replicas = max(with_more(view, self.members(), len(back)), len(attached))
        if back or replicas > view.replicas:
            return [RecordReplicas(view.replicas, view.out, replicas, view.out - back)]
        return []

    def _take_out(self, primary: ShardServer) -> list[ReplicaAct]:
        view, leaving = self._view, self.leaving()
        if not leaving:
            return []
        gone = {view.users[place] for place in leaving if place in view.users}
        if len(gone) < len(leaving):
            self.says.append(f"{', '.join(sorted(leaving))} cannot be taken out: it has no id")
            return []
        others = {place for node_id, place in view.places.items() if node_id not in gone}
        forget: list[ReplicaAct] = [
            Forget(place, node_id)
            for place in sorted(others & set(view.knows))
            for node_id in sorted(view.knows[place] & gone)
        ]
        if forget:
            return forget
        unheard = sorted(others - set(view.knows))
        if unheard:
            self.says.append(
                f"{', '.join(sorted(leaving))} cannot be taken out, because these may know it: "
                + "; ".join(f"{one}: {view.silent.get(one, 'no reply')}" for one in unheard)
            )
            return []
        lower = max(view.replicas - len(leaving), len(self.members()) - len(leaving))
        return [
            RecordReplicas(view.replicas, view.out, min(lower, view.replicas), view.out | leaving)
        ]

    def _bar(self, primary: ShardServer) -> list[ReplicaAct]:
        """Make every node that knows a replica that is out forget it. A node that was away at the
        time, and is back, may know it still, and would tell the others."""
        view = self._view
        out = {view.users[place]: place for place in view.out if place in view.users}
        return [
            Forget(at, node_id)
            for at, known in sorted(view.knows.items())
            for node_id in sorted(known & set(out))
            if out[node_id] != at
        ]

    def _meet(self, primary: ShardServer) -> list[ReplicaAct]:
        """Make replicas known again that are counted, whole, and not known to their primary. The
        other nodes learn of it from the primary, a minute after they have forgotten it."""
        view = self._view
        online = {one.place for one in primary.followers if one.is_online}
        acts: list[ReplicaAct] = []
        for place in sorted(self.members() & set(view.servers)):
            node_id = view.users.get(place, "")
            if node_id in view.knows.get(view.primary, frozenset()):
                knowing = sum(node_id in known for known in view.knows.values())
                if knowing < len(view.knows):
                    self.says.append(
                        f"{place} is so far known to {knowing} of {len(view.knows)} nodes"
                    )
                continue
            why = "" if place in online else "it is not attached"
            if not why and place not in self._counted:
                why = "it was counted just now"
            why = why or self._why_not_whole(view.servers[place])
            unaware = self._unaware(primary, self._could_be() - {place})
            if not why and unaware:
                why = f"{', '.join(sorted(unaware))} may not have heard that it is"
            if why:
                self.says.append(f"{place} is counted, but could not be elected yet: {why}")
            else:
                acts += self._stale(place) or [Meet(view.primary, place)]
        return acts

    def _could_be(self) -> set[str]:
        """Return the counted replicas that the primary knows."""
        known = self._view.knows.get(self._view.primary, frozenset())
        return {place for place in self.members() if self._view.users.get(place) in known}

    def _stale(self, place: str) -> list[ReplicaAct]:
        """Make a replica forget nodes that its primary does not know, before it is known again
        itself. These were forgotten, perhaps in another shard, while this replica was out of reach.
        It would tell the others of them."""
        knows, own = self._view.knows, self._view.users.get(place)
        known = knows.get(place, frozenset()) - knows.get(self._view.primary, frozenset())
        return [Forget(place, node_id) for node_id in sorted(known - {own})]
