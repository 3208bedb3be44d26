"""Pure functions over memory texts and dialogues: words, sources, recalled text, splitting."""
