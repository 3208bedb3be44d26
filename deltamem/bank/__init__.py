"""Holds and searches a person's memory state. A bank is always bound to one owner.

Nothing is imported here: reading a journal must not wait for numpy or Chroma.
"""
