"""Retrieval by contextual intent (STITCH): what was going on when something was said, as an index."""
