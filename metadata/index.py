"""The catalog in memory: every look-up is a dictionary's, however many queues there are."""

from collections.abc import Iterable

from metadata.catalog import Group, Queue


class CatalogIndex:
    """Queues by tenant and name and by id, groups by queue and name and by id."""

    def __init__(self, queues: Iterable[Queue] = (), groups: Iterable[Group] = ()) -> None:
        self._by_id: dict[str, Queue] = {}
        self._tenants: dict[str, dict[str, Queue]] = {}
        self._groups: dict[str, dict[str, Group]] = {}
        self._group_by_id: dict[str, Group] = {}
        for queue in queues:
            self.put_queue(queue)
        for group in groups:
            self.put_group(group)

    def __len__(self) -> int:
        """Number of queues, of all tenants."""
        return len(self._by_id)

    def queue(self, queue_id: str) -> Queue | None:
        """By id."""
        return self._by_id.get(queue_id)

    def find_queue(self, tenant: str, name: str) -> Queue | None:
        """By name, which means something within a tenant only."""
        return self._tenants.get(tenant, {}).get(name)

    def queues(self, tenant: str) -> list[Queue]:
        """A tenant's, by name."""
        return [queue for _, queue in sorted(self._tenants.get(tenant, {}).items())]

    def all_queues(self) -> list[Queue]:
        """Of all tenants, in no order."""
        return list(self._by_id.values())

    def group(self, group_id: str) -> Group | None:
        """By id."""
        return self._group_by_id.get(group_id)

    def find_group(self, queue_id: str, name: str) -> Group | None:
        """By name."""
        return self._groups.get(queue_id, {}).get(name)

    def groups(self, queue_id: str) -> list[Group]:
        """A queue's, by name."""
        return [group for _, group in sorted(self._groups.get(queue_id, {}).items())]

    def put_queue(self, queue: Queue) -> None:
        """Add it, or put it in place of what has its id."""
        self._by_id[queue.queue_id] = queue
        self._tenants.setdefault(queue.tenant, {})[queue.name] = queue

    def put_group(self, group: Group) -> None:
        """Add it, or put it in place of what has its id."""
        self._group_by_id[group.group_id] = group
        self._groups.setdefault(group.queue_id, {})[group.name] = group

    def remove_queue(self, queue: Queue) -> list[Group]:
        """Take it out with its groups, which are returned."""
        groups = self.groups(queue.queue_id)
        for group in groups:
            self.remove_group(group)
        del self._by_id[queue.queue_id]
        tenant = self._tenants[queue.tenant]
        del tenant[queue.name]
        if not tenant:
            del self._tenants[queue.tenant]
        return groups

    def remove_group(self, group: Group) -> None:
        """Take it out."""
        del self._group_by_id[group.group_id]
        groups = self._groups[group.queue_id]
        del groups[group.name]
        if not groups:
            del self._groups[group.queue_id]
