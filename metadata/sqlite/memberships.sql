-- The catalog, schema version 2: the memberships of groups some of whose members wish to be waited
-- for when the gateway is gone (R22). value is the whole row as JSON.
CREATE TABLE memberships (
    group_id TEXT PRIMARY KEY REFERENCES groups (group_id) ON DELETE CASCADE,
    value BLOB NOT NULL,
    checksum INTEGER NOT NULL
) WITHOUT ROWID;
