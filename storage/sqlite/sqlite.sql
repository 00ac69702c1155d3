-- The embedded store, schema version 1. Later versions are steps in sqlite_open.py.
--
-- Every row has a checksum over its other columns (R30). Rows that belong to a partition or a
-- cursor name it by its row number, which is not given again before all of them are gone.

CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- One ordered log. next_offset is durable by itself (R2).
CREATE TABLE partition (
    id INTEGER PRIMARY KEY,
    queue_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    start INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    acts INTEGER NOT NULL,
    sealed_at INTEGER,
    successors TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    UNIQUE (queue_id, number)
) STRICT;

-- id = partition << 40 | first offset. The small columns first: trimming reads no payload.
CREATE TABLE record (
    id INTEGER PRIMARY KEY,
    count INTEGER NOT NULL,
    published_unix_ms INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    skips BLOB,
    header BLOB NOT NULL,
    payload BLOB NOT NULL
) STRICT;

-- Records that failed their checksum, kept for whoever wants to salvage them.
CREATE TABLE quarantine (
    id INTEGER PRIMARY KEY,
    count INTEGER NOT NULL,
    found_unix_ms INTEGER NOT NULL,
    reason TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    skips BLOB,
    header BLOB NOT NULL,
    payload BLOB NOT NULL
) STRICT;

-- What a partition knows of a producer (R6): sequences and offsets, 8 bytes each, columns.
CREATE TABLE producer (
    id INTEGER PRIMARY KEY,
    partition INTEGER NOT NULL,
    producer BLOB NOT NULL,
    bucket INTEGER NOT NULL,
    resolved INTEGER NOT NULL,
    top INTEGER NOT NULL,
    sequences BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    UNIQUE (partition, producer)
) STRICT;
CREATE INDEX producer_bucket ON producer (bucket);

-- Client ids (R8). Ordered by time, so that new ones go to one place and old ones leave together.
CREATE TABLE client_id (
    partition INTEGER NOT NULL,
    until_unix_ms INTEGER NOT NULL,
    digest BLOB NOT NULL,
    place INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (partition, until_unix_ms, digest)
) STRICT, WITHOUT ROWID;

-- What a group has passed: the row as of its last full writing, and in cursor_log what was passed
-- since. A cursor with thousands of holes is not written in full with every settlement.
CREATE TABLE cursor (
    id INTEGER PRIMARY KEY,
    group_id TEXT NOT NULL,
    partition INTEGER NOT NULL,
    version INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    token BLOB NOT NULL,
    assignment INTEGER NOT NULL,
    floor INTEGER NOT NULL,
    passed BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    UNIQUE (partition, group_id)
) STRICT;

CREATE TABLE cursor_log (
    cursor INTEGER NOT NULL,
    number INTEGER NOT NULL,
    passed BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (cursor, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE retry (
    cursor INTEGER NOT NULL,
    place INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    due_unix_ms INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (cursor, place)
) STRICT, WITHOUT ROWID;

-- Side lines (R18): which offsets stand in one, and by key; side_line has each one's length.
CREATE TABLE side (
    cursor INTEGER NOT NULL,
    place INTEGER NOT NULL,
    key_hash INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (cursor, place)
) STRICT, WITHOUT ROWID;
CREATE INDEX side_by_key ON side (cursor, key_hash, place);

CREATE TABLE side_line (
    cursor INTEGER NOT NULL,
    key_hash INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (cursor, key_hash)
) STRICT, WITHOUT ROWID;

CREATE TABLE parked (
    cursor INTEGER NOT NULL,
    key_hash INTEGER NOT NULL,
    reason TEXT NOT NULL,
    since_unix_ms INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (cursor, key_hash)
) STRICT, WITHOUT ROWID;

-- Partitions and cursors that are gone for everybody, and whose rows leave in slices (R31).
CREATE TABLE garbage (
    kind TEXT NOT NULL,
    id INTEGER NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;
