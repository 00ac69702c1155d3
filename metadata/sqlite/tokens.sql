-- The catalog, schema version 4: API tokens, and certificates that stand for one. value is the
-- whole record as JSON; it holds the SHA-256 of the token and nothing that admits anybody.
CREATE TABLE tokens (
    token_id TEXT PRIMARY KEY,
    value BLOB NOT NULL,
    checksum INTEGER NOT NULL
) WITHOUT ROWID;
