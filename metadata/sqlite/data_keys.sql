-- The catalog: the keys that payloads are sealed under, each wrapped by the master
-- key. Each stands here twice, so that one flipped bit does not cost all that was sealed under it.
-- value is the whole row as JSON.
CREATE TABLE data_keys (
    copy INTEGER NOT NULL,
    key_id BLOB NOT NULL,
    value BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (copy, key_id)
) WITHOUT ROWID;
