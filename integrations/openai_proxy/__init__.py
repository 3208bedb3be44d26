"""A proxy for chat completions that recalls before a request and remembers what was said."""
