"""Everything that can be checked before a GPU is touched."""
