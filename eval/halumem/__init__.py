"""HaluMem: what a memory extracts, how it is updated, and what is answered from it, session by session."""
