-- The catalog, schema version 1. Statements end in ";" at the end of a line.

-- What there is one of: boot (raised at each start, R14), root_secret, and marks ("mark:<name>").
CREATE TABLE facts (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL,
    checksum INTEGER NOT NULL
) WITHOUT ROWID;

-- Every id that was ever given, so that none is given twice (R1).
-- state: 0 in use; 1 deleted here, perhaps not yet in the storage; 2 deleted there too.
CREATE TABLE ids (
    id TEXT PRIMARY KEY,
    queue_id TEXT NOT NULL,
    state INTEGER NOT NULL DEFAULT 0 CHECK (state IN (0, 1, 2))
) WITHOUT ROWID;

CREATE INDEX ids_to_drop ON ids (state) WHERE state = 1;

-- value is the whole queue as JSON; the columns beside it are there to be unique. Every checksum is
-- the CRC-32 of its value (R30).
CREATE TABLE queues (
    queue_id TEXT PRIMARY KEY REFERENCES ids (id),
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    value BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    UNIQUE (tenant, name)
);

CREATE TABLE groups (
    group_id TEXT PRIMARY KEY REFERENCES ids (id),
    queue_id TEXT NOT NULL REFERENCES queues (queue_id),
    name TEXT NOT NULL,
    value BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    UNIQUE (queue_id, name)
);
