-- The catalog of a metadata service's one node, schema version 1. Statements end in ";" at the end
-- of a line. A value begins with a CRC-32 of its place and content (R30); kind 'state' has one row.
CREATE TABLE rows (
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (kind, id)
) WITHOUT ROWID;

-- The last changes: which rows each has written, as JSON, so that who has followed until then reads
-- those alone.
CREATE TABLE changes (
    version INTEGER PRIMARY KEY,
    stamp TEXT NOT NULL,
    rows BLOB NOT NULL
);
