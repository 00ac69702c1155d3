-- Schema version 2: what a late ack, and an operator who looks at what was parked, are told.

-- What the last nack that said so gave as its reason; empty: none did.
ALTER TABLE retry ADD COLUMN reason TEXT NOT NULL DEFAULT '';

-- Per cursor, what was given out and then settled by no ack (R21), as ranges.
CREATE TABLE ended (
    cursor INTEGER PRIMARY KEY,
    ranges BLOB NOT NULL,
    checksum INTEGER NOT NULL
) STRICT;
