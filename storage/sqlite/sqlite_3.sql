-- Schema version 3: what goes to the dead letters is decided before it is moved.

-- Per cursor, what is to be moved and is not known to have arrived, as push.dead writes it.
CREATE TABLE dead (
    cursor INTEGER PRIMARY KEY,
    ranges TEXT NOT NULL,
    checksum INTEGER NOT NULL
) STRICT;
