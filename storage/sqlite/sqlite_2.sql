-- Schema version 2: what a late ack, and an operator who looks at what was parked, are told.

-- What the last nack that said so gave as its reason, sealed as payloads are; NULL: none did. And
-- whether its consumer said that no further attempt can help.
ALTER TABLE retry ADD COLUMN reason BLOB;
ALTER TABLE retry ADD COLUMN rejected INTEGER NOT NULL DEFAULT 0;

-- Per cursor, what was given out and then settled by no ack (R21), as ranges.
CREATE TABLE ended (
    cursor INTEGER PRIMARY KEY,
    ranges BLOB NOT NULL,
    checksum INTEGER NOT NULL
) STRICT;
