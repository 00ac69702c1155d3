"""Messages out: groups, owned partitions, consumers, readers, pulls, cursor writes."""
