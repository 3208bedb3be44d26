"""The journal: the append-only entries of every owner in one SQLite file. The truth that banks are derived from."""
