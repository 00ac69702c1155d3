-- Schema version 4: scheduled messages wait in a table of their own until they are due.

-- The number that the next one gets; the number below which a purge has dropped all of them; how
-- many wait, and their bytes. The checksum of a row with four zeros is as in version 3.
ALTER TABLE partition ADD COLUMN due_next INTEGER NOT NULL DEFAULT 0;
ALTER TABLE partition ADD COLUMN due_start INTEGER NOT NULL DEFAULT 0;
ALTER TABLE partition ADD COLUMN due_messages INTEGER NOT NULL DEFAULT 0;
ALTER TABLE partition ADD COLUMN due_bytes INTEGER NOT NULL DEFAULT 0;

-- id = partition << 40 | number. store = partition << 40 | due_start, as it was when the message
-- came: a purge leaves its rows behind under another one. They are garbage of the kind 'due', whose
-- id is the store after the purge: all rows of the partition below it. The small columns first:
-- neither a look at the order nor a deletion reads a payload. digest is NULL if there is no client
-- id.
CREATE TABLE due (
    id INTEGER PRIMARY KEY,
    store INTEGER NOT NULL,
    due_unix_ms INTEGER NOT NULL,
    version INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    key_hash INTEGER NOT NULL,
    id_hash INTEGER NOT NULL,
    digest BLOB,
    checksum INTEGER NOT NULL,
    header BLOB NOT NULL,
    payload BLOB NOT NULL
) STRICT;
-- SQLite puts the id behind the columns of each index.
CREATE INDEX due_in_order ON due (store, due_unix_ms);
CREATE INDEX due_by_key ON due (store, key_hash, due_unix_ms) WHERE key_hash != 0;
CREATE INDEX due_by_id ON due (store, id_hash, due_unix_ms) WHERE id_hash != 0;
CREATE INDEX due_by_digest ON due (store, digest) WHERE digest IS NOT NULL;

-- Scheduled messages that failed their checksum, kept as records are in quarantine. Damage may have
-- given any value another type.
CREATE TABLE due_quarantine (
    id INTEGER PRIMARY KEY,
    store ANY,
    due_unix_ms ANY,
    version ANY,
    bytes ANY,
    key_hash ANY,
    id_hash ANY,
    digest ANY,
    checksum ANY,
    header ANY,
    payload ANY,
    found_unix_ms INTEGER NOT NULL,
    reason TEXT NOT NULL
) STRICT;
