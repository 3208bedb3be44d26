"""Where a person's memory state lives and is searched. A bank is always bound to one owner.

Nothing is imported here: reading a journal must not wait for numpy or Chroma.
"""
