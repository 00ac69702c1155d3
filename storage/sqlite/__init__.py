"""The embedded store: one SQLite file in a data folder."""
